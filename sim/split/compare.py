"""What to say about an answer: does card speed matter, what the roomiest split gives up, every forced split."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import GB
from expert_residency.sim.split.cards import HostSide, together_mb_per_s
from expert_residency.sim.split.placement import Placement
from expert_residency.sim.split.study import Answer, SplitStudy, for_equal_cards
from expert_residency.sim.split.timed import Simulated

Run = Callable[[Answer, Placement], Simulated | None]
"""Simulates a placement of an answer's machine, as `SplitStudy.run`; None where it cannot be."""


def speeds(run: Run | None, *pairs: tuple[Answer, Placement]) -> tuple[list[float], str]:
    """Tokens/s of placements, and how they were found: all simulated, or else all estimated."""
    found = [run(*pair) for pair in pairs] if run is not None else []
    simulated = [one.tokens_per_s for one in found if one is not None]
    if len(simulated) == len(pairs):
        return simulated, "simulated"
    return [placement.tokens_per_s for _, placement in pairs], "estimated"


def speed_matters(answer: Answer, run: Run | None = None) -> str | None:
    """One sentence: what the split loses if the cards are taken for equally fast. None for equal cards.

    The other split is the best one for cards that all have the first one's rates but their own memory; it is then
    priced at the true rates. With `run` both are simulated.
    """
    placement = answer.placement
    if placement is None or len({replace(s.card, name="") for s in placement.stages}) < 2:
        return None
    priced = for_equal_cards(answer)
    if priced is None:
        return "Speed matters: the split for equally fast cards does not fit."
    ours, theirs = (",".join(map(str, p.layers_each)) for p in (placement, priced))
    if ours == theirs:
        return f"Card speed changes nothing: the split for equally fast cards is this one ({ours})."
    (here, there), how = speeds(run, (answer, placement), (answer, priced))
    verdict = "matters" if there < 0.99 * here else "hardly matters"
    return (
        f"Card speed {verdict} for this split: {ours} layers give {here:.1f} tok/s, the split "
        f"for equally fast cards ({theirs}) {there:.1f}, {_less(there, here)} ({how})."
    )


def _less(one: float, other: float) -> str:
    change = 100 * (one / other - 1)
    return f"{abs(change):.1f} % {'more' if change > 0 else 'less'}"


def room_sentence(answer: Answer, run: Run | None = None) -> str | None:
    """One sentence on the split that keeps most experts in VRAM, if the fastest keeps a GB or more less.

    With `run` both are simulated if the answer was.
    """
    fast, most = answer.placement, answer.roomiest
    if fast is None or most is None or most.vram_expert_bytes - fast.vram_expert_bytes < GB:
        return None
    split = "+".join(map(str, most.layers_each))
    if (order := answer.in_order(most)) != answer.ordered:
        split = f"{' + '.join(order)} with {split}"
    everything = most.vram_expert_bytes == answer.geometry.all_expert_bytes
    held = "every expert" if everything else f"{most.vram_expert_bytes / GB:.1f} GB of experts"
    (there, here), how = speeds(run if answer.simulated else None, (answer, most), (answer, fast))
    return (
        f"{split} layers would keep {held} in VRAM (the fastest keeps {fast.vram_expert_bytes / GB:.1f} GB), with "
        f"{most.ram.needed_bytes / GB:.1f} GB of RAM needed, at {there:.1f} tok/s, {_less(there, here)} ({how})"
    )


def gain_sentence(found: SplitStudy) -> str | None:
    """One sentence: what the best answer's last card gains over the best set with one card fewer.

    All of one quantization, each in its fastest host mode, and all simulated, or where one cannot be, all
    estimated. None if no smaller set was asked.
    """
    best = found.best
    if best is None or best.placement is None or len(best.cards) < 2:
        return None
    count = len(best.cards)
    nth = ("second", "third", "fourth")[count - 2]
    smaller = [(a, a.placement) for a in found.one_card_fewer if a.placement]
    if not smaller:
        asked = any(len(a.cards) == count - 1 for a in found.answers)
        return f"Without a {nth} card it does not fit." if asked else None
    (more, *fewer), how = speeds(found.run, (best, best.placement), *smaller)
    less = max(fewer)
    other = smaller[fewer.index(less)][0]
    mode = "" if other.mode == best.mode else f" ({other.mode})"
    gain = 100 * (more / less - 1)
    return (
        f"The {nth} card {'gains' if gain >= 0 else 'loses'} {abs(gain):.1f} %: {more:.1f} tok/s against "
        f"{less:.1f} of {' + '.join(other.ordered)}{mode} ({how})."
    )


def forced(answer: Answer) -> list[tuple[int, Placement | None]]:
    """(layers on the first card, the best placement with so many) for every number of them.

    Raises
    ------
    SimError
        For a machine of one card, or one that fits nothing.
    """
    placement, planner = answer.placement, answer.planner
    if placement is None or len(placement.stages) < 2:
        raise SimError("only a machine of several cards that fits has splits to compare")
    order = tuple(stage.card for stage in placement.stages)
    last = planner.geometry.n_layers - len(order) + 1
    return [(n, planner.best(order=order, first_layers=n)) for n in range(1, last + 1)]


def fill_seconds(placement: Placement, host: HostSide) -> float:
    """Time to copy the experts of a placement onto its cards, all links at once."""
    cards = tuple(stage.card for stage in placement.stages)
    return placement.vram_expert_bytes / 1e6 / together_mb_per_s(cards, host)
