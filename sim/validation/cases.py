"""Predicted beside measured: what an engine's own columns say, live runs, published rows.

A *case* is one figure that somebody measured, with what the simulator makes of the same run, and whether anything
was fitted to it. `exact` counts first touches that the replay and an engine's own residency column classify alike;
`live` and `published` compare tokens a second. Limits and targets of every group are in `limits.toml`.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from expert_residency.errors import SimError
from expert_residency.hwmodels.runs import StrataRun, load_strata_runs
from expert_residency.hwmodels.units import parse_size
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.live.predict import GROUPS, load_live_runs, predict
from expert_residency.sim.runs.replay import matches_engine, replay
from expert_residency.sim.validation.published import predict_published
from expert_residency.toml import load
from expert_residency.traces import read_trace

Use = Literal["fitted", "unseen"]
APART = 1.10
"""Cases whose measured figures differ by more than this ratio must come out in their order."""
SECTIONS = ("exact", "live", "published")


@dataclass(frozen=True)
class Case:
    """One measured figure and its prediction.

    Parameters
    ----------
    group, use
        Where it counts; `fitted` if anything was fitted to it.
    name, kind
        What it is; cases of one kind are alike.
    among
        Cases whose order is compared: one machine and trace.
    predicted, measured
        Tokens a second, or first touches in the exact group.
    """

    group: str
    use: Use
    name: str
    kind: str
    among: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class Bounds:
    """Most that median and worst absolute error and the share of pairs in the wrong order may be."""

    median: float
    worst: float
    wrong_order: float


@dataclass(frozen=True)
class Summary:
    """Errors of one group and use, beside its declared limit and target (None for a user's own rows)."""

    group: str
    use: Use
    cases: int
    median: float
    worst: float
    bias: float
    pairs: int
    wrong: int
    limit: Bounds | None
    target: Bounds | None

    @property
    def wrong_order(self) -> float:
        """Share of pairs over 10 % apart that come out in the wrong order."""
        return self.wrong / self.pairs if self.pairs else 0.0

    def over(self, bounds: Bounds | None) -> list[str]:
        """Which figures exceed `bounds`, in words."""
        if bounds is None:
            return []
        found = {"median": self.median, "worst": self.worst, "wrong_order": self.wrong_order}
        names = {"median": "median error", "worst": "worst error", "wrong_order": "pairs in the wrong order"}
        return [
            f"{names[key]} {100 * value:.1f} % over {100 * getattr(bounds, key):g} %"
            for key, value in found.items()
            if value > getattr(bounds, key)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        plain = vars(self) | {"wrong_order": self.wrong_order}
        return plain | {key: vars(b) if (b := plain[key]) else None for key in ("limit", "target")}


def load_bounds() -> dict[tuple[str, str], tuple[Bounds, Bounds]]:
    """(limit, target) by group and use."""
    tables = load(resources.files("expert_residency.sim.validation").joinpath("limits.toml"))
    return {
        (group, use): (Bounds(**bounds["limit"]), Bounds(**bounds["target"]))
        for group, uses in tables.items()
        for use, bounds in uses.items()
    }


def summarize(cases: Sequence[Case], bounds: dict[tuple[str, str], tuple[Bounds, Bounds]]) -> list[Summary]:
    """One line a group and use, in order of first occurrence."""
    groups: dict[tuple[str, Use], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.group, case.use), []).append(case)
    made = []
    for (group, use), members in groups.items():
        errors = [case.error for case in members]
        pairs, wrong = order_of(members)
        limit, target = bounds.get((group, use), (None, None))
        sizes = [abs(error) for error in errors]
        made.append(
            Summary(
                group, use, len(members), statistics.median(sizes), max(sizes), statistics.fmean(errors),
                pairs, wrong, limit, target,
            )
        )  # fmt: skip
    return made


def order_of(cases: Iterable[Case]) -> tuple[int, int]:
    """(pairs measured over 10 % apart, those of them that are not predicted in their order)."""
    among: dict[str, list[Case]] = {}
    for case in cases:
        among.setdefault(case.among, []).append(case)
    pairs = wrong = 0
    for members in among.values():
        for a, b in itertools.combinations(members, 2):
            slow, fast = (a, b) if a.measured < b.measured else (b, a)
            if fast.measured > APART * slow.measured:
                pairs += 1
                wrong += fast.predicted <= slow.predicted
    return pairs, wrong


def exact_cases(asked: Iterable[str]) -> list[Case]:
    """First touches of recorded traces.

    Parameters
    ----------
    asked
        `FILE@CAPACITY` or `FILE@CAPACITY@EVICTION`, as the engine ran: `qwen.route.csv@4000MiB@lru` (the default).

    Raises
    ------
    SimError
        No capacity, or a trace without a residency column.
    """
    cases = []
    for text in asked:
        file, *choices = text.split("@")
        if len(choices) not in (1, 2):
            raise SimError(f"{text}: say the engine's cache as FILE@CAPACITY or FILE@CAPACITY@EVICTION")
        eviction = choices[1] if len(choices) == 2 else "lru"
        trace = read_trace(file)
        if trace.row_residency is None:
            raise SimError(f"{file}: the trace does not say what the engine found resident")
        equal, compared = matches_engine(trace, replay(trace, eviction, Capacity(parse_size(choices[0]))))
        if not compared:
            raise SimError(f"{file}: its residency column is empty")
        label = f"{trace.geometry.label}, {eviction}, {choices[0]}"
        cases.append(Case("exact", "unseen", label, "first touches", file, float(equal), float(compared)))
    return cases


def live_cases(folder: Path | None = None) -> list[Case]:
    """Shipped live runs, or those in a folder that `residency measure` wrote; nothing was fitted to any.

    Raises
    ------
    SimError
        A folder without a table `live-GROUP.csv`.
    """
    groups = GROUPS if folder is None else sorted(path.stem[len("live-") :] for path in folder.glob("live-*.csv"))
    if not groups:
        raise SimError(f"{folder}: no table live-GROUP.csv in it")
    prefix = "live " if folder is None else f"live {folder.name}/"
    return [
        Case(
            f"{prefix}{group}",
            "unseen",
            run.label,
            run.kind,
            f"{prefix}{group} {run.trace}",
            predict(run),
            run.tok_s,
        )
        for group in groups
        for run in load_live_runs(group, folder)
    ]


def published_cases() -> list[Case]:
    """Shipped rows of other engines that the formula can be put to."""
    return _published(load_strata_runs(), "published", None)


def user_cases(path: Path) -> tuple[list[Case], int]:
    """Rows of a user's file, and how many of them cannot be predicted.

    A row without `profile` and `use` is taken for one of the machine of the shipped rows with the same cards
    and processor, and is unseen; one that ships as well is what it is there. What is fitted, is fitted on the
    shipped rows and on those that the file marks `fit`.
    """
    shipped = load_strata_runs()
    known: dict[tuple[object, ...], list[StrataRun]] = {}
    for run in shipped:
        known.setdefault(_key(run), []).append(run)
    machines = {(run.gpu, run.n_gpus, run.cpu): run for run in shipped if run.profile and run.use}
    mine = []
    for row in load_strata_runs(path):
        run, like = row, machines.get((row.gpu, row.n_gpus, row.cpu))
        if not row.use and (same := known.get(_key(row))):
            run = same.pop(0)
        elif like is not None and not row.profile:
            use = row.use or "unseen"
            run = row.model_copy(update={"group": like.group, "profile": like.profile, "use": use})
        mine.append(run)
    others = [run for run in shipped if run.use == "fit" and not any(run is own for own in mine)]
    cases = _published([*mine, *others], f"published {path.name}", mine)
    return cases, len(mine) - len(cases)


def _key(run: StrataRun) -> tuple[object, ...]:
    """What tells published rows apart; the wording of sources and notes varies."""
    return run.date, run.cpu, run.quant, run.slots, run.flags, run.workload, run.tok_s, run.ms_token


def _published(runs: Sequence[StrataRun], group: str, only: Sequence[StrataRun] | None) -> list[Case]:
    wanted = None if only is None else {id(run) for run in only}
    cases = []
    for machine in predict_published(runs):
        for row in machine.rows:
            run = row.window.run
            if run.tok_s is not None and (wanted is None or id(run) in wanted):
                use: Use = "fitted" if run.use == "fit" else "unseen"
                name = " ".join(f"{machine.name} {run.quant} {run.mode} {run.workload}".split())
                cases.append(Case(group, use, name, machine.name, machine.name, row.tok_s, run.tok_s))
    return cases
