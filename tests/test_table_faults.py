"""Tables that lack something or say it twice: a refusal with its line, or a note with its count, never silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from expert_residency.sim.choices.trace import routing_of
from expert_residency.sim.cli import main
from expert_residency.traces import Phase, RoutingTrace, TraceBuilder, TraceError, load_model, read_trace
from expert_residency.traces.geometry import read_model
from expert_residency.traces.readers.passes import row_table
from expert_residency.traces.weights.write import write_model
from tests.test_readers import routing
from tests.trace_files import PASSES, SMALL, write_lines

WIDE = "request=request,pass=pass,token=token,layer=layer,experts=e0..e1,weights=w0..w1"
LONG = "request,pass,token,layer,rank,expert,weight"


def rows(passes: int = 4) -> list[list[str]]:
    """One decode token a pass, two layers, two experts: request, pass, token, layer, e0, e1, w0, w1."""
    return [
        [str(v) for v in ("r", p, p, layer, (p + layer) % 8, (p + layer + 3) % 8, 0.75, 0.25)]
        for p in range(passes)
        for layer in range(2)
    ]


def wide(folder: Path, changes: dict[tuple[int, int], str] | None = None, table: Any = None) -> Path:
    """The table with some of its cells (row, column) changed."""
    cells = table or rows()
    for (row, column), value in (changes or {}).items():
        cells[row][column] = value
    return write_lines(folder / "w.csv", ["request,pass,token,layer,e0,e1,w0,w1", *map(",".join, cells)])


def read(path: Path, columns: str = WIDE) -> RoutingTrace:
    return read_trace(path, model=SMALL, columns=columns)


def notes(trace: RoutingTrace) -> str:
    return "; ".join(trace.meta["notes"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({(2, 5): "-7"}, "line 4: expert id -7, expected 0 or more"),
        ({(2, 5): "x"}, "line 4: column e1: 'x' is no expert id"),
        ({(2, 5): "1.5"}, r"line 4: column e1 holds numbers that are no expert ids \(1.5\)"),
        ({(3, 6): "nan"}, "line 5: the weight of an expert is missing or no number"),
        ({(3, 6): ""}, "line 5: the weight of an expert is missing or no number"),
        ({(3, 7): "inf"}, "line 5: the weight of an expert is inf"),
        ({(3, 7): "-0.5"}, "line 5: the weight of an expert is -0.5, expected a number of 0 or more"),
        ({(1, 3): "1.5"}, "line 3: column layer: 1.5 is no whole number"),
        ({(1, 3): "1.5", (0, 3): "l0"}, "line 3: column layer: '1.5' is no whole number"),
        ({(1, 3): "-1", (0, 3): "l0"}, "line 3: layer -1 is not an MoE layer"),
        ({(1, 3): "", (0, 3): "l0"}, "line 3: column layer has no whole number"),
        ({(5, 1): "1", (5, 2): "1"}, "line 7: pass 1, token 1, layer 1 is repeated .first on line 5"),
    ],
)
def test_what_is_no_routing_is_refused_with_its_line(
    changes: dict[tuple[int, int], str], says: str, tmp_path: Path
) -> None:
    path = wide(tmp_path, changes)
    with pytest.raises(TraceError, match=says) as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("weight", [-0.5, float("inf")])
def test_a_builder_takes_no_such_weight_either(weight: float) -> None:
    builder = TraceBuilder(SMALL)
    builder.begin_pass(Phase.DECODE)
    for layer in range(2):
        builder.row(layer, [1, 2], weights=[0.5, weight])
    with pytest.raises(TraceError, match="pass 0, layer 0, row 0: the weight of an expert is"):
        builder.build()


def test_last_rows_written_twice_are_no_verify_pass(tmp_path: Path) -> None:
    twice = [*rows(), *rows()[-2:]]
    with pytest.raises(TraceError, match="line 10: pass 3, token 3, layer 0 is repeated"):
        read(wide(tmp_path, table=twice))
    by_position = WIDE.replace("token=", "position=")
    with pytest.raises(TraceError, match="line 10: pass 3, position 3, layer 0 is repeated"):
        read(wide(tmp_path, table=twice), by_position)
    told = notes(read(wide(tmp_path, table=twice), WIDE.replace("token=token,", "")))
    assert "1 pass has every row more than once" in told
    assert "more than once" not in notes(read(wide(tmp_path), WIDE.replace("token=token,", "")))


def test_short_rows_are_counted(tmp_path: Path) -> None:
    path = wide(tmp_path, {(row, 5): cell for row, cell in ((1, ""), (2, "-1"), (5, ""))})
    trace = read(path)
    assert "3 of 8 rows have fewer than 2 experts (3 ids fewer in all)" in notes(trace)
    assert trace.n_routed == 13
    assert "fewer than" not in notes(read(wide(tmp_path)))
    assert "k is 1 in this file, where the model uses 2 experts a token" in notes(
        read(path, "pass=pass,layer=layer,experts=e0")
    )


def test_an_absent_line_of_the_long_layout_is_counted(tmp_path: Path) -> None:
    lines = [",".join([*row[:4], str(rank), row[4 + rank], row[6 + rank]]) for row in rows() for rank in range(2)]
    whole = read_trace(write_lines(tmp_path / "l.csv", [LONG, *lines]), model=SMALL)
    assert routing(whole) == routing(read(wide(tmp_path)))
    del lines[5]
    cut = read_trace(write_lines(tmp_path / "l.csv", [LONG, *lines]), model=SMALL)
    assert "1 of 8 rows have fewer than 2 experts" in notes(cut)
    lines[0] = lines[0].replace("0.75", "-0.75")
    with pytest.raises(TraceError, match=r"line 2: the weight of an expert is -0\.75"):
        read_trace(write_lines(tmp_path / "l.csv", [LONG, *lines]), model=SMALL)


def test_gaps_in_pass_numbers_are_counted(tmp_path: Path) -> None:
    columns = WIDE.replace("token=token,", "")
    told = notes(read(wide(tmp_path, table=[row for row in rows(10) if row[1] not in "78"]), columns))
    assert "pass numbers have gaps: 2 missing, the first after pass 6 of 9" in told
    # requests served in turn share one numbering
    shared = [["ab"[int(row[1]) % 2], *row[1:]] for row in rows(6)]
    assert "gaps" not in notes(read(wide(tmp_path, table=shared), columns))
    # requests that each begin anew
    own = [[name, *row[1:]] for name in "ab" for row in rows(6) if name == "a" or row[1] != "3"]
    assert "1 missing, the first after pass 2 of 5" in notes(read(wide(tmp_path, table=own), columns))


def test_numbers_in_lists_are_whole(tmp_path: Path) -> None:
    lines = [json.dumps({"pass": 0, "layer": layer, "experts": [1.5, 2]}) for layer in range(2)]
    with pytest.raises(TraceError, match=r"line 1: column experts: 1\.5 is no expert id"):
        read_trace(write_lines(tmp_path / "a.jsonl", lines), "table", SMALL)


def test_long_lines_that_nothing_tells_apart_ask_for_a_column(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "one.csv", ["layer,expert", "0,1", "0,1", "1,2", "1,3"])
    with pytest.raises(TraceError, match=r"line 2: .*the same expert twice.*give pass=COLUMN and token=COLUMN"):
        read(path, "layer=layer,expert=expert")
    path = write_lines(tmp_path / "one.csv", ["p,layer,expert", *(f"0,{n // 4},{n % 4}" for n in range(8))])
    with pytest.raises(TraceError, match=r"4 lines of layer 0 .*more than top-2.*give token=COLUMN"):
        read(path, "pass=p,layer=layer,expert=expert")
    assert read_trace(path, model=SMALL, columns="pass=p,layer=layer,expert=expert", top_k=4).n_rows == 2


def test_a_table_with_the_usual_names_is_known_by_them(tmp_path: Path) -> None:
    lines = ["request,pass,layer,experts"]
    for p, one in enumerate(PASSES):
        lines += [f'0,{p},{layer},"{ids}"' for layer, found in enumerate(one) for ids in found]
    plain = write_lines(tmp_path / "rows.csv", lines)
    table = csv.read_csv(plain)
    objects = [row | {"experts": json.loads(row["experts"])} for row in table.to_pylist()]
    write_lines(tmp_path / "rows.jsonl", [json.dumps({"made_by": "x"}), *map(json.dumps, objects)])
    write_lines(tmp_path / "rows.tsv", [line.replace(",", "\t", 3).replace('"', "") for line in lines])
    pq.write_table(table, tmp_path / "rows.parquet")
    for name in ("rows.csv", "rows.jsonl", "rows.tsv", "rows.parquet"):
        trace = read_trace(tmp_path / name, model=SMALL)
        assert routing(trace) == PASSES
        assert trace.meta["source_engine"] == "table"


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_the_command_line_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(wide(tmp_path))
    assert f"OUT.parquet is missing, the file to write: residency import {path}" in fails(capsys, "import", path)
    assert "Missing argument 'SRC...'" in fails(capsys, "import")
    said = fails(capsys, "inspect", write_lines(tmp_path / "x.csv", ["a,b", "1,2"]).as_posix())
    assert "elsewhere -o columns=pass=step,layer=l" in said


def test_a_k_stands_behind_any_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.toml"
    write_model(path, read_model("granite-3.0-1b-a400m"))
    for spec in (str(path), "granite-3.0-1b-a400m", "granite-3.0-1b-a400m/Q8_0"):
        assert read_model(f"{spec}:top_k=2").top_k == 2
        assert routing_of(f"{spec}:top_k=2", passes=2).geometry.top_k == 2
        with pytest.raises(SystemExit, match="0"):
            main(["model", f"{spec}:top_k=2", "--out", str(tmp_path / "out.toml")])
        assert "32 a layer, top-2" in capsys.readouterr().out
        assert load_model(str(tmp_path / "out.toml")).top_k == 2


def test_what_python_says_is_said_of_the_file(tmp_path: Path) -> None:
    digits = "9" * 5000
    for name, text in (("imp", "[" + digits), ("table", f'{{"layer": {digits}}}')):
        path = write_lines(tmp_path / name, [text])
        with pytest.raises(TraceError, match=r"JSON.*a number of thousands of digits"):
            read_trace(path, name, SMALL)
    assert row_table(*(load_arrays([1, 0], [0, 1])), 2).tolist() == [[0, 1], [1, 0]]


def load_arrays(*lists: list[int]) -> Any:
    import numpy as np

    return [np.asarray(one) for one in lists]


def test_a_zip_whose_directory_points_outside_is_a_sentence(tmp_path: Path) -> None:
    import io
    import struct

    import numpy as np

    out = io.BytesIO()
    np.savez(out, logical_count=np.ones((1, 2, 8), dtype=np.int64))
    data = bytearray(out.getvalue())
    end = data.rindex(b"PK\x05\x06")
    begin = struct.unpack_from("<I", data, end + 16)[0]
    struct.pack_into("<I", data, end + 16, begin + 5)  # members then begin before the file does
    (tmp_path / "a.npz").write_bytes(bytes(data))
    with pytest.raises(TraceError, match="its directory points outside the file"):
        read_trace(tmp_path / "a.npz", "event-counts", SMALL)


def several(name: str | None) -> list[dict[str, Any]]:
    """Two requests whose passes both begin at 0, with or without a column that tells them apart."""
    return [
        ({} if name is None else {name: f"r{r}"})
        | {"step": p, "layer": layer, "topk_ids": [(p + layer) % 8, 7 - p]}
        for r in range(2)
        for p in range(3)
        for layer in range(2)
    ]


@pytest.mark.parametrize("name", ["req_id", "rid", "sequence_id", "sample", "request"])
def test_requests_are_known_by_usual_names(name: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [json.dumps(row) for row in several(name)])
    trace = read_trace(path, model=SMALL)
    assert len(set(trace.pass_request.tolist())) == 2
    assert trace.n_passes == 6


def test_passes_that_begin_again_are_not_put_together(tmp_path: Path) -> None:
    """Rows of two requests were one pass of two rows, said only by a column that was not used."""
    path = write_lines(tmp_path / "t.jsonl", [json.dumps(row | {"who": 1}) for row in several(None)])
    with pytest.raises(
        TraceError, match=r"line 7: pass 0 comes after pass 2: of another request\? Give request=COLUMN"
    ):
        read_trace(path, model=SMALL)


def test_an_order_by_layer_is_no_further_request(tmp_path: Path) -> None:
    rows_ = sorted(several(None)[:6], key=lambda row: (row["layer"], row["step"]))
    path = write_lines(tmp_path / "t.jsonl", [json.dumps(row) for row in rows_])
    assert read_trace(path, model=SMALL).n_passes == 3


def test_numbered_columns_and_lists_of_rows_are_tables(tmp_path: Path) -> None:
    """The page's own example, without --columns; and the same rows as one JSON list."""
    path = wide(tmp_path)
    named, by_name = read(path), read_trace(path, model=SMALL)
    assert by_name.content_hash == named.content_hash
    part = read_trace(path, model=SMALL, columns="pass=pass,token=token,request=request,experts=e0..e1")
    assert part.n_passes == named.n_passes
    listed = tmp_path / "t.json"
    listed.write_text(json.dumps(several("request")))
    lines = write_lines(tmp_path / "t.jsonl", [json.dumps(row) for row in several("request")])
    assert read_trace(listed, model=SMALL).content_hash == read_trace(lines, model=SMALL).content_hash
    listed.write_text(json.dumps([*several("request"), 3]))
    with pytest.raises(TraceError, match="row 13: expected an object"):
        read_trace(listed, model=SMALL)


def test_layers_that_are_counted_from_1_are_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.csv", ["pass,layer,experts", "0,1,3 4", "0,2,5 6"])
    with pytest.raises(
        TraceError, match=r"layer 2 is not .*; the file has 1\.\.2, which are counted from 1: subtract 1"
    ):
        read_trace(path, model=SMALL)
