"""vllm-expert-capture: Parquet, a row for each (token, layer) with `expert_id_<i>` and `expert_weight_<i>`.

Source of the format: github.com/AmanPriyanshu, captures of Nemotron models. A prompt is a request; it has no
phase, so tokens are decode passes unless `prompt_tokens` says how many at the start of each request are its
prompt.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.parquet import column_names
from expert_residency.traces.readers.checks import need_model
from expert_residency.traces.readers.columns import mapped
from expert_residency.traces.readers.rows import trace_of
from expert_residency.traces.readers.sheet import load
from expert_residency.traces.readers.table_rows import rows_of_table
from expert_residency.traces.trace import Phase, RoutingTrace

name = "expert-capture"
description = "vllm-expert-capture Parquet: prompt_index, token_position, layer, expert_id_0.. (needs --model)"
marks = ("prompt_index", "token_position", "expert_id_0", "expert_weight_0")


def sniff(head: bytes, path: Path) -> bool:
    """Parquet with these columns."""
    return head.startswith(b"PAR1") and {"prompt_index", "token_position", "expert_id_0"} <= set(
        column_names(path)
    )


def read(path: Path, model: ModelGeometry | None = None, prompt_tokens: int = 0) -> RoutingTrace:
    """Read with the geometry of `model`; k is the file's.

    Parameters
    ----------
    path
        The file.
    model
        Shape and sizes.
    prompt_tokens
        How many tokens at the start of each request are its prompt.

    Returns
    -------
    RoutingTrace
        The trace, with weights where the file has them.

    Raises
    ------
    TraceError
        Columns that are missing or do not fit.
    """
    geometry = need_model(path, model)
    sheet = load(path, False, [])
    names = sheet.data.column_names
    k = sum(re.fullmatch(r"expert_id_\d+", n) is not None for n in names)
    spec = f"request=prompt_index,position=token_position,layer=layer,experts=expert_id_0..expert_id_{k - 1}"
    if "expert_weight_0" in names:
        spec += f",weights=expert_weight_0..expert_weight_{k - 1}"
    rows = rows_of_table(sheet, mapped(spec, names, path))
    if prompt_tokens and rows.request is not None and rows.token is not None:
        first = np.full(int(rows.request.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, rows.request, rows.token)
        prompt = rows.token < first[rows.request] + prompt_tokens
        rows = replace(rows, phase=np.where(prompt, Phase.PREFILL, Phase.DECODE))
    return trace_of(rows, geometry, path, "vllm-expert-capture")
