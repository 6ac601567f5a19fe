"""A placement as options of an engine, written and read back: what is printed is what was simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from expert_residency.sim.split.layers.division import ALL, shares_for
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem
from expert_residency.sim.split.layers.times import THIRDS
from expert_residency.sim.split.rules import KINDS
from expert_residency.traces import ModelGeometry


@dataclass(frozen=True)
class OptionLine:
    """Options, what they are for, and the placement that they make."""

    options: tuple[str, ...]
    what: str
    placement: LayerPlacement

    @property
    def text(self) -> str:
        """For a shell."""
        return " ".join(f"'{one}'" if "=" in one else one for one in self.options)


def option_lines(
    problem: LayerProblem, placement: LayerPlacement, by_first: tuple[int, LayerPlacement] | None
) -> list[OptionLine]:
    """Lines of the engine's options, the fastest first; in words where it has no options for them.

    Parameters
    ----------
    problem
        Model, engine and machine.
    placement
        The fastest by layers and tensors.
    by_first
        N of `--n-cpu-moe` and the fastest placement that it can say.

    Returns
    -------
    list[OptionLine]
        One line, or two if `-ot` is faster than `--n-cpu-moe`.
    """
    if (words := _words_of(problem)) is not None:
        n, placed = by_first or (None, placement)
        return [OptionLine(_in_words(problem, placed, words, n), "by whole layers", placed)]
    lines = []
    if by_first is not None:
        n, simple = by_first
        options = [*_division(problem, simple), *(("--n-cpu-moe", str(n)) if n else ())]
        lines.append(OptionLine(tuple(options), "by the first layers", simple))
    if by_first is None or placement.parts.ns < by_first[1].parts.ns:
        options = _division(problem, placement)
        if problem.has_card and (rules := overrides(problem.geometry, placement.thirds, placement.host_layers)):
            options += ["-ot", rules]
        lines.insert(0, OptionLine(tuple(options), "by layers and tensors", placement))
    return lines


def _words_of(problem: LayerProblem) -> str | None:
    """How an engine says which layers' experts are the CPU's, where it has no option; else None."""
    knobs = problem.costs.preset.knobs.values()
    flag = next((knob.flag for knob in knobs if knob.sets == "cpu_layers"), "-")
    return None if flag.startswith("-") else flag


def _in_words(problem: LayerProblem, placement: LayerPlacement, words: str, n: int | None) -> tuple[str, ...]:
    """A placement for an engine that is told by a file of rules."""
    if not problem.has_card:
        return ()
    said = []
    if placement.host_layers:
        said.append(f"the first {problem.span(0, placement.host_layers)} layers on the CPU altogether")
    if len(placement.cards) > 1:
        said.append(
            ", ".join(f"{k} layers on {card}" for k, card in zip(placement.ts, placement.cards, strict=True))
        )
    if n:
        said.append(words.format(value=n))
    elif n is None and (rules := overrides(problem.geometry, placement.thirds, placement.host_layers)):
        said.append(f"on the CPU, by llama.cpp's names: {rules.replace('=CPU', '')}")
    return ("; ".join(said or ["every layer and all experts on the card"]),)


def _division(problem: LayerProblem, placement: LayerPlacement) -> list[str]:
    if not problem.has_card:
        return []  # nothing can be offloaded
    ngl = ALL if not placement.host_layers else problem.total_layers - problem.span(0, placement.host_layers)
    options = ["-ngl", str(ngl)]
    if len(placement.cards) > 1:
        shares = shares_for(placement.ts, output=not placement.host_layers)
        options += ["-ts", ",".join(map(str, shares))]
    return options


def overrides(geometry: ModelGeometry, thirds: Sequence[int], host_layers: int = 0) -> str:
    """Rules of `-ot` for what the CPU computes, those of whole layers first; empty if nothing.

    Parameters
    ----------
    geometry
        The model.
    thirds
        Of each MoE layer, how many of its stacked tensors lie on its card.
    host_layers
        Layers that the CPU runs anyway.

    Returns
    -------
    str
        Rules, joined by commas.
    """
    rules = []
    for on_card in range(THIRDS):
        ids = [geometry.layer_ids[i] for i, n in enumerate(thirds) if n == on_card and i >= host_layers]
        if ids:
            kinds = "|".join(KINDS[: THIRDS - on_card])
            rules.append(rf"blk\.({'|'.join(map(str, ids))})\.ffn_({kinds})_exps=CPU")
    return ",".join(rules)
