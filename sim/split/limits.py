"""Why a placement is impossible, in one sentence: the limit, by how much, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from expert_residency.errors import UserError
from expert_residency.hwmodels.units import GIB
from expert_residency.hwmodels.vram import VramBudget
from expert_residency.sim.choices.session import session_lines, session_shape
from expert_residency.sim.split.memory import (
    HOST_MODES,
    Needs,
    RamNeed,
    fitting_headroom,
    gib,
    needs_of,
    ram_need,
    spread_slots,
)
from expert_residency.sim.split.placement import Placement, Problem, Shortfall
from expert_residency.sim.split.planner import MAX_CARDS
from expert_residency.traces import list_models, load_model


def explain(problem: Problem, shortfall: Shortfall | None) -> str:
    """Sentence for a problem that has no placement."""
    if shortfall is None:
        return "no split gives every card a layer"
    if shortfall.budget is not None:
        return _vram(problem, shortfall)
    assert shortfall.ram is not None
    ram = shortfall.ram
    what = "every expert" if ram.mode == "arena" else "the experts that no card holds"
    kv = f", {gib(ram.streamed_kv_bytes)} of streamed KV" if ram.streamed_kv_bytes else ""
    return (
        f"RAM: {ram.mode} keeps {what} in memory, {gib(ram.must_bytes)}{kv} and {gib(ram.headroom_bytes)} of "
        f"headroom need {gib(ram.least_bytes)}, {shortfall.short_bytes / GIB:.1f} GiB more than the "
        f"{gib(problem.host.ram_bytes)}; {_would_fit(problem, ram=ram)}"
    )


def few_slots(problem: Problem, placement: Placement) -> list[str]:
    """Warnings of cards whose cache does not hold one token's experts: the context that would leave room."""
    geometry, needs = problem.needs.geometry, problem.needs
    found = []
    for number, stage in enumerate(placement.stages):
        if min(stage.slots) >= geometry.top_k:
            continue
        sizes = geometry.expert_bytes[stage.first : stage.end]
        wanted = geometry.top_k * sum(sizes)
        short = wanted - stage.budget.cache_bytes
        session = sum(line.nbytes for line in needs.session)
        advice = ""
        if needs.context:
            fits = _largest_context(needs, stage.budget, wanted)
            room = f"a context of {fits:,} tokens" if fits else "no context"
            advice = f"; {room} would leave room for them"
        found.append(
            f"{stage.card.name} (card {number + 1}) keeps {min(stage.slots)} experts a layer, fewer than the "
            f"{geometry.top_k} of one token: the session takes {session / GIB:.1f} GiB, "
            f"{max(0, short) / GIB:.1f} GiB are missing{advice}"
        )
    return found


def _vram(problem: Problem, shortfall: Shortfall) -> str:
    budget = shortfall.budget
    assert budget is not None
    lines = sorted(budget.lines, key=lambda line: -line.nbytes)[:3]
    parts = ", ".join(f"{line.name} {line.nbytes / GIB:.1f}" for line in lines)
    return (
        f"VRAM: {budget.card} needs {shortfall.short_bytes / GIB:.1f} GiB more than its "
        f"{budget.usable_bytes / GIB:.1f} GiB before it holds one expert ({parts} GiB); "
        f"{_would_fit(problem, budget)}"
    )


def _would_fit(problem: Problem, budget: VramBudget | None = None, ram: RamNeed | None = None) -> str:
    """What would fit, the least change first."""
    found = [text for text in (ram and _headroom(problem, ram), *_advice(problem, budget)) if text]
    return f"what would fit: {' or '.join(found)}" if found else "no context, host mode or quantization would fit"


def _headroom(problem: Problem, ram: RamNeed) -> str:
    """The headroom that leaves room for what the mode must hold; for a mode that must hold nothing, half of it."""
    total, held = problem.host.ram_bytes, ram.must_bytes + ram.streamed_kv_bytes
    return fitting_headroom(total, held if ram.must_bytes else max(total // 2, held))


def _advice(problem: Problem, budget: VramBudget | None) -> Iterator[str]:
    needs, cards = problem.needs, problem.cards
    if budget is not None and not needs.carve and _fits(problem, replace(needs, carve=True)):
        yield "--carve"
    if budget is not None and needs.context:
        tokens = _largest_context(needs, budget, 0)
        if tokens:
            yield f"a context of {tokens:,} tokens"
    for mode in HOST_MODES:
        if mode != problem.mode and _fits(replace(problem, mode=mode)):
            on_file = ram_need(
                needs, mode, problem.host.ram_bytes, _on_cards(problem, needs) or 0, problem.headroom_bytes
            ).file_bytes
            yield f"--host {mode}" + (f" ({gib(on_file)} of experts on the drive)" if on_file else "")
            break
    for count in range(len(cards) + 1, MAX_CARDS + 1):
        more = (*cards, *([cards[-1]] * (count - len(cards))))
        if _fits(replace(problem, cards=more)):
            yield f"{count} cards"
            break
    smaller = _largest_quant(problem)
    if smaller:
        yield smaller


def _fits(problem: Problem, needs: Needs | None = None) -> bool:
    needs = needs or problem.needs
    on_cards = _on_cards(problem, needs)
    if on_cards is None:
        return False
    need = ram_need(needs, problem.mode, problem.host.ram_bytes, on_cards, problem.headroom_bytes)
    return need.least_bytes <= problem.host.ram_bytes


def _on_cards(problem: Problem, needs: Needs) -> int | None:
    """Expert bytes that the cards hold with layers spread evenly, None if a card is too small."""
    geometry, cards = needs.geometry, problem.cards
    edges = [geometry.n_layers * i // len(cards) for i in range(len(cards) + 1)]
    total = 0
    for number, card in enumerate(cards):
        first, end = edges[number], edges[number + 1]
        cache = needs.budget(card, number, len(cards), first, end).cache_bytes
        if cache < 0 or end == first:
            return None
        sizes = geometry.expert_bytes[first:end]
        slots = spread_slots(cache, sizes, geometry.experts)
        total += sum(n * size for n, size in zip(slots, sizes, strict=True))
    return total


def _largest_context(needs: Needs, budget: VramBudget, cache_bytes: int) -> int:
    """Largest context in steps of 1,024 tokens that leaves the card `cache_bytes` for experts; 0: none."""
    shape = session_shape(needs.geometry)
    free = budget.cache_bytes + sum(line.nbytes for line in needs.session)

    def leaves(tokens: int) -> bool:
        lines = session_lines(shape, tokens, kv_type=needs.kv_type, kv_resident=needs.kv_resident)
        return free - sum(line.nbytes for line in lines) >= cache_bytes

    low, high = 0, max(1, needs.context // 1024)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if leaves(1024 * middle) else (low, middle)
    return 1024 * low


def _largest_quant(problem: Problem) -> str:
    """Largest smaller quantization of the model that fits as the problem stands."""
    needs = problem.needs
    geometry = needs.geometry
    found: list[tuple[int, str]] = []
    for quant in list_models().get(geometry.name, []):
        try:
            other = load_model(geometry.name, quant)
            swapped = (
                needs_of(
                    other,
                    context=needs.context,
                    kv_type=needs.kv_type,
                    kv_resident=needs.kv_resident,
                    draft=bool(needs.draft),
                    carve=needs.carve,
                )
                if needs.context
                else replace(needs, geometry=other)
            )
        except UserError:
            continue
        if other.all_expert_bytes < geometry.all_expert_bytes and _fits(problem, swapped):
            found.append((other.all_expert_bytes, quant))
    return max(found, default=(0, ""))[1]
