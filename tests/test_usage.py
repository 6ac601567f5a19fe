"""Placements from counts: every form gives the same ranking, out as every engine's own file."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from expert_residency.policies import create
from expert_residency.policies.placement.strp import read_strp
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.cli import main
from expert_residency.sim.residency.pool import make_pool
from expert_residency.traces import ModelGeometry, TraceError, load_model, read_trace
from expert_residency.traces.usage import override_tensors, read_usage, write_matrix
from tests.trace_files import SMALL, moe_trace_lines, write_lines

COUNTS = np.asarray([[5, 0, 2, 0, 1, 0, 0, 9], [0, 4, 0, 0, 3, 0, 7, 0]], dtype=np.float64)


def gguf(tensors: dict[str, np.ndarray]) -> bytes:
    """A GGUF of float32 tensors, as llama-imatrix writes it."""
    out, body = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1), b""
    key = b"general.type"
    out += struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, 7) + b"imatrix"
    for name, values in tensors.items():
        out += (
            struct.pack("<Q", len(name)) + name.encode() + struct.pack("<IQQIQ", 2, 1, values.size, 0, len(body))
        )
        body += values.astype("<f4").tobytes()
        body += b"\0" * (-len(body) % 32)
    return out + b"\0" * (-len(out) % 32) + body


def files(folder: Path) -> list[Path]:
    """The same counts in every form."""
    cells = [(layer, e, int(n)) for layer, row in enumerate(COUNTS) for e, n in enumerate(row) if n]
    write_lines(folder / "a.coli_usage", ["-1 2 8", "-2 1 77", *(f"{a} {b} {n}" for a, b, n in cells)])
    write_lines(folder / "profile.csv", ["layer,expert,count", *(f"{a},{b},{n}" for a, b, n in cells)])
    write_lines(folder / "moe.csv", ["layer,expert", *(f"{a},{b}" for a, b, n in cells for _ in range(n))])
    np.save(folder / "m.npy", COUNTS.astype(np.int64))
    np.savez(folder / "m.npz", logical_count=np.stack([COUNTS, COUNTS * 0]))
    write_matrix(folder / "k.pt", COUNTS)
    text = json.dumps({"m": {"dtype": "F64", "shape": [2, 8], "data_offsets": [0, 128]}}).encode()
    (folder / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + COUNTS.tobytes())
    tensors = {f"blk.{i}.ffn_{part}_exps.weight.counts": COUNTS[i] for i in range(2) for part in ("up", "down")}
    (folder / "imatrix.gguf").write_bytes(gguf(tensors | {"blk.0.attn_q.weight.counts": COUNTS[0, :1]}))
    return sorted(path for path in folder.iterdir() if path.is_file())


def test_every_form_gives_the_same_counts(tmp_path: Path) -> None:
    there = files(tmp_path)
    assert len(there) == 8
    for path in there:
        np.testing.assert_array_equal(read_usage(path, SMALL), COUNTS)


def test_out_as_every_engines_own_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model("granite-3.0-1b-a400m")
    rng = np.random.default_rng(3)
    counts = rng.permutation(model.n_experts).reshape(model.n_layers, model.experts)
    np.save(tmp_path / "m.npy", counts)
    expected = [int(key) for key in np.argsort(-counts.reshape(-1)) if counts.reshape(-1)[key]]
    says = {
        "p.csv": f"{len(expected)} experts used, all in the file, the most used first; 40 slots hold 40 of them",
        "p.pt": f"the counts of all {model.n_experts} in the file, whatever the slots",
        "p.strp": f"{len(expected)} experts used, 40 of them in 40 slots",
        "p.ot": f"1 of {model.n_layers} layers stay on the card: {model.experts} experts in 40 slots",
    }
    for name, held in says.items():
        with pytest.raises(SystemExit) as end:
            main(["placement", "--from", str(tmp_path / "m.npy"), "--model", model.name, "--slots", "40",
                  "--out", str(tmp_path / name)])  # fmt: skip
        assert end.value.code == 0
        assert held.replace(",", "") in " ".join(capsys.readouterr().out.replace(",", "").split())
    assert (tmp_path / "p.ot").read_text().startswith(r'-ot "blk\.(')
    pool = make_pool(model, Capacity.of("9/layer"))
    assert create("placement", f"profile:file={tmp_path / 'p.csv'}").rank(pool, None) == expected
    assert read_strp(tmp_path / "p.strp").ranked[: len(expected)] == expected
    np.testing.assert_array_equal(read_usage(tmp_path / "p.pt", model), counts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("layer,expert\n0,8\n", "line 2: layer 0, expert 8 is outside small"),
        ("layer,expert\n7,1\n", "line 2: layer 7, expert 1"),
        ("layer,expert,count\n0,1,-2\n", "below 0"),
        ("layer,expert,count\n0,1,x\n", "line 2: expected layer, expert, count"),
        ("layer,expert\n0\n", "line 2: 1 cells, expected 2"),
        ("a,b\n1,2\n", "neither columns layer,expert"),
        ("layer,expert,count\n0,1,0\n", "no expert was used"),
        ("-1 2 8\n0 1\n", "line 2: expected three numbers"),
    ],
)
def test_counts_that_are_none(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(text)
    with pytest.raises(TraceError, match=says):
        read_usage(path, SMALL)


def test_arrays_and_files_that_do_not_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "m.npy", np.ones((3, 8)))
    with pytest.raises(TraceError, match=r"0 arrays of \[2 layers, 8 experts\], expected one"):
        read_usage(tmp_path / "m.npy", SMALL)
    path = tmp_path / "i.gguf"
    path.write_bytes(gguf({"blk.0.ffn_up_exps.weight.counts": COUNTS[0]})[:-8])
    with pytest.raises(TraceError, match="cut off"):
        read_usage(path, SMALL)
    path.write_bytes(gguf({"blk.0.attn_q.weight.counts": COUNTS[0]}))
    with pytest.raises(TraceError, match="none of its tensors"):
        read_usage(path, SMALL)


def test_a_moe_trace_needs_no_k(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", moe_trace_lines())
    trace = read_trace(path, model=SMALL)
    uses = np.bincount(trace.keys, weights=trace.rows_wanting, minlength=16).reshape(2, 8)
    np.testing.assert_array_equal(read_usage(path, SMALL), uses)


@pytest.mark.shared
def test_samples_are_the_recorded_counts(shared: Path) -> None:
    trace = read_trace(shared / "traces/bigmoe-edge/qwen.route.csv")
    decode = trace.select_passes(trace.pass_phase == 1)
    uses = np.bincount(decode.keys, minlength=48 * 128).reshape(48, 128)
    for name in ("qwen.coli_usage", "qwen.eplb_counts.npy", "qwen.moetrace_dec.csv"):
        np.testing.assert_array_equal(read_usage(shared / "formats" / name, trace.geometry), uses)


def test_whole_layers_as_llama_cpp_takes_them() -> None:
    model = ModelGeometry("m", (2, 3, 5), 4, 2, (10,) * 3, (1,) * 3)
    counts = np.asarray([[1, 0, 0, 1], [5, 5, 0, 0], [1, 1, 1, 1]], dtype=float)
    line = override_tensors(counts.reshape(-1), model, 9)
    assert line == r'-ot "blk\.(2)\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"'
    pattern = re.compile(line.partition('"')[2].partition("=CPU")[0])
    names = [f"blk.{layer}.ffn_{part}_exps.weight" for layer in (2, 3, 5) for part in ("up", "gate_up")]
    assert [name for name in names if pattern.search(name)] == names[:2]
    assert override_tensors(counts, model, 12) == ""
    with pytest.raises(TraceError, match="3 slots hold no whole layer of 4 experts"):
        override_tensors(counts, model, 3)
