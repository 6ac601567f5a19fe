"""A study as plain data, and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from expert_residency.errors import SimError
from expert_residency.files import save_figure
from expert_residency.hwmodels.units import GB
from expert_residency.sim.split.compare import fill_seconds
from expert_residency.sim.split.placement import Placement
from expert_residency.sim.split.study import Answer, SplitStudy

PREFILL_CHUNK = 2_048
"""Rows of the prompt chunk whose hand-off is reported."""


def label(names: Sequence[str]) -> str:
    """`2x tesla-p40 + rtx-3070`, in the order of `names`."""
    runs = [(name, len(list(run))) for name, run in groupby(names)]
    return " + ".join(f"{n}x {name}" if n > 1 else name for name, n in runs)


def ram_bytes(answer: Answer) -> tuple[int, int] | None:
    """(experts in RAM, RAM needed) of an answer, of the nearest miss if it does not fit; None if unknown."""
    ram = answer.placement.ram if answer.placement else answer.shortfall.ram if answer.shortfall else None
    return (ram.experts_bytes, ram.needed_bytes) if ram else None


def vram_bytes(answer: Answer) -> int | None:
    """Experts in VRAM, of the nearest miss if RAM is what lacks."""
    if answer.placement:
        return answer.placement.vram_expert_bytes
    short = answer.shortfall.ram if answer.shortfall else None
    return answer.geometry.all_expert_bytes - short.must_bytes if short and answer.mode != "arena" else None


def to_dict(found: SplitStudy) -> dict[str, Any]:
    """JSON-able form."""
    question, curve = found.question, found.curve
    best = found.best
    return {
        "model": question.model,
        "engine": question.engine,
        "miss": question.miss,
        "headroom_bytes": question.headroom_bytes,
        "carve": question.carve,
        "context": question.context,
        "kv": question.kv_type,
        "rows_a_pass": curve.rows,
        "tokens_a_pass": curve.tokens_a_pass,
        "synthetic": curve.synthetic,
        "caveats": found.caveats,
        "best": None if best is None else found.answers.index(best),
        "best_of_quants": [found.answers.index(answer) for answer in found.best_of_quants],
        "answers": [_answer(found, answer) for answer in found.answers],
    }


def _answer(found: SplitStudy, answer: Answer) -> dict[str, Any]:
    placement, simulated = answer.placement, answer.simulated
    data: dict[str, Any] = {
        "cards": list(answer.ordered),
        "quant": answer.geometry.quant,
        "host": answer.mode,
        "fits": placement is not None,
        "limit": answer.limit or None,
        "notes": answer.notes,
    }
    if placement is None:
        short = answer.shortfall
        return data | {"short_of": short and short.limit, "short_bytes": short and short.short_bytes}
    return data | {
        "estimated_tokens_per_s": placement.tokens_per_s,
        "interval_90": (around := found.interval_90(answer)) and around.to_dict(),
        "estimated_pass_ns": placement.pass_ns,
        "simulated": None if simulated is None else vars(simulated),
        "layers_each": list(placement.layers_each),
        "stages": [
            {
                "card": stage.card.name,
                "layers": [answer.geometry.layer_ids[stage.first], answer.geometry.layer_ids[stage.end - 1]],
                "usable_bytes": stage.budget.usable_bytes,
                "lines": {line.name: line.nbytes for line in stage.budget.lines},
                "expert_bytes": stage.expert_bytes,
                "slots": sum(stage.slots),
                "ns": stage.ns,
            }
            for stage in placement.stages
        ],
        "handoffs_ns": list(placement.handoffs_ns),
        "prefill_handoffs_ns": answer.planner.handoffs_ns(placement, PREFILL_CHUNK),
        "overhead_ns": placement.overhead_ns,
        "hit_rate": placement.hit_rate,
        "ram_rate": placement.ram_rate,
        "experts_in_memory_a_layer": placement.level,
        "slots": placement.slots,
        "roomiest": answer.roomiest
        and {
            "cards": list(answer.in_order(answer.roomiest)),
            "layers_each": list(answer.roomiest.layers_each),
            "vram_expert_bytes": answer.roomiest.vram_expert_bytes,
            "ram_needed_bytes": answer.roomiest.ram.needed_bytes,
            "estimated_tokens_per_s": answer.roomiest.tokens_per_s,
        },
        "vram_expert_bytes": placement.vram_expert_bytes,
        "ram": vars(placement.ram) | {"needed_bytes": placement.ram.needed_bytes},
        "fill_s": fill_seconds(placement, answer.planner.problem.host),
        "store": placement.store and {"card": placement.store.card.name, "slots_a_layer": placement.store.slots},
    }


def in_gb(nbytes: int | None) -> str:
    """`17.0`, in GB, or `n/a`."""
    return "n/a" if nbytes is None else f"{nbytes / GB:.1f}"


def plot(path: Path, points: Sequence[tuple[int, Placement | None]], title: str) -> None:
    """Tokens/s against layers on the first card, the best marked, splits that do not fit shaded.

    Parameters
    ----------
    path
        Picture to write; the suffix says the format.
    points
        Layers on the first card, and the best placement with so many, or None.
    title
        Above the picture.

    Raises
    ------
    SimError
        If matplotlib is not installed, or nothing fits.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SimError("a plot needs matplotlib: pip install 'expert-residency[plot]'") from None
    fitting = [(n, p) for n, p in points if p]
    if not fitting:
        raise SimError("no split fits, so there is nothing to plot")
    best = max(fitting, key=lambda item: item[1].tokens_per_s)
    first = fitting[0][1].stages[0].card.name
    figure = Figure(figsize=(7, 4), layout="constrained")
    axis = figure.subplots()
    axis.plot([n for n, _ in fitting], [p.tokens_per_s for _, p in fitting], marker=".", label="forced split")
    split = " + ".join(map(str, best[1].layers_each))
    axis.plot(best[0], best[1].tokens_per_s, "o", label=f"best: {split} layers, {best[1].tokens_per_s:.1f} tok/s")
    for n, p in points:
        if p is None:
            axis.axvspan(n - 0.5, n + 0.5, color="0.9")
    axis.set(
        xlabel=f"layers on the first card ({first})", ylabel="tokens/s, estimated", ylim=(0, None), title=title
    )
    axis.legend(loc="lower center")
    axis.grid(alpha=0.3)
    save_figure(figure, path, 110, metadata={"Software": None} if path.suffix == ".png" else None)
