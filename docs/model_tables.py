"""Table of `models.md`: the packaged models."""

from __future__ import annotations

from expert_residency.text import markdown
from expert_residency.traces import list_models, load_model


def packaged() -> str:
    """Every packaged model with the bytes of its default quantization."""
    rows = []
    for name, quants in list_models().items():
        g = load_model(name)
        rows.append(
            [
                f"`{name}`",
                f"{g.n_layers} of {g.total_layers}",
                f"{g.experts}, top-{g.top_k}",
                f"{g.all_expert_bytes / 2**30:,.2f}",
                f"{(sum(g.dense_bytes) + g.dense_only_bytes + g.head_bytes) / 2**30:,.2f}",
                ", ".join(quants),
            ]
        )
    heads = ["model", "MoE layers", "experts", "all experts GiB", "the rest GiB", "quantizations"]
    return markdown(heads, rows)
