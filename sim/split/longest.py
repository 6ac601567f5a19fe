"""The largest context that a placement leaves room for, with the speed that it then has."""

from __future__ import annotations

from dataclasses import replace

from expert_residency.errors import SimError
from expert_residency.sim.choices.longest import Longest, largest_context, session_bytes
from expert_residency.sim.choices.session import session_lines
from expert_residency.sim.choices.trace import fit_geometry
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem, evaluate
from expert_residency.sim.split.study import Answer, SplitStudy, with_ram
from expert_residency.sim.split.timed import simulate_placement
from expert_residency.sim.timed.attention import lengths
from expert_residency.traces import RoutingTrace


def depth_of(trace: RoutingTrace, tokens: int) -> int:
    """Tokens before a trace's own with which its last pass sees so many."""
    return max(0, tokens - int(lengths(trace, 0).max(initial=1)))


def layers_longest(problem: LayerProblem, placement: LayerPlacement) -> Longest | None:
    """Of whole layers, which stay where they are.

    Parameters
    ----------
    problem, placement
        Where a context was planned.

    Returns
    -------
    Longest | None
        None where the context is not known line by line.
    """
    asked, shape = problem.needs.context, problem.geometry.session_shape
    if not asked or shape is None:
        return None

    def with_context(tokens: int) -> LayerProblem:
        lines = session_lines(shape, tokens, kv_type=problem.needs.kv_type)
        return replace(problem, needs=replace(problem.needs, session=tuple(lines), context=tokens))

    def fits(tokens: int) -> bool:
        longer, first = with_context(tokens), placement.host_layers
        for card, n, held in zip(placement.cards, placement.layers_each, placement.expert_bytes, strict=True):
            budget = longer.budget(card, first, first + n, output=not placement.host_layers)
            first += n
            cached = not problem.has_card and placement.drive_ns  # a page cache gives way to the context
            if budget.cache_bytes < (1 if cached else held):
                return False
        return True

    tokens = largest_context(fits, asked)
    costs = problem.costs.at_depth(depth_of(problem.costs.trace, tokens))
    full = evaluate(
        replace(with_context(tokens), costs=costs), placement.cards, placement.layers_each, placement.thirds,
        placement.host_layers,
    )  # fmt: skip
    return None if full is None else Longest(tokens, asked, full.tokens_per_s, full.how)


def answer_longest(found: SplitStudy, answer: Answer) -> Longest | None:
    """Of an engine that keeps single experts, with the same slots.

    Parameters
    ----------
    found, answer
        A study and one of its answers.

    Returns
    -------
    Longest | None
        None where the context is not known line by line, or nothing is simulated.
    """
    placement, needs, asked = answer.placement, answer.planner.problem.needs, found.question
    if placement is None or answer.simulated is None or not needs.context or needs.draft:
        return None
    free = min(stage.budget.cache_bytes - stage.expert_bytes for stage in placement.stages)

    def size(tokens: int) -> int:
        return session_bytes(answer.geometry, tokens, needs.kv_type, needs.kv_resident)

    room = free + size(needs.context)
    tokens = largest_context(lambda tokens: size(tokens) <= room, needs.context)
    host = found.profiles[asked.host]
    trace = fit_geometry(found.trace, answer.geometry)
    try:
        made = simulate_placement(
            placement, trace, found.profiles,
            host if asked.ram_bytes is None else with_ram(host, asked.ram_bytes), engine=asked.engine,
            miss=asked.miss, p2p=asked.p2p, kv_type=asked.kv_type, depth=depth_of(trace, tokens),
        )  # fmt: skip
    except SimError:
        return None
    return Longest(tokens, needs.context, made.tokens_per_s)
