"""Cells that differ in the seed alone, taken together: means over seeds, with an interval.

A seed is another workload of the same model, so what varies over seeds is what other requests of the kind would
change. Speed is that of all seeds together: ms/token is the mean over seeds, tokens/s its inverse. The interval is
Student's t of that mean over seeds, 95 %; it needs two of them, and says nothing about other models or machines.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from expert_residency.sim.sweep.rows import COLUMNS, OK
from expert_residency.sim.sweep.spec import names_seed
from expert_residency.text import sha256_of

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 0.95
_ENDS = ("ms_per_token_low", "ms_per_token_high", "tokens_per_s_low", "tokens_per_s_high")
_RUN = [column.name for column in COLUMNS].index("tokens")
"""From this column on a row says what the run found."""


def t_factor(n: int, level: float = LEVEL) -> float:
    """Half the width of Student's t interval of a mean of `n` numbers, in standard errors."""
    angle = np.linspace(0, math.pi / 2, 200_001)  # t = sqrt(n - 1) tan(angle) has density cos(angle)^(n - 2)
    density = np.cos(angle) ** (n - 2)
    share = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return math.sqrt(n - 1) * math.tan(float(np.interp(level, share / share[-1], angle)))


def over_seeds(frame: pd.DataFrame) -> pd.DataFrame:
    """One row a setting: cells that differ in the seed alone become one, in the order of their first.

    Parameters
    ----------
    frame
        Rows of `read_dataset`.

    Returns
    -------
    pandas.DataFrame
        The same columns, and of each row `seeds` (how many; 0 where nothing is drawn), the numbers of its `cells`
        and the ends of the interval, `ms_per_token_low`, `ms_per_token_high`, `tokens_per_s_low` and
        `tokens_per_s_high` (NaN below two seeds). Runs over several drawn traces are one longer run: counts,
        bytes, nanoseconds and requests of all, other numbers as means. Where only policies draw, over the same
        requests, all numbers are means. `cell`, `cell_id` and `binds` are those of the first seed; the manifest
        too, but for the trace's hash, which is one of all; choices that say `{seed}` are as written. Cells without
        numbers stay apart.
    """
    import pandas as pd

    if "seed" not in frame:
        frame = frame.assign(seed=np.nan, setting=None)
    joined = frame["seed"].notna() & (frame["status"] == OK) & frame["setting"].notna()
    key = frame["setting"].where(joined, frame["cell_id"])
    repeated = key.duplicated(keep=False)
    alone = frame[~repeated].copy()
    alone["seeds"] = alone["seed"].notna().astype(int)
    alone["cells"] = pd.Series([[cell] for cell in alone["cell"]], alone.index, dtype=object)
    alone[[*_ENDS]] = math.nan
    if not repeated.any():
        return alone
    together = pd.DataFrame([_together(group) for _, group in frame[repeated].groupby(key[repeated], sort=False)])
    words = [name for name, kind in frame.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
    together = together.astype({name: frame[name].dtype for name in words})  # also where all of them are null
    return pd.concat([alone, together]).sort_values("cell").reset_index(drop=True) if len(alone) else together


def _together(group: pd.DataFrame) -> dict[Any, Any]:
    """One row of several that have numbers."""
    row: dict[Any, Any] = group.iloc[0].to_dict()
    manifests = [json.loads(text) for text in group["manifest"]]
    traces = [made["trace_sha256"] for made in manifests]
    longer = len(set(traces)) > 1
    for column in COLUMNS[_RUN:]:
        if column.name in group:
            row[column.name] = _of_all(group[column.name], column.kind, longer)
    made = manifests[0] | ({"trace_sha256": sha256_of(sorted(traces))} if longer else {})
    for name, words in json.loads(row["setting"]).items():
        if names_seed(words) and name in row:
            row[name] = words
    row["manifest"] = json.dumps(made, sort_keys=True)
    row["binds"] = f"Seed {group['seed'].iloc[0]:.0f}: {group['binds'].iloc[0]}"
    n, ms = len(group), group["ms_per_token"].to_numpy(dtype=float)
    mean, half = float(ms.mean()), t_factor(n) * float(np.std(ms, ddof=1)) / math.sqrt(n)
    low, high = max(0.0, mean - half), mean + half
    row["tokens_per_s"] = _per_s(mean)
    ends = dict(zip(_ENDS, (low, high, _per_s(high), _per_s(low)), strict=True))
    return row | {"seeds": n, "cells": group["cell"].tolist()} | ends


def _of_all(values: pd.Series[Any], kind: str, longer: bool) -> Any:
    """One number, or list, of those of several runs: of one after the other if `longer`, else their mean."""
    if kind == "list":
        return list(dict.fromkeys(text for one in values for text in one))
    if values.isna().any():
        return None
    if kind == "integers":
        if longer:
            return [number for one in values for number in one]
        return np.mean(np.stack(values.to_list()), axis=0).round().astype(int).tolist()
    if kind.startswith("int"):
        return int(values.sum() if longer else round(values.mean()))
    return values.mean() if kind == "double" else values.iloc[0]


def _per_s(ms: float) -> float:
    return 1000 / ms if ms else math.nan
