"""Predicted beside measured: what an engine's own columns say, live runs, published rows.

A *case* is one figure that somebody measured, with what the simulator makes of the same run, and whether it was
held out. `exact` counts first touches that the replay and an engine's own residency column classify alike;
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
from expert_residency.sim.live.predict import GROUPS, load_live_runs, moved, predict
from expert_residency.sim.runs.interval import Interval, spread_about
from expert_residency.sim.runs.replay import matches_engine, replay
from expert_residency.sim.validation.published import Left, interval_of, predict_published
from expert_residency.toml import load
from expert_residency.traces import read_trace

Use = Literal["fitted", "derived", "unseen"]
APART = 1.10
"""Cases whose measured figures differ by more than this ratio must come out in their order."""
SECTIONS = ("exact", "live", "published", "llamacpp", "machine")


@dataclass(frozen=True)
class Case:
    """One measured figure and its prediction.

    Parameters
    ----------
    group, use
        Where it counts; `fitted` if anything was fitted to it, `derived` if a number of the profile or preset was
        derived from the report that it stands in.
    name, kind
        What it is; cases of one kind are alike.
    among
        Cases whose order is compared: one machine and trace.
    predicted, measured
        Tokens a second, or first touches in the exact group.
    interval
        Of the prediction; None where nothing could be drawn.
    """

    group: str
    use: Use
    name: str
    kind: str
    among: str
    predicted: float
    measured: float
    interval: Interval | None = None

    @property
    def held(self) -> bool | None:
        """Whether the interval holds what was measured."""
        return None if self.interval is None else self.interval.holds(self.measured)

    def to_dict(self) -> dict[str, Any]:
        """Plain form with `error` and `interval_90`."""
        plain = {name: value for name, value in vars(self).items() if name != "interval"}
        return plain | {"error": self.error, "interval_90": self.interval and self.interval.to_dict()}

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
    """Errors of one group and use, beside its declared limit and target (None for a user's own rows).

    `held` is the share of the cases whose 90 % interval holds what was measured; None without intervals.
    """

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
    held: float | None = None

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
                pairs, wrong, limit, target, coverage(members),
            )
        )  # fmt: skip
    return made


def coverage(cases: Iterable[Case]) -> float | None:
    """Share of the cases with an interval that it holds; None without one."""
    held = [case.held for case in cases if case.held is not None]
    return sum(held) / len(held) if held else None


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
    cases, alike = [], {}
    for group in groups:
        for run in load_live_runs(group, folder):
            key = group, run.kind, run.trace  # constants do the same to arms of one kind
            if key not in alike:
                alike[key] = moved(run)
            tok_s = predict(run)
            place = run.label, run.kind, f"{prefix}{group} {run.trace}"
            around = spread_about(tok_s, alike[key])
            cases.append(Case(f"{prefix}{group}", "unseen", *place, tok_s, run.tok_s, around))
    return cases


def llamacpp_cases() -> list[Case]:
    """Published speeds of llama.cpp by data sheets, every machine held out of the one number that is derived."""
    from expert_residency.sim.validation.llamacpp import TOLD_BY_ITS_OWN, predict_llamacpp

    made = []
    for one in predict_llamacpp():
        run = one.run
        kind = "on the CPU too" if run.offloads else "on one device"
        layers = "all on the CPU" if run.n_cpu_moe == "cpu" else f"--n-cpu-moe {run.n_cpu_moe}"
        name = f"{run.machine}, {run.model} {run.quant}, {layers}"
        made.append(
            Case(
                f"llamacpp {kind}",
                "derived" if run.n_cpu_moe == "0" and run.gpu in TOLD_BY_ITS_OWN else "unseen",
                name,
                run.machine,
                run.machine,
                one.tokens_per_s,
                run.tok_s,
                one.interval(),
            )
        )
    return made


def machine_cases() -> tuple[list[Case], list[str]]:
    """Every shipped row that can be predicted, no row of its machine in any constant, and what it comes to.

    All of them are in the group `machine`, and once more in one of its parts: experts that never move, hits given
    by the row, hits simulated.
    """
    from expert_residency.sim.validation.measured.cases import machine_group

    group = machine_group()
    whole, parts = [], []
    for one, interval in zip(group.answers, group.intervals, strict=True):
        row, name = one.question.row, one.question.machine.name
        place = one.question.name, name, name
        whole.append(Case("machine", "unseen", *place, one.tok_s, row.tok_s, interval))
        parts.append(Case(f"machine: {one.kind}", "unseen", *place, one.tok_s, row.tok_s, interval))
    return [*whole, *sorted(parts, key=lambda case: case.group, reverse=True)], group.headline()


def published_cases(path: Path | None = None) -> tuple[list[Case], list[Left], list[str]]:
    """Rows of another engine that the formula can be put to: those that ship, or a user's own.

    Parameters
    ----------
    path
        A user's file. A row of it without `profile` is taken for one of the shipped machine with the same cards
        and processor. One that equals a shipped row in all that it says (source and notes apart) was as little
        held out as that one; what is predicted is what the user's row says.

    Returns
    -------
    cases, left, notes
        Two groups: `machine`, as profiles and presets stand, and `row`, after fitting on the other half of the
        machine's shipped rows (those that a user's file marks `fit` count too). Rows that cannot be predicted,
        with what is missing. Which of a user's rows ship as well.
    """
    shipped = load_strata_runs()
    if path is None:
        return (*_published(shipped, "published", None), [])
    machines = {(run.gpu, run.n_gpus, run.cpu): run for run in shipped if run.profile and run.use}
    mine: list[StrataRun] = []
    notes: list[str] = []
    twins: set[int] = set()
    for number, row in enumerate(load_strata_runs(path), 1):
        like = machines.get((row.gpu, row.n_gpus, row.cpu))
        added: dict[str, str] = {}
        if like is not None and not row.profile:
            added = {"group": row.group or like.group, "profile": like.profile}
        twin = next((run for run in shipped if id(run) not in twins and _says(row, run)), None)
        if twin is not None:
            twins.add(id(twin))
            source = row.source if row.source == twin.source else f"{row.source} (= {twin.source})"
            added |= {"use": twin.use, "source": source}
            notes.append(f"{path}: row {number} ships as well, so it was as little held out as there")
        mine.append(row.model_copy(update=added | ({} if row.use or "use" in added else {"use": "unseen"})))
    others = [run for run in shipped if run.use == "fit" and id(run) not in twins]
    return (*_published([*mine, *others], f"published {path.name}", mine), notes)


_APART = frozenset(("group", "profile", "use", "source", "notes"))
"""Columns that may differ between two tellings of one run."""


def _says(row: StrataRun, run: StrataRun) -> bool:
    """Whether a shipped row says all that a user's row says; what is left empty differs from nothing."""
    said = row.model_fields_set - _APART
    return all(getattr(row, name) == getattr(run, name) for name in said)


def _published(
    runs: Sequence[StrataRun], group: str, only: Sequence[StrataRun] | None
) -> tuple[list[Case], list[Left]]:
    wanted = None if only is None else {id(run) for run in only}
    found, left = predict_published(runs)
    by_machine, by_row = [], []
    for machine in found:
        for row in machine.rows:
            run = row.window.run
            if run.tok_s is None or (wanted is not None and id(run) not in wanted):
                continue
            name = " ".join(f"{machine.name} {run.quant} {run.mode} {run.workload}".split())
            place = name, machine.name, machine.name
            held: Use = "derived" if row.seen_by else "unseen"
            by_machine.append(Case(f"{group} machine", held, *place, row.tok_s, run.tok_s, interval_of(row)))
            if row.fitted_tok_s is not None:
                use: Use = "fitted" if run.use == "fit" else held
                by_row.append(Case(f"{group} row", use, *place, row.fitted_tok_s, run.tok_s))
    return [*by_machine, *by_row], [one for one in left if wanted is None or id(one.run) in wanted]
