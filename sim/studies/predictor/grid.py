"""The map: noisy oracles by recall, precision, rank quality and horizon, and lines through them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from expert_residency.sim.studies.bounds import time_ns
from expert_residency.sim.timed.result import RunResult

RECALLS = (0.2, 0.4, 0.6, 0.8, 1.0)
PRECISIONS = (0.1, 0.25, 0.5, 0.75, 1.0)
WINDOWS = (1, 4)
RANK_QUALITIES = (0.5, 0.8)
"""Guesses in no order, and in one as good as that of routers asked early, which lie between 0.74 and 0.81."""


@dataclass(frozen=True)
class Cell:
    """One run of the noisy oracle: speed-up over no prefetching, and what became of the copies.

    Parameters
    ----------
    recall, precision, rank_quality, window
        That the oracle drew with.
    reached_recall, reached_precision
        Of its copies, as `PrefetchStats` defines them for every command; None where nothing was missed or copied.
    """

    prefetch: str
    recall: float
    precision: float
    rank_quality: float
    window: int
    speedup: float
    ms_per_token: float
    reached_recall: float | None
    reached_precision: float | None
    copies: int
    h2d_bytes: int
    harmful_bytes: int
    wasted_bytes: int


def noisy(
    recall: float, precision: float, rank_quality: float, *, window: int = 1, nearest: int = 1, decay: float = 1.0,
    within_pass: bool = False, seed: int = 1,
) -> str:  # fmt: skip
    """Words for the noisy oracle of copies.

    Parameters
    ----------
    recall, precision, rank_quality
        0 to 1 each.
    window, nearest
        Furthest and nearest event that is predicted, from 1.
    decay
        Factor of the recall for each event further ahead.
    within_pass
        Whether events of the next pass are left out.
    seed
        Of the draws.

    Returns
    -------
    str
        A prefetch policy's.
    """
    words = f"noisy-copies:recall={recall:.6g},precision={precision:.6g},auc={rank_quality:.6g},decay={decay:g}"
    near = f",nearest={nearest}" * (nearest != 1) + ",within_pass=true" * within_pass
    return f"{words},window={window}{near},seed={seed}"


def cell_of(choice: tuple[str, float, float, float, int], result: RunResult, quiet: int) -> Cell:
    """A run as a cell of the map.

    Parameters
    ----------
    choice
        Words of the oracle, recall, precision, rank quality and window.
    result
        Its run.
    quiet
        Time of the run without prefetching, in ns.

    Returns
    -------
    Cell
        Its speed and copies.
    """
    moved = sum(result.link_bytes[name] for name in ("h2d_demand", "h2d_adapt", "h2d_prefetch"))
    stats = result.prefetch
    return Cell(*choice, quiet / time_ns(result), _ms_per_token(result), stats.recall, stats.precision,
                stats.issued, moved, stats.harmful_bytes, stats.wasted_bytes)  # fmt: skip


def _ms_per_token(result: RunResult) -> float:
    return time_ns(result) / 1e6 / max(1, result.decode_tokens)


def break_even(grid: Iterable[Cell]) -> dict[tuple[int, float, float], float | None]:
    """Lowest precision reached from which on prefetching is not slower, by (window, rank quality, recall).

    None if it never pays. A cell in which nothing was copied stands where it was drawn.
    """
    rows: dict[tuple[int, float, float], list[Cell]] = {}
    for cell in grid:
        rows.setdefault((cell.window, cell.rank_quality, cell.recall), []).append(cell)
    found: dict[tuple[int, float, float], float | None] = {}
    for place, cells in rows.items():
        line = None
        above: tuple[float, float] | None = None
        for cell in sorted(cells, key=lambda c: -c.precision):
            at = cell.precision if cell.reached_precision is None else cell.reached_precision
            if cell.speedup < 1.0:
                if above is not None:
                    share = (1.0 - cell.speedup) / (above[1] - cell.speedup)
                    line = at + share * (above[0] - at)
                break
            line, above = at, (at, cell.speedup)
        found[place] = line
    return found


def recall_worth(grid: Iterable[Cell]) -> dict[tuple[int, float, float], float | None]:
    """What one point (0.01) of recall saves in ms a token, by (window, rank quality, precision drawn).

    Least squares over the recall that the cells reached; None for a single recall. Negative: more recall, at
    this precision, is slower.
    """
    columns: dict[tuple[int, float, float], list[Cell]] = {}
    for cell in grid:
        columns.setdefault((cell.window, cell.rank_quality, cell.precision), []).append(cell)
    found: dict[tuple[int, float, float], float | None] = {}
    for place, cells in columns.items():
        x = np.array([100 * (cell.reached_recall or 0.0) for cell in cells])
        y = np.array([cell.ms_per_token for cell in cells])
        spread = float(((x - x.mean()) ** 2).sum())
        found[place] = -float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread > 1e-9 else None
    return found
