"""Measured runs from files: a table of choices and tokens/s, what `llama-bench -o json` writes, Strata's log."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from expert_residency.errors import SimError
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.choices.spec import CHOICES
from expert_residency.text import check_known

SPEED = "tokens_per_s"
OWN = (SPEED, "name", "model", "n_cpu_moe")
"""Columns that are no choice of a run: the speed, a name, its model, llama.cpp's layers on the CPU."""
FIXED = ("hardware", "engine")
"""One of each in a fit."""
FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class MeasuredRun:
    """One run of the user's engine.

    Parameters
    ----------
    name
        As the file names it, or its line.
    words
        Choices of the run (`sim.choices.spec.CHOICES`).
    tokens_per_s
        Decode speed.
    model
        Its own model, where the file says.
    n_cpu_moe
        Layers whose experts are on the CPU, where the file says that instead of a capacity.
    knobs
        Fields of the engine's preset that the run sets.
    bench
        The row of llama-bench that it is, as written.
    windows
        Rows and emitted tokens of its verify windows on average, where the file says.
    """

    name: str
    words: Mapping[str, Any]
    tokens_per_s: float
    model: str | None = None
    n_cpu_moe: int | None = None
    knobs: Mapping[str, float] = field(default_factory=dict)
    bench: Mapping[str, Any] = field(default_factory=dict, compare=False)
    windows: tuple[float, float] | None = None


def read_runs(path: Path) -> tuple[list[MeasuredRun], list[str]]:
    """Runs of a file, by its content.

    Returns
    -------
    runs, left_out
        `left_out` says of each row that is no decode speed, or cannot be expressed, why.

    Raises
    ------
    SimError
        Place and fix of everything that is wrong; fewer than one run.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SimError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})") from None
    if text.lstrip().startswith(("[", "{")):
        from expert_residency.sim.studies.fit.llama_bench import read_llama_bench

        runs, left_out = read_llama_bench(text, path)
    elif "strata serve: prompt " in text:
        from expert_residency.sim.studies.fit.strata_log import read_strata_log

        runs, left_out = read_strata_log(text, path)
    else:
        runs, left_out = _table(text, path), []
    if not runs:
        raise SimError(f"{path}: no run with a decode speed{': ' + left_out[0] if left_out else ''}")
    return runs, left_out


def _table(text: str, path: Path) -> list[MeasuredRun]:
    reader = csv.DictReader(text.splitlines())
    knobs = [
        name for name in EnginePreset.model_fields
        if name.endswith(("_us", "_launches", "_per_layer", "_gb_per_s")) or name == "pcie_share"
    ]  # fmt: skip
    columns = list(reader.fieldnames or [])
    if SPEED not in columns:
        raise SimError(f"{path}: there is no column {SPEED!r} (the header is {', '.join(columns) or 'empty'})")
    for name in columns:
        if name in FIXED:
            raise SimError(f"{path}: column {name!r}: a fit is of one machine and engine, given by --{name}")
        check_known(f"{path}: column", name, [*OWN, *CHOICES, *knobs])
    problems, runs = [], []
    for line, row in enumerate(reader, start=2):
        try:
            runs.append(_row(row, f"line {line}", knobs))
        except ValueError as error:
            problems.append(f"line {line}: {error}")
    if problems:
        raise SimError(f"{path}: {'; '.join(problems)}")
    return runs


def _row(row: Mapping[str | None, Any], where: str, knobs: list[str]) -> MeasuredRun:
    if None in row or None in row.values():
        raise SimError("it has more or fewer cells than the header")
    given = {str(key): value.strip() for key, value in row.items() if value.strip()}
    if SPEED not in given:
        raise SimError(f"{SPEED} is empty")
    speed = _number(SPEED, given[SPEED])
    if not 0 < speed < 1e9:
        raise SimError(f"{SPEED} is {given[SPEED]}, expected more than 0")
    words = {key: _typed(key, value) for key, value in given.items() if key in CHOICES}
    layers = given.get("n_cpu_moe")
    if layers is not None and not layers.isdecimal():
        raise SimError(f"n_cpu_moe is {layers!r}, expected a whole number")
    own = {key: _number(key, value) for key, value in given.items() if key in knobs}
    return MeasuredRun(
        given.get("name", where), words, speed, given.get("model"), int(layers) if layers else None, own
    )


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise SimError(f"{name} is {text!r}, expected a number") from None


def _typed(name: str, text: str) -> Any:
    option = CHOICES[name].kind.option
    try:
        if option is bool:
            return FLAGS[text.lower()]
        return option(text) if option in (int, float) else text
    except (KeyError, ValueError):
        wanted = "true or false" if option is bool else "a number"
        raise SimError(f"{name} is {text!r}, expected {wanted}") from None
