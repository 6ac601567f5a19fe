"""Ratios of speeds over many cases, and how far they may lie elsewhere on other models and requests.

The *speed* of an entrant is the baseline's time over its own: above 1 it is faster. Within a model and a case it
is that of all requests together (tokens over time); over the cases of a model, and over models, it is the mean of
ratios (geometric). So each model counts once, however many traces, requests and cases it has.

Intervals are drawn as the data came about: models with replacement, and for each of them its requests (a two-stage
bootstrap; of one model only requests are drawn). All entrants get the same draws, so a difference between two of
them has an interval of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.sim.studies.bootstrap import DRAWS, FEWEST, LEVEL, SEED

if TYPE_CHECKING:
    import pandas as pd

Floats = npt.NDArray[np.float64]
Interval = tuple[float, float]


@dataclass(frozen=True)
class ModelTimes:
    """Times on one model.

    Parameters
    ----------
    ns : (E, K, R)
        Of each entrant, case without its trace, and request of all traces; 0 where a trace has no such case.
    cases
        (K) the axes in words.
    traces
        (R) trace of each request.
    """

    ns: Floats
    cases: list[dict[str, str]]
    traces: list[str]

    def logs(self, weights: Floats) -> Floats:
        """(n, E) mean over cases of the log of the speed, requests counted as often as `weights` (n, R) say."""
        entrants, cases, requests = self.ns.shape
        sums = (weights @ self.ns.reshape(-1, requests).T).reshape(len(weights), entrants, cases)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(sums[:, :1]) - np.log(sums)
        return np.asarray(np.nanmean(logs, axis=2))

    def part(self, only: Mapping[str, str]) -> ModelTimes | None:
        """Its cases with these words; None if there is none."""
        axes = {axis: value for axis, value in only.items() if axis != "trace"}
        kept = [k for k, case in enumerate(self.cases) if all(case[a] == v for a, v in axes.items())]
        own = [r for r, trace in enumerate(self.traces) if only.get("trace", trace) == trace]
        ns = self.ns[:, kept][:, :, own]
        some = np.flatnonzero(ns[0].sum(axis=1)) if own else np.zeros(0, dtype=int)
        if not len(some):
            return None
        return ModelTimes(ns[:, some], [self.cases[kept[k]] for k in some], [self.traces[r] for r in own])


class Times:
    """Times of all entrants, the first of them the baseline."""

    def __init__(self, models: Sequence[ModelTimes]) -> None:
        self.models = list(models)

    @classmethod
    def of(cls, cells: pd.DataFrame, labels: Sequence[str], axes: Sequence[str]) -> Times:
        """From one row a run, with `entrant`, `model`, `ns` by request and the axes, `trace` among them.

        Parameters
        ----------
        cells
            All entrants in all cases.
        labels
            The entrants, the baseline first.
        axes
            Names of columns.

        Returns
        -------
        Times
            Of all models.
        """
        place = {label: number for number, label in enumerate(labels)}
        others = [axis for axis in axes if axis != "trace"]
        models = []
        for _, own in cells.groupby("model", sort=False):
            keys = list(dict.fromkeys(own[others].itertuples(index=False, name=None)))
            number = {key: k for k, key in enumerate(keys)}
            lengths = {row["trace"]: len(row["ns"]) for row in own.to_dict("records")}
            starts = dict(zip(lengths, np.cumsum([0, *lengths.values()]).tolist(), strict=False))
            ns = np.zeros((len(labels), len(keys), sum(lengths.values())))
            for row in own.to_dict("records"):
                at = starts[row["trace"]]
                case = number[tuple(row[axis] for axis in others)]
                ns[place[row["entrant"]], case, at : at + len(row["ns"])] = row["ns"]
            traces = [name for name, n in lengths.items() for _ in range(n)]
            models.append(ModelTimes(ns, [dict(zip(others, key, strict=True)) for key in keys], traces))
        return cls(models)

    def part(self, only: Mapping[str, str]) -> Times:
        """Of the cases with these words."""
        return Times([found for model in self.models if (found := model.part(only)) is not None])

    @property
    def requests(self) -> int:
        """Of all models."""
        return sum(len(model.traces) for model in self.models)

    @cached_property
    def ratios(self) -> Floats:
        """(E) speed of each entrant over that of the baseline."""
        logs = [model.logs(np.ones((1, len(model.traces)))) for model in self.models]
        return np.asarray(np.exp(np.mean(logs, axis=0)[0]))

    @cached_property
    def drawn(self) -> Floats | None:
        """(`DRAWS`, E) logs of the same on drawn models and requests; None with fewer than `FEWEST` requests."""
        if self.requests < FEWEST:
            return None
        rng = np.random.default_rng(SEED)
        count = len(self.models)
        total = np.zeros((DRAWS, self.models[0].ns.shape[0]))
        for chosen in rng.integers(0, count, (count, DRAWS)):
            for number, model in enumerate(self.models):
                rows = np.flatnonzero(chosen == number)
                each = len(model.traces)
                weights = rng.multinomial(each, np.full(each, 1 / each), size=len(rows)).astype(float)
                if len(rows):
                    total[rows] += model.logs(weights)
        return total / count

    def interval(self, number: int, over: int = 0) -> Interval | None:
        """Interval of an entrant's speed over that of another, the baseline by default."""
        if self.drawn is None:
            return None
        tail = 50 * (1 - LEVEL)
        low, high = np.percentile(np.exp(self.drawn[:, number] - self.drawn[:, over]), [tail, 100 - tail])
        return float(low), float(high)


def real(interval: Interval | None) -> bool | None:
    """Whether an interval leaves out 1; None without one."""
    return None if interval is None else not interval[0] <= 1 <= interval[1]


def by_model(cells: pd.DataFrame, column: str) -> Any:
    """Mean of a column for each entrant: over cases, then over models."""
    known = cells[cells[column].notna()]
    return known.groupby(["model", "entrant"])[column].mean().groupby("entrant").mean()
