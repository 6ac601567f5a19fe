"""Tables of learned.md; `build.py` puts them there: two minutes on two cores, with the recorded traces."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.studies.learning import ByRequest, by_request, cross_fit
from expert_residency.text import markdown
from expert_residency.traces import RoutingTrace, read_trace
from expert_residency.traces.bundled import load
from expert_residency.traces.join import joined

MACHINE = "rtx-5060ti-5700x3d"
REQUESTS, PASSES = 24, 96
TRACES = {
    "tinymoe, 4 requests (prose and code)": "tinymoe",
    f"gpt-oss-20b, {REQUESTS} requests of {PASSES} tokens": "gptoss20b",
}
SURE = "threshold=0.6"
ARMS = (
    ("", "previous-token"),
    ("", "markov"),
    ("transitions", "gate-lookahead:depth=1"),
    ("logistic", "gate-lookahead:depth=1"),
    ("logistic", f"gate-lookahead:depth=1,{SURE}"),
    ("logistic:hidden=64", "gate-lookahead:depth=1"),
    ("logistic:hidden=64", f"gate-lookahead:depth=1,{SURE}"),
    ("recorded", "gate-lookahead:depth=1"),
)


@cache
def read(name: str) -> RoutingTrace:
    """A trace of several requests."""
    if name == "tinymoe":
        return joined([load("tinymoe-prose"), load("tinymoe-code")], [Path("prose"), Path("code")])
    path = Path(os.environ["EXPERT_RESIDENCY_SHARED"], "traces/gptoss20b/gptoss20b_decode.npz")
    trace = read_trace(path, model="gpt-oss-20b")
    first = np.searchsorted(trace.pass_request, trace.pass_request)  # a request's passes follow one another
    return trace.select_passes((trace.pass_request < REQUESTS) & (np.arange(trace.n_passes) - first < PASSES))


def results(job: tuple[str, str]) -> dict[str, list[ByRequest]]:
    """One predictor on one trace, by prefetch policy and request."""
    name, fitted = job
    trace = read(name)
    if fitted not in ("", "recorded"):
        trace = cross_fit(trace, fitted)
    room = Capacity(int(0.4 * trace.geometry.all_expert_bytes))
    spec = RunSpec((MACHINE,), room, miss="fetch")
    return {
        prefetch: by_request(trace, replace(spec, prefetch=prefetch)) for own, prefetch in ARMS if own == fitted
    }


def learned() -> str:
    """Predictors on requests that they were not fitted to: mean and range over requests."""
    jobs = [(name, fitted) for name in TRACES.values() for fitted in dict.fromkeys(own for own, _ in ARMS)]
    jobs.remove(("gptoss20b", "recorded"))
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool:
        found = dict(zip(jobs, pool.map(results, jobs), strict=True))
    parts = []
    for title, name in TRACES.items():
        rows = []
        for fitted, prefetch in ARMS:
            if (name, fitted) not in found:
                continue
            of = found[name, fitted][prefetch]
            sure = f", {SURE}" if SURE in prefetch else ""
            label = {"": f"`{prefetch}`", "recorded": "the router, asked early"}.get(fitted, f"`{fitted}`") + sure
            speeds = [one.speedup for one in of]
            rows.append([
                label,
                *(_mean([getattr(one, of_it) for one in of])
                  for of_it in ("foretold", "recall", "precision", "rank_quality")),
                f"{np.exp(np.mean(np.log(speeds))):.3f} ({min(speeds):.3f} to {max(speeds):.3f})",
                f"{sum(speed > 1.0 for speed in speeds)} of {len(speeds)}",
            ])  # fmt: skip
        head = ["predictor", "foretold", "recall", "precision", "rank quality", "speed", "requests that gain"]
        parts.append(f"### {title}\n\n{markdown(head, rows)}")
    return "\n\n".join(parts)


def _mean(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{np.mean(known):.2f} ({min(known):.2f} to {max(known):.2f})" if known else "-"
