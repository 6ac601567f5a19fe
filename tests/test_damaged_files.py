"""Files that are damaged, forged or far too large: one sentence and exit code 2, in bounded memory."""

from __future__ import annotations

import gzip
import io
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from expert_residency.errors import TraceError
from expert_residency.sim.cli import main
from expert_residency.traces import ModelGeometry, read_trace, write_parquet
from expert_residency.traces import sizes as limits
from tests.test_parquet import unsealed
from tests.trace_files import SMALL, bigmoe_lines, npz_arrays, write_lines

FORMATS = {".colibri": "colibri", ".jsonl": "lattice", ".json": "gpt-oss-fingerprint", ".npz": "routing-npz",
           ".csv": "bigmoe-edge", ".parquet": "parquet"}  # fmt: skip
"""Of inputs whose names do not say it."""
SIZED = ("colibri", "lattice", "onnx-genai", "gpt-oss-fingerprint", "routing-npz")
"""Formats that need --model."""


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    said = capsys.readouterr()
    assert stopped.value.code == 2, said
    assert said.err.startswith("residency: "), said.err
    assert said.err.count("\n") == 1, said.err
    return said.err


@pytest.mark.shared
def test_what_once_was_a_traceback_is_a_sentence(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared / "cases" / "faults" / "readers"
    inputs = sorted(path for path in folder.iterdir() if path.suffix != ".toml")
    assert len(inputs) > 30
    for path in inputs:
        kind = FORMATS.get(path.suffix) or path.name.rpartition("-")[0]
        model = ["--model", str(folder / "small.toml")] if kind in SIZED else []
        assert str(path) in refused(capsys, "inspect", str(path), "--format", kind, *model)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """What any file may unpack to, for these tests."""
    monkeypatch.setattr(limits, "ALWAYS_BYTES", 1 << 20)
    return 1 << 20


def test_gzip_that_unpacks_to_too_much_is_refused(small_limit: int, tmp_path: Path, capsys: Any) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", 9) as file:
        for _ in range(128):
            file.write(b"\n" * (1 << 20))
    assert bomb.stat().st_size < 1 << 18
    assert "over 100 times its size" in refused(capsys, "inspect", str(bomb), "--format", "bigmoe-edge")


def test_a_member_of_a_zip_that_unpacks_to_too_much_is_refused(small_limit: int, tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, **npz_arrays(), more=np.zeros(1 << 27, dtype=np.uint8))
    with pytest.raises(TraceError, match="over 100 times its size"):
        read_trace(path, "routing-npz", SMALL)


def test_an_array_that_claims_more_than_there_is_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "claim.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (1_000_000_000_000, 2, 2)}
    )
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("experts.npy", header.getvalue() + bytes(64))
        for name in ("offsets", "first_pos"):
            data = io.BytesIO()
            np.save(data, npz_arrays()[name])
            file.writestr(f"{name}.npy", data.getvalue())
    with pytest.raises(TraceError, match=r"claim\.npz: .*(Unable to allocate|cut off)"):
        read_trace(path, "routing-npz", SMALL)


def test_parquet_that_claims_a_huge_trace_is_refused(small_limit: int, tmp_path: Path) -> None:
    path, rows = tmp_path / "t.parquet", 1 << 20
    from tests.test_engine import random_trace

    write_parquet(random_trace(3), path)
    zeros = pa.array(np.zeros(rows, dtype=np.int32))
    table = pa.table(dict.fromkeys(("request", "pass", "row", "position", "layer"), zeros))
    metadata = unsealed(pq.read_table(path)).schema.metadata
    pq.write_table(table.replace_schema_metadata(metadata), path, compression="zstd")
    with pytest.raises(TraceError, match="over 100 times its size"):
        read_trace(path)


def test_a_name_is_no_part_of_a_trace(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.csv", bigmoe_lines())
    shutil.copy(one, tmp_path / "other.csv")
    traces = [read_trace(tmp_path / name) for name in ("one.csv", "other.csv")]
    assert traces[0].geometry.source != traces[1].geometry.source
    assert traces[0].content_hash == traces[1].content_hash


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"experts": 1 << 31}, "ids of layers and experts go from 0 to 32,767"),
        ({"layer_ids": (0, 1 << 20)}, "ids of layers and experts go from 0 to 32,767"),
        ({"layer_ids": (-1, 1)}, "ids of layers and experts"),
        ({"expert_bytes": (1, 10**22)}, "its sizes add up to more than"),
        ({"dense_bytes": (1, -1)}, "dense_bytes is -1, less than nothing"),
        ({"head_bytes": -1}, "head_bytes is -1, less than nothing"),
    ],
)
def test_sizes_that_no_model_has_are_refused(changes: dict[str, Any], words: str) -> None:
    plain: dict[str, Any] = {"name": "m", "layer_ids": (0, 1), "experts": 4, "top_k": 2, "expert_bytes": (1, 1),
                             "dense_bytes": (1, 1)}  # fmt: skip
    ModelGeometry(**plain)
    with pytest.raises(TraceError, match=words):
        ModelGeometry(**(plain | changes))


def test_positions_that_32_bits_do_not_hold_are_refused() -> None:
    from expert_residency.traces import Phase, TraceBuilder

    builder = TraceBuilder(ModelGeometry("m", (0,), 4, 1, (1,), (1,)))
    builder.begin_pass(Phase.DECODE)
    builder.row(0, [1], position=1 << 32)
    with pytest.raises(TraceError, match="row_position goes from 4294967296"):
        builder.build()
    emitting = TraceBuilder(ModelGeometry("m", (0,), 4, 1, (1,), (1,)))
    emitting.begin_pass(Phase.DECODE, emits=-1)
    emitting.row(0, [1])
    with pytest.raises(TraceError, match="pass 0 emits -1 tokens"):
        emitting.build()
