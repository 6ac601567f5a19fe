"""`residency demo`: the main job on the bundled traces."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import JsonOpt, caution, number, percent, say, show, table, write_json


@app.command()
def demo(
    passes: Annotated[int | None, typer.Option(min=2, help="Only the first so many passes of each trace.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = min(2, os.cpu_count() or 1),
    json: JsonOpt = None,
) -> None:
    """Policies on three machines over a bundled synthetic trace and two recorded ones, ranked by time."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.runs.basis import Basis
    from expert_residency.sim.studies.demo import SHOWN, SYNTHETIC, demo_specs, demo_trace, run_demo
    from expert_residency.sim.timed.binding import binding_sentence

    specs = demo_specs(passes)
    with Progress(
        TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TextColumn("runs"), TimeElapsedColumn(),
        transient=True, disable=str(json) == "-",
    ) as bar:  # fmt: skip
        task = bar.add_task("demo", total=len(specs))
        runs = run_demo(specs, passes, workers, lambda done: bar.update(task, completed=done))
    data = []
    for name, machine in SHOWN:
        here = {run.policy: run for run in runs if (run.trace, run.machine) == (name, machine)}
        geometry, basis = demo_trace(name, passes).geometry, Basis.of(demo_trace(name, passes))
        base_ns, bound_ns = here["lru"].result.decode_ns, here["lru"].bound_ns
        where: dict[str, Any] = {"trace": name, "machine": machine, "basis": vars(basis)}
        room = here["lru"].capacity_bytes
        gib = room / 2**30
        slots = room // max(geometry.expert_bytes)
        shown = table(
            f"{name}, {'synthetic' if name == SYNTHETIC else 'recorded'}: {load_profile(machine).summary}\n"
            f"{gib:.2f} GiB for experts, about {slots:,} of {geometry.n_experts:,}; over {basis.words}",
            [
                "policy",
                "tokens/s",
                "ms a token",
                "VRAM hits %",
                "link %",
                "CPU %",
                "in flight %",
                ("headroom captured %", "headroom %"),
            ],
        )
        ranked = sorted(here.values(), key=lambda run: run.result.decode_ns)
        for run in ranked:
            result = run.result
            shares = result.shares("decode")
            cpu = sum(share or 0.0 for tier, share in shares.items() if tier.startswith("cpu"))
            gain = (base_ns - result.decode_ns) / (base_ns - bound_ns) if base_ns > bound_ns else None
            shown.add_row(
                run.policy + (" *" if run.sees_future else ""),
                number(result.tokens_per_s),
                number(result.ms_per_token),
                percent(shares["vram"], 1),
                percent(shares["pcie"], 1),
                percent(cpu, 1),
                percent(shares["in_flight"], 1),
                percent(gain, 0),
            )
            own = {"policy": run.policy, "headroom_captured": gain, "bound_ns": bound_ns}
            data.append(where | own | result.to_dict())
        tokens = here["lru"].result.decode_tokens
        shown.add_row("bound on any schedule", number(tokens * 1e9 / bound_ns), number(bound_ns / tokens / 1e6))
        show(shown)
        first = next(run for run in ranked if not run.sees_future)
        say(f"Of those that do not see the future, {first.policy} is fastest. {binding_sentence(first.result)}\n")
    say(
        f"* sees the future. {SYNTHETIC} was generated to look like published statistics of Qwen3.8-Flash-Next;\n"
        "the tinymoe traces were recorded from a small model trained for them, with room for a quarter of its "
        "experts.\nHeadroom captured: 0 for lru, 100 for the bound: no schedule is faster, whatever it knows, "
        "with the link and\nthe CPU sharing what the card cannot hold. Perfect look-ahead sees one token and "
        "copies all that misses."
    )
    caution(list(dict.fromkeys(caveat for run in runs for caveat in run.result.caveats)))
    if json is not None:
        write_json(json, data)
