"""Tables of `models.md`: the packaged models, and their sizes beside published ones."""

from __future__ import annotations

import csv
from pathlib import Path

from expert_residency.text import markdown
from expert_residency.traces import list_models, load_model
from expert_residency.traces.geometry import read_model

PUBLISHED = Path(__file__).resolve().parents[1] / "tests" / "published_sizes.csv"


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


def sizes() -> str:
    """Packaged models whose files somebody published the size of."""
    rows = []
    with PUBLISHED.open(newline="") as file:
        for row in csv.DictReader(file):
            ours = read_model(row["model"]).quants[row["quant"]].file_bytes / 2**30
            off = 100 * (ours / float(row["gib"]) - 1)
            label, published = f"`{row['model']}/{row['quant']}`", f"{float(row['gib']):,.2f}"
            rows.append([label, f"{ours:,.2f}", published, f"{off:+.2f} %", row["differs"]])
    return markdown(["model", "here GiB", "published GiB", "off", "why"], rows)
