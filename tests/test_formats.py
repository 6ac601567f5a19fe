"""Traces of strangers: known answers on sample files, any table, several files, what is cut, and hostile input."""

from __future__ import annotations

import base64
import gzip
import io
import itertools
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import SimError
from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.runs.replay import replay
from expert_residency.traces import (
    Phase,
    RoutingTrace,
    TraceBuilder,
    TraceError,
    describe,
    list_formats,
    load_model,
    read_trace,
    write_parquet,
)
from expert_residency.traces.readers.arrays import npy, safetensors, torch_file
from tests.test_readers import routing
from tests.trace_files import (
    DECODE,
    PASSES,
    SMALL,
    colibri_lines,
    counts_array,
    moe_trace_lines,
    pt_bytes,
    recorder_object,
    routed_array,
    strata_bytes,
    warp_lines,
    write_lines,
    write_more,
)

# ---- sample files with known answers ---------------------------------------------------------------------

MODEL = load_model("qwen3-30b-a3b").with_top_k(6)
FULL, RAGGED, DECODED, REFUSED = "full", "ragged", "decoded", "refused"
SAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    # file: what it must give, with which options. full: the last layer has all prompt rows, which the sample fills
    # with those of the layer before, since an array cannot lack them
    "qwen.routed_experts.npy": (FULL, {"prompt_tokens": 28}),
    "qwen.vllm021.npz": (FULL, {}),
    "qwen.vllm021.response.json": (FULL, {}),
    "qwen.sglang.response.json": (FULL, {}),
    "qwen.moebalance.npz": (FULL, {}),
    "qwen.mcl.jsonl.gz": (FULL, {}),
    "sglang_recorder_per_token.pt.gz": (FULL, {}),
    "sglang_recorder_stat.pt.gz": (FULL, {}),
    "qwen.expertcapture.parquet": (DECODED, {}),
    "qwen.router_logits.npz": (DECODED, {"prompt_tokens": 0}),
    "qwen.atlas.jsonl.gz": (DECODED, {}),
    "qwen.routev2.jsonl.gz": (DECODED, {}),
    "qwen.imp.json": (DECODED, {}),
    "qwen.moetrace_dec.csv": (DECODED, {"top_k": 6}),
    "qwen.mblt": (RAGGED, {}),
    "qwen.moel2.log": (RAGGED, {}),
    "qwen.colibri_mtp.txt.gz": (RAGGED, {}),
}
OTHERS = {
    "router_logits.pt.gz", "router_logits.safetensors.gz", "merged.moetrace.csv.gz", "qwen.colibri_topp.txt.gz",
    "qwen.colibri_cut.txt.gz", "bigmoe_cut.csv.gz", "qwen.strata_prompt.gz", "qwen.coli_usage",
    "qwen.eplb_counts.npy",
}  # fmt: skip
SPLIT_LAST_ROW = {"sglang_recorder_per_token.pt.gz", "sglang_recorder_stat.pt.gz"}
"""Samples in which the last prompt token's last layer is its own."""


def sets(trace: RoutingTrace) -> list[list[tuple[int, int]]]:
    """Of each event, its experts with the rows that want them."""
    pairs = list(zip((trace.keys % trace.geometry.experts).tolist(), trace.rows_wanting.tolist(), strict=True))
    return [sorted(pairs[lo:hi]) for lo, hi in itertools.pairwise(trace.event_offsets.tolist())]


@pytest.fixture(scope="module")
def truth(shared: Path) -> RoutingTrace:
    """The recorded trace that all samples were made from."""
    return read_trace(shared / "traces/bigmoe-edge/qwen.route.csv")


@pytest.mark.shared
def test_every_sample_file_is_in_this_table(shared: Path) -> None:
    there = {path.name for path in (shared / "formats").iterdir()} - {"README.md"}
    assert there == {*SAMPLES, *OTHERS}
    assert len(there) == 26


@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_samples_give_the_recorded_rows(name: str, shared: Path, truth: RoutingTrace) -> None:
    kind, options = SAMPLES[name]
    trace = read_trace(shared / "formats" / name, model=MODEL, **options)
    expected = routing(truth)
    if kind == DECODED:
        expected = expected[1:]
    if kind == FULL:
        own = expected[0][47]
        expected[0][47] = [list(ids) for ids in expected[0][46]]
        if name in SPLIT_LAST_ROW:
            expected[0][47][-1] = own[0]
    if name == "sglang_recorder_stat.pt.gz":
        wanted = [
            sorted((e, sum(e in ids for ids in rows)) for e in {i for ids in rows for i in ids})
            for one in expected
            for rows in one
        ]
        assert sets(trace) == wanted
        assert trace.meta["order"] == "lost"
        assert "order inside them" in trace.meta["notes"][0]
    else:
        assert routing(trace) == expected
    prompt = [Phase.PREFILL] if kind != DECODED else []
    assert trace.pass_phase.tolist() == prompt + [Phase.DECODE] * 128
    lookups = sum(len({i for ids in rows for i in ids}) for one in expected for rows in one)
    assert trace.n_lookups == lookups
    if kind == RAGGED:
        assert lookups == 39_526
    if kind == DECODED:
        assert lookups == 36_864
    assert trace.geometry.top_k == 6


@pytest.mark.shared
def test_samples_of_other_modes(shared: Path, truth: RoutingTrace) -> None:
    folder = shared / "formats"
    true = routing(truth)
    merged = read_trace(folder / "merged.moetrace.csv.gz", model=MODEL, top_k=6)
    assert routing(merged) == true * 2
    assert merged.pass_request.tolist() == [0] * 129 + [1] * 129
    strata = read_trace(folder / "qwen.strata_prompt.gz", model=MODEL, prompt_tokens=27)
    assert strata.pass_phase.tolist() == [Phase.PREFILL] * 27 + [Phase.DECODE] * 128
    assert strata.row_position[:49].tolist() == [0] * 48 + [1]
    assert routing(strata)[27:] == true[1:]
    topp = read_trace(folder / "qwen.colibri_topp.txt.gz", model=MODEL)
    for mine, full in zip(routing(topp), true, strict=True):
        for rows, whole in zip(mine, full, strict=True):
            assert rows == [ids[: len(own)] for ids, own in zip(whole, rows, strict=True)]
    assert {len(ids) for one in routing(topp) for rows in one for ids in rows} > {3, 4}
    pt = read_trace(folder / "router_logits.pt.gz", model=MODEL, prompt_tokens=28)
    assert pt.pass_phase.tolist() == [Phase.PREFILL]
    with zipfile.ZipFile(io.BytesIO(gzip.decompress((folder / "router_logits.pt.gz").read_bytes()))) as file:
        for layer in range(48):
            logits = np.frombuffer(file.read(f"router_logits/data/{layer}"), "<f4").reshape(28, 128)
            assert routing(pt)[0][layer] == np.argsort(-logits, axis=1)[:, :6].tolist()
    safe = read_trace(folder / "router_logits.safetensors.gz", model=MODEL, prompt_tokens=0)
    data = gzip.decompress((folder / "router_logits.safetensors.gz").read_bytes())
    size = int.from_bytes(data[:8], "little")
    for layer in range(48):
        begin, end = json.loads(data[8 : 8 + size])[f"layer_{layer}"]["data_offsets"]
        logits = np.frombuffer(data[8 + size + begin : 8 + size + end], "<f4").reshape(16, 128)
        best = np.argsort(-logits, axis=1)[:, :6].tolist()
        assert [one[layer][0] for one in routing(safe)] == best


@pytest.mark.shared
def test_samples_that_are_cut_or_no_trace(shared: Path, truth: RoutingTrace) -> None:
    folder = shared / "formats"
    true = routing(truth)
    for name, whole in (("qwen.colibri_cut.txt.gz", 128), ("bigmoe_cut.csv.gz", 51)):
        with pytest.raises(TraceError, match="cut off"):
            read_trace(folder / name, model=MODEL)
        part = read_trace(folder / name, model=MODEL, partial=True)
        assert routing(part) == true[:whole]
        assert any("left out" in note for note in part.meta["notes"])
    for name in ("qwen.coli_usage", "qwen.eplb_counts.npy"):
        with pytest.raises(TraceError, match="no trace but a placement: residency placement"):
            read_trace(folder / name, model=MODEL)


@pytest.mark.shared
def test_warp_gives_its_authors_figures(shared: Path) -> None:
    """Lag-1 overlap of 43.5 %; hits of a frequency-first cache by the share of experts that it holds.

    The author gives these hits in whole percent, with a policy that breaks ties otherwise. Those given at
    3 / 6 / 12 / 24 / 48 % (29.4 / 40.6 / 54.9 / 71.9 / 87.4) are of Kimi-Linear: no policy reaches the first here.
    """
    trace = read_trace(shared / "traces/warp/trace_olmoe_299.jsonl", model="olmoe-1b-7b")
    assert (trace.n_passes, trace.n_lookups) == (299, 299 * 16 * 8)
    assert 100 * describe(trace)["overlap"]["lag_1"] == pytest.approx(43.5, abs=0.05)
    published = {6: 23, 12.5: 35, 25: 53, 53: 81}
    for share, hits in published.items():
        found = replay(trace, "lfu", f"{share}%").phases["all"].hit_rate
        assert found is not None
        assert 100 * found == pytest.approx(hits, abs=1.5)
    optimal = replay(trace, "min", "3%").phases["all"].hit_rate
    assert optimal is not None
    assert 100 * optimal < 29.4


def test_at_least_24_formats_are_listed() -> None:
    assert len(list_formats()) >= 24


# ---- routed experts --------------------------------------------------------------------------------------


def array_file(folder: Path, array: Any) -> Path:
    np.save(folder / "a.npy", array)
    return folder / "a.npy"


def test_the_prompts_length_is_in_the_file_or_asked_for(tmp_path: Path) -> None:
    path = array_file(tmp_path, routed_array())
    with pytest.raises(TraceError, match=r"prompt: -o prompt_tokens=N"):
        read_trace(path, model=SMALL)
    assert routing(read_trace(path, model=SMALL, prompt_tokens=3)) == PASSES
    assert routing(read_trace(path, model=SMALL, prompt_tokens="3")) == PASSES
    assert len(routing(read_trace(path, model=SMALL, prompt_tokens=0))) == 5
    with pytest.raises(TraceError, match="6 prompt tokens of 5"):
        read_trace(path, model=SMALL, prompt_tokens=6)


def test_prefix_cache_hits_and_padding_are_missing_tokens(tmp_path: Path) -> None:
    array = np.concatenate([np.full((2, 2, 2), -1), np.zeros((1, 2, 2)), routed_array()]).astype(np.int32)
    trace = read_trace(array_file(tmp_path, array), model=SMALL, prompt_tokens=6)
    assert routing(trace) == PASSES
    assert trace.row_position[:3].tolist() == [3, 4, 5]
    assert "3 tokens have no routing" in trace.meta["notes"][0]


def test_dense_layers_of_an_array_over_all_layers_are_dropped(tmp_path: Path) -> None:
    from dataclasses import replace

    model = replace(SMALL, layer_ids=(1, 2), total_layers=3)
    array = np.concatenate([np.zeros((5, 1, 2), dtype=np.int64), routed_array()], axis=1)
    assert routing(read_trace(array_file(tmp_path, array), model=model, prompt_tokens=3)) == PASSES
    with pytest.raises(TraceError, match=r"4 layers, expected the 2 MoE layers of small or all its 3"):
        read_trace(array_file(tmp_path, np.zeros((5, 4, 2), dtype=np.int8)), model=model, prompt_tokens=3)


def test_responses_of_vllm_and_sglang(tmp_path: Path) -> None:
    array = routed_array()
    packed = base64.b64encode(array.astype("<i4").tobytes()).decode()
    old = {"choices": [{"routed_experts": array.tolist()}], "usage": {"prompt_tokens": 3}}
    new = {"prompt_routed_experts": array[:3].tolist(), "choices": [{"routed_experts": array[3:].tolist()}]}
    sglang = {"text": "x", "meta_info": {"prompt_tokens": 3, "routed_experts": packed}}
    for n, response in enumerate((old, new, sglang)):
        path = tmp_path / f"{n}.json"
        path.write_text(json.dumps(response))
        assert routing(read_trace(path, model=SMALL)) == PASSES
    several = write_lines(tmp_path / "all.jsonl", [json.dumps(r) for r in (old, new, sglang)])
    trace = read_trace(several, model=SMALL)
    assert routing(trace) == PASSES * 3
    assert trace.pass_request.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    (tmp_path / "list.json").write_text(json.dumps([old, sglang]))
    assert read_trace(tmp_path / "list.json", model=SMALL).pass_request.tolist() == [0] * 3 + [1] * 3
    sglang["meta_info"]["routed_experts"] = packed[:-8]
    (tmp_path / "cut.json").write_text(json.dumps(sglang))
    with pytest.raises(TraceError, match="no whole number of tokens"):
        read_trace(tmp_path / "cut.json", model=SMALL)


def test_arrays_of_training_frameworks(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    array = routed_array()
    (tmp_path / "slime.pt").write_bytes(
        pt_bytes([{"rollout_routed_experts": array.astype(np.int32), "prompt_length": 3}])
    )
    pq.write_table(pa.table({"routed_experts": [array.tolist()], "prompt_length": [3]}), tmp_path / "verl.parquet")
    for name in ("slime.pt", "verl.parquet"):
        assert routing(read_trace(tmp_path / name, model=SMALL)) == PASSES


@pytest.mark.parametrize(
    ("array", "says"),
    [
        (np.full((3, 2, 2), 9), "expert id 9, expected 0..7"),
        (np.ones((3, 2, 2), dtype=np.int64), "expert 1 twice in one row"),
        (np.zeros((3, 2, 2)), "expected whole numbers"),
        (np.zeros((3, 2, 9), dtype=np.int64), "k = 9 of 8 experts"),
        (np.full((3, 2, 2), -1), "all are padding"),
        (np.zeros((0, 2, 2), dtype=np.int64), "expected whole numbers"),
    ],
)
def test_arrays_that_are_no_routing(array: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=says):
        read_trace(array_file(tmp_path, array), "routed-experts", SMALL, prompt_tokens=1)


def test_the_recorders_modes_ids_and_padding(tmp_path: Path) -> None:
    held = recorder_object()
    mapping = np.asarray([[1, 0, 2, 3, 4, 5, 6, 7, 0], [0, 1, 2, 3, 4, 5, 6, 7, 3]])
    held["last_physical_to_logical_map"] = mapping
    idle = {"forward_mode": 4, "topk_ids_of_layer": np.full((2, 1, 8), -1, dtype=np.int32)}
    held["records"].insert(1, idle)
    path = tmp_path / "r.pt"
    path.write_bytes(pt_bytes(held))
    trace = read_trace(path, model=SMALL)
    swap = {0: 1, 1: 0}
    assert routing(trace) == [[[[swap.get(i, i) for i in ids] for ids in one[0]], one[1]] for one in PASSES]
    assert "1 idle or draft passes" in trace.meta["notes"][0]
    held["records"][2]["forward_mode"] = 1  # an extend pass without lengths: the enum is another version's
    path.write_bytes(pt_bytes(held))
    with pytest.raises(TraceError, match=r"record 2: forward_mode 1 without extend_seq_lens"):
        read_trace(path, model=SMALL)


def test_logits_of_other_routers_are_refused(tmp_path: Path) -> None:
    path = write_more(tmp_path)["router-logits"]
    with pytest.raises(TraceError, match="not known to choose by logits alone"):
        read_trace(path, model=SMALL, prompt_tokens=3)
    with pytest.raises(TraceError, match="only softmax"):
        read_trace(path, model=SMALL, prompt_tokens=3, routing="sigmoid")


# ---- counts ----------------------------------------------------------------------------------------------


@given(st.data())
def test_counts_become_events_of_the_same_experts_and_rows(data: st.DataObject) -> None:
    """Whatever rows were counted: each event gets its experts back, each with the rows that want it."""
    import tempfile

    passes = []
    for _ in range(data.draw(st.integers(1, 4))):
        n = data.draw(st.integers(1, 6))
        row = st.lists(st.integers(0, 7), min_size=2, max_size=2, unique=True)
        passes.append([data.draw(st.lists(row, min_size=n, max_size=n)) for _ in range(2)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counts.npz"
        np.savez(path, logical_count=counts_array(passes))
        trace = read_trace(path, model=SMALL)
    counts = counts_array(passes)
    assert sets(trace) == [[(e, int(c)) for e, c in enumerate(layer) if c] for one in counts for layer in one]
    assert trace.event_rows.tolist() == [len(rows) for one in passes for rows in one]
    assert trace.meta["order"] == "lost"


def test_counts_of_other_engines(tmp_path: Path) -> None:
    counts = counts_array()
    records = [{"global_physical_count": c.astype(np.int32)} for c in counts]
    mapping = np.tile(np.arange(8), (2, 1))
    (tmp_path / "pass.pt").write_bytes(pt_bytes({"records": records, "last_physical_to_logical_map": mapping}))
    keyed = {f"{100 + p}_{layer}": counts[p, layer].astype("<i4") for p in range(3) for layer in range(2)}
    header, body = {}, b""
    for key, values in keyed.items():
        header[key] = {"dtype": "I32", "shape": [8], "data_offsets": [len(body), len(body) + 32]}
        body += values.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "rank0.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    for name in ("pass.pt", "rank0.safetensors"):
        trace = read_trace(tmp_path / name, model=SMALL)
        assert sets(trace) == [[(e, int(c)) for e, c in enumerate(row) if c] for one in counts for row in one]
        assert trace.pass_phase.tolist() == [0, 1, 1]


# ---- files that would run code, or take memory -----------------------------------------------------------


class _Bomb:
    def __init__(self, makes: Path) -> None:
        self.makes = makes

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.makes}",)


def _bomb(protocol: int, makes: Path) -> bytes:
    return pickle.dumps(_Bomb(makes), protocol)


def _as_pt(program: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("archive/data.pkl", program)
    return out.getvalue()


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (partial(_bomb, 2), "'posix.system', which would run code"),
        (partial(_bomb, 4), "which would run code"),
        (b"\x80\x02cbuiltins\neval\n.", "'builtins.eval', which would run code"),
        (b"\x80\x02ctorch\nload\n.", "which would run code"),
        (b"(S'a'\nios\nsystem\n.", "damaged"),
        (b"\x80\x02ccollections\nOrderedDict\n)R}b.", "damaged"),
        (b"\x80\x02cx", "not read"),
        (b"", "damaged"),
        (b"\x80\x02" + b"]" * 10 + b"r\xff\xff\xff\x7f.", ""),
        (b"\x80\x02" + b"(" * 100_000 + b".", ""),
    ],
)
def test_a_pickle_runs_nothing(program: bytes | Callable[[Path], bytes], says: str, tmp_path: Path) -> None:
    path, made = tmp_path / "x.pt", tmp_path / "made"
    path.write_bytes(_as_pt(program if isinstance(program, bytes) else program(made)))
    if says:
        with pytest.raises(TraceError, match=says) as error:
            torch_file(path.read_bytes(), path)
        assert "\n" not in str(error.value)
    for name in ("routed-experts", "sglang-recorder", "event-counts", "router-logits"):
        with pytest.raises(TraceError):
            read_trace(path, name, SMALL)
    assert not made.exists()


def test_tensors_lie_in_their_storage(tmp_path: Path) -> None:
    whole = pt_bytes({"a": np.arange(6, dtype=np.int32).reshape(2, 3)})
    assert torch_file(whole, tmp_path)["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    with zipfile.ZipFile(io.BytesIO(whole)) as file:
        program = file.read("archive/data.pkl")
    storage = pickle.BININT + struct.pack("<i", 6)
    for change in (
        program.replace(pickle.BININT + struct.pack("<i", 2), pickle.BININT + struct.pack("<i", 2**30)),
        program.replace(storage, pickle.BININT + struct.pack("<i", 2**30)),
        program.replace(pickle.BININT + struct.pack("<i", 2), pickle.BININT + struct.pack("<i", -2)),
    ):
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as file:
            file.writestr("archive/data.pkl", change)
            file.writestr("archive/data/0", np.arange(6, dtype=np.int32).tobytes())
        with pytest.raises(TraceError, match=r"does not lie in|expected|not known"):
            torch_file(out.getvalue(), tmp_path)


def test_arrays_fill_the_bytes_that_are_there(tmp_path: Path) -> None:
    out = io.BytesIO()
    np.save(out, np.arange(4))
    huge = out.getvalue().replace(b"(4,), }", b"(1" + b"0" * 12 + b",)}").ljust(160)
    for data in (huge, out.getvalue()[:-1], b"\x93NUMPY\x01\x00\xff\xff", out.getvalue()[:9]):
        with pytest.raises(TraceError):
            npy(data, tmp_path)
    np.save(out := io.BytesIO(), np.asarray({"a": 1}, dtype=object), allow_pickle=True)
    with pytest.raises(TraceError, match="pickled objects"):
        npy(out.getvalue(), tmp_path)
    for text in (b'{"a": {"dtype": "F32", "shape": [99999999999], "data_offsets": [0, 4]}}', b'{"a": 1}', b"{"):
        with pytest.raises(TraceError):
            safetensors(struct.pack("<Q", len(text)) + text + b"\0" * 4, tmp_path)


@given(st.data())
def test_damage_ends_in_one_sentence(data: st.DataObject) -> None:
    """Any byte of any new format's file changed, or the file cut: read, or refused in one line."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        files = write_more(Path(folder))
        name = data.draw(st.sampled_from(sorted(files)))
        content = bytearray(files[name].read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        files[name].write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
        try:
            read_trace(files[name], name, SMALL, **({"prompt_tokens": 3} if name == "routed-experts" else {}))
        except TraceError as error:
            said = str(error)
        else:
            said = ""
        assert "\n" not in said


# ---- any table -------------------------------------------------------------------------------------------

WIDE = [
    "req,step,l,e0,e1,w0,w1,kind,who",
    *(
        f"chat,{p},{layer},{ids[0]},{ids[1]},0.75,0.25,{'decode' if p else 'prompt'},x"
        for p, one in enumerate(PASSES)
        for layer, rows in enumerate(one)
        for ids in rows
    ),
]
MAPPING = "request=req,pass=step,layer=l,experts=e0..e1,weights=w0..w1,phase=kind"


def test_a_wide_table_in_every_form(tmp_path: Path) -> None:
    import pyarrow.csv as csv
    import pyarrow.parquet as pq

    comma = write_lines(tmp_path / "a.csv", WIDE)
    table = csv.read_csv(comma)
    write_lines(tmp_path / "a.tsv", [line.replace(",", "\t") for line in WIDE])
    (tmp_path / "bom.csv").write_bytes(b"\xef\xbb\xbf" + comma.read_bytes())
    write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in table.to_pylist()])
    pq.write_table(table, tmp_path / "a.parquet")
    for name in ("a.csv", "a.tsv", "a.jsonl", "a.parquet", "bom.csv"):
        trace = read_trace(tmp_path / name, model=SMALL, columns=MAPPING)
        assert routing(trace) == PASSES
        assert trace.pass_phase.tolist() == [0, 1, 1]
        assert trace.row_weights is not None
        assert trace.row_weights[:2].tolist() == [0.75, 0.25]
        assert trace.meta["columns"]["experts"] == ["e0", "e1"]
        assert "columns: request=req,pass=step,layer=l,experts=e0..e1" in trace.meta["notes"][0]
        assert "not used: who" in trace.meta["notes"][0]
    write_parquet(trace, tmp_path / "back.parquet")
    assert read_trace(tmp_path / "back.parquet").meta["columns"] == trace.meta["columns"]


def test_a_long_table_and_lists_as_text(tmp_path: Path) -> None:
    long = ["layer,token,rank,expert,weight,phase"]
    lists = ['layer,token,"chosen ids",phase']
    token = 0
    for p, one in enumerate(PASSES):
        for layer, rows in enumerate(one):
            for r, ids in enumerate(rows):
                kind = "generated" if p else "prefill"
                long += [f"{layer},{token + r},{rank},{e},0.5,{kind}" for rank, e in enumerate(ids)]
                lists.append(f'model.layers.{layer}.mlp,{token + r},"{ids}",{kind}')
        token += len(one[0])
    assert routing(read_trace(write_lines(tmp_path / "a.csv", long), "table", SMALL)) == PASSES
    mapping = "layer=layer,token=token,experts=chosen ids,phase=phase"
    assert routing(read_trace(write_lines(tmp_path / "b.csv", lists), model=SMALL, columns=mapping)) == PASSES
    shuffled = [lists[0], *reversed(lists[1:])]
    turned = read_trace(write_lines(tmp_path / "c.csv", shuffled), model=SMALL, columns=mapping)
    assert routing(turned) == PASSES
    assert any("were sorted" in note for note in turned.meta["notes"])


def test_a_tables_predictions_are_kept_by_falling_score(tmp_path: Path) -> None:
    lines = ["pass,layer,experts,predicted_d1,score_d1"]
    for p, one in enumerate(DECODE):
        for layer, rows in enumerate(one):
            lines.append(f'{p},{layer},"{rows[0]}","[4, 6, 1]","[0.1, 0.7, {0.2 + layer}]"')
    trace = read_trace(write_lines(tmp_path / "a.csv", lines), "table", SMALL)
    offsets, experts = trace.predictions[1]
    assert offsets.tolist() == [0, 3, 6, 9, 12]
    assert experts.tolist() == [6, 1, 4, 1, 6, 4] * 2
    np.testing.assert_allclose(trace.prediction_scores[1], [0.7, 0.2, 0.1, 1.2, 0.7, 0.1] * 2, rtol=1e-6)


def test_a_prediction_from_before_the_first_layer_is_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", WIDE)
    columns = "layer=l,experts=e0,predicted_d{}=e1"
    assert read_trace(path, model=SMALL, columns=columns.format(1)).predictions
    with pytest.raises(TraceError, match="predicted_d2: 2 layers ahead, expected at most 1 "):
        read_trace(path, model=SMALL, columns=columns.format(2))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ("layer=l,experts=e0..e2", "unknown column 'e2'"),
        ("layer=l", "experts= or expert= is missing; the table has req, step, l"),
        ("experts=e0..e1", "layer= is missing"),
        ("layer=l,experts=e0..e1,phase=who", "unknown phase 'x'"),
        ("layer=l,experts=e0..e1,wieghts=w0..w1", "unknown field of --columns 'wieghts'; did you mean weights"),
        ("layer=l,experts=e0..e1,pass=l", "stands for two fields"),
        ("layer=l,layer=l,experts=e0", "layer is given twice"),
        ("layer", "expected FIELD=COLUMN"),
        ("layer=l,experts=e1..e0", "runs backwards"),
        ("layer=l,experts=w0..w1", "no expert ids"),
        ("layer=who,experts=e0..e1", "column who has no whole number"),
        ("layer=l,experts=e0..e1,pass=req", "column req has no whole number"),
        ("layer=l,experts=e0..e1,score_d1=w0", "score_d1 without predicted_d1"),
    ],
)
def test_mappings_that_do_not_fit(columns: str, says: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", WIDE)
    with pytest.raises(TraceError, match=says) as error:
        read_trace(path, model=SMALL, columns=columns)
    assert "\n" not in str(error.value)


def test_an_unknown_file_is_told_what_it_begins_with(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", ["token_idx,expert_idx,gate_weight", "1,2,0.5"])
    with pytest.raises(
        TraceError, match=r"begins with 'token_idx,expert_idx.*nearest: atlas.*--columns pass=step"
    ):
        read_trace(path, model=SMALL)


# ---- several files, parts, cuts --------------------------------------------------------------------------


def test_several_files_are_one_trace(tmp_path: Path) -> None:
    for n, passes in enumerate((PASSES, DECODE, PASSES)):
        write_lines(tmp_path / f"{n}.txt", colibri_lines(passes))
    pattern = str(tmp_path / "*.txt")
    trace = read_trace(pattern, model=SMALL)
    assert routing(trace) == PASSES + DECODE + PASSES
    assert trace.pass_request.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert [part["file"] for part in trace.meta["joined"]] == ["0.txt", "1.txt", "2.txt"]
    assert trace.content_hash == read_trace([tmp_path / f"{n}.txt" for n in range(3)], model=SMALL).content_hash
    joined = tmp_path / "two.csv"
    joined.write_text("\n".join([*moe_trace_lines(), *moe_trace_lines()]) + "\n")
    assert read_trace(joined, model=SMALL).pass_request.tolist() == [0] * 3 + [1] * 3
    both = [joined, tmp_path / "0.txt"]
    assert read_trace(both, model=SMALL).pass_request.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert read_trace(both, model=SMALL, join="file").pass_request.tolist() == [0] * 6 + [1] * 3
    with pytest.raises(TraceError, match="no file has a name of this pattern"):
        read_trace(tmp_path / "*.none", model=SMALL)
    with pytest.raises(TraceError, match="unknown way to join"):
        read_trace(both, model=SMALL, join="files")


def test_requests_and_phases_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "two.csv"
    path.write_text("\n".join([*moe_trace_lines(), *moe_trace_lines(DECODE)]) + "\n")
    model = str(tmp_path / "t.parquet")
    write_parquet(read_trace(path, model=SMALL), model)
    part = open_trace(model, None, None, Reading(requests="1"))
    assert routing(part) == DECODE
    assert routing(open_trace(model, None, None, Reading(phase="prefill"))) == PASSES[:1]
    assert open_trace(model, None, None, Reading(requests="0..1")).n_passes == 5
    for words, says in (
        ({"requests": "2"}, r"no request 2 \(it has 0, 1\)"),
        ({"requests": "x"}, "expected numbers"),
        ({"requests": "3..1"}, "is no range"),
        ({"phase": "verify"}, r"no phase 'verify' \(it has: prefill, decode\)"),
        ({"requests": "1", "phase": "prefill"}, "requests 1 have no prefill pass"),
    ):
        with pytest.raises(SimError, match=says):
            open_trace(model, None, None, Reading(**words))


def test_partial_keeps_whole_passes(tmp_path: Path) -> None:
    text = "\n".join(colibri_lines()) + "\n"
    path = tmp_path / "cut.txt"
    path.write_text(text[:-5])
    with pytest.raises(TraceError, match="cut off"):
        read_trace(path, model=SMALL)
    part = read_trace(path, model=SMALL, partial=True)
    assert routing(part) == PASSES[:2]
    assert "line 10, which the end of the file cuts off, is left out" in part.meta["notes"]
    path.write_bytes(strata_bytes(DECODE)[:-3])
    assert routing(read_trace(path, "strata", SMALL, partial=True)) == DECODE[:1]
    path.write_text("\n".join(warp_lines())[:-4])
    assert routing(read_trace(path, model=SMALL, partial=True)) == DECODE[:1]
    path.write_text(text[:20])
    with pytest.raises(TraceError, match="no whole line"):
        read_trace(path, model=SMALL, partial=True)
    np.savez(tmp_path / "a.npz", logical_count=counts_array())
    with pytest.raises(TraceError, match="read whole or not at all"):
        read_trace(tmp_path / "a.npz", model=SMALL, partial=True)


# ---- layers that are missing -----------------------------------------------------------------------------


def test_a_trace_of_some_layers_is_refused_or_cut_and_named(tmp_path: Path) -> None:
    lines = [line for line in colibri_lines(DECODE) if line.split()[2] == "1"]
    path = write_lines(tmp_path / "one.txt", lines)
    with pytest.raises(TraceError, match=r"1 of the 2 MoE layers of small.*--partial"):
        read_trace(path, model=SMALL)
    trace = read_trace(path, model=SMALL, partial=True)
    assert trace.geometry.name == "small (1 of 2 MoE layers)"
    assert trace.geometry.expert_bytes == (4000,)
    assert routing(trace) == [[one[1]] for one in DECODE]


def test_builders_and_plug_ins_are_held_to_the_same_completeness() -> None:
    def rows() -> TraceBuilder:
        builder = TraceBuilder(SMALL)
        for one in DECODE:
            builder.begin_pass(Phase.DECODE)
            builder.row(1, one[1][0])
        return builder

    with pytest.raises(TraceError, match="1 of the 2 MoE layers"):
        rows().build()
    assert rows().build(partial=True).geometry.name == "small (1 of 2 MoE layers)"
    assert rows().build(whole=False).meta["incomplete"] is True
    builder = rows()
    builder.row(0, [1, 2])
    with pytest.raises(TraceError, match="pass 0: layer 1 has 1 rows, layer 0 has 0"):
        builder.build()


def test_a_parquet_trace_without_all_layers_is_refused(tmp_path: Path) -> None:
    builder = TraceBuilder(SMALL)
    builder.begin_pass(Phase.DECODE)
    builder.row(0, [1, 2])
    trace = builder.build(whole=False)
    write_parquet(trace, tmp_path / "marked.parquet")
    assert read_trace(tmp_path / "marked.parquet").meta["incomplete"] is True
    trace.meta.clear()
    write_parquet(trace, tmp_path / "bare.parquet")
    with pytest.raises(TraceError, match="1 of the 2 MoE layers"):
        read_trace(tmp_path / "bare.parquet")


# ---- k of the run ----------------------------------------------------------------------------------------


def test_a_k_that_divides_the_runs_is_not_taken_silently(tmp_path: Path) -> None:
    """Tokens of four experts under a model of two were batches of two tokens, and decode became prefill."""
    passes = [[[[0, 1, 2, 3]], [[4, 5, 6, 7]]] for _ in range(8)]
    path = write_lines(tmp_path / "a.csv", moe_trace_lines(passes))
    with pytest.raises(TraceError, match=r"k is probably 4 \(-o top_k=4\)"):
        read_trace(path, model=SMALL)
    trace = read_trace(path, model=SMALL, top_k=4)
    assert routing(trace) == passes
    assert trace.pass_phase.tolist() == [Phase.DECODE] * 8
    assert read_trace(path, model=SMALL, top_k=2).n_rows == 32  # said, so meant


def test_options_are_the_readers_own(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", moe_trace_lines())
    with pytest.raises(TraceError, match="unknown option 'prompt_tokens'"):
        read_trace(path, model=SMALL, prompt_tokens=1)
    with pytest.raises(TraceError, match="top_k=two: expected a whole number"):
        read_trace(path, model=SMALL, top_k="two")


# ---- from the command line -------------------------------------------------------------------------------


def residency(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "expert_residency", *words], capture_output=True, text=True, check=False
    )


def test_a_table_of_ones_own_from_the_command_line(tmp_path: Path) -> None:
    model = load_model("granite-3.0-1b-a400m")
    header = "pass_no,lay," + ",".join(f"e{i}" for i in range(8))
    rows = [
        f"{p},{layer}," + ",".join(str((i + p) % 32) for i in range(8))
        for p in range(3)
        for layer in range(model.n_layers)
    ]
    source, out = write_lines(tmp_path / "mine.csv", [header, *rows]), tmp_path / "mine.parquet"
    done = residency("import", str(source), str(out), "--model", model.name, "--columns",
                     "pass=pass_no,layer=lay,experts=e0..e7")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "columns: pass=pass_no,layer=lay,experts=e0..e7" in done.stdout
    assert read_trace(out).n_passes == 3
    wrong = residency("import", str(source), str(out), "--model", model.name, "-o", "top_k")
    assert wrong.returncode == 2
    assert "expected NAME=VALUE" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1
