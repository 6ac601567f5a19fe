"""The figure and the asked-against-got tables of synthetic.md; `build.py` puts them there."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from expert_residency.text import markdown
from expert_residency.traces.synthetic import generate, lru_curve
from expert_residency.traces.synthetic.fit import shape_of
from expert_residency.traces.synthetic.style import load_style_file

FITTED_CURVE = {"qwen3.8-flash-next": "generation", "qwen3-30b-a3b": "prompt", "gpt-oss-20b": "sequence"}


def table(name: str) -> str:
    """Targets of a style."""
    file = load_style_file(name)
    rows = []
    for t in file.targets:
        if t.got is None:
            raise ValueError(f"{file.name}: {t.statistic} has no `got`; evaluate the style first")
        where = "" if t.layer is None else f", layer {t.layer}"
        source = t.source + (f" ({t.note})" if t.note else "")
        error = f"{t.got - t.asked:+.3g}"
        fitted = "yes" if t.fitted else "check"
        rows.append((t.statistic + where, t.workload, f"{t.asked:.4g}", f"{t.got:.4g}", error, fitted, source))
    return markdown(("statistic", "workload", "asked", "got", "error", "fitted", "source"), rows)


def draw(path: Path) -> None:
    """LRU hit rate against slots a layer: published points, and the curve that the style gives."""
    mpl.rcParams["svg.hashsalt"] = "synthetic"
    figure, axes = plt.subplots(1, len(FITTED_CURVE), figsize=(13, 4), layout="constrained")
    for axis, (name, workload) in zip(axes, FITTED_CURVE.items(), strict=True):
        file = load_style_file(name)
        work = file.workloads[workload].model_dump(exclude={"about"})
        trace = generate(shape_of(file), file.style, seed=file.fit_seed, weights=False, **work)
        slots = np.unique(np.geomspace(2, file.experts, 80).astype(int))
        axis.plot(slots, 100 * lru_curve(trace, slots.tolist()), label=f"synthetic, workload '{workload}'")
        for group, marker in (("lru", "o"), ("lru_carried", "x")):
            for where in dict.fromkeys(t.workload for t in file.targets):
                points = [
                    (int(t.statistic.partition("@")[2]), 100 * t.asked)
                    for t in file.targets
                    if t.workload == where and t.statistic.partition("@")[0] == group
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), marker, label=f"published, '{where}'")
        axis.set(title=f"{name} (synthetic)", xlabel="slots a layer", ylim=(0, 100))
        axis.legend(fontsize=8, loc="lower right")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("LRU hits, % of distinct look-ups")
    figure.savefig(path, dpi=110, metadata={"Software": None})
