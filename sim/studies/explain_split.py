"""Where the token's time of a plan comes from, constant by constant, as `sim.studies.explain` does it for a run.

What is moved is what priced the headline: the exact sum over layers, the timed engine on the same placement, or,
where nothing was simulated, the planner's estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from expert_residency.sim.choices.trace import fit_geometry
from expert_residency.sim.runs.constants import Constant, constants_of, scaled
from expert_residency.sim.runs.interval import MOST_LOOK_UPS, Machine, shortened
from expert_residency.sim.split.interval import drawn_costs, machine_of, placement_speed, plan_speed
from expert_residency.sim.split.layers.by_rules import report
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem
from expert_residency.sim.split.rules import Rule
from expert_residency.sim.split.study import Answer, SplitStudy, with_ram
from expert_residency.sim.split.timed import simulate_placement
from expert_residency.sim.studies.explain import Term, terms_of

Speed = Callable[[Machine], float]


def _terms(tokens_per_s: float, machine: Machine, speed: Speed) -> list[Term]:
    profiles, preset = machine

    def ms(moved: dict[Constant, float]) -> float:
        return 1000.0 / speed(scaled(profiles, preset, moved))

    found = [one for one in constants_of(profiles, preset) if not one.name.endswith("_launches")]
    return terms_of(1000.0 / tokens_per_s, found, ms)


def explain_layers(problem: LayerProblem, placement: LayerPlacement) -> list[Term]:
    """Terms of a placement by whole layers and tensors.

    Parameters
    ----------
    problem, placement
        What was asked, and what answers it.

    Returns
    -------
    list of Term
        They add up to the ms of a token; cards first in the order of the problem, their host last.
    """
    speed = placement_speed(problem, placement)
    return _terms(placement.tokens_per_s, machine_of(problem.costs), speed)


def explain_rules(
    problem: LayerProblem, rules: Sequence[Rule], shares: Sequence[float] | None, ngl: int
) -> list[Term]:
    """Terms of a placement by llama.cpp's own options.

    Parameters
    ----------
    problem, rules, shares, ngl
        As `sim.split.layers.by_rules.report` takes them.

    Returns
    -------
    list of Term
        Empty if something does not fit.
    """
    whole = report(problem, rules, shares, ngl).tokens_per_s
    if whole is None:
        return []

    def speed(drawn: Machine) -> float:
        priced = replace(problem, costs=drawn_costs(problem.costs, drawn))
        return report(priced, rules, shares, ngl).tokens_per_s or whole

    return _terms(whole, machine_of(problem.costs), speed)


def explain_plan(found: SplitStudy, answer: Answer) -> list[Term]:
    """Terms of an answer of an engine that keeps single experts on cards.

    Parameters
    ----------
    found, answer
        The study, and which of its answers.

    Returns
    -------
    list of Term
        By the timed engine where the answer was simulated, of a long trace by its first decode passes.
    """
    placement, question = answer.placement, found.question
    assert placement is not None
    estimated, machine = plan_speed(answer, found.profiles, question.host, question.p2p)
    if answer.simulated is None:
        return _terms(answer.tokens_per_s, machine, estimated)
    profiles = machine[0]
    names = [profile.name for profile in profiles[:-1]]
    short = shortened(fit_geometry(found.trace, answer.geometry), MOST_LOOK_UPS)

    def simulated(drawn: Machine) -> float:
        (*cards, host), engine = drawn
        if question.ram_bytes is not None:
            host = with_ram(host, question.ram_bytes)
        return simulate_placement(
            placement, short, dict(zip(names, cards, strict=True)), host, engine=question.engine,
            miss=question.miss, p2p=question.p2p, kv_type=question.kv_type, preset=engine,
        ).tokens_per_s  # fmt: skip

    return _terms(answer.tokens_per_s, machine, simulated)
