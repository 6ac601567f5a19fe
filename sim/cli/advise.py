"""`residency advise`: the best setting of an engine on a machine, and what would change it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import option, takes_cache_types
from expert_residency.sim.cli.common import (
    MODEL_FORMS,
    FormatOpt,
    JsonOpt,
    caution,
    given,
    percent,
    say,
    say_cliffs,
    show,
    table,
    warn,
    write_json,
)
from expert_residency.sim.cli.split_layers import card_order
from expert_residency.sim.cli.trust import show_trust

if TYPE_CHECKING:
    from expert_residency.sim.split.layers.lines import OptionLine
    from expert_residency.sim.studies.advise import Advice, Ask, Task

PASSES = 80
BESIDE_SPLIT = (
    "residency split gives this engine other speeds: equal slots in every layer, full before the text begins, "
    "no drafts, over the whole of another trace; compare settings within one of the two."
)


@app.command()
@takes_cache_types
def advise(
    run: typer.Context,
    model: Annotated[str, typer.Option("--model", help=f"Model: {MODEL_FORMS}.")],
    gpu: Annotated[
        list[str],
        typer.Option(
            "--gpu",
            "--hardware",
            help="Machine profile, or a card (residency list gpus); several cards as 3x p40, joined by +, or "
            "repeated.",
        ),
    ],
    engine: Annotated[
        str, typer.Option(help="Engine: preset, NAME or FILE.toml; its table [knobs] is what is searched.")
    ] = "llama.cpp",
    count: Annotated[int, typer.Option(min=1, max=4, help="Copies of one --gpu.")] = 1,
    cpu: Annotated[
        str | None,
        typer.Option("--cpu", help="Processor, as ryzen-5-5600x, 2x-epyc-7763 or 24c (residency list cpus)."),
    ] = None,
    ram: Annotated[
        str | None, typer.Option("--ram", help="Host memory, as 64GB or 64GB@6000x2 (MT/s, channels).")
    ] = None,
    link: Annotated[str | None, typer.Option("--link", help="Link of each card, as 4.0x8.")] = None,
    context: Annotated[
        int, typer.Option("--context", "-c", "--ctx-size", min=1, help="Tokens of context that VRAM is kept for.")
    ] = 32_768,
    kv_type: Annotated[str | None, option("kv_type", default="the engine's", also=("--kv",))] = None,
    session: Annotated[
        str | None,
        typer.Option("--session", help="Bytes of the context on each card, where the model's file does not say."),
    ] = None,
    headroom: Annotated[
        str, typer.Option(help="Memory that an engine of whole layers leaves free of experts.")
    ] = "10GB",
    acceptance: Annotated[
        float,
        typer.Option(min=0, max=1, help="Chance that a draft is accepted; published ones are 0.64 to 0.85."),
    ] = 0.75,
    trace: Annotated[
        list[str] | None,
        typer.Option("--trace", help="Recorded routing; repeat for several workloads. Generated ones by default."),
    ] = None,
    fmt: FormatOpt = None,
    passes: Annotated[
        int | None,
        typer.Option(
            min=4,
            help=f"Passes of each trace that a setting is run on: {PASSES} with a warm cache, all of them where "
            "whole layers are placed.",
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(min=2, help="Runs of the interval, each with other constants and another workload.")
    ] = 16,
    json: JsonOpt = None,
) -> None:
    """Search every knob of an engine: the best setting, what each is worth, how sure that is."""
    from expert_residency.errors import SimError
    from expert_residency.sim.choices.caveats import caveats, cliff_caveats, texts
    from expert_residency.sim.choices.cliffs import cliffs
    from expert_residency.sim.studies.advise import LayerTask, TimedTask, in_fastest_order
    from expert_residency.sim.studies.advise import advise as found_by
    from expert_residency.sim.validation.nearest import trust

    if fmt is not None and trace is None:
        raise SimError("--format says how to read a file: give it with --trace")
    ask = _ask(run, gpu, count, cpu, ram, link, model, engine, context, kv_type, session, headroom, acceptance,
               trace, fmt, passes)  # fmt: skip
    named, layered = ask.names, LayerTask(ask) if ask.preset.places == "layers" else None
    if layered is None and len(set(named)) > 1:
        ask = in_fastest_order(ask)
    timed = None if layered else TimedTask(ask)
    task: Task = layered or timed or TimedTask(ask)
    quiet = str(json) == "-"
    advice = found_by(task, runs=draws, progress=None if quiet else lambda text: say(f"{text} ...", err=True))
    standing = task.standing(advice.found.best)
    edges = [] if standing is None else cliffs(standing)
    most = task.longest(advice.found.best)
    options = layered.lines(advice.found.best) if layered else []
    less = layered.fewer_cards(advice.found.best) if layered and len(ask.names) > 1 else None
    notes = [note for line in options[:1] if layered and (note := layered.why_estimated(advice.found.best, line))]
    geometry = ask.traces[0].geometry
    behind = trust(geometry.label, ask.profiles, ask.preset.name)
    known = texts(caveats(ask.traces[0], hardware=ask.profiles, context_counted=True))
    known += texts(cliff_caveats(edges))
    if json is not None:
        head = {"engine": ask.preset.name, "model": geometry.label, "hardware": list(ask.names)}
        write_json(
            json,
            head
            | _plain(advice, task, options)
            | {"fewer_cards": None if less is None else _option(less) | {"cards": list(less.placement.cards)}}
            | {"cliffs": [edge.to_dict() for edge in edges], "trust": behind.to_dict(), "caveats": known}
            | {"largest_context": most and most.to_dict(), "beside_split": None if layered else BESIDE_SPLIT},
        )
        if quiet:
            return
    _print(advice, task, ask, options, less)
    if ask.names != named:
        say(f"The cards stand in the order {' + '.join(ask.names)}, which is faster than as they were named.")
    if most is not None:
        say(most.text)
    if layered is None:
        say(BESIDE_SPLIT)
    say_cliffs(edges)
    show_trust(behind)
    caution(known)
    warn(notes)


def _ask(
    run: typer.Context, gpu: list[str], count: int, cpu: str | None, ram: str | None, link: str | None, model: str,
    engine: str, context: int, kv_type: str | None, session: str | None, headroom: str, acceptance: float,
    trace: list[str] | None, fmt: str | None, passes: int | None,
) -> Ask:  # fmt: skip
    """The question of the words."""
    from expert_residency.errors import SimError
    from expert_residency.hwmodels.parts.compose import parse_memory
    from expert_residency.hwmodels.registry import check_cards, load_profile, with_parts
    from expert_residency.hwmodels.units import parse_size
    from expert_residency.sim.choices.preset import load_engine
    from expert_residency.sim.choices.spec import read_names
    from expert_residency.sim.split.memory import default_headroom
    from expert_residency.sim.split.study import with_ram
    from expert_residency.sim.studies.advise import Ask
    from expert_residency.sim.studies.advise.workloads import whole_workloads, workloads

    if engine == "all":
        raise SimError(
            "--engine all: the knobs of one engine are searched; residency split --engine all sets the "
            "engines side by side"
        )
    preset = load_engine(engine)
    made = with_parts(read_names("gpu", gpu), cpu=cpu, ram=ram, link=link)
    if count > 1 and len(made) > 1:
        raise SimError(f"--count {count} is of one card: {len(made)} are named")
    found = [(name, profile or load_profile(name)) for name, profile in made] * count
    if ram is not None:
        whole, size = dict(made), parse_memory(ram).nbytes
        found = [(name, profile if whole[name] else with_ram(profile, size)) for name, profile in found]
    check_cards([profile for _, profile in found])
    bare = [name for name, profile in found if not profile.has_card]
    if bare and preset.places == "experts":
        raise SimError(f"engine {engine} keeps single experts on a card, and {bare[0]} has none: ask llama.cpp")
    if preset.places == "experts" and given(run, among=("headroom",)):
        raise SimError(f"--headroom with --engine {engine}: it is of engines that place whole layers")
    if session is not None and (extra := given(run, among=("context",))):
        raise SimError(f"{extra[0]} beside --session: this says what a context takes, --session gives it")
    free = parse_size(headroom) if given(run, among=("headroom",)) else default_headroom(found[0][1])
    return Ask(
        engine, preset, tuple(profile for _, profile in found), tuple(name for name, _ in found),
        whole_workloads(model, trace or [], fmt, passes)
        if preset.places == "layers"
        else workloads(model, trace or [], fmt, passes or PASSES),
        context, kv_type or preset.kv_type,
        None if session is None else parse_size(session), acceptance, free,
    )  # fmt: skip


def _say_options(
    advice: Advice, task: Task, ask: Ask, lines: Sequence[OptionLine], less: OptionLine | None
) -> None:  # fmt: skip
    """The settings, each with its speed."""
    if lines:
        for line in lines:
            what = f", {line.what}" if line.options else ""
            words = _joined([line.text, *_others(advice, task)]) or "the defaults of the engine"
            say(f"  {line.placement.tokens_per_s:.1f} tok/s {line.placement.how}{what}: {words}")
        if "-ts" in lines[0].options and len(set(ask.names)) > 1:
            say(f"  {card_order(lines[0].placement.cards)}")
        if less is not None:
            _say_fewer(less, ask.names)
    else:
        say(f"  {_joined(_others(advice, task)) or 'the defaults of the engine'}")


def _say_fewer(line: OptionLine, names: Sequence[str]) -> None:
    """What leaves a card out and is as fast."""
    left = Counter(names) - Counter(line.placement.cards)
    out = " + ".join(f"{n} x {name}" if n > 1 else name for name, n in left.items())
    say(
        f"{out} gains nothing: {line.placement.tokens_per_s:.1f} tok/s {line.placement.how} with "
        f"{' + '.join(line.placement.cards)} alone: {line.text}"
    )


def _print(
    advice: Advice, task: Task, ask: Ask, lines: Sequence[OptionLine], less: OptionLine | None
) -> None:  # fmt: skip
    best, geometry = advice.found, ask.traces[0].geometry
    say(
        f"{geometry.label} on {' + '.join(ask.names)} in {ask.preset.name}: {advice.speed:.1f} tok/s "
        f"(90 %: {advice.interval.text})"
    )
    _say_options(advice, task, ask, lines, less)
    out = table(
        "each knob with the others at their best; loss by the values beside the best",
        ["knob", "best", "default", "gain %", "below", "loss %", "above", "loss %"],
        left=1,
    )
    for one in advice.worths:
        default = "-" if one.default is None else one.labels[one.default]
        gain = "-" if one.default is None else "no fit" if one.gain is None else percent(one.gain, 1)
        out.add_row(
            one.name, one.labels[one.best], default, gain,
            *(text for value in (one.below, one.above) for text in _beside(one, value)),
        )  # fmt: skip
    show(out)
    if advice.flips:
        flips = table(
            "what would change the answer: numbers that may be so, and are not known better",
            ["constant", "is", "5 %", "95 %", "changes at", "then better", "loss %"],
            left=1, also_text=("then better",),
        )  # fmt: skip
        for flip in advice.flips:
            known = flip.constant
            flips.add_row(
                f"{known.name} ({known.kind})", f"{known.value:.4g}", f"{flip.low:.4g}", f"{flip.high:.4g}",
                f"{flip.at:.4g}", f"{flip.knob} {flip.label}", percent(flip.loss, 1),
            )  # fmt: skip
        show(flips)
    else:
        say("no constant changes the best setting within what it may be")
    how = "every setting was tried" if best.complete else (
        f"found from {best.agreed} of {best.starts} starts, one knob after the other"
    )  # fmt: skip
    moved = any(one.default is not None and one.best != one.default for one in advice.worths)
    say(
        f"{how}; {'defaults stay where they lose less than 1 % in all; ' if moved else ''}"
        f"the interval is of {advice.runs} runs with constants as they may be ({advice.felt} matter) and "
        f"{advice.workloads} workload{'s' if advice.workloads > 1 else ''}"
    )


def _others(advice: Advice, task: Task) -> list[str]:
    """Flags beside those of a placement, and what is no flag where it is not the default."""
    return [
        worth.text
        for worth, control in zip(advice.worths, task.controls, strict=True)
        if control.knob.sets != "cpu_layers" and (worth.text.startswith("-") or worth.best != worth.default)
    ]


def _joined(words: Sequence[str]) -> str:
    """Flags as a shell takes them, then what is no flag."""
    flags = " ".join(word for word in words if word.startswith("-"))
    return "; ".join(word for word in (flags, *(w for w in words if not w.startswith("-"))) if word)


def _option(line: OptionLine) -> dict[str, Any]:
    placement = line.placement
    return {"text": line.text, "what": line.what, "tokens_per_s": placement.tokens_per_s, "by": placement.how}


def _beside(one: Any, value: Any) -> tuple[str, str]:
    if value is None:
        return "-", "-"
    regret = one.regret(value)
    return one.labels[value], "no fit" if regret is None else percent(regret, 1)


def _plain(advice: Advice, task: Task, lines: Sequence[OptionLine]) -> dict[str, Any]:
    """JSON-able form."""
    return {
        "tokens_per_s": advice.speed, "interval_90": advice.interval.to_dict(), "runs": advice.runs,
        "workloads": advice.workloads, "constants_felt": advice.felt,
        "flags": [worth.text for worth in advice.worths if worth.text],
        "setting": {worth.name: worth.best for worth in advice.worths},
        "search": {name: getattr(advice.found, name) for name in ("agreed", "starts", "complete")},
        "options": [_option(line) for line in lines],
        "knobs": [
            {
                "name": worth.name, "best": worth.best, "default": worth.default, "gain": worth.gain,
                "default_tokens_per_s": worth.without,
                "values": [
                    {"value": value, "flag": control.text(value), "tokens_per_s": speed}
                    for value, speed in worth.values
                ],
            }
            for worth, control in zip(advice.worths, task.controls, strict=True)
        ],
        "flips": [
            {
                "constant": flip.constant.name, "kind": flip.constant.kind, "value": flip.constant.value,
                "low": flip.low, "high": flip.high, "at": flip.at, "knob": flip.knob, "then": flip.value,
                "loss": flip.loss,
            }
            for flip in advice.flips
        ],
    }  # fmt: skip
