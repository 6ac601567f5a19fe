"""Rows of `llama-bench -o json` as runs, where one machine and model can be said to have made them.

Field names as of ggml-org/llama.cpp, tools/llama-bench. A row that is another experiment (a prompt, another model,
more cards, layers whose dense part is on the CPU, parts of a layer) has no place in a fit: it is named with its
reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from expert_residency.errors import SimError
from expert_residency.sim.split.rules import CPU, parse_rules, place
from expert_residency.sim.studies.fit.runs import MeasuredRun
from expert_residency.traces import ModelGeometry

KV = {"f16": "fp16", "q8_0": "q8_0", "q4_0": "q4_0"}
NEAR = 0.15
"""Largest relative difference of a row's `model_size` from the model's bytes."""


def read_llama_bench(text: str, path: Path) -> tuple[list[MeasuredRun], list[str]]:
    """Rows that generate, and why the others are left out.

    Raises
    ------
    SimError
        Not JSON, or not what llama-bench writes.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise SimError(f"{path}: not JSON ({error})") from None
    rows = data if isinstance(data, list) else [data]
    if not all(isinstance(row, dict) and "avg_ts" in row for row in rows):
        raise SimError(f"{path}: not what llama-bench -o json writes: an entry lacks avg_ts")
    runs, left_out = [], []
    for number, row in enumerate(rows, start=1):
        if why := _no_speed(row):
            left_out.append(f"entry {number}: {why}")
        else:
            words = {"depth": int(row.get("n_depth", 0)), "kv_type": KV[str(row.get("type_k", "f16"))]}
            runs.append(MeasuredRun(f"entry {number}", words, float(row["avg_ts"]), bench=row))
    return runs, left_out


def _no_speed(row: Mapping[str, Any]) -> str:
    """Why a row is no decode speed that can be expressed, whatever the model; empty if it is one."""
    if not row.get("n_gen") or row.get("n_prompt"):
        return "no generation alone (n_gen without n_prompt)"
    if (
        isinstance(row["avg_ts"], bool)
        or not isinstance(row["avg_ts"], int | float)
        or not 0 < row["avg_ts"] < 1e9
    ):
        return f"avg_ts is {row['avg_ts']!r}"
    for name in ("n_depth", "n_cpu_moe", "n_gpu_layers", "n_threads", "model_size"):
        if isinstance(row.get(name, 0), bool) or not isinstance(row.get(name, 0), int):
            return f"{name} is {row[name]!r}"
    keys, values = (str(row.get(name, "f16")) for name in ("type_k", "type_v"))
    if keys != values or keys not in KV:
        return f"KV of {keys} and {values} has no rate here"
    return "no_kv_offload: attention on the CPU is not simulated" if row.get("no_kv_offload") else ""


def of_one_machine(
    runs: Sequence[MeasuredRun], geometry: ModelGeometry, cards: int
) -> tuple[list[MeasuredRun], list[str]]:
    """Rows with the layers that they keep on the CPU; those of another machine or model are left out.

    Parameters
    ----------
    runs
        Of any file; those that are no rows of llama-bench stay as they are.
    geometry
        The model that is fitted with.
    cards
        How many the machine has.

    Returns
    -------
    runs, left_out
        `left_out` has a sentence for each run that is not among them.
    """
    threads = Counter(run.bench.get("n_threads") for run in runs if run.bench)
    usual = threads.most_common(1)[0][0] if threads else None
    kept, left_out = [], []
    for run in runs:
        why = _another(run.bench, geometry, cards, usual) if run.bench else ""
        layers, partly = _on_cpu(run.bench, geometry) if run.bench and not why else (run.n_cpu_moe, "")
        if why or partly:
            left_out.append(f"{run.name}: {why or partly}")
        else:
            kept.append(replace(run, n_cpu_moe=layers))
    return kept, left_out


def _another(row: Mapping[str, Any], geometry: ModelGeometry, cards: int, threads: Any) -> str:
    """Why a row is of another machine or model; empty if it is not."""
    whole = geometry.all_expert_bytes + sum(geometry.dense_bytes) + geometry.dense_only_bytes + geometry.head_bytes
    size = row.get("model_size")
    if size and abs(size / whole - 1) > NEAR:
        return f"model_size {size / 1e9:.1f} GB is not {geometry.label} ({whole / 1e9:.1f} GB)"
    found = len([part for part in str(row.get("gpu_info", "")).split(",") if part.strip()])
    if found and found != cards:
        return f"gpu_info names {found} cards, --hardware {cards}"
    layers = row.get("n_gpu_layers", 99)
    if 0 <= layers < (geometry.total_layers or geometry.n_layers):
        return f"n_gpu_layers {layers}: dense parts on the CPU are not simulated"
    if row.get("n_threads") != threads:
        return f"n_threads {row.get('n_threads')} where most rows have {threads}: another rate of the CPU"
    return ""


def _on_cpu(row: Mapping[str, Any], geometry: ModelGeometry) -> tuple[int, str]:
    """Layers whose experts a row keeps on the CPU, or why that cannot be said."""
    text = str(row.get("tensor_buft_overrides", "none") or "none")
    overrides = [] if text == "none" else [part for part in text.split(";") if part]
    try:
        rules = parse_rules(overrides, int(row.get("n_cpu_moe", 0)), geometry.layer_ids)
        placed = place(geometry, rules, [0] * geometry.n_layers)
    except SimError as error:
        return 0, str(error)
    split = [layer for layer, where in zip(geometry.layer_ids, placed, strict=True) if len(set(where)) > 1]
    if split:
        return 0, f"{text!r} keeps a part of layer {split[0]} on the CPU: only whole layers are fitted"
    if any(device not in (0, CPU) for where in placed for device in where):
        return 0, f"{text!r} names a second card"
    layers = sum(where[0] == CPU for where in placed)
    if overrides and not layers:
        return 0, f"{text!r} moves no experts"
    return layers, ""
