"""Tables of `models.md`: the packaged models, and their sizes beside published ones."""

from __future__ import annotations

import statistics

from expert_residency.text import markdown
from expert_residency.traces import list_models, load_model
from expert_residency.traces.file_sizes import size_checks
from expert_residency.traces.geometry import read_model


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


def compared() -> str:
    """How many packaged pairs were compared with what, and how far off they are."""
    first = [checks[0] for checks in size_checks().values()]
    rows = []
    for what, chosen in (
        ("a published file, equal within 0.3 %", [c for c in first if c.is_the_file]),
        ("a publisher's own mix of that name", [c for c in first if c.by == "file" and not c.is_the_file]),
        ("llama.cpp's quantizer only", [c for c in first if c.by == "quantizer"]),
        ("the number of parameters only", [c for c in first if c.by == "parameters"]),
        ("nothing", [c for c in first if c.by == "unchecked"]),
    ):
        off = [abs(c.off) for c in chosen if c.by != "unchecked"]
        figures = [f"{100 * statistics.median(off):.2f} %", f"{100 * max(off):.2f} %"] if off else ["", ""]
        rows.append([what, str(len(chosen)), *figures])
    return markdown(["compared with", "pairs", "median off", "worst"], rows)


def sizes() -> str:
    """Every packaged pair: the size here, the published one or the quantizer's, and who says so."""
    rows = []
    for checks in size_checks().values():
        for check in checks:
            ours = read_model(check.model).quants[check.quant].file_bytes / 2**30
            known = check.by != "unchecked"
            rows.append(
                [
                    f"`{check.model}/{check.quant}`",
                    f"{ours:,.2f}" if ours else "",
                    f"{check.gib:,.2f}" if known else "",
                    f"{100 * check.off:+.2f} %" if known else "unchecked",
                    check.by if known else "",
                    "; ".join(filter(None, (check.differs, check.source))),
                ]
            )
    return markdown(["model", "here GiB", "there GiB", "off", "by", "what and who"], rows)
