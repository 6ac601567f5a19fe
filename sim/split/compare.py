"""What to say about an answer: does card speed matter, what the roomiest split gives up, every forced split."""

from __future__ import annotations

from dataclasses import replace

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import GB
from expert_residency.sim.split.cards import HostSide, together_mb_per_s
from expert_residency.sim.split.placement import Placement
from expert_residency.sim.split.planner import Planner
from expert_residency.sim.split.study import Answer, SplitStudy


def speed_matters(answer: Answer) -> str | None:
    """One sentence: what the split loses if the cards are taken for equally fast. None for equal cards.

    The other split is the best one for cards that all have the first one's rates but their own memory; it is then
    priced at the true rates.
    """
    placement, planner = answer.placement, answer.planner
    if placement is None or len({replace(s.card, name="") for s in placement.stages}) < 2:
        return None
    first = placement.stages[0].card
    order = tuple(s.card for s in placement.stages)
    alike = tuple(
        replace(first, name=c.name, usable_bytes=c.usable_bytes, reserve_bytes=c.reserve_bytes) for c in order
    )
    blind = Planner(replace(planner.problem, cards=alike)).best(order=alike)
    if blind is None:
        return None
    priced = planner.evaluate(order, blind.layers_each)
    ours, theirs = (",".join(map(str, p.layers_each)) for p in (placement, blind))
    if priced is None:
        return f"Speed matters: the split for equally fast cards ({theirs}) does not fit."
    loss = 1 - priced.tokens_per_s / placement.tokens_per_s
    verdict = "matters" if loss >= 0.01 else "hardly matters"
    return (
        f"Card speed {verdict} for this split: {ours} layers give {placement.tokens_per_s:.1f} tok/s, the split "
        f"for equally fast cards ({theirs}) {priced.tokens_per_s:.1f}, {100 * loss:.1f} % less."
    )


def room_sentence(answer: Answer) -> str | None:
    """One sentence on the split that keeps most experts in VRAM, if the fastest keeps a GB or more less."""
    fast, most = answer.placement, answer.roomiest
    if fast is None or most is None or most.vram_expert_bytes - fast.vram_expert_bytes < GB:
        return None
    split = "+".join(map(str, most.layers_each))
    if (order := answer.in_order(most)) != answer.ordered:
        split = f"{' + '.join(order)} with {split}"
    everything = most.vram_expert_bytes == answer.geometry.all_expert_bytes
    held = "every expert" if everything else f"{most.vram_expert_bytes / GB:.1f} GB of experts"
    loss = 100 * (1 - most.tokens_per_s / fast.tokens_per_s)
    return (
        f"{split} layers would keep {held} in VRAM (the fastest keeps {fast.vram_expert_bytes / GB:.1f} GB), with "
        f"{most.ram.needed_bytes / GB:.1f} GB of RAM needed, at {most.tokens_per_s:.1f} tok/s, {loss:.1f} % less"
    )


def gain_sentence(found: SplitStudy) -> str | None:
    """One sentence: what the best answer's last card gains over the best set with one card fewer.

    Both of one quantization and host mode, and both simulated or both estimated. None if no smaller set was asked.
    """
    best = found.best
    if best is None or best.placement is None or len(best.cards) < 2:
        return None
    count = len(best.cards)
    smaller = [
        a
        for a in found.answers
        if len(a.cards) == count - 1 and (a.geometry, a.mode) == (best.geometry, best.mode)
    ]
    if not smaller:
        return None
    nth = ("second", "third", "fourth")[count - 2]
    if (
        fewer := max(
            (a for a in smaller if a.placement), key=lambda a: (bool(a.simulated), a.tokens_per_s), default=None
        )
    ) is None:
        return f"Without a {nth} card it does not fit."
    assert fewer.placement is not None
    if best.simulated and fewer.simulated:
        more, less, how = best.tokens_per_s, fewer.tokens_per_s, "simulated"
    else:
        more, less, how = best.placement.tokens_per_s, fewer.placement.tokens_per_s, "estimated"
    gain, verb = 100 * (more / less - 1), "gains"
    if gain < 0:
        gain, verb = -gain, "loses"
    return (
        f"The {nth} card {verb} {gain:.1f} %: {more:.1f} tok/s against {less:.1f} of {' + '.join(fewer.ordered)} "
        f"({how})."
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
