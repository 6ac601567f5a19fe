"""Foreign formats: goldens on recorded traces, one routing in every format, and every kind of bad input."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import expert_residency.traces.readers.base as base
from expert_residency.traces import (
    Phase,
    RoutingTrace,
    TraceError,
    list_formats,
    load_model,
    read_trace,
    write_parquet,
)
from tests.trace_files import (
    DECODE,
    OPTIONS,
    PASSES,
    SMALL,
    atlas_lines,
    bigmoe_lines,
    colibri_lines,
    fingerprint_object,
    lattice_lines,
    log_moe_lines,
    mbolt_bytes,
    moe_beyond_lines,
    moe_cache_lab_lines,
    moe_l2_lines,
    moe_trace_lines,
    npz_arrays,
    onnx_object,
    route_v2_lines,
    strata_bytes,
    warp_lines,
    write_all,
    write_lines,
    write_more,
)

FORMATS = (
    "bigmoe-edge",
    "colibri",
    "gpt-oss-fingerprint",
    "lattice",
    "moe-trace-csv",
    "onnx-genai",
    "routing-npz",
    "strata",
    "atlas",
    "event-counts",
    "expert-capture",
    "imp",
    "k3route",
    "mbolt",
    "moe-beyond",
    "moe-cache-lab",
    "moe-l2",
    "route-v2",
    "routed-experts",
    "router-logits",
    "sglang-recorder",
    "vllm-log-moe",
    "warp",
)
BINARY = {
    "strata", "routing-npz", "event-counts", "expert-capture", "k3route", "mbolt", "routed-experts",
    "router-logits", "sglang-recorder",
}  # fmt: skip
WHOLE = {
    "bigmoe-edge", "colibri", "moe-trace-csv", "onnx-genai", "event-counts", "k3route", "vllm-log-moe", "mbolt",
    "moe-cache-lab", "moe-l2",
    "routed-experts", "router-logits", "sglang-recorder",
}  # fmt: skip
"""These know the prompt from its shape, or from the file."""


def written(folder: Path) -> dict[str, Path]:
    return write_all(folder) | write_more(folder)


def routing(trace: RoutingTrace) -> list[list[list[list[int]]]]:
    """[pass][layer][row] = ids, as `trace_files.PASSES`."""
    out: list[list[list[list[int]]]] = [[] for _ in range(trace.n_passes)]
    for event in range(trace.n_events):
        rows = range(trace.event_row_offsets[event], trace.event_row_offsets[event + 1])
        ids = [trace.row_experts[trace.row_offsets[r] : trace.row_offsets[r + 1]].tolist() for r in rows]
        out[trace.event_pass[event]].append(ids)
    return out


def refused(path: Path, format: str | None = None, **options: Any) -> str:  # noqa: A002
    options.setdefault("model", SMALL)
    with pytest.raises(TraceError) as error:
        read_trace(path, format, **options)
    message = str(error.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# ---- one routing, every format ---------------------------------------------------------------------------


@pytest.mark.parametrize("format", FORMATS)
def test_same_routing_in_every_format(format: str, tmp_path: Path) -> None:  # noqa: A002
    path = written(tmp_path)[format]
    trace = read_trace(path, model=SMALL, **OPTIONS.get(format, {}))  # sniffed
    expected = PASSES if format in WHOLE or format == "strata" else DECODE
    if format == "event-counts":  # the order inside an event is lost
        sets = [[sorted(i for row in rows for i in row) for rows in one] for one in expected]
        assert [[sorted(i for row in rows for i in row) for rows in one] for one in routing(trace)] == sets
    else:
        assert routing(trace) == expected
    many = {"strata": Phase.VERIFY}.get(format, Phase.PREFILL)
    assert trace.pass_phase.tolist() == [many if len(p[0]) > 1 else Phase.DECODE for p in expected]
    assert trace.geometry == SMALL
    assert trace.meta["source_file"] == path.name
    assert len(trace.meta["source_sha256"]) == 64
    write_parquet(trace, tmp_path / "back.parquet")
    assert read_trace(tmp_path / "back.parquet").content_hash == trace.content_hash


@pytest.mark.parametrize("format", FORMATS)
def test_gzip_is_transparent(format: str, tmp_path: Path) -> None:  # noqa: A002
    path = written(tmp_path)[format]
    options = {"format": format} | OPTIONS.get(format, {})
    plain = read_trace(path, model=SMALL, **options)
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_trace(path, model=SMALL, **options).content_hash == plain.content_hash
    path.write_bytes(path.read_bytes()[:-12])
    assert "gzip stream is cut off" in refused(path)


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_is_sniffed_by_its_reader_alone(format: str, tmp_path: Path) -> None:  # noqa: A002
    path = written(tmp_path)[format]
    head = base.read_bytes(path, base.HEAD_BYTES)
    assert [name for name, reader in base.readers().items() if reader.sniff(head, path)] == [format]


@pytest.mark.parametrize("format", [f for f in FORMATS if f not in ("bigmoe-edge", "gpt-oss-fingerprint")])
def test_a_format_without_sizes_asks_for_the_model(format: str, tmp_path: Path) -> None:  # noqa: A002
    message = refused(written(tmp_path)[format], model=None)
    assert "give --model" in message
    assert "qwen3-30b-a3b" in message


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_of_another_shape_is_refused(format: str, tmp_path: Path) -> None:  # noqa: A002
    path = written(tmp_path)[format]
    for other in ("olmoe-1b-7b", "glm-5.2"):
        refused(path, model=other)


@pytest.mark.parametrize("format", [*FORMATS, "parquet"])
def test_empty_file(format: str, tmp_path: Path) -> None:  # noqa: A002
    path = tmp_path / "empty.trace"
    path.write_bytes(b"")
    assert "empty" in refused(path)
    refused(path, format)
    refused(tmp_path / "absent", format)
    refused(tmp_path, format)


@pytest.mark.parametrize("format", FORMATS)
def test_not_utf_8_and_noise(format: str, tmp_path: Path) -> None:  # noqa: A002
    path = written(tmp_path)[format]
    data = path.read_bytes()
    path.write_bytes(data[:34] + b"\xff\xfe" + data[36:])
    message = refused(path, format)
    if format not in BINARY:
        assert "byte 34: not valid UTF-8 (0xff)" in message
    path.write_bytes(bytes(range(256)) * 8)
    refused(path, format)


ONE_PASS = {
    "atlas": atlas_lines, "moe-cache-lab": moe_cache_lab_lines, "moe-l2": lambda passes: moe_l2_lines(passes)[:-1],
    "route-v2": route_v2_lines,
    "warp": warp_lines,
    "vllm-log-moe": log_moe_lines,
    "moe-beyond": moe_beyond_lines,
}  # fmt: skip
LOSSLESS = {"vllm-log-moe", "moe-beyond", "lattice", "atlas", "moe-cache-lab", "route-v2", "warp"}
"""Of these a last line without an end is whole if it is whole JSON."""


@pytest.mark.parametrize("format", FORMATS)
def test_any_cut_is_noticed(format: str, tmp_path: Path) -> None:  # noqa: A002
    """Wherever a file of one pass ends early, it is refused (a JSONL line or a whole pass may be lost unseen)."""
    path = written(tmp_path)[format]
    if format == "strata":
        path.write_bytes(strata_bytes(DECODE[:1]))
    elif format == "colibri":
        write_lines(path, colibri_lines(DECODE[:1]))
    elif format == "moe-trace-csv":
        write_lines(path, moe_trace_lines(DECODE[:1]))
    elif format == "bigmoe-edge":
        write_lines(path, bigmoe_lines(PASSES[:1]))
    elif format == "lattice":
        write_lines(path, lattice_lines(DECODE[:1]))
    elif format in ONE_PASS:
        write_lines(path, ONE_PASS[format](DECODE[:1]))
    elif format == "mbolt":
        path.write_bytes(mbolt_bytes(DECODE[:1]))
    data = path.read_bytes()
    lossless = {len(data)} | ({len(data) - 1} if format in LOSSLESS else set())  # a lost line end loses nothing
    if format == "bigmoe-edge":  # its last layer may hold the last prompt token only
        rows = bigmoe_lines(PASSES[:1])
        lossless |= {len(("\n".join(rows[:-n]) + "\n").encode()) for n in (2, 4)}
    step = 1 + len(data) // 200
    for size in sorted({*range(1, len(data), step), *range(max(1, len(data) - 40), len(data))} - lossless):
        path.write_bytes(data[:size])
        refused(path, format)


# ---- finding readers -------------------------------------------------------------------------------------


def test_formats_are_listed_and_misspelling_lists_them(tmp_path: Path) -> None:
    assert set(list_formats()) >= {*FORMATS, "parquet"}
    with pytest.raises(TraceError, match=r"unknown format 'strat'; did you mean strata\? \(known: .*bigmoe-edge"):
        read_trace(tmp_path / "x", "strat")


def test_unknown_contents_and_options(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("The quick brown fox\n")
    assert "not a trace in a known format" in refused(path)
    files = write_all(tmp_path)
    with pytest.raises(
        TraceError, match="format strata: unknown option 'promt_tokens'; did you mean prompt_tokens"
    ):
        read_trace(files["strata"], model=SMALL, promt_tokens=1)


def test_a_broken_plug_in_warns_and_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [EntryPoint("gone", "no.such.module", base.GROUP), EntryPoint("half", "json", base.GROUP)]
    good = EntryPoint("strata", "expert_residency.traces.readers.strata", base.GROUP)
    monkeypatch.setattr(base, "entry_points", lambda group: [*broken, good])
    with pytest.warns(UserWarning, match="trace reader") as warned:
        assert list(base.readers()) == ["strata"]
    assert ["'gone'" in str(warned[0].message), "'half'" in str(warned[1].message)] == [True, True]


# ---- BigMoeOnEdge ----------------------------------------------------------------------------------------


def test_bigmoe_columns_are_found_by_name(tmp_path: Path) -> None:
    lines = bigmoe_lines()
    plain = read_trace(write_lines(tmp_path / "a.csv", lines))
    at = next(i for i, line in enumerate(lines) if line.startswith("turn"))
    turned = [",".join(["later", *reversed(line.split(","))]) for line in lines[at:]]
    assert read_trace(write_lines(tmp_path / "b.csv", lines[:at] + turned)).content_hash != ""
    other = read_trace(tmp_path / "b.csv")
    np.testing.assert_array_equal(other.row_experts, plain.row_experts)
    np.testing.assert_array_equal(other.row_position, plain.row_position)
    assert plain.geometry.quant_family == "q4"
    assert plain.geometry.expert_bytes == (3000, 4000)


def test_bigmoe_size_missing_names_the_layer(tmp_path: Path) -> None:
    """A trace without a layer's size once read as 0 bytes, and every policy looked 97 % good."""
    lines = [line for line in bigmoe_lines() if not line.startswith("# layer=1")]
    message = refused(write_lines(tmp_path / "a.csv", lines), model=None)
    assert "expert bytes of layer 1 are missing" in message


def test_bigmoe_first_layer_dense_keeps_the_numbers(tmp_path: Path) -> None:
    passes = [[[[0, 1]], [[2, 3]], [[4, 5]]]] * 2
    trace = read_trace(write_lines(tmp_path / "a.csv", bigmoe_lines(passes, sizes=(0, 10, 20, 30))))
    assert trace.geometry.layer_ids == (1, 2, 3)
    assert trace.geometry.dense_only_bytes == 500


def test_bigmoe_prompt_rows_are_one_lookup(tmp_path: Path) -> None:
    passes = [[[[5, 0], [5, 1], [5, 2]], [[0, 1]]]]
    trace = read_trace(write_lines(tmp_path / "a.csv", bigmoe_lines(passes)))
    first = slice(trace.event_offsets[0], trace.event_offsets[1])
    assert dict(zip(trace.keys[first].tolist(), trace.rows_wanting[first].tolist(), strict=True)) == {
        0: 1,
        1: 1,
        5: 3,
        2: 1,
    }
    assert trace.event_rows.tolist() == [3, 1]  # the last layer routes the last prompt token only


def test_bigmoe_dropped_experts_are_not_routed(tmp_path: Path) -> None:
    lines = bigmoe_lines(DECODE)
    at = next(i for i, line in enumerate(lines) if line.startswith("turn"))
    lines = [
        *lines[:at],
        lines[at] + ",dropped",
        *(f"{line},{int(i == 1)}" for i, line in enumerate(lines[at + 1 :])),
    ]
    trace = read_trace(write_lines(tmp_path / "a.csv", lines))
    assert np.diff(trace.row_offsets).tolist() == [1, 2, 2, 2]
    assert "1 routed experts that the engine dropped" in trace.meta["notes"][0]


def test_bigmoe_two_turns_and_a_chunked_prompt(tmp_path: Path) -> None:
    lines = bigmoe_lines([PASSES[0], PASSES[0], *DECODE])
    lines = [
        line.replace("0,1,", "0,0,", 1) if line.startswith(("0,1,3,", "0,1,4,", "0,1,5,")) else line
        for line in lines
    ]
    lines += [f"1,0,{0},{layer},{slot},{slot},0.5,0,0" for layer in (0, 1) for slot in (0, 1)]
    trace = read_trace(write_lines(tmp_path / "a.csv", lines))
    assert trace.pass_phase.tolist() == [0, 0, 1, 1, 0]
    assert trace.pass_emits.tolist() == [0, 1, 1, 1, 1]
    assert trace.pass_request.tolist() == [0, 0, 0, 0, 1]


def test_bigmoe_several_steps_of_one_pass_are_a_verify_window(tmp_path: Path) -> None:
    lines = bigmoe_lines([*DECODE, [[[1, 2], [3, 4]], [[1, 2], [3, 4]]]])
    trace = read_trace(write_lines(tmp_path / "a.csv", lines))
    assert trace.pass_phase.tolist() == [Phase.PREFILL, Phase.DECODE, Phase.VERIFY]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda x: [*x[:5], *x[6:]], "slot 1, expected 0"),
        (lambda x: [*x[:6], *x[5:]], "line 6: a row of 1 experts, expected 2"),
        (lambda x: [*x[:6], *x[7:]], "expected 2 (a line is missing or repeated)"),
        (lambda x: [*x[:-4], *x[-2:]], "the pass from line 18: layer 1 has 2 rows, layer 0 has 1"),
        (lambda x: x[:-2], "the pass from line 22: no rows of layer 1"),
        (lambda x: [*x, *x[-4:]], "step 4 is repeated in this layer"),
        (lambda x: [*x[:5], x[5].replace(",0,0.5", ",8,0.5"), *x[6:]], "line 6: expert id 8, expected 0..7"),
        (lambda x: [*x[:5], "0,0,0,2,0,1,0.5,0,0", *x[6:]], "line 6: layer 2 is not an MoE layer"),
        (lambda x: [*x[:5], "0,0,0,0,0,one,0.5,0,0", *x[6:]], "line 6: expert 'one' is not a number"),
        (lambda x: [*x[:5], "0,0,0,0,0", *x[6:]], "line 6: expected 9 columns, found 5"),
        (lambda x: [*x[:5], "", *x[5:]], "line 6: expected 9 columns, found 1"),
        (lambda x: [*x[:5], "0,3,0,0,0,0,0.5,0,0", *x[6:]], "line 6: phase 3, expected one of 0, 1"),
        (lambda x: [*x[:4], x[4].replace("expert,", "expertise,"), *x[5:]], "column(s) expert missing"),
        (lambda x: [*x[:4], x[4].replace("step", "turn"), *x[5:]], "column(s) step missing"),
        (lambda x: [*x[:4], x[4] + ",turn", *x[5:]], "a column name twice"),
        (lambda x: x[:4], "ends before the column names"),
        (lambda x: x[:5], "no routing rows after the column names"),
        (lambda x: ["# route_trace v2", *x[1:]], "line 1: expected '# route_trace v1', found '# route_trace v2'"),
        (lambda x: [x[0], *x[2:]], "n_layer, n_expert and n_expert_used expected"),
        (
            lambda x: [*x[:2], "# layer=7 expert_bytes=1", *x[2:]],
            "layer 7 in the preamble of a model with 2 layers",
        ),
        (lambda x: [*x[:2], "# layer=0 expert_bytes=many", *x[3:]], "line 3: not a whole number"),
    ],
)
def test_bigmoe_bad_input(edit: Callable[[list[str]], list[str]], says: str, tmp_path: Path) -> None:
    assert says in refused(write_lines(tmp_path / "a.csv", edit(bigmoe_lines())), model=None)


# ---- Strata ----------------------------------------------------------------------------------------------


def test_strata_token_path_keeps_weights_and_takes_a_prompt_length(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(strata_bytes([*DECODE, *DECODE], weight=0.25))
    trace = read_trace(path, model=SMALL)
    assert trace.pass_phase.tolist() == [Phase.DECODE] * 4
    assert trace.row_weights is not None
    assert set(trace.row_weights.tolist()) == {0.25}
    prompted = read_trace(path, model=SMALL, prompt_tokens=3)
    assert prompted.pass_phase.tolist() == [0, 0, 0, 1]
    assert prompted.pass_emits.tolist() == [0, 0, 1, 1]
    assert prompted.row_position.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert "no pass ends after 9 prompt tokens" in refused(path, prompt_tokens=9)


def test_strata_verify_windows_are_layer_major_and_unweighted(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(strata_bytes([DECODE[0], *PASSES], weight=0.0))
    trace = read_trace(path, model=SMALL)
    assert routing(trace) == [DECODE[0], *PASSES]
    assert trace.pass_phase.tolist() == [Phase.DECODE, Phase.VERIFY, Phase.DECODE, Phase.DECODE]
    assert trace.row_weights is None
    assert trace.pass_emits.tolist() == [1, 1, 1, 1]
    assert "counted as 1" in trace.meta["notes"][0]


def test_strata_draft_layers_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(b"".join(strata_bytes([one]) + strata_bytes([[[[0, 1]]]], layers=(2,)) for one in PASSES))
    trace = read_trace(path, model=SMALL)
    assert routing(trace) == PASSES
    assert trace.meta["notes"][0] == "3 rows of draft layers (after layer 1) are left out"


def test_strata_k_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(strata_bytes([[[[0, 1, 2]], [[3, 4, 5]]]]))
    assert read_trace(path, model=SMALL).geometry.top_k == 3


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (strata_bytes(PASSES)[:-3], "byte 216: 21 bytes after the last whole record of 24"),
        (b"\0\0\0", "3 bytes are less than one record"),
        (strata_bytes([[[[0, 1]], [[2, 9]]]]), "byte 24: expert id 9, expected 0..7"),
        (strata_bytes([[[[0, 1]], [[2, -1]]]]), "byte 24: expert id -1"),
        (strata_bytes([[[[0, 1]], [[2, 2]]]]), "byte 24: expert 2 twice in one row"),
        (strata_bytes([[[[0, 1]], [[2, 3, 4]]]]), "byte 28: k = 3, expected 2"),
        (strata_bytes([[[[0, 1], [2, 3]], [[2, 3]]]]), "the pass from byte 0: layer 1 has 1 rows, layer 0 has 2"),
        (strata_bytes([[[[0, 1]], [[2, 3]]], [[[0, 1]], []]]), "the pass from byte 48: no rows of layer 1"),
        (strata_bytes([[[], [[2, 3]]]]), "the pass from byte 0: no rows of layer 0"),
        (strata_bytes([[[[0, 1]], [[2, 3]]]], layers=(-1, 1)), "byte 0: layer -1 is not an MoE layer"),
        (struct.pack("<ii", 0, 0), "byte 4: k = 0, expected 1..8"),
    ],
)
def test_strata_bad_input(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(data)
    assert says in refused(path, "strata")


def test_strata_of_another_layer_count(tmp_path: Path) -> None:
    path = tmp_path / "r.bin"
    path.write_bytes(strata_bytes([[[[0, 1]], [[2, 3]]]] * 2))
    assert "no rows of layer 2" in refused(path, model="granite-3.0-1b-a400m")


# ---- the others ------------------------------------------------------------------------------------------


def test_lattice_order_of_lines_and_weights_do_not_matter(tmp_path: Path) -> None:
    lines = lattice_lines()
    plain = read_trace(write_lines(tmp_path / "a.jsonl", lines), model=SMALL)
    mixed = ["", *(line.replace('"layer_idx"', '"note": "x", "layer_idx"') for line in reversed(lines)), "  "]
    turned = read_trace(write_lines(tmp_path / "b.jsonl", mixed), "lattice", SMALL)
    assert turned.content_hash == plain.content_hash
    bare = [json.dumps({k: v for k, v in json.loads(line).items() if k != "gate_weights"}) for line in lines]
    assert read_trace(write_lines(tmp_path / "c.jsonl", bare), model=SMALL).row_weights is None


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda x: [*x[:1], "{", *x[2:]], "line 2: not valid JSON"),
        (lambda x: [*x[:1], "[1]", *x[2:]], "line 2: expected an object"),
        (lambda x: [*x[:1], '{"layer_idx": 1}', *x[2:]], "line 2: field(s) token_idx, selected_ids missing"),
        (lambda x: [x[0], *x], "line 2: layer 0, token 0 is repeated"),
        (lambda x: x[:-1], "the pass from line 3: no rows of layer 1"),
        (lambda x: [*x[:2], x[2].replace('"token_idx": 1', '"token_idx": 900'), *x[3:]], "token 2 is missing"),
        (lambda x: [*x[:1], x[1].replace("[3, 4]", "[3, 8]"), *x[2:]], "line 2: expert id 8, expected 0..7"),
        (lambda x: [*x[:1], x[1].replace("[3, 4]", "[3, 3]"), *x[2:]], "line 2: expert 3 twice"),
        (
            lambda x: [*x[:1], x[1].replace("[3, 4]", "[3]").replace("[0.5, 0.5]", "[1]"), *x[2:]],
            "1 selected_ids, expected 2",
        ),
        (
            lambda x: [*x[:1], x[1].replace("[3, 4]", '["3", 4]'), *x[2:]],
            "line 2: selected_ids is not a list of whole",
        ),
        (
            lambda x: [*x[:1], x[1].replace("[0.5, 0.5]", "[0.5]"), *x[2:]],
            "gate_weights is not a list of 2 numbers",
        ),
        (lambda x: [*x[:1], x[1].replace("[0.5, 0.5]", "null"), *x[2:]], "gate_weights on some records"),
        (
            lambda x: [*x[:1], x[1].replace('"layer_idx": 1', '"layer_idx": 2'), *x[2:]],
            "line 2: layer 2 is not an MoE",
        ),
        (
            lambda x: [*x[:1], x[1].replace('"layer_idx": 1', '"layer_idx": 1.5'), *x[2:]],
            "expected a whole number",
        ),
    ],
)
def test_lattice_bad_input(edit: Callable[[list[str]], list[str]], says: str, tmp_path: Path) -> None:
    assert says in refused(write_lines(tmp_path / "a.jsonl", edit(lattice_lines())))


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        ((), [], "expected an object with model"),
        (("prompts",), {}, "no prompts"),
        (("num_layers",), 3, "3 layers, small, expected 2"),
        (("num_experts",), 9, "9 experts, small, expected 8"),
        (("top_k",), 0, "top_k 0 is impossible"),
        (("prompts", "prose", "prefill"), None, "prompt prose, prefill: missing"),
        (("prompts", "prose", "prefill"), [], "prompt prose, prefill: no tokens"),
        (("prompts", "prose", "prompt_len"), 4, "prompt prose: 3 prefill tokens, expected 4"),
        (("prompts", "prose", "decode", 0), [[1, 2]], "prompt prose, decode, token 0: 1 layers, expected 2"),
        (("prompts", "prose", "decode", 0), 7, "prompt prose, decode, token 0: 0 layers, expected 2"),
        (("prompts", "prose", "decode", 1, 1), [1], "token 1, layer 1: 1 experts, expected 2"),
        (("prompts", "prose", "decode", 1, 1), [1, 8], "token 1, layer 1: expert id 8, expected 0..7"),
        (("prompts", "prose", "decode", 1, 1), [1, 1], "token 1, layer 1: expert 1 twice"),
        (("prompts", "prose", "decode", 1, 1), [1, "x"], "prompt prose, decode: expert ids are not whole numbers"),
        (("prompts", "prose", "decode", 1, 1), [1, [2]], "prompt prose, decode: expert ids are not whole numbers"),
        (("prompts", "prose", "decode", 1, 1), [1, 2.5], "prompt prose, decode: expert ids are not whole numbers"),
    ],
)
def test_onnx_genai_bad_input(keys: tuple[Any, ...], value: Any, says: str, tmp_path: Path) -> None:
    assert says in refused(_json_with(onnx_object(), keys, value, tmp_path), "onnx-genai")


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        ((), 3, "generation 0: router_data is missing"),
        (("router_data",), [], "the trace has no routing rows"),
        (("router_data", 1), {}, "router_data[1]: expected"),
        (("router_data", 1), {"token_12": {}}, "token 12, expected 10 (a token is missing or repeated)"),
        (("router_data", 1, "token_10"), {"layer_0": {}}, "token 10: 1 layers, expected 2"),
        (
            ("router_data", 1, "token_10", "layer_1"),
            {},
            "token 10, layer_1: selected_experts and selected_probs expected",
        ),
        (
            ("router_data", 1, "token_10", "layer_1", "selected_experts"),
            [1],
            "layer_1: 1 selected_experts, expected 2",
        ),
        (
            ("router_data", 1, "token_10", "layer_1", "selected_probs"),
            [1],
            "layer_1: 1 selected_probs, expected 2",
        ),
        (("router_data", 1, "token_10", "layer_1", "selected_probs"), [1, "x"], "as lists of numbers"),
        (("router_data", 1, "token_10", "layer_1", "selected_experts"), [1, 8], "token 10, layer 1: expert id 8"),
    ],
)
def test_fingerprint_bad_input(keys: tuple[Any, ...], value: Any, says: str, tmp_path: Path) -> None:
    assert says in refused(_json_with(fingerprint_object(), keys, value, tmp_path), "gpt-oss-fingerprint")


def test_fingerprint_list_is_one_request_each(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([fingerprint_object()] * 2))
    assert read_trace(path, model=SMALL).pass_request.tolist() == [0, 0, 1, 1]


def _json_with(data: Any, keys: tuple[Any, ...], value: Any, folder: Path) -> Path:
    """The object with one place changed, as a file."""
    at = data
    for key in keys[:-1]:
        at = at[key]
    if keys:
        at[keys[-1]] = value
    path = folder / "x.json"
    path.write_text(json.dumps(data if keys else value))
    return path


def test_phases_are_inferred_from_rows(tmp_path: Path) -> None:
    def rows(n: int) -> list[list[list[int]]]:
        return [[[i % 7, 7] for i in range(n)]] * 2

    passes = [rows(n) for n in (6, 3, 1, 4, 1, 6, 1)]
    for name, lines in (("colibri", colibri_lines(passes)), ("moe-trace-csv", moe_trace_lines(passes))):
        trace = read_trace(write_lines(tmp_path / name, lines), model=SMALL)
        assert trace.pass_phase.tolist() == [0, 0, 1, 2, 1, 0, 1]
        assert trace.pass_emits.tolist() == [0, 1, 1, 1, 1, 1, 1]
        assert trace.pass_request.tolist() == [0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda x: [*x[:1], "0 1 0 5:0.5 zero", *x[2:]], "line 2: expected 'call row layer id:gate ...'"),
        (lambda x: [*x[:1], "0 1 0 5:0.5 0:zero", *x[2:]], "line 2: a gate in"),
        (lambda x: [*x[:1], "0 1 0 5:0.5 9:0.5", *x[2:]], "line 2: expert id 9"),
        (lambda x: [*x[:1], *x[2:]], "line 2: row 2, expected 1"),
        (lambda x: [*x[:2], *x[1:]], "line 3: row 1, expected 2"),
        (lambda x: [*x[:4], *x[5:]], "line 5: row 2, expected 1"),
        (lambda x: x[:-1], "the pass from line 9: no rows of layer 1"),
        (
            lambda x: [line.replace(" 1 ", " 2 ", 1) if line.startswith("1 0") else line for line in x],
            "line 5: row 1, expected 0",
        ),
    ],
)
def test_colibri_bad_input(edit: Callable[[list[str]], list[str]], says: str, tmp_path: Path) -> None:
    lines = edit(colibri_lines())
    if "MoE layer" in says:
        lines = [line.replace("1 0 1 ", "1 0 2 ") for line in colibri_lines()]
    assert says in refused(write_lines(tmp_path / "t.txt", lines), "colibri")


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda x: ["layer,token", *x[1:]], "line 1: expected the columns layer,expert, found 'layer,token'"),
        (lambda x: x[:1], "no routing rows"),
        (lambda x: [*x[:1], *x[2:]], "line 2: a run of 5 lines of layer 0, expected a multiple of k = 2"),
        (lambda x: [*x[:2], "0,one", *x[3:]], "line 3: expected two whole numbers, found '0,one'"),
        (lambda x: [*x[:2], "0,1,2", *x[3:]], "line 3: expected two whole numbers"),
        (lambda x: [*x[:2], "", *x[3:]], "line 3: expected two whole numbers"),
        (lambda x: [*x[:2], "0,9", *x[3:]], "line 3: expert id 9"),
        (lambda x: [*x[:2], "0,0", *x[3:]], "line 2: expert 0 twice in one row"),
        (lambda x: [*x[:2], "4,1", *x[3:]], "line 3: layer 4 is not an MoE layer"),
        (lambda x: x[:-2], "the pass from line 18: no rows of layer 1"),
    ],
)
def test_moe_trace_csv_bad_input(edit: Callable[[list[str]], list[str]], says: str, tmp_path: Path) -> None:
    assert says in refused(write_lines(tmp_path / "t.csv", edit(moe_trace_lines())), "moe-trace-csv")


def test_moe_trace_csv_takes_columns_by_name(tmp_path: Path) -> None:
    turned = [",".join(reversed(line.split(","))) for line in moe_trace_lines()]
    assert routing(read_trace(write_lines(tmp_path / "t.csv", turned), model=SMALL)) == PASSES


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"experts": None}, "array(s) experts missing (found: offsets, first_pos)"),
        ({"experts": np.zeros((2, 3, 2), np.uint8)}, "experts: 3 layers, small, expected 2"),
        ({"experts": np.zeros((2, 2), np.uint8)}, "expected whole numbers [N, L, k]"),
        ({"experts": np.zeros((2, 2, 2))}, "expected whole numbers [N, L, k]"),
        ({"experts": np.asarray([[[0, 1], [2, 3]], [[4, 5], [6, 8]]])}, "token 1, layer 1: expert id 8"),
        ({"experts": np.zeros((2, 2, 2), np.uint8)}, "token 0, layer 0: expert 0 twice in one row"),
        ({"offsets": np.asarray([0, 1, 3])}, "offsets must rise from 0 to the 2 tokens"),
        ({"offsets": np.asarray([0, 2, 2])}, "offsets must rise from 0 to the 2 tokens"),
        ({"offsets": np.asarray([0.0, 1, 2])}, "offsets is float64"),
        ({"first_pos": np.asarray([1])}, "1 entries of first_pos, expected 2"),
        ({"probs": np.zeros((2, 2))}, "probs is float64 (2, 2)"),
        ({"experts": np.asarray([[1], None], dtype=object)}, "pickled objects, which are not read"),
    ],
)
def test_npz_bad_input(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    arrays = {name: array for name, array in (npz_arrays() | changes).items() if array is not None}
    np.savez(path, **arrays)
    assert says in refused(path, "routing-npz")


def test_what_is_no_npz_is_not_called_pickled(tmp_path: Path) -> None:
    assert "not an npz" in refused(write_lines(tmp_path / "r.npz", ["[1, 2]"]), "routing-npz")


# ---- recorded traces -------------------------------------------------------------------------------------


@pytest.mark.shared
def test_bigmoe_goldens(shared: Path) -> None:
    qwen = read_trace(shared / "traces/bigmoe-edge/qwen.route.csv")
    assert (qwen.n_routed, qwen.n_lookups) == (44_766, 39_526)
    assert qwen.pass_phase.tolist() == [Phase.PREFILL] + [Phase.DECODE] * 128
    assert qwen.geometry.top_k == 6
    assert qwen.event_rows[:48].tolist() == [28] * 47 + [1]
    assert qwen.row_residency is not None
    gptoss = read_trace(shared / "traces/bigmoe-edge/gptoss.route.csv")
    assert gptoss.n_lookups == 6_375
    assert gptoss.geometry.quant_family == "mxfp4"
    biases = 34_560  # the engine does not count them, a model's file holds them
    assert [size + biases for size in gptoss.geometry.expert_bytes] == [*load_model("gpt-oss-120b").expert_bytes]


@pytest.mark.shared
def test_packaged_sizes_equal_what_an_engine_prints(shared: Path) -> None:
    own = read_trace(shared / "traces/bigmoe-edge/qwen.route.csv").geometry
    packaged = load_model("qwen3-30b-a3b/Q4_K_M")
    assert packaged.expert_bytes == own.expert_bytes
    assert packaged.dense_bytes == own.dense_bytes


@pytest.mark.shared
def test_bigmoe_in_other_sizes(shared: Path) -> None:
    trace = read_trace(shared / "traces/bigmoe-edge/qwen.route.csv", model="qwen3-30b-a3b/Q8_0")
    assert trace.geometry.expert_bytes[0] == 3 * 2048 * 768 * 17 // 16
    assert trace.geometry.top_k == 6  # the run's, not the model's


@pytest.mark.shared
def test_granite_golden(shared: Path) -> None:
    trace = read_trace(shared / "traces/granite3/moe_expert_trace.json")
    assert trace.geometry.label == "granite-3.0-1b-a400m/FP16"
    assert trace.n_rows == 24 * (39 + 44 + 29 + 3 * 64)
    assert np.bincount(trace.pass_request).tolist() == [65, 65, 65]
    assert trace.event_rows[trace.event_phase == Phase.PREFILL].tolist() == [39] * 24 + [44] * 24 + [29] * 24
    first = json.loads((shared / "traces/granite3/moe_expert_trace.json").read_text())["prompts"]["english_prose"]
    assert trace.row_experts[:8].tolist() == first["prefill"][0][0]


@pytest.mark.shared
def test_fingerprint_and_npz_goldens(shared: Path) -> None:
    folder = shared / "traces/gptoss20b"
    single = read_trace(next(folder.glob("*.json.gz")))
    assert (single.n_passes, single.n_lookups) == (208, 208 * 24 * 4)
    assert single.row_position[0] == 97
    assert single.geometry == load_model("gpt-oss-20b")
    many = read_trace(folder / "gptoss20b_decode.npz", model="gpt-oss-20b")
    assert (many.n_passes, many.n_routed) == (66_393, 66_393 * 24 * 4)
    assert len(np.unique(many.pass_request)) == 200
    with np.load(folder / "gptoss20b_decode.npz") as raw:
        np.testing.assert_array_equal(many.row_experts, raw["experts"].reshape(-1))
        starts = many.row_position[::24][raw["offsets"][:-1]]
        np.testing.assert_array_equal(starts, raw["first_pos"])


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "model"),
    [
        ("bigmoe-edge/qwen.route.csv", None),
        ("bigmoe-edge/gptoss.route.csv", None),
        ("granite3/moe_expert_trace.json", None),
        ("gptoss20b/tulu3_persona_if__instruction-following__TF.json.gz", None),
        ("gptoss20b/gptoss20b_decode.npz", "gpt-oss-20b"),
    ],
)
def test_recorded_traces_survive_parquet(file: str, model: str | None, shared: Path, tmp_path: Path) -> None:
    trace = read_trace(shared / "traces" / file, model=model)
    write_parquet(trace, tmp_path / "t.parquet")
    assert read_trace(tmp_path / "t.parquet").content_hash == trace.content_hash
