"""One line of the program is changed, and the check named beside it must fail.

These once passed every test: columns of datasets and reports were never read back against the run, and what both
engines share was compared with itself only.
"""

from __future__ import annotations
import __future__

import inspect
import json
import os
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from expert_residency.policies.prefetch.oracle import Oracle
from expert_residency.policies.protocol import Event, Lists
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.report import data as report
from expert_residency.sim.residency.future import make_future
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.runs import simulate as running
from expert_residency.sim.sweep import cells, journal, rows
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import read_trace
from expert_residency.traces.readers import colibri
from tests.test_conformance import one_layer
from tests.test_rows import check_ids, check_report, check_rows
from tests.trace_files import SMALL, write_lines


def edited(function: Callable[..., Any], old: str, new: str) -> Any:
    """The function with one piece of its source replaced, in its own module."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has {old!r} {source.count(old)} times"
    made: dict[str, Any] = {}
    flags = __future__.annotations.compiler_flag
    code = compile(source.replace(old, new), inspect.getfile(function), "exec", flags, dont_inherit=True)
    exec(code, function.__globals__, made)
    return made[function.__name__]


def check_journal() -> None:
    """What `append` has written is on the disk when it returns: the file is synced after the last write."""
    done: list[str] = []
    write, sync = os.write, os.fsync
    with (
        tempfile.TemporaryDirectory() as folder,
        journal.Journal(Path(folder, "j.jsonl")) as kept,
        patch.object(os, "write", lambda *a: (done.append("write"), write(*a))[1]),
        patch.object(os, "fsync", lambda *a: (done.append("fsync"), sync(*a))[1]),
    ):
        kept.append("a", {"x": 1})
        assert done == ["write", "fsync"]
        assert json.loads(kept.path.read_text())["row"] == {"x": 1}


def check_oracle() -> None:
    """A window of W events reaches the W-th event from here and no further."""
    trace = one_layer([(0, 1), (2, 3), (4, 5), (0, 2), (1, 3)], 6, 2)
    future, pool = make_future(trace), make_pool(trace.geometry, Capacity(slots_per_layer=2))
    for window in (1, 2, 3):
        policy = Oracle(window=window)
        state = policy.start(pool, Lists, future, None)
        keys, deadlines = Lists.ints(6), Lists.ints(6)
        event = Event(0, 0, 0, 0, [0, 1], [1, 1], [0, 0])
        n = policy.propose(state, event, keys, deadlines)
        assert max(deadlines[:n]) == window
        assert min(deadlines[:n]) == 1


def check_pages() -> None:
    """An expert takes whole pages: what reaches into a page has all of it."""
    cache = PageCache(4 * 4096, 4096)
    for key in range(3):
        cache.insert(key, 4097)
    assert [key for key in range(3) if key in cache] == [1, 2]
    assert cache.pages == 4
    cache = PageCache(4 * 4096 + 4095, 4096)
    cache.insert(0, 4 * 4096)
    cache.insert(1, 4 * 4096 + 1)
    assert cache.pages == 4


def check_gates() -> None:
    """The weight that a file gives an expert is that expert's."""
    weights = {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.0625}
    chosen = [(0, 3), (2, 1)]
    with tempfile.TemporaryDirectory() as folder:
        lines = [f"{n} 0 {n} " + " ".join(f"{e}:{weights[e]}" for e in ids) for n, ids in enumerate(chosen)]
        rows_of = [{"layer_idx": n, "token_idx": 0, "selected_ids": ids} for n, ids in enumerate(chosen)]
        objects = [
            json.dumps(row | {"gate_weights": [weights[e] for e in row["selected_ids"]]}) for row in rows_of
        ]
        for name, text in (("colibri", lines), ("lattice", objects)):
            trace = read_trace(write_lines(Path(folder, name), text), name, SMALL)
            assert trace.row_weights is not None
            assert trace.row_experts.tolist() == [0, 3, 2, 1]
            np.testing.assert_array_equal(trace.row_weights, [weights[e] for e in trace.row_experts.tolist()])


BYTES = '**{f"{name}_bytes": nbytes for name, nbytes in result.link_bytes.items()}'
SWAPPED = '**{f"{name}_bytes": result.link_bytes[{"h2d_demand": "h2d_prefetch", "h2d_prefetch": "h2d_demand"}.get(name, name)] for name in result.link_bytes}'  # noqa: E501
EDITS: dict[str, tuple[Any, str, Any, str, str, Callable[[], None]]] = {
    "result: speed counts the tokens of prefills": (
        RunResult, "_decode", RunResult._decode, "self.pass_phase != 0", "self.pass_phase >= 0", check_rows
    ),
    "rows: p95 and p99 are swapped": (
        rows, "result_row", rows.result_row, "result.percentile_ms(q)",
        "result.percentile_ms({95: 99, 99: 95}.get(q, q))", check_rows,
    ),
    "rows: demand and prefetch bytes are swapped": (
        rows, "result_row", rows.result_row, BYTES, SWAPPED, check_rows
    ),
    "rows: VRAM without the head": (
        rows, "vram_needs", running.vram_needs, "(geometry.head_bytes if card == layer_card[-1] else 0)", "0",
        check_rows,
    ),
    "rows: VRAM without layers that have no experts": (
        rows, "vram_needs", running.vram_needs, "geometry.dense_only_bytes if", "0 if", check_rows
    ),
    "rows: VRAM without the staging ring": (
        rows, "vram_needs", running.vram_needs, "staging_slots * max", "0 * max", check_rows
    ),
    "rows: the hit rate counts prefills": (
        RunResult, "decode_hit_rate", RunResult.decode_hit_rate, "served_distinct[1:]", "served_distinct",
        check_rows,
    ),
    "report: the capacity stands for the VRAM": (
        report, "report_rows", report.report_rows, 'rows["vram_bytes"] / 2**30', 'rows["capacity_bytes"] / 2**30',
        check_report,
    ),
    "report: of best is by the worst bound": (
        report, "report_rows", report.report_rows, '["tokens_per_s"].max()', '["tokens_per_s"].min()', check_report
    ),
    "report: bounds have ranks": (
        report, "report_rows", report.report_rows, '.cumsum().where(~rows["oracle"])', ".cumsum()", check_report
    ),
    "cells: an id without the start": (
        cells, "_check", cells._check, "hash_of(made",
        'hash_of(made | {"spec": made["spec"] | {"start": "warm"}}', check_ids,
    ),
    "journal: nothing is synced": (
        journal.Journal, "append", journal.Journal.append, "os.fsync(self._file)", "pass", check_journal
    ),
    "oracle: one event too far": (
        Oracle, "propose", Oracle.propose, "event.number + state.window,", "event.number + state.window + 1,",
        check_oracle,
    ),
    "page cache: an expert takes less than whole pages": (
        PageCache, "insert", PageCache.insert, "-(-nbytes // self.page_bytes)", "nbytes // self.page_bytes",
        check_pages,
    ),
    "colibri: gates in reverse": (
        colibri, "read", colibri.read, "weights += [gate for _, gate in chosen]",
        "weights += [gate for _, gate in chosen][::-1]", check_gates,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_a_changed_line_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, function, old, new, check = EDITS[name]
    check()  # the code as it is passes
    monkeypatch.setattr(owner, attribute, edited(function, old, new))
    with pytest.raises(AssertionError):
        check()
