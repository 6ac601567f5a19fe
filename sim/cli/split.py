"""`residency split`: which cards run which layers, what fits where, and how fast that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.errors import SimError
from expert_residency.sim.choices.trace import routing_of
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import option, takes_cache_types
from expert_residency.sim.cli.common import (
    MODEL_FORMS,
    FormatOpt,
    JsonOpt,
    caution,
    given,
    number,
    percent,
    picture,
    say,
    say_cliffs,
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.terms import show_terms
from expert_residency.sim.cli.trust import show_trust
from expert_residency.text import check_known

if TYPE_CHECKING:
    from expert_residency.hwmodels.profile import HardwareProfile
    from expert_residency.sim.choices.cliffs import Cliff
    from expert_residency.sim.choices.longest import Longest
    from expert_residency.sim.choices.preset import EnginePreset
    from expert_residency.sim.split.study import Answer, Question, SplitStudy
    from expert_residency.sim.validation.nearest import Trust
    from expert_residency.traces import RoutingTrace

DEFAULT_ENGINE = "llama.cpp"
OF_A_CONTEXT = {"context", "kv_type", "cache_type_k", "cache_type_v", "kv_resident", "draft"}
RULES = ("n_cpu_moe", "cpu_moe", "override_tensor", "tensor_split", "gpu_layers")
"""Options that say a placement of llama.cpp's, instead of asking for one."""
CPU_MOE = r"\.ffn_(up|down|gate)_(ch|)exps=CPU"
"""What llama.cpp makes of --cpu-moe."""
OF_LAYERS = (*RULES, "split_mode")
OF_EXPERTS = ("miss", "store", "simulate", "carve", "plot", "kv_resident")
"""Options of engines that keep single experts on a card."""


@app.command()
@takes_cache_types
def split(
    run: typer.Context,
    model: Annotated[str, typer.Option("--model", help=f"Model: {MODEL_FORMS}.")],
    gpu: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            help="Machine profile, or a card (residency list gpus), or none; several as 3x p40, joined by +, or "
            "repeated.",
        ),
    ],
    quant: Annotated[
        list[str] | None,
        typer.Option("--quant", help="Quantization; repeat to compare. All of the model by default."),
    ] = None,
    count: Annotated[
        str | None, typer.Option("--count", help="How many cards: N or N..M. With one --gpu, copies of it.")
    ] = None,
    cpu: Annotated[
        str | None,
        typer.Option("--cpu", help="Processor, as ryzen-5-5600x, 2x-epyc-7763 or 24c (residency list cpus)."),
    ] = None,
    ram: Annotated[
        str | None, typer.Option("--ram", help="Host memory, as 64GB or 64GB@6000x2 (MT/s, channels).")
    ] = None,
    link: Annotated[
        str | None,
        typer.Option("--link", help="Link of each card, as 4.0x8; by default its own."),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help="Profile whose processor, memory and drive the cards share; the first --gpu by default.",
        ),
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", help="arena, mmap, resident or budget; repeat. All that the engine has by default."
        ),
    ] = None,
    headroom: Annotated[str, typer.Option(help="RAM kept free of experts.")] = "10GB",
    context: Annotated[
        int, typer.Option("--context", "-c", "--ctx-size", min=1, help="Tokens of context.")
    ] = 32_768,
    kv_type: Annotated[str | None, option("kv_type", default="the engine's, or fp16", also=("--kv",))] = None,
    kv_resident: Annotated[int, typer.Option(help="KV cells a layer kept on the card, 0 for all.")] = 0,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Bytes of the context on each card, where the model's file does not say."),
    ] = None,
    draft: Annotated[bool, typer.Option("--draft", help="With the draft layer on the last card.")] = False,
    carve: Annotated[bool, typer.Option("--carve", help="Dense weights only on the card that uses them.")] = False,
    rows: Annotated[float, typer.Option(help="Rows of a verify window; 1: plain decoding.")] = 1.0,
    emitted: Annotated[float, typer.Option(help="Tokens that a window emits.")] = 1.0,
    engine: Annotated[
        str,
        typer.Option(help="Engine preset, NAME or FILE.toml; all sets those that can be planned side by side."),
    ] = DEFAULT_ENGINE,
    miss: Annotated[
        str | None,
        typer.Option(
            help="Who serves a miss: cpu, fetch, hybrid, stream; the engine's by default, cpu for generic."
        ),
    ] = None,
    p2p: Annotated[bool, typer.Option("--p2p", help="Hand over peer to peer, not through host memory.")] = False,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Profile of one more card that only keeps experts for the others."),
    ] = None,
    trace: Annotated[
        str | None, typer.Option("--trace", help="Trace for the hit curve; by default a synthetic one.")
    ] = None,
    fmt: FormatOpt = None,
    simulate: Annotated[int, typer.Option(min=0, help="How many of the fastest are simulated.")] = 3,
    n_cpu_moe: Annotated[
        int | None,
        typer.Option(
            "--n-cpu-moe",
            "-ncmoe",
            min=0,
            help="Instead of planning: llama.cpp's rule, experts of the first N layers on the CPU.",
        ),
    ] = None,
    cpu_moe: Annotated[
        bool, typer.Option("--cpu-moe", "-cmoe", help="Instead of planning: the experts of all layers on the CPU.")
    ] = False,
    override_tensor: Annotated[
        list[str] | None,
        typer.Option("-ot", "--override-tensor", help="Instead of planning: llama.cpp's REGEX=DEVICE; repeat."),
    ] = None,
    tensor_split: Annotated[
        str | None,
        typer.Option(
            "-ts",
            "--tensor-split",
            help="Instead of planning: shares of the cards as llama.cpp divides layers and output; by their "
            "memory where only other rules are given.",
        ),
    ] = None,
    gpu_layers: Annotated[
        int | None,
        typer.Option("-ngl", "--n-gpu-layers", min=1, help="Instead of planning: layers on cards at all."),
    ] = None,
    split_mode: Annotated[
        str, typer.Option("-sm", "--split-mode", help="How cards share the work: layer. row is not priced.")
    ] = "layer",
    explain: Annotated[
        bool,
        typer.Option(help="Also derive the best answer's token, constant by constant, each with its source."),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Figure: tokens/s against layers on the first card.")
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Place a model on 1 to 4 cards and host memory: what fits, RAM needed, tokens/s, the best split and why."""
    from expert_residency.hwmodels.parts.compose import parse_memory
    from expert_residency.hwmodels.registry import check_cards, load_profile, with_parts
    from expert_residency.hwmodels.units import parse_size
    from expert_residency.sim.choices.preset import load_engine
    from expert_residency.sim.choices.spec import read_names
    from expert_residency.sim.cli.split_layers import show_engines, show_layers, show_rules
    from expert_residency.sim.split.memory import HOST_MODES, default_headroom
    from expert_residency.sim.split.study import Question, sets_of_cards
    from expert_residency.traces.windows import compose_windows

    for mode in host or []:
        check_known("host mode", mode, HOST_MODES)
    parts = with_parts(read_names("gpu", gpu), cpu=cpu, ram=ram, link=link)
    gpu, put_together = [name for name, _ in parts], dict(parts)
    memory = put_together.get(machine or gpu[0]) or load_profile(machine or gpu[0])
    preset = None if engine == "all" else load_engine(engine)
    by_rules = bool(given(run, among=RULES))
    _refuse(run, preset, by_rules, quant, host)
    name, quants = _quants(model, quant)
    cards = sets_of_cards(gpu, *_count(count))
    if by_rules and (len(cards) > 1 and len(gpu) == 1):
        raise SimError("rules are for one machine: give --count N, not a range")
    _alone(cards, put_together, by_rules=by_rules)
    layered = preset is not None and preset.places == "layers"
    question = Question(
        model=name,
        quants=quants[:1] if by_rules else quants,
        cards=(max(cards, key=len),) if by_rules else cards,
        host=machine or gpu[0],
        ram_bytes=None if ram is None or any(put_together.values()) else parse_memory(ram).nbytes,
        modes=tuple(m for m in HOST_MODES if not host or m in host),
        headroom_bytes=parse_size(headroom) if given(run, among=("headroom",)) else default_headroom(memory),
        context=context,
        kv_type=kv_type or (preset.kv_type if preset else ""),
        kv_resident=kv_resident,
        session_bytes=None if session is None else parse_size(session),
        draft=draft,
        carve=carve or layered,
        engine=engine,
        miss=(preset and miss_of(preset, miss)) or "",
        p2p=p2p,
        store=store,
        simulate=simulate,
    )
    profiles = {
        spec: put_together.get(spec) or load_profile(spec)
        for spec in {*gpu, question.host, *([store] if store else [])}
    }
    profiles |= {profile.name: profile for profile in list(profiles.values())}
    for names in question.cards:
        check_cards([profiles[one] for one in names])
    recorded = compose_windows(routing_of(name, trace, fmt, quant=quants[0]), rows, emitted)
    overrides = [*(override_tensor or []), *([CPU_MOE] if cpu_moe else [])]
    if preset is None:
        show_engines(question, recorded, profiles, json)
    elif by_rules:
        show_rules(
            question, recorded, profiles, json, overrides=overrides, n_cpu_moe=n_cpu_moe or 0,
            shares=tensor_split, ngl=gpu_layers, explain=explain,
        )  # fmt: skip
    elif layered:
        show_layers(question, recorded, profiles, json, explain=explain)
    else:
        _plan(question, recorded, profiles, plot, json, explain=explain)


def miss_of(preset: EnginePreset, miss: str | None) -> str:
    """Who serves a miss: as asked, or the engine's own; for none in particular the CPU."""
    return miss or ("cpu" if preset.name == "generic" else preset.miss)


def _refuse(
    run: typer.Context, preset: EnginePreset | None, by_rules: bool, quant: list[str] | None,
    host: list[str] | None,
) -> None:  # fmt: skip
    """What would do nothing, by name."""
    from expert_residency.sim.split.layers.study import MODES

    values = run.params
    if values["explain"] and preset is None:
        raise SimError("--explain with --engine all: terms are of one answer; name its engine")
    if values["split_mode"] != "layer":
        check_known("split mode", values["split_mode"], ("layer", "row"))
        raise SimError("--split-mode row: every tensor divided over all cards is not priced; layer is")
    layered = preset is not None and preset.places == "layers"
    if layered and (extra := given(run, among=OF_EXPERTS)):
        raise SimError(
            f"{', '.join(extra)} with --engine {values['engine']}: it places whole layers and tensors, which are "
            "computed where they lie; this is for engines that keep single experts on a card (--engine strata)"
        )
    if not layered and (extra := given(run, among=OF_LAYERS if preset else (*OF_LAYERS, *OF_EXPERTS))):
        of = "each engine has its own" if preset is None else "these are llama.cpp's options"
        raise SimError(f"{', '.join(extra)} with --engine {values['engine']}: {of} (--engine llama.cpp)")
    if layered and (other := [mode for mode in host or [] if mode not in MODES]):
        raise SimError(f"--host {other[0]} with --engine {values['engine']}: it has {' and '.join(MODES)}")
    if by_rules and max(len(quant or ()), len(host or ())) > 1:
        raise SimError("rules are for one quantization and host mode: --quant and --host are given at most once")
    if values["session"] is not None and (extra := given(run, among=OF_A_CONTEXT)):
        raise SimError(f"{', '.join(extra)} beside --session: this says what a context takes, --session gives it")
    if values["fmt"] is not None and values["trace"] is None:
        raise SimError("--format says how to read a file: give it with --trace")


def _alone(
    cards: Sequence[Sequence[str]], made: Mapping[str, HardwareProfile | None], *, by_rules: bool
) -> None:  # fmt: skip
    """Refuse a machine without a card among several cards, and rules that place something on a card of it."""
    bare = [name for name, profile in made.items() if profile is not None and not profile.has_card]
    if any(len(names) > 1 and set(bare) & set(names) for names in cards):
        raise SimError(f"{bare[0]} is a machine without a card, not one card of several: give --count 1")
    if by_rules and bare:
        raise SimError(
            f"{bare[0]} is a machine without a card: leave out -ngl, -ts, -ot, --cpu-moe and --n-cpu-moe"
        )


def _plan(
    question: Question, recorded: RoutingTrace, profiles: dict[str, HardwareProfile], plot: Path | None,
    json: Path | None, *, explain: bool,
) -> None:  # fmt: skip
    """An engine that keeps single experts on a card."""
    from expert_residency.sim.choices.caveats import cliff_caveats, texts
    from expert_residency.sim.split import report
    from expert_residency.sim.split.cliffs import answer_cliffs
    from expert_residency.sim.split.compare import forced, gain_sentence, speed_matters
    from expert_residency.sim.split.host import HostFacts
    from expert_residency.sim.split.longest import answer_longest
    from expert_residency.sim.split.study import study
    from expert_residency.sim.studies.explain_split import explain_plan

    found = study(question, recorded, profiles, lambda text: say(text, err=True))
    best = found.best
    data = report.to_dict(found)
    data["trace"] = {"sha256": recorded.content_hash, "synthetic": recorded.synthetic}
    data["speed_matters"] = {
        report.label(a.ordered): s for a in found.answers if a is best and (s := speed_matters(a, found.run))
    }
    data["next_card"] = gain_sentence(found)
    family = (best or found.answers[0]).geometry.quant_family
    host = HostFacts.of(profiles[question.host], family, question.ram_bytes, locked=True)
    data["host"] = host.to_dict()
    edges = [] if best is None else answer_cliffs(best, found)
    found.caveats += texts(cliff_caveats(edges))
    most = None if best is None else answer_longest(found, best)
    data |= {"cliffs": [edge.to_dict() for edge in edges], "caveats": found.caveats}
    data["largest_context"] = most and most.to_dict()
    if best is not None:
        data["trust"] = _behind(found, best, profiles).to_dict()
    terms = explain_plan(found, best) if explain and best is not None else []
    if terms:
        data["explain"] = [term.to_dict() for term in terms]
    if plot is not None:
        several = [a for a in found.answers if a.placement and len(a.placement.stages) > 1]
        chosen = best if best in several else max(several, key=lambda a: a.tokens_per_s, default=None)
        if chosen is None:
            raise SimError("a plot compares splits of several cards, and no machine of several cards fits")
        report.plot(
            plot, forced(chosen), f"{chosen.geometry.label}, {report.label(chosen.ordered)}, {chosen.mode}"
        )
    if json is not None:
        write_json(json, data)
        if str(json) == "-":
            return
    say(host.text)
    _show(found, recorded, profiles, edges, most)
    show_terms(terms)


def _count(text: str | None) -> tuple[int | None, int | None]:
    """(least, most) of `2` or `1..3`."""
    if text is None:
        return None, None
    low, _, high = text.partition("..")
    if not low.isdigit() or not (high or low).isdigit():
        raise SimError(f"--count {text}: expected a number of cards, or a range as 1..3")
    return int(low), int(high or low)


def _quants(model: str, asked: list[str] | None) -> tuple[str, tuple[str | None, ...]]:
    """Model name, and the quantizations to plan: those asked for, or all of a packaged model."""
    from expert_residency.traces import list_models
    from expert_residency.traces.geometry import name_and_quant

    name, tail = name_and_quant(model)
    if asked or tail:
        return name, tuple(asked or [tail])
    return name, tuple(list_models().get(name.lower(), [])) or (None,)


def _show(
    found: SplitStudy, trace: RoutingTrace, profiles: Mapping[str, HardwareProfile], edges: Sequence[Cliff],
    most: Longest | None,
) -> None:  # fmt: skip
    from expert_residency.sim.split import report
    from expert_residency.sim.split.compare import gain_sentence, room_sentence, speed_matters

    question, best = found.question, found.best
    out = table(
        f"{question.model}, {question.miss} misses, context {question.context:,} ({question.kv_type} KV), "
        f"headroom {report.in_gb(question.headroom_bytes)} GB; sizes are GB of experts",
        ["cards", "quant", "host", "layers", "VRAM", "RAM", "RAM needed", "hits %", "tok/s", "90 %", "by"],
        left=4, also_text=("by",),
    )  # fmt: skip
    for answer in found.answers:
        placement, ram = answer.placement, report.ram_bytes(answer)
        how = "simulated" if answer.simulated else "estimated" if placement else "does not fit"
        hit = answer.simulated.hit_rate if answer.simulated else placement.hit_rate if placement else None
        out.add_row(
            report.label(answer.ordered), answer.geometry.quant, answer.mode,
            "+".join(map(str, placement.layers_each)) if placement else "-",
            report.in_gb(report.vram_bytes(answer)), report.in_gb(ram and ram[0]), report.in_gb(ram and ram[1]),
            percent(hit, 1), number(answer.tokens_per_s, 1) if placement else "-",
            around.text if (around := found.interval_90(answer)) else "-", how,
            style="bold" if answer is best else None,
        )  # fmt: skip
    show(out)
    for answer in found.answers:
        if answer.limit:
            say(f"{report.label(answer.ordered)}, {answer.geometry.quant}, {answer.mode}: {answer.limit}.")
        if (room := room_sentence(answer, found.run)) is not None:
            say(f"{report.label(answer.ordered)}, {answer.geometry.quant}, {answer.mode}: {room}.")
    if best is not None:
        _show_best(found, best)
        say(_with_options(found, best))
        others = [answer for answer in found.one_card_fewer if answer.simulated]
        if others:
            say("With a card fewer:")
        for other in others:
            say(f"  {_with_options(found, other)}")
        others = [answer for answer in found.best_of_quants if answer.geometry != best.geometry]
        if others:
            say("The fastest of each other quantization:")
        for other in others:
            say(f"  {_with_options(found, other)}")
        for sentence in (gain_sentence(found), speed_matters(best, found.run)):
            if sentence:
                say(sentence)
    notes = [
        f"{report.label(a.ordered)}, {a.geometry.quant}, {a.mode}: {note}"
        for a in found.answers
        for note in a.notes
    ]
    if most is not None:
        say(most.text)
    say_cliffs(edges)
    if best is not None:
        show_trust(_behind(found, best, profiles))
    caution(found.caveats)
    warn(notes)


def _with_options(found: SplitStudy, answer: Answer) -> str:
    """A machine with its speed, and what the engine's user sets for it."""
    from expert_residency.sim.choices.preset import load_engine
    from expert_residency.sim.split import report
    from expert_residency.sim.split.options import placement_text

    assert answer.placement is not None
    how = "simulated" if answer.simulated else "estimated"
    speed = f"{answer.tokens_per_s:.1f} tok/s {how}"
    options = placement_text(answer.placement, load_engine(found.question.engine), found.question.miss)
    return f"{report.label(answer.ordered)}, {answer.geometry.quant}, {answer.mode}, {speed}: {options}"


def _behind(found: SplitStudy, best: Answer, profiles: Mapping[str, HardwareProfile]) -> Trust:
    """Measured runs near the best answer."""
    from expert_residency.sim.validation.nearest import trust

    return trust(best.geometry.label, [profiles[name] for name in best.ordered], found.question.engine)


def _show_best(found: SplitStudy, best: Answer) -> None:
    from expert_residency.sim.split import report
    from expert_residency.sim.split.compare import fill_seconds

    placement = best.placement
    assert placement is not None
    out = table(
        f"best: {report.label(best.ordered)}, {best.geometry.quant}, {best.mode}; GB",
        ["card", "layers", "slots", "dense", "session", "reserve", "other", "experts", "free", "ms"],
    )
    for name, stage in zip(best.ordered, placement.stages, strict=True):
        lines = {line.name: line.nbytes for line in stage.budget.lines}
        dense = sum(lines.get(name, 0) for name in ("dense weights", "layers without experts", "head"))
        reserve = sum(lines.get(name, 0) for name in ("reserve", "stage reserve"))
        draft = sum(nbytes for name, nbytes in lines.items() if name.startswith("draft"))
        session = stage.budget.taken_bytes - dense - reserve - draft
        out.add_row(
            name, str(stage.end - stage.first), f"{sum(stage.slots):,}", report.in_gb(dense),
            report.in_gb(session), report.in_gb(reserve), report.in_gb(draft), report.in_gb(stage.expert_bytes),
            report.in_gb(stage.budget.cache_bytes - stage.expert_bytes), number(stage.ns / 1e6),
        )  # fmt: skip
    show(out)
    handoffs = ", ".join(f"{ns / 1e3:.0f} us" for ns in placement.handoffs_ns) or "none"
    chunk = ", ".join(f"{ns / 1e6:.1f} ms" for ns in best.planner.handoffs_ns(placement, report.PREFILL_CHUNK))
    say(
        f"estimated pass {placement.pass_ns / 1e6:.2f} ms for {placement.tokens_a_pass:.2f} tokens "
        f"({placement.tokens_per_s:.1f} tok/s); hand-offs {handoffs}"
        + (f", of a prompt chunk of {report.PREFILL_CHUNK:,} tokens {chunk}" if chunk else "")
        + f"; filling the cards takes {fill_seconds(placement, best.planner.problem.host):.1f} s at least."
    )
