"""The 90 % interval beside each plan: the same placement, priced with drawn constants of cards, host and engine.

Estimates and simulated runs of a placement have the same relative interval, that of the estimate. Who fits and
what is placed where does not depend on rates, so that a plan is one and the same in all draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.runs.interval import TEXT_SD, Interval, Machine, around
from expert_residency.sim.split.cards import Card, HostSide, handoff_ns
from expert_residency.sim.split.cost import LayerTimes, Store
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem, evaluate
from expert_residency.sim.split.layers.times import LayerCosts

if TYPE_CHECKING:
    from expert_residency.sim.split.study import Answer

EVERY = 4
"""Of so many layers of a plan one is priced."""


def plan_interval(
    answer: Answer, profiles: Mapping[str, HardwareProfile], host: str, p2p: bool = False
) -> Interval | None:
    """Interval of one answer's speed; None if nothing fits.

    Parameters
    ----------
    answer
        Of an engine that keeps single experts on a card.
    profiles
        By the names that its question uses.
    host
        Profile whose processor, memory and drive the cards share.
    p2p
        Whether cards hand over peer to peer.

    Returns
    -------
    Interval or None
        In tokens a second.
    """
    if answer.placement is None:
        return None
    speed, machine = plan_speed(answer, profiles, host, p2p)
    return around(answer.tokens_per_s, speed, machine, workload=TEXT_SD)


def plan_speed(
    answer: Answer, profiles: Mapping[str, HardwareProfile], host: str, p2p: bool = False
) -> tuple[Callable[[Machine], float], Machine]:
    """The planner's estimate of one answer's speed as a function of the machine, and the machine as it stands.

    Parameters
    ----------
    answer, profiles, host, p2p
        As `plan_interval` takes them; the answer fits.

    Returns
    -------
    function, machine
        Only ratios of its values count; profiles are those of the cards and last the host's.
    """
    placement, problem = answer.placement, answer.planner.problem
    assert placement is not None
    family = answer.geometry.quant_family
    stage_names = [stage.card.name for stage in placement.stages]
    names = list(dict.fromkeys([*stage_names, *([placement.store.card.name] if placement.store else [])]))
    chosen = [range(0, n, EVERY) for n in placement.layers_each]
    geometry, curve = answer.geometry, problem.curve

    def speed(drawn: Machine) -> float:
        cards = {name: Card.of(card, family) for name, card in zip(names, drawn[0], strict=False)}
        side = HostSide.of(drawn[0][-1], family, problem.host.ram_bytes)
        store = placement.store and Store(cards[placement.store.card.name], placement.store.slots, p2p)
        times = LayerTimes(geometry, curve, side, drawn[1], problem.miss, problem.mode, problem.room_bytes, store)
        ns = float(times.overhead_ns)
        for number, stage in enumerate(placement.stages):
            card, priced = cards[stage.card.name], chosen[number]
            layers = sum(times.one_ns(card, stage.first + i, stage.slots[i], placement.level) for i in priced)
            ns += layers * len(stage.slots) / len(priced)
            if number:
                before = cards[placement.stages[number - 1].card.name]
                ns += handoff_ns(before, card, round(curve.rows * geometry.token_handoff_bytes), p2p=p2p)
        ns += times.first_ns(cards[stage_names[0]]) + times.head_ns(cards[stage_names[-1]])
        return 1.0 / ns

    return speed, (tuple(profiles[name] for name in [*names, host]), problem.preset)


def placement_interval(problem: LayerProblem, placement: LayerPlacement) -> Interval:
    """Interval of the speed of one placement by layers and tensors."""
    speed = placement_speed(problem, placement)
    return around(placement.tokens_per_s, speed, machine_of(problem.costs), workload=TEXT_SD)


def placement_speed(problem: LayerProblem, placement: LayerPlacement) -> Callable[[Machine], float]:
    """Tokens/s of a placement by layers and tensors on a drawn machine."""

    def speed(drawn: Machine) -> float:
        priced = evaluate(
            replace(problem, costs=drawn_costs(problem.costs, drawn)), placement.cards, placement.layers_each,
            placement.thirds, placement.host_layers,
        )  # fmt: skip
        assert priced is not None
        return priced.tokens_per_s

    return speed


def drawn_costs(costs: LayerCosts, drawn: Machine) -> LayerCosts:
    """The same trace on drawn cards, with what was counted of it; the host is the last profile."""
    *cards, host = drawn[0]
    return costs.on(dict(zip(costs.cards, cards, strict=True)), host, drawn[1])


def machine_of(costs: LayerCosts) -> Machine:
    """What is drawn of a machine that places layers: its cards, and last its host."""
    return (*costs.cards.values(), costs.host), costs.preset
