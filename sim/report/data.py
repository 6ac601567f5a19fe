"""What a report shows of a sweep: rows in a short form, filters, warnings, facts. No HTML here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from expert_residency.sim.report.across import blocks
from expert_residency.sim.runs.basis import Basis
from expert_residency.sim.studies.score import SMALL_GAIN
from expert_residency.sim.sweep.rows import POLICY_COLUMNS
from expert_residency.sim.sweep.seeds import over_seeds

if TYPE_CHECKING:
    import pandas as pd

FILTERS = {
    "trace": "trace",
    "scenario": "scenario",
    "model": "model",
    "hardware": "machine",
    "layers_each": "layers each",
    "room": "cache",
    "scope": "scope",
    "eviction": "eviction",
    "admission": "admission",
    "prefetch": "prefetch",
    "insertion": "insertion",
    "placement": "placement",
    "engine": "engine",
    "miss": "miss",
    "host": "host",
    "start": "start",
    "passes": "passes",
}
FILTERS |= {name: name.replace("_", " ") for name in POLICY_COLUMNS if name not in FILTERS}
"""Columns that may be filtered, with their headings; those with one value only are left out."""
NUMBERS = (
    "order", "rank", "cell", "tokens_per_s", "ms_per_token", "ms_per_pass_p95", "hit_rate", "capacity_gib",
    "vram_gib", "cycles", "of_best", "of_base", "of_bound", "headroom", "base", "tokens_per_s_low",
    "tokens_per_s_high",
)  # fmt: skip
_POLICY = ("eviction", "admission", "prefetch", "insertion", "prefetch_bytes", "predict_us")
BASELINE = {"eviction": "lru", "admission": "always", "prefetch": "none"}
"""What the speeds of several traces are ratios to."""
_DIGITS = 6
_CASES = 12


def report_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Finished settings, fastest first, with labels and GiB; policies that see the future have no rank.

    Cells that differ in the seed alone are one row.
    """
    rows = over_seeds(frame[frame["status"] == "ok"])
    rows = rows.sort_values(["ms_per_token", "vram_bytes", "cell"], na_position="last").reset_index(drop=True)
    rows["oracle"] = rows["oracle"].astype(bool)
    rows["order"] = range(len(rows))
    rows["work"] = works(rows)
    rows["rank"] = (~rows["oracle"]).groupby(rows["work"]).cumsum().where(~rows["oracle"])
    rows["capacity_gib"] = rows["capacity_bytes"] / 2**30
    rows["vram_gib"] = rows["vram_bytes"] / 2**30
    rows["room"] = [f"{gib:.2f} GiB" for gib in rows["capacity_gib"]]
    rows["scenario"] = rows["scenario"].fillna("none")
    rows["layers_each"] = rows["layers_each"].fillna("all on one")
    for column in POLICY_COLUMNS:
        rows[column] = [chosen(value) for value in rows[column]]
    gate = ["" if name == "always" else f" + {name}" for name in rows["admission"]]
    rows["policy"] = [
        f"{eviction}{more} + {prefetch}"
        for eviction, more, prefetch in zip(rows["eviction"], gate, rows["prefetch"], strict=True)
    ]
    told = {"trace", "model", "hardware", "room", "eviction", "admission", "prefetch"}
    apart = [
        column
        for column in varying(rows)
        if column not in told and rows.groupby("work")[column].nunique().max() > 1
    ]
    rows["label"] = [
        " · ".join(map(str, values)) for values in _named(rows, ["policy", "hardware", "room", *apart])
    ]
    rows["short"] = [
        f"oracle {policy}" if oracle else f"#{rank:.0f} {policy}"
        for rank, oracle, policy in zip(rows["rank"], rows["oracle"], rows["policy"], strict=True)
    ]
    rows["group"] = _groups(rows)
    best = rows[rows["oracle"]].groupby(["group", "capacity_bytes"])["tokens_per_s"].max().rename("best")
    rows = rows.merge(best, how="left", left_on=["group", "capacity_bytes"], right_index=True)
    rows["of_best"] = rows["tokens_per_s"] / rows["best"]
    rows["blocks"] = [blocks(ns) for ns in rows["request_ns"]]
    return _beside_bound(_beside_baseline(rows))


def works(rows: pd.DataFrame) -> list[str]:
    """What each cell computes: its trace, and the model and passes where they differ. Only equal work compares."""
    keys = ["trace", *(key for key in ("model", "passes") if rows.groupby("trace")[key].nunique().max() > 1)]
    return [" · ".join(map(str, values)) for values in rows[keys].itertuples(index=False)]


def _beside_baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `base`, the `order` of the cell of `BASELINE` with all else equal, and `of_base`, speed over its own.

    NaN where no such cell is.
    """
    context = [c for c in ("work", "room", "scenario", *FILTERS) if c in rows and c not in (*_POLICY, "placement")]
    rows["context"] = ["|".join(map(str, values)) for values in rows[context].itertuples(index=False)]
    is_base = (rows[list(BASELINE)] == list(BASELINE.values())).all(axis=1)
    base = rows[is_base].drop_duplicates("context").set_index("context")  # the fastest comes first
    key = rows.pop("context")
    rows["base"] = key.map(base["order"])
    rows["of_base"] = rows["tokens_per_s"] / key.map(base["tokens_per_s"])
    return rows


def _beside_bound(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds the bound on time as speed and ms a token, its share of the row's time, and the headroom captured.

    NaN in datasets of a version that did not find it.
    """
    ns = _time_ns(rows)
    bound = rows["bound_ns"].astype(float).where(rows["bound_ns"].astype(float) > 0)
    rows["of_bound"] = bound / ns
    rows["bound_tokens_per_s"] = rows["tokens_per_s"] / rows["of_bound"]
    rows["bound_ms"] = rows["ms_per_token"] * rows["of_bound"]
    base = rows["base"].map(dict(zip(rows["order"], ns, strict=True)))
    gain = base - bound
    rows["headroom"] = ((base - ns) / gain).where(gain >= SMALL_GAIN * base)
    return rows


def _time_ns(rows: pd.DataFrame) -> pd.Series[float]:
    """The time that ranks: of all passes but prefills, or of all."""
    decode = rows["decode_ns"].astype(float)
    return decode.where(decode > 0, rows["total_ns"].astype(float))


def _groups(rows: pd.DataFrame) -> list[str]:
    """Cells that may be compared at equal capacity: the same work on the same machine."""
    each = rows.groupby("trace")
    keys = [k for k in ("trace", "hardware", "model", "scenario", "layers_each", "miss", "host", "passes")
            if k in ("trace", "hardware") or each[k].nunique().max() > 1]  # fmt: skip
    return [" · ".join(values) for values in _named(rows, keys)]


def _named(rows: pd.DataFrame, columns: list[str]) -> Iterator[list[str]]:
    """Values of each row, with their heading where they are no names by themselves."""
    alone = {"trace", "hardware", "model", "policy", "room"}
    heads = ["" if column in alone else f"{FILTERS.get(column, column)} " for column in columns]
    for values in rows[columns].itertuples(index=False):
        yield [f"{head}{value}" for head, value in zip(heads, values, strict=True)]


def chosen(value: Any) -> Any:
    """A choice as a sweep names it: `default` where none was made, whole numbers without a point."""
    if value is None or value != value:
        return "default"
    return int(value) if isinstance(value, float) and value.is_integer() else value


def varying(rows: pd.DataFrame) -> dict[str, str]:
    """Choices that differ between rows, with their headings."""
    return {
        column: heading
        for column, heading in FILTERS.items()
        if column in rows and rows[column].nunique(dropna=False) > 1
    }


def filters(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Columns worth filtering, with their values in a natural order."""
    found = []
    for column, heading in varying(rows).items():
        values = rows[column].dropna().unique().tolist()
        if column == "room":
            values.sort(key=lambda text: float(text.split()[0]))
        else:
            values.sort(key=lambda value: (isinstance(value, str), value))
        if len(values) > 1:
            found.append({"column": column, "heading": heading, "values": values})
    return found


def columnar(rows: pd.DataFrame, columns: list[str]) -> dict[str, list[Any]]:
    """Lists by column, numbers cut to six digits, null for what is not a number."""
    return {column: [_plain(value) for value in rows[column].tolist()] for column in columns}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return None if not math.isfinite(value) else float(f"{value:.{_DIGITS}g}")
    return value


def regime_warnings(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Warnings of all cells, alike ones together: one example, how many cells, some of their numbers."""
    return _alike(frame, "warnings")


def row_caveats(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Caveats of all cells in the same form; a dataset of an older version has none."""
    return _alike(frame, "caveats") if "caveats" in frame else []


def bases(frame: pd.DataFrame) -> dict[str, Basis]:
    """What the cells of each trace stand on; the least of them where passes differ. Old sweeps do not say it."""
    frame = over_seeds(frame)
    known = frame[(frame["status"] == "ok") & frame["requests"].notna()]
    least = known.groupby("trace", sort=False)[["requests", "decode_tokens"]].min()
    return {str(trace): Basis(int(row.requests), int(row.decode_tokens)) for trace, row in least.iterrows()}


def _alike(frame: pd.DataFrame, column: str) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for cell, lines in zip(frame["cell"], frame[column], strict=True):
        for line in lines:
            entry = found.setdefault(re.sub(r"[\d.,]+", "#", line), {"text": line, "cells": []})
            entry["cells"].append(int(cell))
    return [_case(entry["text"], entry["cells"]) for entry in found.values()]


def without_numbers(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Cells that failed or do not fit, by reason."""
    bad = frame[frame["status"] != "ok"]
    return [
        _case(f"{status}: {reason}", group["cell"].tolist())
        for (status, reason), group in bad.groupby(["status", "reason"], sort=False)
    ]


def _case(text: str, cells: list[int]) -> dict[str, Any]:
    named = ", ".join(map(str, cells[:_CASES])) + (", ..." if len(cells) > _CASES else "")
    return {"text": text, "count": len(cells), "cells": named}


def facts(frame: pd.DataFrame, name: str) -> list[tuple[str, str]]:
    """What decides the numbers: versions, and hashes of traces, machines and engines."""
    import pandas as pd

    found: dict[tuple[str, str], None] = {("sweep", name or "without a name"): None}
    status = frame["status"].value_counts()
    found[("cells", ", ".join(f"{n} {what}" for what, n in sorted(status.items())))] = None
    for trace, basis in bases(frame).items():
        found[(f"ranking of {trace}", f"over {basis.words}")] = None
    for row in frame[frame["manifest"].notna()].to_dict("records"):
        made = json.loads(row["manifest"])
        found[("program", f"expert-residency {made['version']}")] = None
        kind = "synthetic" if made["synthetic"] else "recorded"
        seed = "" if pd.isna(row.get("seed")) else f", seed {row['seed']:.0f}"
        said = f"{row['model']}, {row['passes']} passes, {kind}, {made['trace_sha256'][:16]}"
        found[(f"trace {row['trace']}{seed}", said)] = None
        for machine, digest in zip(row["hardware"].split("+"), made["hardware_sha256"], strict=True):
            found[(f"machine {machine}", digest)] = None
        found[(f"engine preset {row['engine']}", made["engine_sha256"])] = None
    return list(found)


__all__ = [
    "BASELINE", "FILTERS", "NUMBERS", "bases", "chosen", "columnar", "facts", "filters", "regime_warnings",
    "report_rows", "row_caveats", "varying", "without_numbers",
]  # fmt: skip
