"""From runs to a ranking: who is faster than LRU, by how much, whether that is real, and what wins where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expert_residency.policies import Policy
from expert_residency.sim.runs.basis import Basis
from expert_residency.sim.studies.bootstrap import LEVEL
from expert_residency.sim.studies.leaderboard.field import BASELINE, Entrant, entrant_of, joined, registered
from expert_residency.sim.studies.leaderboard.runs import Runs, basis_of, run_all
from expert_residency.sim.studies.leaderboard.times import Interval, Times, by_model, real
from expert_residency.sim.studies.score import SMALL_GAIN
from expert_residency.sim.timed.result import CAUSES
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    import pandas as pd

    from expert_residency.sim.sweep import SweepResult

EVERYWHERE = "everywhere"
SAME = 1e-9
"""Relative difference below which two times are one."""


@dataclass(frozen=True)
class Row:
    """One entrant over all cases.

    Parameters
    ----------
    entrant
        Who.
    rank
        By `ratio` among those that see no future, from 1; None for those that do.
    ratio, interval
        Speed over that of the baseline, and where it may lie on other models and requests.
    behind
        Speed over that of the first, with its interval; None for the first, and for what sees the future.
    faster, slower, fastest
        Cases in which it takes less time than the baseline, more, and least of all that see no future (ties
        count for each; cases in which all take the same time count for nobody).
    headroom
        Share of the baseline's time that it saves over the share that any schedule could save, each a mean over
        cases, then over models; None if that is next to nothing.
    hit_rate
        Mean in the same way.
    by
        Axis to value to speed over that of the baseline there.
    """

    entrant: Entrant
    rank: int | None
    ratio: float
    interval: Interval | None
    behind: tuple[float, Interval | None] | None
    faster: int
    slower: int
    fastest: int
    headroom: float | None
    hit_rate: float | None
    by: dict[str, dict[str, float]]

    @property
    def real(self) -> bool | None:
        """Whether it differs from the baseline; None if that cannot be said."""
        return real(self.interval)

    @property
    def told_from_first(self) -> bool | None:
        """Whether it differs from the first; None if that cannot be said."""
        return None if self.behind is None else real(self.behind[1])

    def ratio_at(self, place: Place) -> float:
        """Its speed over that of the baseline somewhere."""
        return self.by[place.axis][place.value] if place.axis in self.by else self.ratio

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        ratio, interval = self.behind or (None, None)
        return {
            "policy": self.entrant.label, "kind": self.entrant.kind, "home": self.entrant.home, "rank": self.rank,
            "speed": self.ratio, "interval": self.interval and list(self.interval), "real": self.real,
            "speed_over_first": ratio, "interval_over_first": interval and list(interval),
            "told_from_first": self.told_from_first, "faster": self.faster, "slower": self.slower,
            "fastest": self.fastest, "headroom_captured": self.headroom, "hit_rate": self.hit_rate, "by": self.by,
        }  # fmt: skip


@dataclass(frozen=True)
class Place:
    """What wins somewhere.

    Parameters
    ----------
    axis, value
        The cases that are meant.
    first, second
        Labels of the fastest that see no future; None where there is only one.
    ratio, interval
        Speed of the first over that of the baseline.
    ahead, ahead_interval
        Speed of the first over that of the second.
    over, over_interval
        Speed of the first there over that of the first everywhere; None where that is the same.
    hit_rate, base_hit_rate
        Of the first and of the baseline.
    saved
        Share of the baseline's time that the first saves, by cause of time; losses are negative.
    cases, requests
        How many they are.
    """

    axis: str
    value: str
    first: str
    second: str | None
    ratio: float
    interval: Interval | None
    ahead: float | None
    ahead_interval: Interval | None
    over: float | None
    over_interval: Interval | None
    hit_rate: float | None
    base_hit_rate: float | None
    saved: dict[str, float]
    cases: int
    requests: int

    @property
    def real(self) -> bool | None:
        """Whether the first differs from the baseline; None if that cannot be said."""
        return real(self.interval)

    @property
    def told(self) -> bool | None:
        """Whether the first differs from the second; None if that cannot be said."""
        return real(self.ahead_interval)

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return vars(self) | {"real": self.real, "first_told_from_second": self.told}


@dataclass(frozen=True)
class Board:
    """A leaderboard.

    Parameters
    ----------
    ranked, bounds
        Entrants that see no future, fastest first, and those that do.
    places
        Everywhere, then each value of each axis that has several.
    axes
        What the cases are made of, in words.
    basis
        Requests and tokens by trace.
    models
        Model by trace.
    cases, requests
        In all.
    limit
        Speed that no schedule exceeds, over that of the baseline, as a mean like the others; None if not known.
    left_out
        Entrants that have no place, with the reason.
    misfits
        Reasons why cases do not fit their machine, with these cases.
    result
        The runs.
    """

    ranked: list[Row]
    bounds: list[Row]
    places: list[Place]
    axes: dict[str, list[str]]
    basis: dict[str, Basis]
    models: dict[str, str]
    cases: int
    requests: int
    limit: float | None
    left_out: dict[str, str]
    misfits: dict[str, list[str]]
    result: SweepResult

    @property
    def words(self) -> str:
        """What the ranking stands on."""
        models = len(set(self.models.values()))
        return (
            f"{counted(self.cases, 'case')}, {counted(len(self.basis), 'trace')} of {counted(models, 'model')}, "
            f"{counted(self.requests, 'request')}, {sum(one.tokens for one in self.basis.values()):,} tokens"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "baseline": BASELINE.label, "level": LEVEL, "axes": self.axes,
            "traces": {name: vars(one) | {"model": self.models[name]} for name, one in self.basis.items()},
            "cases": self.cases, "requests": self.requests, "bound_on_speed": self.limit,
            "ranked": [row.to_dict() for row in self.ranked], "bounds": [row.to_dict() for row in self.bounds],
            "places": [place.to_dict() for place in self.places],
            "left_out": self.left_out, "misfits": self.misfits,
        }  # fmt: skip


def counted(number: int, what: str) -> str:
    """`1 case`, `189 cases`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def leaderboard(
    traces: Mapping[str, RoutingTrace],
    field: Sequence[Entrant | Policy | type[Policy] | str] | None = None,
    choices: Mapping[str, Sequence[Any]] | None = None,
    *,
    out: Path | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Board:
    """Rank policies by time.

    Parameters
    ----------
    traces
        By the names that they are to have.
    field
        Who competes, as `entrant_of` has it; all registered policies by default. LRU, the baseline, always does.
    choices
        Values of further choices of a run, each an axis of cases: `{"hardware": ["rtx-3070"], "miss": ["fetch"]}`.
    out
        Folder that keeps the runs; those that are there are not run again.
    workers, progress
        As `sim.sweep.sweep` has them.

    Returns
    -------
    Board
        Rows and what wins where.

    Raises
    ------
    SimError
        LRU cannot run, or no case fits its machine.
    SweepError
        Anything wrong with the choices, before a run has started.
    """
    entrants = joined(registered() if field is None else map(entrant_of, field))
    runs = run_all(traces, entrants, choices or {}, out=out, workers=workers, progress=progress)
    labels = [entrant.label for entrant in runs.entrants]
    times = Times.of(runs.cells, labels, list(runs.axes))
    causal = [number for number, entrant in enumerate(runs.entrants) if not entrant.sees_future]
    rows = _rows(runs, times, causal)
    wheres = [{}, *({axis: value} for axis, values in runs.axes.items() if len(values) > 1 for value in values)]
    models = dict(runs.cells.drop_duplicates("trace")[["trace", "model"]].itertuples(index=False, name=None))
    return Board(
        ranked=[row for row in rows if row.rank is not None],
        bounds=[row for row in rows if row.rank is None],
        places=[_place(runs, times, causal, where) for where in wheres],
        axes=runs.axes,
        basis={name: one for name, one in basis_of(traces).items() if name in models},
        models=models,
        cases=len(runs.cells) // len(labels),
        requests=times.requests,
        limit=_limit(runs.cells),
        left_out=runs.left_out,
        misfits=runs.misfits,
        result=runs.result,
    )


def _rows(runs: Runs, times: Times, causal: Sequence[int]) -> list[Row]:
    """All entrants, fastest first."""
    wide = runs.cells.pivot_table("time_ns", list(runs.axes), "entrant", sort=False)
    labels = [entrant.label for entrant in runs.entrants]
    base = wide[BASELINE.label]
    own = wide[[labels[i] for i in causal]]
    least = own.min(axis=1)
    open_cases = own.max(axis=1) > least * (1 + SAME)
    headroom = _headroom(runs)
    hits = by_model(runs.cells, "hit_rate")
    parts = {axis: {v: times.part({axis: v}).ratios for v in values} for axis, values in runs.axes.items()}
    order = sorted(range(len(labels)), key=lambda i: -times.ratios[i])
    rank = {number: place for place, number in enumerate([i for i in order if i in causal], 1)}
    first = next(iter(rank))
    rows = []
    for i in order:
        label, mine = labels[i], wide[labels[i]]
        over = float(times.ratios[i] / times.ratios[first])
        rows.append(
            Row(
                runs.entrants[i], rank.get(i), float(times.ratios[i]), times.interval(i) if i else None,
                (over, times.interval(i, first)) if i in rank and i != first else None,
                int((mine < base * (1 - SAME)).sum()), int((mine > base * (1 + SAME)).sum()),
                int(((mine <= least * (1 + SAME)) & open_cases).sum()) if i in rank else 0,
                _found(headroom, label), _found(hits, label),
                {axis: {v: float(ratios[i]) for v, ratios in each.items()} for axis, each in parts.items()},
            )
        )  # fmt: skip
    return rows


def _limit(cells: pd.DataFrame) -> float | None:
    """Speed that the bound on time allows, over that of the baseline."""
    base = cells[(cells["entrant"] == BASELINE.label) & (cells["bound_ns"] > 0)]
    logs = np.log(base["time_ns"] / base["bound_ns"].astype(float)).groupby(base["model"]).mean()
    return None if logs.empty else float(np.exp(logs.mean()))


def _headroom(runs: Runs) -> Mapping[str, float]:
    """Share of the time that could be saved; nothing where that is too little."""
    base = _of(runs, BASELINE.label)["time_ns"]
    cells = runs.cells.join(base.rename("base_ns"), on=list(runs.axes))
    saved = by_model(cells.assign(share=1 - cells["time_ns"] / cells["base_ns"]), "share")
    could = by_model(cells.assign(share=1 - cells["bound_ns"] / cells["base_ns"]), "share")
    possible = float(could.get(BASELINE.label, 0.0))
    return dict(saved / possible) if possible >= SMALL_GAIN else {}


def _of(runs: Runs, label: str) -> pd.DataFrame:
    """Runs of an entrant by case."""
    return runs.cells[runs.cells["entrant"] == label].set_index(list(runs.axes))


def _found(values: Any, label: str) -> float | None:
    return float(values[label]) if label in values else None


def _place(runs: Runs, times: Times, causal: Sequence[int], where: Mapping[str, str]) -> Place:
    """Who wins in some cases, and by what."""
    part = times.part(where) if where else times
    order = sorted(causal, key=lambda i: -part.ratios[i])
    first, second = order[0], order[1] if order[1:] else None
    winner = max(causal, key=lambda i: times.ratios[i])
    label = runs.entrants[first].label
    cells = runs.cells
    for axis, value in where.items():
        cells = cells[cells[axis] == value]
    hits = by_model(cells, "hit_rate")
    ((axis, value),) = where.items() if where else ((EVERYWHERE, EVERYWHERE),)
    return Place(
        axis, value, label, None if second is None else runs.entrants[second].label,
        float(part.ratios[first]), part.interval(first) if first else None,
        None if second is None else float(part.ratios[first] / part.ratios[second]),
        None if second is None else part.interval(first, second),
        None if first == winner else float(part.ratios[first] / part.ratios[winner]),
        None if first == winner else part.interval(first, winner),
        _found(hits, label), _found(hits, BASELINE.label), _saved(runs, where, label),
        len(cells) // len(runs.entrants), part.requests,
    )  # fmt: skip


def _saved(runs: Runs, where: Mapping[str, str], label: str) -> dict[str, float]:
    """Share of the baseline's time that an entrant saves, by cause, mean over cases, then over models."""
    base, mine = _of(runs, BASELINE.label), _of(runs, label)
    for axis, value in where.items():
        base, mine = (cells[cells.index.get_level_values(axis) == value] for cells in (base, mine))
    causes = list(CAUSES)
    shares = (base[causes].fillna(0.0) - mine[causes].fillna(0.0)).div(base[causes].sum(axis=1), axis=0)
    means = shares.groupby(base["model"]).mean().mean()
    return {cause: float(means[cause]) for cause in causes if abs(means[cause]) >= 0.0005}
