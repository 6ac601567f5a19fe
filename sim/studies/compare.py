"""Is one run faster than another, or was it these requests? The ratio of speeds and its interval over requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from expert_residency.errors import SimError
from expert_residency.sim.studies.bootstrap import FEWEST, LEVEL, ratio_interval
from expert_residency.sim.studies.score import ScoredRun


@dataclass(frozen=True)
class Comparison:
    """Run `a` over run `b`.

    Parameters
    ----------
    a, b
        Policies, as scores name them.
    where
        Model, machine, engine, capacity and trace of both.
    requests
        That both served.
    ratio
        Speed of `a` over that of `b`; above 1 `a` is faster.
    low, high
        Interval of the ratio; None with too few requests.
    faster_on
        Requests on which `a` takes less time than `b`.
    """

    a: str
    b: str
    where: str
    requests: int
    ratio: float
    low: float | None
    high: float | None
    faster_on: int

    @property
    def real(self) -> bool | None:
        """Whether the interval leaves out 1; None without an interval."""
        return None if self.low is None or self.high is None else not self.low <= 1 <= self.high

    @property
    def sentence(self) -> str:
        """What came out, and whether it can be told from chance."""
        told = f"{self.where}: {self.a} is {self.ratio:.3f} times as fast as {self.b}"
        on = f"faster on {self.faster_on} of {self.requests} requests"
        if self.real is None:
            return f"{told}, {on}: fewer than {FEWEST} requests, so whether that is real cannot be said"
        interval = f"{100 * LEVEL:g} % interval {self.low:.3f} to {self.high:.3f}"
        verdict = "the difference is real" if self.real else "a difference that other requests may turn round"
        return f"{told} ({interval}), {on}: {verdict}"

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return vars(self) | {"real": self.real, "level": LEVEL}


def compare(a: ScoredRun, b: ScoredRun) -> Comparison:
    """Speed of one run over that of another of the same case, with its interval over requests.

    Raises
    ------
    SimError
        Runs of different cases, or results of a version that did not keep requests.
    """
    if a.case != b.case:
        raise SimError(f"{a.policies} and {b.policies} are of another trace, machine or capacity")
    for run in (a, b):
        if not run.request_ns:
            raise SimError(f"{run.name or run.policies} does not say times by request: run it again")
    faster = sum(mine < theirs for mine, theirs in zip(a.request_ns, b.request_ns, strict=True))
    low, high = ratio_interval(a.request_ns, b.request_ns) or (None, None)
    ratio = sum(b.request_ns) / sum(a.request_ns)
    return Comparison(
        a.policies, b.policies, f"{a.where}, trace {a.trace}", len(a.request_ns), ratio, low, high, faster
    )


def compare_named(runs: Sequence[ScoredRun], a: str, b: str) -> list[Comparison]:
    """Comparisons of two runs by name, one for each case that has both.

    Parameters
    ----------
    runs
        To choose from.
    a, b
        Policies as a score names them, the name of a file, or the number of a sweep's cell.

    Returns
    -------
    list of Comparison
        One or more.

    Raises
    ------
    SimError
        A name that no run has, or two that no case has both of.
    """
    pairs = [
        (mine, theirs)
        for mine in chosen(runs, a)
        for theirs in chosen(runs, b)
        if mine.case == theirs.case and mine is not theirs
    ]
    if not pairs:
        raise SimError(f"no trace, machine and capacity has both {a!r} and {b!r}")
    return [compare(*pair) for pair in pairs]


def chosen(runs: Sequence[ScoredRun], words: str) -> list[ScoredRun]:
    """Runs that are meant by policies as a score names them, by the name of their file, or the number of a cell.

    Raises
    ------
    SimError
        None is.
    """
    found = [
        run for run in runs if words in (run.policies, run.name, PurePath(run.name).stem, *map(str, run.cells))
    ]
    if not found:
        known = ", ".join(dict.fromkeys(run.policies for run in runs))
        raise SimError(f"no run has policies {words!r} (there are: {known})")
    return found
