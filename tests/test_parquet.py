"""Parquet in and out: nothing is lost, nothing half-written is seen, and bad files are named."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expert_residency.errors import FileError
from expert_residency.sim.sweep.stored import open_stored, store
from expert_residency.traces import (
    ModelGeometry,
    Phase,
    RoutingTrace,
    TraceBuilder,
    TraceError,
    read_trace,
    write_parquet,
)
from expert_residency.traces.join import joined


@st.composite
def routing_traces(draw: st.DrawFn) -> RoutingTrace:
    """Small traces with everything that may vary: ragged k and rows, absent layers, verify passes, predictions."""
    layer_ids = draw(st.lists(st.integers(0, 90), min_size=1, max_size=4, unique=True).map(sorted))
    experts = draw(st.integers(2, 12))
    size = st.integers(1, 10**7)
    n = len(layer_ids)
    geometry = ModelGeometry(
        name="random", layer_ids=tuple(layer_ids), experts=experts, top_k=draw(st.integers(1, experts)),
        expert_bytes=tuple(draw(st.lists(size, min_size=n, max_size=n))), dense_bytes=(1,) * n,
    )  # fmt: skip
    weighted, reported = draw(st.booleans()), draw(st.booleans())
    builder = TraceBuilder(geometry, synthetic=True, notes=["random"])
    for _ in range(draw(st.integers(1, 4))):
        builder.begin_pass(
            draw(st.sampled_from(Phase)), request=draw(st.integers(0, 3)), emits=draw(st.integers(0, 4))
        )
        for layer in draw(st.lists(st.sampled_from(layer_ids), min_size=1, unique=True)):
            for _ in range(draw(st.integers(1, 3))):
                ids = draw(st.lists(st.integers(0, experts - 1), min_size=1, max_size=experts, unique=True))
                builder.row(
                    layer, ids, position=draw(st.integers(-1, 100)),
                    weights=[draw(st.floats(0, 1, width=32)) for _ in ids] if weighted else None,
                    residency=[draw(st.integers(-1, 2)) for _ in ids] if reported else None,
                )  # fmt: skip
    trace = builder.build(whole=False)
    for depth in draw(st.sets(st.integers(1, 5), max_size=2)):
        sets = [
            draw(st.lists(st.integers(0, experts - 1), max_size=3, unique=True)) for _ in range(trace.n_events)
        ]
        offsets = np.cumsum([0, *map(len, sets)]).astype(np.int64)
        trace.predictions[depth] = offsets, np.asarray([e for s in sets for e in s], dtype=np.int16)
        if draw(st.booleans()):
            scores = [sorted((draw(st.floats(-9, 9, width=32)) for _ in s), reverse=True) for s in sets]
            trace.prediction_scores[depth] = np.asarray([x for s in scores for x in s], dtype=np.float32)
    return trace


@pytest.fixture
def trace() -> RoutingTrace:
    geometry = ModelGeometry("small", (1, 2), 6, 2, (10, 20), (1, 1))
    builder = TraceBuilder(geometry, source_engine="test")
    for p, phase in enumerate((Phase.PREFILL, Phase.DECODE, Phase.VERIFY)):
        builder.begin_pass(phase, emits=p)
        for layer in (1, 2):
            for row in range((3, 1, 2)[p]):
                builder.row(layer, [row, 5 - row], position=row, weights=[0.75, 0.25])
    return builder.build()


@given(routing_traces())
@settings(max_examples=60, deadline=None)
def test_round_trip_keeps_everything(trace: RoutingTrace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        write_parquet(trace, path)
        back = read_trace(path)
        assert [p.name for p in Path(folder).iterdir()] == ["t.parquet"]
    assert back.content_hash == trace.content_hash
    assert back.geometry == trace.geometry
    assert back.meta == trace.meta
    assert back.predictions.keys() == trace.predictions.keys()
    np.testing.assert_array_equal(back.keys, trace.keys)
    assert back.prediction_scores.keys() == trace.prediction_scores.keys()
    for depth, scores in trace.prediction_scores.items():
        np.testing.assert_array_equal(back.prediction_scores[depth], scores)


@given(routing_traces(), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_order_of_the_rows_in_the_file_does_not_matter(trace: RoutingTrace, random: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.parquet"
        trace = replace(trace, predictions={}, prediction_scores={})
        write_parquet(trace, path)
        table = pq.read_table(path)
        order = list(range(table.num_rows))
        random.shuffle(order)  # type: ignore[attr-defined]
        pq.write_table(table.take(order), path)
        back = read_trace(path)
    assert back.content_hash == trace.content_hash


def test_equal_traces_give_equal_bytes(trace: RoutingTrace, tmp_path: Path) -> None:
    write_parquet(trace, tmp_path / "a.parquet")
    write_parquet(read_trace(tmp_path / "a.parquet"), tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_hash_sees_weights_and_predictions(trace: RoutingTrace) -> None:
    assert trace.row_weights is not None
    lighter = replace(trace, row_weights=trace.row_weights / 2)
    told = replace(
        trace, predictions={1: (np.arange(trace.n_events + 1), np.zeros(trace.n_events, dtype=np.int16))}
    )
    scored = replace(told, prediction_scores={1: np.full(trace.n_events, 0.5, dtype=np.float32)})
    assert len({t.content_hash for t in (trace, lighter, replace(trace, row_weights=None), told, scored)}) == 5


def test_columns_are_as_documented(trace: RoutingTrace, tmp_path: Path) -> None:
    write_parquet(trace, tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    names = ["request", "pass", "row", "phase", "position", "layer", "experts", "weights"]
    assert table.column_names == names
    assert set(table.column("layer").to_pylist()) == {1, 2}  # the model's own numbers
    assert table.column("phase").unique().to_pylist() == ["prefill", "decode", "verify"]
    header = json.loads(table.schema.metadata[b"expert_residency"])
    assert header["format_version"] == 1
    assert header["emits"] == {"0": 0, "2": 2}
    assert pq.ParquetFile(tmp_path / "t.parquet").metadata.row_group(0).column(0).compression == "ZSTD"


def test_predictions_of_several_rows_are_united(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    table = unsealed(pq.read_table(path))
    lists = [[3, 1], [1, 4], [], *([[]] * (table.num_rows - 3))]
    pq.write_table(table.append_column("predicted_d2", pa.array(lists, pa.list_(pa.int16()))), path)
    offsets, experts = read_trace(path).predictions[2]
    assert experts.tolist() == [3, 1, 4]
    assert offsets.tolist() == [0, *([3] * trace.n_events)]
    table = table.append_column("predicted_d2", pa.array(lists, pa.list_(pa.int16())))
    scores = [[0.5, 0.25], [0.75, 0.125], [], *([[]] * (table.num_rows - 3))]
    pq.write_table(table.append_column("score_d2", pa.array(scores, pa.list_(pa.float32()))), path)
    scored = read_trace(path)
    assert scored.predictions[2][1].tolist() == [1, 3, 4]  # by an expert's highest score
    assert scored.prediction_scores[2].tolist() == [0.75, 0.5, 0.125]
    pq.write_table(table.append_column("score_d2", pa.array([[0.5], *scores[1:]], pa.list_(pa.float32()))), path)
    assert "1 score_d2 for 2 predicted_d2" in refused(path)
    pq.write_table(table.append_column("score_d1", pa.array(scores, pa.list_(pa.float32()))), path)
    assert "column score_d1 without predicted_d1" in refused(path)


def test_scores_belong_to_predictions_and_fall(trace: RoutingTrace) -> None:
    offsets = np.asarray([0, *([2] * trace.n_events)])
    told = replace(trace, predictions={1: (offsets, np.asarray([3, 1], dtype=np.int16))})
    for scores, says in (
        ({1: [0.25, 0.5]}, "pass 0, layer 1: predictions of depth 1 are not in falling order of score"),
        ({1: [0.5]}, "1 scores for 2 predictions of depth 1"),
        ({2: [0.5, 0.25]}, "scores of depth 2, but no predictions of it"),
        ({1: [0.5, float("nan")]}, "a score of depth 1 is no number"),
    ):
        with pytest.raises(TraceError, match=says):
            replace(told, prediction_scores={d: np.asarray(s, dtype=np.float32) for d, s in scores.items()})


def test_a_builder_takes_predictions_with_scores() -> None:
    builder = TraceBuilder(ModelGeometry("small", (1, 2), 6, 2, (10, 20), (1, 1)))
    builder.begin_pass(Phase.PREFILL)
    builder.row(2, [0, 1], predicted={1: [4, 5]}, scores={1: [0.1, 0.9]})
    builder.row(1, [2, 3])
    builder.row(2, [1, 0], predicted={1: [4, 3]}, scores={1: [0.5, 0.2]})
    builder.row(1, [3, 2])
    trace = builder.build()
    assert trace.predictions[1][0].tolist() == [0, 0, 3]
    assert trace.predictions[1][1].tolist() == [5, 4, 3]
    np.testing.assert_allclose(trace.prediction_scores[1], [0.9, 0.5, 0.2])
    cut = trace.select_passes(np.asarray([True]))
    assert cut.content_hash == trace.content_hash
    with tempfile.TemporaryDirectory() as folder:
        assert open_stored(store(trace, Path(folder))).content_hash == trace.content_hash
    files = [Path("a"), Path("b")]
    both = joined([trace, trace], files)
    np.testing.assert_allclose(both.prediction_scores[1], [0.9, 0.5, 0.2] * 2)
    assert both.select_passes(np.asarray([False, True])).content_hash != trace.content_hash  # another request
    unscored = joined([trace, replace(trace, prediction_scores={})], files)
    assert (list(unscored.predictions), unscored.prediction_scores) == ([1], {})
    assert (
        "scores of predictions 1 layer(s) ahead are left out, which not all files have" in unscored.meta["notes"]
    )
    bare = joined([trace, replace(trace, predictions={}, prediction_scores={})], files)
    assert "predictions 1 layer(s) ahead are left out, which not all files have" in bare.meta["notes"]
    with pytest.raises(TraceError, match="1 scores for 2 predictions of depth 1"):
        builder.row(1, [2, 3], predicted={1: [1, 2]}, scores={1: [0.5]})
    with pytest.raises(TraceError, match="scores of depth 1 on some rows only"):
        builder.row(1, [2, 3], predicted={1: [1, 2]})
    with pytest.raises(TraceError, match="scores of depth 2, but nothing predicted"):
        builder.row(1, [2, 3], scores={2: [0.5]})


def unsealed(table: pa.Table) -> pa.Table:
    """Without the hashes, as another program would write it."""
    header = json.loads(table.schema.metadata[b"expert_residency"])
    plain = {key: value for key, value in header.items() if not key.endswith("_sha256")}
    return table.replace_schema_metadata({b"expert_residency": json.dumps(plain).encode()})


def edited(trace: RoutingTrace, path: Path, **columns: list[object] | None) -> Path:
    """The trace's file with columns replaced, or dropped where None."""
    write_parquet(trace, path)
    table = unsealed(pq.read_table(path))
    for name, values in columns.items():
        at = table.column_names.index(name)
        table = table.remove_column(at)
        if values is not None:
            table = table.add_column(at, name, pa.array(values))
    pq.write_table(table, path)
    return path


def with_header(trace: RoutingTrace, path: Path, **changes: object) -> Path:
    write_parquet(trace, path)
    table = unsealed(pq.read_table(path))
    header = json.loads(table.schema.metadata[b"expert_residency"]) | changes
    pq.write_table(table.replace_schema_metadata({b"expert_residency": json.dumps(header).encode()}), path)
    return path


def refused(path: Path) -> str:
    with pytest.raises(TraceError) as error:
        read_trace(path, "parquet")
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_bad_files_are_one_sentence(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    whole = path.read_bytes()
    for data in (b"", b"hello", whole[: len(whole) // 2], whole[:-9]):
        path.write_bytes(data)
        assert "not a whole Parquet file" in refused(path)
    assert "no such file" in refused(tmp_path / "absent.parquet")
    pq.write_table(pa.table({"a": [1]}), path)
    assert "'expert_residency'" in refused(path)


def test_bad_headers_are_one_sentence(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    geometry = trace.geometry.to_dict()
    assert "format version 2, expected 1" in refused(with_header(trace, path, format_version=2))
    short = geometry | {"expert_bytes": [10]}
    assert "expert bytes of layer 2 are missing" in refused(with_header(trace, path, geometry=short))
    zero = geometry | {"expert_bytes": [0, 20]}
    assert "expert bytes of layer 1 are missing" in refused(with_header(trace, path, geometry=zero))
    none = {k: v for k, v in geometry.items() if k != "expert_bytes"}
    assert "expert_bytes" in refused(with_header(trace, path, geometry=none))
    fewer = geometry | {"layer_ids": [1], "expert_bytes": [10], "dense_bytes": [1]}
    assert "layer 2 is not an MoE layer" in refused(with_header(trace, path, geometry=fewer))
    assert "emits names pass 9" in refused(with_header(trace, path, emits={"9": 2}))


def test_bad_columns_are_one_sentence(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    table = pq.read_table(path)
    rows, experts = table.column("row").to_pylist(), table.column("experts").to_pylist()
    assert "missing column(s) experts" in refused(edited(trace, path, experts=None))
    assert "pass 0, layer 1: row 0 is repeated" in refused(edited(trace, path, row=[0, 0, *rows[2:]]))
    assert "pass 0, layer 1: row 1 is missing" in refused(edited(trace, path, row=[0, 2, 3, *rows[3:]]))
    wrong = edited(trace, path, experts=[[6, 0], *experts[1:]])
    assert "pass 0, layer 1, row 0: expert id 6 outside 0..5" in refused(wrong)
    twice = edited(trace, path, experts=[[1, 1], *experts[1:]])
    assert "expert 1 twice in one row" in refused(twice)
    assert "1 weights for 2 experts" in refused(
        edited(trace, path, weights=[[0.5], *([[0.5, 0.5]] * (len(rows) - 1))])
    )
    assert "unknown phase 'warm-up'" in refused(edited(trace, path, phase=["warm-up"] * len(rows)))
    phases = ["decode", *table.column("phase").to_pylist()[1:]]
    assert "pass 0: phase changes" in refused(edited(trace, path, phase=phases))
    assert "pass 1 is missing" in refused(
        edited(trace, path, **{"pass": [2 * p for p in table.column("pass").to_pylist()]})
    )
    assert "expected a list" in refused(edited(trace, path, experts=rows))
    pq.write_table(table.append_column("colour", table.column("row")), path)
    assert "unknown column(s) colour" in refused(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"emits": {"0": -1000}}, "emits.0: input should be greater than or equal to 0 (found -1000)"),
        ({"emits": {"0": 10**9}}, "emits.0: input should be less than or equal to 65536"),
        ({"emits": {"0": 1.9}}, "emits.0: input should be a valid integer (found 1.9)"),
        ({"emits": {"0": "7"}}, "emits.0: input should be a valid integer (found '7')"),
        ({"emits": {"0": True}}, "emits.0: input should be a valid integer (found True)"),
        ({"emits": {"a": 7}}, "emits.a"),
        ({"emits": "a"}, "emits: input should be a valid dictionary"),
        ({"meta": None}, "meta: input should be a valid dictionary"),
        ({"meta": {"synthetic": "no"}}, "meta.synthetic: input should be a valid boolean (found 'no')"),
        ({"expert_bytes": [True, 20]}, "geometry.expert_bytes.0: input should be a valid integer (found True)"),
        ({"expert_bytes": [10.5, 20]}, "geometry.expert_bytes.0: input should be a valid integer (found 10.5)"),
        ({"expert_bytes": ["10", 20]}, "geometry.expert_bytes.0: input should be a valid integer (found '10')"),
        ({"expert_bytes": [10**30, 20]}, "geometry.expert_bytes.0: input should be less than or equal to"),
        ({"expert_bytes": [10, 2**59]}, "its sizes add up to more than"),
        ({"dense_bytes": [-5, 1]}, "geometry.dense_bytes.0: input should be greater than or equal to 0"),
        ({"head_bytes": -(10**9)}, "geometry.head_bytes: input should be greater than or equal to 0"),
        ({"head_bytes": 1.5}, "geometry.head_bytes: input should be a valid integer"),
        ({"total_layers": -1}, "geometry.total_layers"),
        ({"top_k": 2.5}, "geometry.top_k: input should be a valid integer"),
        ({"top_k": 7}, "top-k 7 of 6 experts is impossible"),
        ({"experts": 4}, "expert id 5 outside 0..3"),
        ({"experts": 10**9}, "geometry.experts: input should be less than or equal to 32767"),
        ({"layer_ids": [2, 1]}, "layer ids must ascend"),
        ({"quant_family": 4}, "geometry.quant_family: input should be a valid string"),
        ({"colour": 4}, "geometry: unknown key 'colour'"),
    ],
)
def test_a_header_that_does_not_fit_is_one_sentence(
    changes: dict[str, object], words: str, trace: RoutingTrace, tmp_path: Path
) -> None:
    path = tmp_path / "t.parquet"
    if not changes.keys() & {"emits", "meta"}:
        changes = {"geometry": trace.geometry.to_dict() | changes}
    assert words in refused(with_header(trace, path, **changes))


def test_an_edited_file_is_refused_unless_its_hashes_are_left_out(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    table = pq.read_table(path)
    header = json.loads(table.schema.metadata[b"expert_residency"])
    assert header["content_sha256"] == trace.content_hash
    longer = header | {"emits": {"0": 7}}
    pq.write_table(table.replace_schema_metadata({b"expert_residency": json.dumps(longer).encode()}), path)
    assert "the metadata block is not what was written (its header_sha256 differs)" in refused(path)
    positions = table.set_column(4, "position", pa.array(range(table.num_rows), pa.int32()))
    pq.write_table(positions, path)
    assert "the content is not what was written (its content_sha256 differs)" in refused(path)
    pq.write_table(unsealed(positions), path)
    assert read_trace(path).row_position.tolist() == list(range(table.num_rows))


def test_numbers_are_not_cut_to_fit(trace: RoutingTrace, tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    table = pq.read_table(path)
    passes, rows = table.column("pass").to_pylist(), table.num_rows
    assert "column pass is double, expected integers" in refused(
        edited(trace, path, **{"pass": [number + 0.25 for number in passes]})
    )
    halves = [[float(e) + 0.5 for e in row] for row in table.column("experts").to_pylist()]
    assert "column experts has lists of double, expected integers" in refused(edited(trace, path, experts=halves))
    assert "row_position goes from 0 to 4294967296" in refused(
        edited(trace, path, position=[2**32, *[0] * (rows - 1)])
    )
    assert "passes go from 0 to 4611686018427387904" in refused(
        edited(trace, path, **{"pass": [*passes[:-1], 1 << 62]})
    )


@pytest.mark.parametrize("streamed", [False, True])
def test_a_flipped_bit_is_never_another_trace(streamed: bool, tmp_path: Path) -> None:
    """Pages have checksums, block and content a hash; parts have no content hash, and are refused as often."""
    import random

    from expert_residency.traces.bundled import load
    from expert_residency.traces.stream import stream_parquet

    whole = load("tinymoe-code")
    trace = whole.select_passes(np.arange(whole.n_passes) < 6)
    path = tmp_path / "t.parquet"
    write_parquet(trace, path)
    data, draw = path.read_bytes(), random.Random(7)
    outcomes = {"same": 0, "refused": 0}
    for _ in range(200):
        bit = draw.randrange(8 * len(data))
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        try:
            found = trace if streamed and list(stream_parquet(path)) else read_trace(path, "parquet")
        except TraceError:
            outcomes["refused"] += 1
            continue
        outcomes["same"] += 1
        assert (found.content_hash, found.meta) == (trace.content_hash, trace.meta)
    assert outcomes["refused"] > 180


def test_a_failed_write_leaves_nothing(trace: RoutingTrace, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_parquet(trace, tmp_path / "no folder" / "t.parquet")
    with pytest.raises(ValueError, match="JSON"):
        write_parquet(replace(trace, meta={"x": float("nan")}), tmp_path / "t.parquet")
    assert list(tmp_path.iterdir()) == []
