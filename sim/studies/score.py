"""What a run is worth: how it ranks by time, how much of the possible gain it takes, and what binds it.

Everything ranks by time; hit rates stand beside it, never in its place.

*Headroom captured* = (t_base - t) / (t_base - t_bound). t is the time of all passes but prefills (of all passes,
if there is nothing else), t_base that of the baseline, t_bound the least that any schedule can take on the same
machine and slots (`sim.runs.time_bound`), whether it knows the future or not. 0: no better than the baseline; 1:
nothing can be faster; below 0: slower than the baseline. Runs are compared only if trace, machine, engine,
capacity, miss mode and host are equal.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from expert_residency.errors import SimError
from expert_residency.hwmodels.units import GIB, MIB
from expert_residency.sim.runs.time_bound import beaten
from expert_residency.sim.studies.bootstrap import ratio_interval
from expert_residency.sim.sweep.spec import filled, names_seed
from expert_residency.sim.timed.binding import binding_of
from expert_residency.sim.timed.result import RunResult, compared
from expert_residency.toml import checked

POLICIES = ("eviction", "admission", "prefetch", "placement", "insertion", "prefetch_bytes", "predict_us")
"""Choices that scores compare; all others must be equal."""
NO_BASELINE = "no baseline among the runs (lru, admission always, no prefetch): --trace FILE adds it"
NO_BOUND = (
    "no bound on time to measure headroom against: --trace FILE adds it, with --passes N where the runs took the "
    "first N passes only"
)
ONLY_TRACE = "trace"
"""What `residency sweep --trace FILE` calls it."""
SMALL_GAIN = 0.02
"""Below this share of the baseline's time there is nothing to capture."""


@dataclass(frozen=True)
class ScoredRun:
    """What scoring needs of one run, whether it was just simulated or read from a file.

    Parameters
    ----------
    name
        Where it comes from.
    spec
        Its `RunSpec` in plain form.
    case
        Everything that must be equal for a comparison, as JSON.
    time_ns, tokens_per_s, hit_rate
        Time that ranks; decoded tokens a second; share of decode look-ups that were ready in VRAM.
    binds
        The largest cause of time.
    prefetch
        Bytes by what became of them (`useful`, `late`, `wasted`, `harmful`) and copies `issued`; None if unknown.
    warnings, caveats
        Of the run itself; files of older versions have no caveats.
    request_ns
        Time of each request that decodes, in order; empty in files of older versions.
    trace_name
        In a sweep.
    bound_ns
        Least time of any schedule, if it was found with the run.
    cells
        Numbers of the cells of a sweep that it is, one a seed.
    foresight
        Whether a policy sees the future, where the file says it: then its classes need not be here.
    """

    name: str
    spec: Mapping[str, Any]
    case: str
    time_ns: int
    tokens_per_s: float | None
    hit_rate: float | None
    binds: str
    prefetch: Mapping[str, int | None]
    warnings: Sequence[str]
    caveats: Sequence[str] = ()
    request_ns: Sequence[int] = ()
    trace_name: str = ""
    bound_ns: int | None = None
    cells: Sequence[int] = ()
    foresight: bool | None = None

    @property
    def trace(self) -> str:
        """Name of the trace in its sweep, or the beginning of its hash where nobody gave it one."""
        if self.trace_name not in ("", ONLY_TRACE):
            return self.trace_name
        return str(json.loads(self.case)["trace_sha256"])[:12]

    @property
    def where(self) -> str:
        """Model, machine, engine, miss mode, host and capacity in words."""
        case = json.loads(self.case)
        host = f", host {case['host']}" if case.get("host") else ""
        return (
            f"{case['model']} on {' + '.join(case['hardware'])}, engine {case['engine']}, "
            f"miss {case['miss'] or 'as the engine'}{host}: {_room(case['capacity'])}"
        )

    @property
    def policies(self) -> str:
        """`eviction`, then whatever is not the default."""
        spec = self.spec
        parts = [str(spec["eviction"])]
        if spec["admission"] != "always":
            parts.append(f"admission {spec['admission']}")
        if spec["placement"]:
            parts.append(f"placement {spec['placement']}")
        if spec["prefetch"] != "none":
            parts.append(f"prefetch {spec['prefetch']}")
            if spec.get("insertion", "free") != "free":
                parts.append(str(spec["insertion"]))
        return ", ".join(parts)

    @property
    def oracle(self) -> bool:
        """Whether a policy sees the future, so that the run is no candidate."""
        from expert_residency.policies import sees_future

        if self.foresight is not None:
            return self.foresight
        spec = filled(self.spec, {"seed": 0})
        return sees_future(
            str(spec["eviction"]),
            str(spec["prefetch"]),
            spec["placement"],
            spec["capacity"].get("quotas", "equal"),
        )

    @property
    def is_baseline(self) -> bool:
        """LRU, every miss admitted, nothing prefetched, a cold start."""
        spec = self.spec
        return (spec["eviction"], spec["admission"], spec["prefetch"]) == ("lru", "always", "none") and (
            spec["placement"] in (None, "none")
        )

    @classmethod
    def of(cls, result: RunResult, name: str = "") -> ScoredRun:
        """From a run in memory."""
        return cls.of_json(result.to_dict(), name)

    @classmethod
    def of_json(cls, data: Mapping[str, Any], name: str) -> ScoredRun:
        """From what `residency run --json` wrote.

        Raises
        ------
        SimError
            If it is something else.
        """
        from expert_residency.sim.studies.result_file import ResultFile

        try:
            checked(ResultFile, data)
            json.dumps(data, allow_nan=False)  # also what no score reads is written into its answer
        except (SimError, ValueError) as error:
            raise SimError(f"{name}: not a result of one `residency run --json` ({error})") from None
        manifest, stats = data["manifest"], data["prefetch"]
        moved = {kind: stats[f"{kind}_bytes"] for kind in ("useful", "late", "wasted", "harmful")}
        return cls(
            name, manifest["spec"], _case(manifest), data["decode_ns"] or data["total_ns"],
            data["tokens_per_s"], data["decode_hit_rate"], binding_of(_decode_causes(data)),
            moved | {"issued": stats["issued"]}, data["warnings"], data.get("caveats", ()),
            [one["ns"] for one in compared(data.get("requests", ()))], bound_ns=_bound_of(data.get("time_bound")),
        )  # fmt: skip

    @classmethod
    def of_row(cls, row: Mapping[str, Any], name: str) -> ScoredRun:
        """From a row of a sweep's dataset, or of `over_seeds`, whose status is `ok`."""
        manifest = json.loads(row["manifest"])
        moved = {kind: _int(row.get(f"prefetch_{kind}_bytes")) for kind in ("useful", "late", "wasted", "harmful")}
        drawn = {key: row[key] for key in POLICIES if names_seed(row.get(key))}
        return cls(
            name, manifest["spec"] | drawn, _case(manifest), int(row["decode_ns"]) or int(row["total_ns"]),
            _float(row["tokens_per_s"]), _float(row["hit_rate"]), row["binds"],
            moved | {"issued": int(row["prefetch_issued"])}, list(row["warnings"]), list(row.get("caveats", ())),
            [int(ns) for ns in row["request_ns"]] if row.get("request_ns") is not None else (),
            str(row.get("trace") or "") + _of_seeds(row), _int(row.get("bound_ns")),
            row.get("cells", (row["cell"],)), None if row.get("oracle") is None else bool(row["oracle"]),
        )  # fmt: skip


def _of_seeds(row: Mapping[str, Any]) -> str:
    return f", {row['seeds']} seeds" if row.get("seeds", 0) > 1 else ""


def _room(capacity: dict[str, Any]) -> str:
    """`1.63 GiB, scope global`; quotas only where each layer has its own part."""
    layers, slots = capacity.get("layer_bytes"), capacity.get("slots_per_layer")
    quotas = "as given" if layers else capacity.get("quotas", "equal")
    if slots is not None:
        room = f"{slots} slots a layer"
    elif layers:
        room = _size(sum(layers))
    else:
        room = " + ".join(map(_size, capacity.get("card_bytes") or [capacity["total_bytes"]]))
    own = capacity["scope"] == "layer" and slots is None
    return f"{room}, scope {capacity['scope']}" + (f", quotas {quotas}" if own else "")


def _size(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.1f} MiB"


@dataclass
class Score:
    """A run against its baseline and the bound.

    Parameters
    ----------
    rank
        By time, within its case, from 1; oracles are ranked too and marked.
    speedup, interval
        t_base / t, and its 95 % interval over requests; None with fewer than five.
    headroom
        Headroom captured, None where there is no baseline, no bound, or nothing to gain.
    bound_ns
        Least time that any schedule can take; None if it was not asked for.
    gap
        `sim.studies.bounds.MissGap` in plain form, where a trace was given.
    """

    run: ScoredRun
    rank: int = 0
    speedup: float | None = None
    interval: tuple[float, float] | None = None
    headroom: float | None = None
    bound_ns: int | None = None
    gap: dict[str, int] | None = None
    regime: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able form."""
        run = self.run
        return {
            "name": run.name,
            "case": json.loads(run.case),
            "policies": run.policies,
            "oracle": run.oracle,
            "rank": self.rank,
            "time_ns": run.time_ns,
            "tokens_per_s": run.tokens_per_s,
            "hit_rate": run.hit_rate,
            "speedup": self.speedup,
            "speedup_interval": self.interval and list(self.interval),
            "headroom_captured": self.headroom,
            "bound_ns": self.bound_ns,
            "prefetch_bytes": dict(run.prefetch),
            "miss_gap": self.gap,
            "regime": self.regime,
            "binds": run.binds,
            "warnings": self.warnings,
            "caveats": list(run.caveats),
        }


def score_run(
    result: RunResult | ScoredRun, baseline: RunResult | ScoredRun | None, bound_ns: int | None
) -> Score:
    """Score one run.

    Parameters
    ----------
    result
        The run.
    baseline
        What its speed is compared with, or None.
    bound_ns
        Least time of any schedule of the same case, or None.

    Returns
    -------
    Score
        Speedup and share of the headroom that it takes.

    Raises
    ------
    SimError
        If the baseline belongs to another case.
    PolicyFaultError
        If the run is faster than the bound.
    """
    run, base = (ScoredRun.of(r) if isinstance(r, RunResult) else r for r in (result, baseline))
    assert run is not None
    if base is not None and base.case != run.case:
        raise SimError(f"{run.name or run.policies}: the baseline is of another trace, machine or capacity")
    if bound_ns is not None and run.time_ns < bound_ns:
        raise beaten(run.name or run.policies, "the run", run.time_ns, bound_ns)
    score = Score(run, warnings=[str(w) for w in run.warnings], bound_ns=bound_ns)
    if run.oracle:
        score.warnings.append("a policy sees the future: an oracle, not a candidate")
    if run.spec["prefetch"] != "none" and not run.prefetch["issued"]:
        score.warnings.append(f"prefetch {run.spec['prefetch']} was never exercised: no copy was made")
    if base is not None:
        score.speedup = base.time_ns / run.time_ns
        if run.request_ns:
            score.interval = ratio_interval(run.request_ns, base.request_ns)
        if bound_ns is not None:
            gain = base.time_ns - bound_ns
            if gain < SMALL_GAIN * base.time_ns:
                score.warnings.append("no schedule gains more than 2 % over the baseline: nothing to capture")
            else:
                score.headroom = (base.time_ns - run.time_ns) / gain
    return score


def score(results: Sequence[RunResult | ScoredRun], bounds: Mapping[str, int] | None = None) -> list[Score]:
    """Score runs against each other: case by case, fastest first.

    In each case the baseline is the run with LRU, admission `always` and no prefetch; `bounds` gives the least
    time by case, or it is the least that was found with one of the runs. Where either is not known, what depends
    on it is None and a warning says so.
    """
    runs = [ScoredRun.of(r) if isinstance(r, RunResult) else r for r in results]
    scores: list[Score] = []
    for case in dict.fromkeys(run.case for run in runs):
        group = sorted((run for run in runs if run.case == case), key=lambda run: run.time_ns)
        base = next((run for run in group if run.is_baseline), None)
        known = [run.bound_ns for run in group if run.bound_ns is not None]
        whole = len(known) == len(group)  # a run without one may have had a larger staging ring
        bound_ns = (bounds or {}).get(case, min(known) if whole else None)
        for rank, run in enumerate(group, 1):
            made = score_run(run, base, bound_ns)
            made.rank = rank
            if base is None:
                made.warnings.append(NO_BASELINE)
            elif bound_ns is None:
                made.warnings.append(NO_BOUND)
            scores.append(made)
    return scores


def _case(manifest: Mapping[str, Any]) -> str:
    """What must be equal for two runs to be compared."""
    choices = {name: value for name, value in manifest["spec"].items() if name not in POLICIES}
    kept = {name: manifest[name] for name in ("model", "trace_sha256", "hardware_sha256", "engine_sha256")}
    if manifest["spec"].get("start") == "carry":  # otherwise the choices say what the page cache holds
        kept["pages_sha256"] = (manifest.get("start") or {}).get("pages_sha256")
    return json.dumps(kept | choices, sort_keys=True)


def _decode_causes(data: Mapping[str, Any]) -> Mapping[str, float]:
    decode: Mapping[str, float | None] = data["causes_ms_per_token"]
    whole: Mapping[str, float] = data["causes_ns"]
    return {cause: ms for cause, ms in decode.items() if ms is not None} or whole


def _bound_of(found: Mapping[str, Any] | None) -> int | None:
    return None if found is None else int(found["decode_ns"] or found["total_ns"])


def _float(value: Any) -> float | None:
    return None if value is None or value != value else float(value)


def _int(value: Any) -> int | None:
    found = _float(value)
    return None if found is None else int(found)
