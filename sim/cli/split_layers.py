"""What `residency split` says of engines that place whole layers, and of all engines side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.sim.cli.common import caution, number, say, say_cliffs, show, table, warn, write_json
from expert_residency.sim.cli.terms import show_terms
from expert_residency.sim.cli.trust import show_trust

if TYPE_CHECKING:
    from expert_residency.hwmodels.profile import HardwareProfile
    from expert_residency.sim.split.layers.lines import OptionLine
    from expert_residency.sim.split.layers.study import LayerAnswer, LayerStudy
    from expert_residency.sim.split.study import Question
    from expert_residency.sim.validation.nearest import Trust
    from expert_residency.traces import RoutingTrace


ALONE = {"experts on cards": "experts", "CPU experts": "reads of the drive"}
"""Causes of a machine without a card, which computes all experts in one place."""


def show_layers(
    question: Question, trace: RoutingTrace, profiles: dict[str, HardwareProfile], json: Path | None, *,
    explain: bool = False,
) -> None:  # fmt: skip
    """Plan, and print every machine, the best one's options with their speeds, and what each card more gains.

    Parameters
    ----------
    question, trace, profiles
        As `sim.split.layers.study.study_layers` takes them.
    json
        File for all of it, or `-`.
    explain
        Also derive the best answer's token.
    """
    from expert_residency.sim.choices.caveats import cliff_caveats, texts
    from expert_residency.sim.split.cliffs import answer_cliffs
    from expert_residency.sim.split.host import HostFacts
    from expert_residency.sim.split.layers.study import study_layers
    from expert_residency.sim.split.longest import layers_longest
    from expert_residency.sim.split.study import split_caveats
    from expert_residency.sim.studies.explain_split import explain_layers

    found = study_layers(question, trace, profiles, lambda text: say(text, err=True))
    edges = [] if found.best is None else answer_cliffs(found.best)
    best = found.best
    most = layers_longest(best.problem, best.placement) if best is not None and best.placement else None
    known = [*split_caveats(question, trace, profiles), *texts(cliff_caveats(edges))]
    family = (found.best or found.answers[0]).geometry.quant_family
    host = HostFacts.of(profiles[question.host], family, question.ram_bytes)
    behind = _behind(found, profiles)
    told = best if explain else None
    terms = explain_layers(told.problem, told.placement) if told is not None and told.placement else []
    if json is not None:
        data = study_to_dict(found) | {"caveats": known, "host": host.to_dict()}
        data |= {"cliffs": [edge.to_dict() for edge in edges], "largest_context": most and most.to_dict()}
        data["trace"] = {"sha256": trace.content_hash, "synthetic": trace.synthetic}
        if behind is not None:
            data["trust"] = behind.to_dict()
        if terms:
            data["explain"] = [term.to_dict() for term in terms]
        write_json(json, data)
        if str(json) == "-":
            return
    say(host.text)
    _print_study(found)
    if most is not None:
        say(most.text)
    show_terms(terms)
    say_cliffs(edges)
    if behind is not None:
        show_trust(behind)
    caution(known)
    warn([f"{_label(a)}: {note}" for a in found.answers for note in a.notes])


def _behind(found: LayerStudy, profiles: dict[str, HardwareProfile]) -> Trust | None:
    """Measured runs near the best answer, where there is one."""
    from expert_residency.sim.validation.nearest import trust

    best = found.best
    if best is None:
        return None
    return trust(best.geometry.label, [profiles[name] for name in best.ordered], found.question.engine)


def _label(answer: LayerAnswer) -> str:
    from expert_residency.sim.split.report import label

    return f"{label(answer.ordered)}, {answer.geometry.quant}"


def _print_study(found: LayerStudy) -> None:
    from expert_residency.sim.split.report import in_gb, label

    question, best = found.question, found.best
    out = table(
        f"{question.model} in {found.preset.name}, context {question.context:,} ({question.kv_type} KV), headroom "
        f"{in_gb(question.headroom_bytes)} GB; layers on each card, those with experts on the CPU, GB of experts",
        ["cards", "quant", "layers", "CPU layers", "VRAM", "RAM", "tok/s", "90 %", "by"],
        left=3,
    )
    for answer in found.answers:
        placement = answer.placement
        if placement is None:
            out.add_row(label(answer.cards), answer.geometry.quant, "-", "-", "-", "-", "-", "-", "does not fit")
            continue
        out.add_row(
            label(answer.ordered), answer.geometry.quant, "+".join(map(str, placement.layers_each)),
            str(answer.on_cpu), in_gb(answer.vram_bytes) if answer.has_card else "-", in_gb(answer.ram_bytes),
            number(answer.tokens_per_s, 1), answer.interval_90.text if answer.interval_90 else "-",
            "estimated" if answer.estimated else "simulated",
            style="bold" if answer is best else None,
        )  # fmt: skip
    show(out)
    for answer in found.answers:
        if answer.limit:
            say(f"{_label(answer)}: {answer.limit}.")
    if best is not None:
        print_answer(best, found.preset.name)
        others = [a for a in found.answers if a.placement and a.geometry == best.geometry and a is not best]
        if others and best.has_card:
            say("With other cards:")
            for other in others:
                _say_other(other)
        others = [answer for answer in found.best_of_quants if answer.geometry != best.geometry]
        if others and best.has_card:
            say("The fastest of each other quantization:")
            for other in others:
                _say_other(other)
    for sentence in found.next_cards():
        say(sentence)


def _say_other(answer: LayerAnswer) -> None:
    """One line: its speed and the options that make it."""
    line = answer.lines[0]
    text = line.text or "nothing to set"
    say(f"  {_label(answer)}, {answer.tokens_per_s:.1f} tok/s {line.placement.how}: {text}")
    if "-ts" in line.options and len(set(answer.ordered)) > 1:
        say(f"  {card_order(line.placement.cards)}")


def print_answer(answer: LayerAnswer, engine: str) -> None:
    """What takes how much of a card, where a token's time goes, and the options, each with its own speed."""
    from expert_residency.sim.split.report import in_gb

    placement = answer.placement
    assert placement is not None
    out = table(
        f"{engine}, best: {_label(answer)}; GB",
        ["card" if answer.has_card else "machine", "layers", "dense", "context", "reserve", "experts", "free"],
    )
    for card, n, budget, held in zip(
        placement.cards, placement.layers_each, placement.budgets, placement.expert_bytes, strict=True
    ):
        lines = {line.name: line.nbytes for line in budget.lines}
        dense = sum(lines.get(one, 0) for one in ("dense weights", "layers without experts", "head"))
        rest = budget.taken_bytes - dense - lines["reserve"]
        out.add_row(
            card, str(n), in_gb(dense), in_gb(rest), in_gb(lines["reserve"]), in_gb(held),
            in_gb(budget.cache_bytes - held),
        )  # fmt: skip
    show(out)
    causes = ", ".join(
        f"{cause if answer.has_card else ALONE.get(cause, cause)} {ns / placement.passes / 1e6:.2f}"
        for cause, ns in placement.parts.named().items()
        if ns
    )
    if placement.host_layers:
        context = answer.problem.context_on_host(placement.host_layers)
        say(
            f"The CPU runs the first {placement.host_layers} MoE layers altogether; {in_gb(context)} GB of their "
            "context lie in memory."
        )
    say(f"ms of a pass, {placement.ms_a_pass:.2f} in all: {causes}.")
    for line in answer.lines:
        speed = f"{line.placement.tokens_per_s:.1f} tok/s"
        if not answer.has_card:
            say(f"{speed} {line.placement.how}; without a card there is nothing to place.")
            continue
        say(f"{speed} {line.placement.how}, {line.what}:")
        say(f"  {line.text}")
        if "-ts" in line.options and len(set(line.placement.cards)) > 1:
            say(f"  {card_order(line.placement.cards)}")


def card_order(cards: Sequence[str]) -> str:
    """Which card is which of `-ts`."""
    order = ", ".join(f"CUDA{n} = {card}" for n, card in enumerate(cards))
    return f"-ts counts the cards in this order: {order}; CUDA_VISIBLE_DEVICES sets it, else the fastest is first."


def study_to_dict(found: LayerStudy) -> dict[str, Any]:
    """JSON-able form."""
    question, best = found.question, found.best
    return {
        "model": question.model, "engine": question.engine, "headroom_bytes": question.headroom_bytes,
        "context": question.context, "kv": question.kv_type, "synthetic": found.synthetic,
        "best": None if best is None else found.answers.index(best),
        "best_of_quants": [found.answers.index(answer) for answer in found.best_of_quants],
        "next_cards": list(found.next_cards()),
        "answers": [_answer_to_dict(answer) for answer in found.answers],
    }  # fmt: skip


def _answer_to_dict(answer: LayerAnswer) -> dict[str, Any]:
    placement = answer.placement
    data: dict[str, Any] = {
        "cards": list(answer.ordered), "quant": answer.geometry.quant, "host": answer.mode,
        "fits": placement is not None, "limit": answer.limit or None, "notes": answer.notes,
    }  # fmt: skip
    if placement is None:
        return data
    return data | {
        "tokens_per_s": placement.tokens_per_s,
        "interval_90": answer.interval_90 and answer.interval_90.to_dict(),
        "by": "estimated" if answer.estimated else "simulated",
        "exact": answer.exact, "ms_a_pass": placement.ms_a_pass, "layers_each": list(placement.layers_each),
        "host_layers": placement.host_layers,
        "host_context_bytes": answer.problem.context_on_host(placement.host_layers),
        "cpu_layers": answer.on_cpu, "thirds": list(placement.thirds),
        "ms_by_cause": {k: ns / placement.passes / 1e6 for k, ns in placement.parts.named().items()},
        "ram_bytes": answer.ram_bytes,
        "cards_bytes": [
            {"card": card, "usable_bytes": budget.usable_bytes, "expert_bytes": held,
             "lines": {line.name: line.nbytes for line in budget.lines}}
            for card, budget, held in zip(placement.cards, placement.budgets, placement.expert_bytes, strict=True)
        ],
        "options": [_option(line) for line in answer.lines],
    }  # fmt: skip


def _option(line: OptionLine) -> dict[str, Any]:
    return {"words": list(line.options), "what": line.what, "tokens_per_s": line.placement.tokens_per_s}


def show_rules(
    question: Question, trace: RoutingTrace, profiles: dict[str, HardwareProfile], json: Path | None, *,
    overrides: list[str], n_cpu_moe: int, shares: str | None, ngl: int | None, explain: bool = False,
) -> None:  # fmt: skip
    """What llama.cpp's options do on a machine.

    Parameters
    ----------
    question, trace, profiles
        One machine and quantization.
    json
        File for all of it, or `-`.
    overrides, n_cpu_moe, shares, ngl
        `-ot`, `--n-cpu-moe`, `-ts` and `-ngl` as given.
    explain
        Also derive a token of it.

    Raises
    ------
    SimError
        Options that cannot be read, or name cards or layers that are not there.
    """
    from expert_residency.errors import SimError
    from expert_residency.sim.choices.preset import load_engine
    from expert_residency.sim.choices.trace import fit_geometry
    from expert_residency.sim.split.host import HostFacts
    from expert_residency.sim.split.layers.by_rules import report, rules_interval
    from expert_residency.sim.split.layers.division import ALL
    from expert_residency.sim.split.layers.study import make_problem, what_fits
    from expert_residency.sim.split.report import in_gb
    from expert_residency.sim.split.rules import parse_rules
    from expert_residency.sim.split.study import split_caveats
    from expert_residency.sim.studies.explain_split import explain_rules
    from expert_residency.sim.validation.nearest import trust
    from expert_residency.traces import load_model

    geometry = load_model(question.model, question.quants[0])
    preset = load_engine(question.engine)
    problem = make_problem(question, fit_geometry(trace, geometry), geometry, question.cards[0], profiles, preset)
    problem = replace(problem, mapped="resident" not in question.modes)
    try:
        divided = None if shares is None else [float(part) for part in shares.replace("/", ",").split(",")]
    except ValueError:
        raise SimError(f"-ts {shares}: expected shares of the cards, as 24,25") from None
    rules = parse_rules(overrides, n_cpu_moe, geometry.layer_ids)
    ngl = ALL if ngl is None else ngl
    found = report(problem, rules, divided, ngl)
    instead = [] if found.tokens_per_s is not None else what_fits(problem)
    interval = None if found.tokens_per_s is None else rules_interval(problem, rules, divided, ngl)
    terms = explain_rules(problem, rules, divided, ngl) if explain else []
    known = split_caveats(question, trace, profiles)
    host = HostFacts.of(profiles[question.host], geometry.quant_family, question.ram_bytes)
    behind = trust(geometry.label, [profiles[name] for name in question.cards[0]], question.engine)
    if json is not None:
        devices = [vars(device) | {"over_bytes": device.over_bytes} for device in found.devices]
        write_json(
            json,
            vars(found)
            | {"devices": devices, "model": geometry.label, "engine": preset.name, "caveats": known}
            | {"host": host.to_dict(), "trust": behind.to_dict()}
            | {"interval_90": interval and interval.to_dict()}
            | {"what_fits": [_option(line) for line in instead]}
            | ({"explain": [term.to_dict() for term in terms]} if terms else {}),
        )
        if str(json) == "-":
            return
    say(host.text)
    out = table(
        f"{geometry.label} in {preset.name} by rules; GB",
        ["device", "layers", "beside experts", "experts", "of", "over"],
    )
    for device in found.devices:
        out.add_row(
            device.name, str(device.layers), in_gb(device.dense_bytes), in_gb(device.expert_bytes),
            in_gb(device.limit_bytes), in_gb(device.over_bytes) if device.over_bytes else "",
        )  # fmt: skip
    show(out)
    if found.tokens_per_s is not None and found.pass_ns is not None and interval is not None:
        ms = found.pass_ns / 1e6
        how = "estimated" if found.estimated else "simulated"
        say(f"{found.tokens_per_s:.1f} tok/s {how} (90 %: {interval.text}), a pass takes {ms:.2f} ms")
    else:
        say(f"No speed: what is over-full does not run so. {'What fits:' if instead else 'Nothing fits.'}")
    for line in instead:
        say(f"  {line.placement.tokens_per_s:.1f} tok/s {line.placement.how}, {line.what}: {line.text}")
    show_terms(terms)
    show_trust(behind)
    caution(known)
    warn(list(found.warnings))


def _progress(engine: str, text: str) -> None:
    say(f"{engine}: {text}", err=True)


def show_engines(
    question: Question, trace: RoutingTrace, profiles: dict[str, HardwareProfile], json: Path | None
) -> None:
    """Every engine that can be planned on the same machines, each with its best answer, simulated.

    Parameters
    ----------
    question, trace, profiles
        As for one engine; KV type and miss mode are each engine's own unless given.
    json
        File for all of it, or `-`.
    """
    from expert_residency.sim.choices.preset import list_engines, load_engine
    from expert_residency.sim.cli.split import miss_of
    from expert_residency.sim.runs.interval import text_of
    from expert_residency.sim.split.engines import simulated_study
    from expert_residency.sim.split.host import HostFacts
    from expert_residency.sim.split.report import label
    from expert_residency.sim.split.study import split_caveats
    from expert_residency.sim.validation.nearest import trust
    from expert_residency.traces import load_model

    alone = [cards for cards in question.cards if not any(profiles[name].has_card for name in cards)]
    rows: list[dict[str, Any]] = []
    for name in list_engines():
        preset = load_engine(name)
        layered = preset.places == "layers"
        cards = tuple(one for one in question.cards if layered or one not in alone)
        if not preset.compared or not cards:
            continue
        own = replace(
            question, engine=name, cards=cards, kv_type=question.kv_type or preset.kv_type,
            miss=miss_of(preset, None), carve=layered,
        )  # fmt: skip
        rows += simulated_study(own, preset, trace, profiles, partial(_progress, name))
    rows.sort(key=lambda row: (len(row["cards"]), -(row["tokens_per_s"] or 0)))
    known = split_caveats(question, trace, profiles)
    family = load_model(question.model, question.quants[0]).quant_family
    host = HostFacts.of(profiles[question.host], family, question.ram_bytes)
    first = max((row for row in rows if row["tokens_per_s"]), key=lambda row: row["tokens_per_s"], default=None)
    behind = None
    if first is not None:
        label_ = load_model(question.model, first["quant"]).label
        behind = trust(label_, [profiles[name] for name in first["cards"]], first["engine"])
    if json is not None:
        data = {"model": question.model, "engines": rows, "caveats": known, "host": host.to_dict()}
        if behind is not None:
            data["trust"] = behind.to_dict() | {"of": first}
        write_json(json, data)
        if str(json) == "-":
            return
    say(host.text)
    out = table(
        f"{question.model}: the fastest of each engine and set of cards, all simulated",
        ["engine", "cards", "quant", "layers", "host", "tok/s", "90 %"],
        left=5,
    )
    for row in rows:
        out.add_row(
            row["engine"], label(row["cards"]), row["quant"] or "-", row["layers"] or "-", row["host"] or "-",
            number(row["tokens_per_s"], 1) if row["tokens_per_s"] is not None else row["why"],
            text_of(around["low"], around["high"]) if (around := row["interval_90"]) else "-",
        )  # fmt: skip
    show(out)
    for row in rows:
        if row["options"]:
            speed = f"{number(row['tokens_per_s'], 1)} tok/s simulated"
            say(f"{row['engine']}, {label(row['cards'])}, {row['quant']}, {speed}: {row['options']}")
        if row["limit"]:
            say(f"{row['engine']}, {label(row['cards'])}: {row['limit']}.")
    if first is not None and behind is not None:
        speed = number(first["tokens_per_s"], 1)
        say(f"The fastest: {first['engine']} on {label(first['cards'])}, {speed} tok/s; measured near it:")
        show_trust(behind)
    caution(known)
