"""Published slot counts beside those that the arithmetic of `hwmodels.vram` gives."""

from __future__ import annotations

from expert_residency.hwmodels.runs import SlotCount, load_slot_counts
from expert_residency.hwmodels.units import MIB
from expert_residency.hwmodels.vram import Line, VramBudget, Weights
from expert_residency.sim.choices.session import session_lines, session_shape
from expert_residency.text import markdown
from expert_residency.traces import load_model


def published_budget(row: SlotCount) -> VramBudget:
    """The budget that the arithmetic gives for a published slot count; all of them are of one model's family."""

    def mib(value: float) -> int:
        return round(value * MIB)

    weights = Weights(
        mib(row.dense_mib), mib(row.head_mib), mib(row.draft_head_mib), mib(row.draft_mib), source=row.source
    )
    shape = session_shape(load_model("qwen3.8-flash-next"))
    session = session_lines(
        shape, row.context_tokens, kv_type=row.kv_type, kv_resident=row.kv_resident, draft=row.draft_mib > 0
    )
    reserve = Line("reserve", mib(row.reserve_mib), row.source)
    return VramBudget(row.gpu, mib(row.vram_total_mib - row.residual_mib), (reserve, *weights.lines(), *session))


def slots() -> str:
    """Published and predicted slots, row by row."""
    rows = []
    for row in load_slot_counts():
        found = published_budget(row).slots(row.expert_bytes)
        rows.append(
            (
                row.gpu,
                row.quant,
                f"{row.context_tokens // 1024}K",
                f"{row.kv_type}, {f'{row.kv_resident:,} resident' if row.kv_resident else 'all resident'}",
                f"{row.slots:,}",
                f"{found:,}",
                f"{100 * (found / row.slots - 1):+.1f} %",
                row.basis,
                row.reason,
            )
        )
    heads = ("card", "quantization", "context", "KV", "published", "predicted", "error", "basis", "why it misses")
    return markdown(heads, rows)


def breakdown() -> str:
    """The lines of one budget: RTX 5070, IQ2_XS, 32K."""
    row = next(r for r in load_slot_counts() if (r.quant, r.context_tokens) == ("IQ2_XS", 32 * 1024))
    budget = published_budget(row)
    rows = [(line.name, f"{line.nbytes / MIB:,.1f}") for line in budget.lines]
    rows = [("usable", f"{budget.usable_bytes / MIB:,.1f}"), *rows]
    return markdown(("line", "MiB"), [*rows, ("left for experts", f"{budget.cache_bytes / MIB:,.1f}")])
