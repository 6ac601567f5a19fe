"""Policies over several traces: tokens/s of two models do not compare, ratios to one baseline do.

A policy's ratio on a trace is the geometric mean over its cells of speed over that of the baseline with all else
equal; over traces it is the geometric mean of these. Its interval is a bootstrap over whole requests, drawn from
each trace apart and the same ones for every policy, so that it says what other requests of these traces would say.
`app.js` does the same again for what the filters leave.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from expert_residency.sim.studies.bootstrap import FEWEST, LEVEL, SEED

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 400
MOST = 40
"""Requests of a trace that are drawn one by one; more are drawn in so many blocks of neighbours."""


def blocks(request_ns: Sequence[int] | None) -> list[int]:
    """Times of at most `MOST` blocks of requests, in order."""
    if request_ns is None or not len(request_ns):
        return []
    return [int(part.sum()) for part in np.array_split(np.asarray(request_ns), min(MOST, len(request_ns)))]


def overall(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Policies over several traces, best first; only those that see no future and have cells of every trace.

    Parameters
    ----------
    rows
        Of `sim.report.data.report_rows`.

    Returns
    -------
    list of dict
        `policy`, `ratio`, `low` and `high` (None where a trace has fewer than five requests), `wins`, `traces`,
        `of_bound`; empty for one trace.
    """
    known = rows[~rows["oracle"] & rows["of_base"].notna() & (rows["of_base"] > 0)]
    traces = known["work"].nunique()
    if traces < 2:
        return []
    logs = known.assign(log=np.log(known["of_base"]), share=np.log(known["of_bound"])).groupby(["policy", "work"])
    table, shares = (logs[name].mean().unstack("work") for name in ("log", "share"))
    wins = table.eq(table.max()).sum(axis=1)
    drawn = _drawn(known, rows)
    found = []
    for policy in map(str, table.dropna().index):
        draws = [drawn.get((policy, str(work))) for work in table.columns]
        low = high = None
        if all(one is not None for one in draws):
            tail = 50 * (1 - LEVEL)
            means = np.mean(np.stack([one for one in draws if one is not None]), axis=0)
            low, high = np.exp(np.percentile(means, [tail, 100 - tail])).tolist()
        share = float(np.mean(shares.loc[policy].to_numpy()))
        ratio = math.exp(float(np.mean(table.loc[policy].to_numpy())))
        found.append(
            {"policy": policy, "ratio": ratio, "low": low, "high": high, "wins": int(wins[policy]),
             "traces": traces, "of_bound": None if math.isnan(share) else math.exp(share)}
        )  # fmt: skip
    return sorted(found, key=lambda one: -one["ratio"])


def _drawn(known: pd.DataFrame, rows: pd.DataFrame) -> dict[tuple[str, str], Any]:
    """Log ratios of each policy on each trace for `DRAWS` draws of requests; None with too few."""
    base_ns = dict(zip(rows["order"], rows["blocks"], strict=True))
    times: dict[int, Any] = {}
    for _, group in known.groupby("work"):
        n = min(len(own) for own in group["blocks"])
        if n < FEWEST or any(len(own) != n for own in group["blocks"]):
            continue
        chosen = np.random.default_rng(SEED).integers(0, n, (DRAWS, n))
        for order in {*group["order"], *group["base"].astype(int)}:
            times[order] = np.log(np.asarray(base_ns[order], dtype=float)[chosen].sum(axis=1))
    found: dict[tuple[str, str], Any] = {}
    for row in known[["policy", "work", "order", "base"]].to_dict("records"):
        order, base = int(row["order"]), int(row["base"])
        if order in times:
            found.setdefault((str(row["policy"]), str(row["work"])), []).append(times[base] - times[order])
    return {key: np.mean(own, axis=0) for key, own in found.items()}


def summary(rows: pd.DataFrame, baseline: str) -> str:
    """The best policies over all traces, in a sentence; empty for one trace."""
    found = overall(rows)
    if not found:
        return ""
    said = [
        f"{one['policy']} {one['ratio']:.3f}x"
        + (f" ({one['low']:.3f} to {one['high']:.3f})" if one["low"] else "")
        for one in found[:3]
    ]
    interval = (
        "95 % intervals over requests" if found[0]["low"] else "no interval with fewer than 5 requests a trace"
    )
    traces = f"over {found[0]['traces']} traces, geometric mean of ratios to {baseline}"
    return f"{traces}: {', '.join(said)} ({interval})"
