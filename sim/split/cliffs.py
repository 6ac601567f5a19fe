"""Where a placement stands to the cliffs of its engine."""

from __future__ import annotations

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.choices.cliffs import Cliff, Standing, cliffs
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem
from expert_residency.sim.split.layers.study import LayerAnswer
from expert_residency.sim.split.study import Answer, SplitStudy, with_ram


def layer_standing(problem: LayerProblem, placement: LayerPlacement) -> Standing:
    """Of whole layers, which stay where they are."""
    costs = problem.costs
    cards = [costs.cards[card] for card in placement.cards]
    each = (placement.host_layers + placement.layers_each[0], *placement.layers_each[1:])
    return Standing(
        problem.geometry, (_on_host(cards[0], costs.host), *cards[1:]), costs.preset, each, placement.expert_bytes,
        tuple(budget.cache_bytes for budget in placement.budgets),
        _beside(problem.needs.context, problem.needs.kv_type), host="mmap", miss="cpu", moves=False, meant=True,
        ram_bytes=problem.ram_bytes, kept_bytes=problem.headroom_bytes,
    )  # fmt: skip


def answer_cliffs(answer: LayerAnswer | Answer, found: SplitStudy | None = None) -> list[Cliff]:
    """Cliffs of an answer; none of one that does not fit.

    Parameters
    ----------
    answer
        The answer.
    found
        The study that it is of, where single experts are kept.

    Returns
    -------
    list of Cliff
        Near and far.
    """
    if answer.placement is None:
        return []
    if isinstance(answer, LayerAnswer):
        return cliffs(layer_standing(answer.problem, answer.placement))
    assert found is not None
    return cliffs(_standing(found, answer))


def _standing(found: SplitStudy, answer: Answer) -> Standing:
    placement, asked, needs = answer.placement, found.question, answer.planner.problem.needs
    assert placement is not None
    host = found.profiles[asked.host]
    if asked.ram_bytes is not None:
        host = with_ram(host, asked.ram_bytes)
    cards = [found.profiles[stage.card.name] for stage in placement.stages]
    preset = load_engine(asked.engine)
    budget = placement.ram.mode == "budget"  # as large as memory lets it: all that no card holds, at the edge
    return Standing(
        answer.geometry, (_on_host(cards[0], host), *cards[1:]), preset, placement.layers_each,
        tuple(stage.expert_bytes for stage in placement.stages),
        tuple(stage.budget.cache_bytes for stage in placement.stages), _beside(needs.context, needs.kv_type),
        host="mmap" if budget else placement.ram.mode, miss=asked.miss, meant=True,
        moves=not budget and preset.policy.get("admission") != "never",
        kept_bytes=asked.headroom_bytes if budget else None,
    )  # fmt: skip


def _on_host(card: HardwareProfile, host: HardwareProfile) -> HardwareProfile:
    """A card with the processor and memory that serve all."""
    return card.model_copy(update={"cpu": host.cpu, "dram": host.dram, "ram": host.ram, "disk": host.disk})


def _beside(context: int, kv_type: str) -> str:
    said = f"a context of {context:,} tokens ({kv_type} KV)" if context else "the context"
    return f"dense weights, {said} and the reserve"
