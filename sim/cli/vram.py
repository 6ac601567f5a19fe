"""`residency vram`: where a card's memory goes, line by line, and what the host has left."""

from __future__ import annotations

from typing import Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import option, takes_cache_types
from expert_residency.sim.cli.common import MODEL_FORMS, JsonOpt, caution, number, say, show, table, write_json
from expert_residency.sim.cli.trust import show_trust, trust_of


@app.command()
@takes_cache_types
def vram(
    model: Annotated[str, typer.Option(help=f"Model: {MODEL_FORMS}.")],
    hardware: Annotated[
        str, typer.Option(help="Profile, NAME or FILE.toml, or parts, CARD:cpu=NAME,ram=64GB,link=4.0x8.")
    ],
    context: Annotated[
        int, typer.Option("--context", "-c", "--ctx-size", min=1, help="Tokens that the context can hold.")
    ] = 4096,
    engine: Annotated[str, typer.Option(help="Engine preset: whose KV type it is.")] = "generic",
    kv_type: Annotated[str | None, option("kv_type", default="the engine's, or fp16", also=("--kv",))] = None,
    kv_resident: Annotated[int, typer.Option(min=0, help="Cells a layer kept on the card; 0: all.")] = 0,
    draft: Annotated[bool, typer.Option(help="With the draft layer and its head.")] = True,
    session: Annotated[
        str | None, typer.Option(help="Size of the context, where the model's file does not say.")
    ] = None,
    reserve: Annotated[str | None, typer.Option(help="Kept free, instead of the profile's reserve.")] = None,
    host: Annotated[
        str, typer.Option(help="How the host holds the experts: arena, mmap, budget:gib=N, ...")
    ] = "arena",
    json: JsonOpt = None,
) -> None:
    """Expert slots that a card has left beside model and context, and what the host has for experts and pages."""
    from expert_residency.errors import HardwareError, MisfitError
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.hwmodels.units import GIB, MIB, parse_size
    from expert_residency.hwmodels.vram import slot_bytes
    from expert_residency.sim.choices.caveats import caveats, texts
    from expert_residency.sim.choices.preset import load_engine
    from expert_residency.sim.choices.vram import card_budget, ram_budget
    from expert_residency.sim.timed.host import plan_host
    from expert_residency.traces import load_model

    geometry, profile = load_model(model), load_profile(hardware)
    kv_type = kv_type or load_engine(engine).kv_type
    budget = card_budget(
        geometry, profile, context=context, kv_type=kv_type, kv_resident=kv_resident, draft=draft,
        session_bytes=parse_size(session) if session else None,
        reserve_bytes=parse_size(reserve) if reserve else None,
    )  # fmt: skip
    slots = budget.slots([size for size in geometry.expert_bytes for _ in range(geometry.experts)])
    try:
        plan = plan_host(geometry, profile, host, on_card=range(slots))
        ram = ram_budget(
            geometry, profile, held_bytes=plan.pinned_bytes + plan.pageable_bytes, pin=plan.pinned_bytes > 0,
            context=context if session is None else 0, kv_type=kv_type, kv_resident=kv_resident,
        )  # fmt: skip
        memory = {line.name: line.nbytes for line in ram.lines} | {"left for the page cache": ram.page_cache_bytes}
        misfit = None
    except (MisfitError, HardwareError) as error:
        memory, misfit = {}, str(error)
    if not profile.has_card:
        memory, misfit = {}, None  # the one memory is above
    behind = trust_of(geometry.label, [hardware], engine)
    found = caveats(None, geometry, (profile,), context_counted=True)
    if json is not None:
        lines = [{"line": line.name, "bytes": line.nbytes, "source": line.source} for line in budget.lines]
        write_json(
            json,
            {
                "model": geometry.label,
                "hardware": profile.name,
                "kv": kv_type,
                "usable_bytes": budget.usable_bytes,
                "lines": lines,
            }
            | {"cache_bytes": budget.cache_bytes, "slots": slots, "experts": geometry.n_experts}
            | {
                "slot_bytes": slot_bytes(max(geometry.expert_bytes)),
                "host": host,
                "host_bytes": memory,
                "host_misfit": misfit,
                "caveats": texts(found),
                "trust": behind.to_dict(),
            },
        )
        if str(json) == "-":
            return
    shown = table(f"{geometry.label} on {profile.name}, context {context:,} ({kv_type} KV)", ["line", "MiB"])
    shown.add_row("usable" if profile.has_card else "usable memory, no card", number(budget.usable_bytes / MIB, 1))
    for line in budget.lines:
        shown.add_row(line.name, number(-line.nbytes / MIB, 1))
    shown.add_row("left for experts", number(budget.cache_bytes / MIB, 1))
    shown.add_row("slots" if profile.has_card else "experts that fit", f"{slots:,} of {geometry.n_experts:,}")
    shown.add_row(
        "one more slot takes" if profile.has_card else "one more expert takes",
        number(slot_bytes(max(geometry.expert_bytes)) / MIB),
    )
    show(shown)
    if misfit is not None:
        say(f"host {host}: {misfit}")
    elif memory:
        held = table(f"host {host}", ["memory", "GiB"])
        for name, nbytes in memory.items():
            held.add_row(name, number(nbytes / GIB))
        show(held)
    show_trust(behind)
    caution(texts(found))
