"""Small trace files of every format, for tests: the same routing, two layers of eight experts, top-2."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.traces import ModelGeometry

SMALL = ModelGeometry(
    name="small",
    layer_ids=(0, 1),
    experts=8,
    top_k=2,
    expert_bytes=(3000, 4000),
    dense_bytes=(500, 500),
    quant_family="q4",
    total_layers=2,
)
# PASSES[pass][layer][row] = expert ids: a prompt of three tokens, then two decode steps
PASSES = [
    [[[0, 1], [5, 0], [5, 2]], [[3, 4], [4, 5], [6, 7]]],
    [[[1, 2]], [[3, 4]]],
    [[[7, 2]], [[4, 6]]],
]
DECODE = PASSES[1:]


def strata_bytes(
    passes: Sequence[Sequence[Sequence[Sequence[int]]]], *, weight: float = 0.5, layers: Sequence[int] = (0, 1)
) -> bytes:
    """`--dump-routing` records, layer-major in each pass."""
    out = b""
    for one in passes:
        for layer, rows in zip(layers, one, strict=True):
            for ids in rows:
                k = len(ids)
                out += struct.pack(f"<ii{k}i{k}f", layer, k, *ids, *([weight] * k))
    return out


def bigmoe_lines(
    passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES,
    *,
    sizes: Sequence[int] = (3000, 4000),
    experts: int = 8,
) -> list[str]:
    """Lines of a route CSV; layers whose size is 0 are dense and `passes` skips them."""
    lines = [
        "# route_trace v1",
        f"# model=/m/small-Q4_0.gguf arch=t n_layer={len(sizes)} n_expert={experts} n_expert_used=2",
    ]
    lines += [f"# layer={i} expert_bytes={size} dense_bytes=500" for i, size in enumerate(sizes)]
    lines.append("turn,phase,step,layer,slot,expert,weight,residency,expert_bytes")
    moe = [i for i, size in enumerate(sizes) if size]
    step = 0
    for number, one in enumerate(passes):
        for layer, rows in zip(moe, one, strict=True):
            for r, ids in enumerate(rows):
                at = step + len(one[0]) - len(rows) + r
                for slot, expert in enumerate(ids):
                    lines.append(f"0,{int(number > 0)},{at},{layer},{slot},{expert},0.5,0,{sizes[layer]}")
        step += len(one[0])
    return lines


def lattice_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> list[str]:
    """JSONL records, token by token."""
    return [
        json.dumps(
            {"layer_idx": layer, "token_idx": token, "selected_ids": rows[0], "gate_weights": [0.5] * len(rows[0])}
        )
        for token, one in enumerate(passes)
        for layer, rows in enumerate(one)
    ]


def colibri_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> list[str]:
    """`call row layer id:gate ...`."""
    call, lines = 0, []
    for one in passes:
        for layer, rows in enumerate(one):
            lines += [f"{call} {r} {layer} " + " ".join(f"{i}:0.5000" for i in ids) for r, ids in enumerate(rows)]
            call += 1
    return lines


def moe_trace_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> list[str]:
    """`layer,expert`."""
    lines = ["layer,expert"]
    for one in passes:
        for layer, rows in enumerate(one):
            lines += [f"{layer},{expert}" for ids in rows for expert in ids]
    return lines


def onnx_object() -> dict[str, Any]:
    """One prompt: prefill and decode as [token][layer][k]."""
    prefill = [[PASSES[0][layer][t] for layer in range(2)] for t in range(3)]
    decode = [[one[layer][0] for layer in range(2)] for one in DECODE]
    prompt = {"prompt_len": 3, "prefill": prefill, "decode": decode}
    return {"model": "small", "num_layers": 2, "num_experts": 8, "top_k": 2, "prompts": {"prose": prompt}}


def fingerprint_object() -> dict[str, Any]:
    """One generation, decode only."""
    records = [
        {f"token_{9 + t}": {f"layer_{i}": {"selected_experts": rows[0], "selected_probs": [0.75, 0.25]}
                            for i, rows in enumerate(one)}}
        for t, one in enumerate(DECODE)
    ]  # fmt: skip
    return {"row_index": 1, "finished_successfully": True, "router_data": records}


def npz_arrays() -> dict[str, Any]:
    """Two sequences of one token each."""
    experts = np.asarray([[rows[0] for rows in one] for one in DECODE], dtype=np.uint8)
    return {"experts": experts, "offsets": np.asarray([0, 1, 2]), "first_pos": np.asarray([9, 4], dtype=np.int32)}


def write_lines(path: Path, lines: list[str]) -> Path:
    """Text file with a final line end."""
    path.write_text("\n".join(lines) + "\n")
    return path


def write_all(folder: Path) -> dict[str, Path]:
    """One file of each foreign format."""
    files = {name: folder / f"{name}.trace" for name in ("strata", "onnx-genai", "gpt-oss-fingerprint")}
    files["strata"].write_bytes(strata_bytes(PASSES))
    files["onnx-genai"].write_text(json.dumps(onnx_object()))
    files["gpt-oss-fingerprint"].write_text(json.dumps(fingerprint_object()))
    files["routing-npz"] = folder / "routing.npz"
    np.savez(files["routing-npz"], **npz_arrays())
    for name, lines in (
        ("bigmoe-edge", bigmoe_lines()),
        ("lattice", lattice_lines()),
        ("colibri", colibri_lines()),
        ("moe-trace-csv", moe_trace_lines()),
    ):
        files[name] = write_lines(folder / f"{name}.trace", lines)
    return files


# ---- formats of serving frameworks and local engines -----------------------------------------------------


def pt_bytes(value: Any, folder: str = "archive") -> bytes:
    """A `.pt` as `torch.save` writes it, of dicts, lists, numbers, texts and arrays; without PyTorch."""
    stores: list[np.ndarray[Any, Any]] = []
    kinds = {"<f4": "Float", "<f2": "Half", "<i4": "Int", "<i8": "Long", "<i2": "Short", "|u1": "Byte"}

    def text(word: str) -> bytes:
        data = word.encode()
        return pickle.BINUNICODE + struct.pack("<I", len(data)) + data

    def number(n: int) -> bytes:
        return pickle.BININT + struct.pack("<i", n)

    def row(items: Sequence[bytes]) -> bytes:
        return pickle.MARK + b"".join(items) + pickle.TUPLE

    def put(item: Any) -> bytes:
        if isinstance(item, dict):
            body = b"".join(put(k) + put(v) for k, v in item.items())
            return pickle.EMPTY_DICT + pickle.MARK + body + pickle.SETITEMS
        if isinstance(item, list):
            return pickle.EMPTY_LIST + pickle.MARK + b"".join(map(put, item)) + pickle.APPENDS
        if item is None:
            return pickle.NONE
        if isinstance(item, str):
            return text(item)
        if isinstance(item, int):
            return number(item)
        stores.append(np.ascontiguousarray(item))
        kind = kinds[stores[-1].dtype.str]
        storage = row([text("storage"), b"ctorch\n%sStorage\n" % kind.encode(), text(str(len(stores) - 1)),
                       text("cpu"), number(item.size)]) + pickle.BINPERSID  # fmt: skip
        shape = row([number(n) for n in item.shape])
        stride = row([number(n // item.itemsize) for n in stores[-1].strides])
        hooks = b"ccollections\nOrderedDict\n" + pickle.EMPTY_TUPLE + pickle.REDUCE
        made = row([storage, number(0), shape, stride, pickle.NEWFALSE, hooks])
        return b"ctorch._utils\n_rebuild_tensor_v2\n" + made + pickle.REDUCE

    program = pickle.PROTO + b"\x02" + put(value) + pickle.STOP
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(f"{folder}/data.pkl", program)
        file.writestr(f"{folder}/byteorder", b"little")
        for i, array in enumerate(stores):
            file.writestr(f"{folder}/data/{i}", array.tobytes())
    return out.getvalue()


def routed_array(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> np.ndarray[Any, Any]:
    """[tokens, layers, k]."""
    return np.concatenate([np.asarray(one).transpose(1, 0, 2) for one in passes]).astype(np.int16)


def counts_array(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> np.ndarray[Any, Any]:
    """[passes, layers, experts]."""
    return np.asarray([[np.bincount(np.ravel(rows), minlength=SMALL.experts) for rows in one] for one in passes])


def recorder_object(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> dict[str, Any]:
    """SGLang's recorder, per_token."""
    records = [
        {
            "forward_pass_id": i,
            "rank": 0,
            "gatherer_key": "primary",
            "extend_seq_lens": [len(one[0])] if len(one[0]) > 1 else None,
            "forward_mode": 1 if len(one[0]) > 1 else 2,
            "topk_ids_of_layer": np.pad(np.asarray(one, dtype=np.int32), ((0, 0), (0, 0), (0, 6)),
                                        constant_values=-1),
        }
        for i, one in enumerate(passes)
    ]  # fmt: skip
    mapping = np.tile(np.arange(SMALL.experts), (SMALL.n_layers, 1))
    return {"records": records, "last_physical_to_logical_map": mapping}


def mbolt_bytes(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> bytes:
    """`MBLT`, version, experts, then layer, k, tokens and ids."""
    out = struct.pack("<4sii", b"MBLT", 1, SMALL.experts)
    for one in passes:
        for layer, rows in enumerate(one):
            ids = [i for row in rows for i in row]
            out += struct.pack(f"<iii{len(ids)}i", layer, len(rows[0]), len(rows), *ids)
    return out


def moe_l2_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> list[str]:
    """A server's log."""
    lines = ["llama_model_loader: loaded meta data"]
    for one in passes:
        for layer, rows in enumerate(one):
            brackets = " ".join(f"[{','.join(map(str, row))}]" for row in rows)
            lines.append(f"EXPERT|L{layer}|T{len(rows)}: {brackets}")
        lines.append("slot update_slots: id 0 | task 0")
    return lines


def route_v2_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> list[str]:
    """Ids are longer than k."""
    meta = {"type": "meta", "schema": "qwen36-route-v2", "layers": 2, "experts": 8, "selected_k": 2, "rank": 4}
    routes = [
        {"type": "route", "position": 9 + t, "token_id": 1, "layer": i, "ids": [*rows[0], 0, 1],
         "weights": [0.75, 0.25, 0, 0], "selected_weights": [0.75, 0.25], "effective_k": 2}
        for t, one in enumerate(passes)
        for i, rows in enumerate(one)
    ]  # fmt: skip
    return [json.dumps(item) for item in (meta, *routes)]


def atlas_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> list[str]:
    """One text a line, one activation an entry."""
    entries = [
        {"layer": i, "token_idx": t, "expert_idx": expert, "gate_weight": 0.5}
        for t, one in enumerate(passes)
        for i, rows in enumerate(one)
        for expert in rows[0]
    ]
    facts = {"model_id": "small", "num_layers": 2, "num_experts": 8, "top_k": 2, "token_ids": [1]}
    return [json.dumps(facts | {"activations": entries})]


def moe_cache_lab_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> list[str]:
    """Layer by layer in the prompt."""
    lines = [{"record_type": "metadata", "format": "moe-cache-lab.routing-jsonl", "format_version": 1,
              "model_id": "x/small", "num_experts": 8, "experts_per_token": 2}]  # fmt: skip
    position = 0
    for number, one in enumerate(passes):
        for layer, rows in enumerate(one):
            lines += [
                {"record_type": "routing_selection", "phase": "generated" if number else "prompt", "layer": layer,
                 "token_position": position + r, "token_id": None, "selected_experts": ids,
                 "selected_probabilities": []}
                for r, ids in enumerate(rows)
            ]  # fmt: skip
        position += len(one[0])
    return [json.dumps(line) for line in lines]


def warp_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> list[str]:
    """A line a token."""
    return [json.dumps({"tok": t + 1, "layers": [rows[0] for rows in one]}) for t, one in enumerate(passes)]


def k3route_bytes(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> bytes:
    """Frames between header and trailer."""
    header = struct.pack("<I4sQ", 4, b"gguf", 9) + struct.pack("<III", SMALL.experts, 2, SMALL.n_layers)
    out = b"K3ROUTE\0" + struct.pack("<II", 1, len(header)) + header
    ordinal = position = 0
    for number, one in enumerate(passes):
        for layer, rows in enumerate(one):
            for r, ids in enumerate(rows):
                k = len(ids)
                body = struct.pack("<QQQIiIiI", ordinal, 0, number, 2 if number else 1, layer, r, position + r, 1)
                body += struct.pack(f"<iI{k}i{k}f", 0, k, *ids, *([0.5] * k))
                out += struct.pack("<II", 0x44434552, len(body)) + body
                ordinal += 1
        position += len(one[0])
    return out + b"K3DONE\0\0" + struct.pack("<QII", ordinal, zlib.crc32(out), 0)


def log_moe_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> list[str]:
    """`token_idx` begins again in every layer."""
    lines = [{"type": "meta", "model_id": "small", "layers_logged": [0, 1], "top_k": 2}]
    lines += [
        {
            "type": "route",
            "req_id": "r",
            "token_idx": r,
            "layer": layer,
            "topk_ids": ids,
            "topk_weights": [0.5, 0.2],
        }
        for one in passes
        for layer, rows in enumerate(one)
        for r, ids in enumerate(rows)
    ]
    return [json.dumps(line) for line in lines]


def moe_beyond_lines(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> list[str]:
    """Layer by layer, tokens as text."""
    rows = [f'{layer},0,"a, ""b""","{one[layer][0]}"' for layer in range(SMALL.n_layers) for one in passes]
    return ["Layer ID,Batch Number,Token,Activated Expert IDs", *rows]


def imp_object(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> list[list[int]]:
    """`[layer, e0, e1]` in turn."""
    return [[layer, *rows[0]] for one in passes for layer, rows in enumerate(one)]


def logits_arrays(passes: Sequence[Sequence[Sequence[Sequence[int]]]] = PASSES) -> dict[str, Any]:
    """[tokens, experts] a layer whose k largest are the ids."""
    routed = routed_array(passes)
    arrays = {}
    for layer in range(routed.shape[1]):
        logits = np.full((len(routed), SMALL.experts), -5.0, dtype=np.float16)
        for rank in range(routed.shape[2]):
            logits[np.arange(len(routed)), routed[:, layer, rank]] = 5 - rank
        arrays[f"layer_{layer}"] = logits
    return arrays


def write_expert_capture(path: Path, passes: Sequence[Sequence[Sequence[Sequence[int]]]] = DECODE) -> None:
    """Parquet with a column for each rank."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {"prompt_index": 0, "prompt_name": "p", "token_position": 9 + t, "layer": i}
        | {f"expert_id_{rank}": expert for rank, expert in enumerate(ids[0])}
        | {f"expert_weight_{rank}": 0.5 for rank in range(len(ids[0]))}
        for t, one in enumerate(passes)
        for i, ids in enumerate(one)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


def write_more(folder: Path) -> dict[str, Path]:
    """One file of each of these formats, of the same routing."""
    files = {}
    for name, lines in (
        ("moe-l2", moe_l2_lines()),
        ("route-v2", route_v2_lines()),
        ("atlas", atlas_lines()),
        ("moe-cache-lab", moe_cache_lab_lines()),
        ("warp", warp_lines()),
        ("vllm-log-moe", log_moe_lines()),
        ("moe-beyond", moe_beyond_lines()),
    ):
        files[name] = write_lines(folder / f"{name}.trace", lines)
    for name, data in (
        ("mbolt", mbolt_bytes()),
        ("k3route", k3route_bytes()),
        ("sglang-recorder", pt_bytes(recorder_object())),
        ("imp", json.dumps(imp_object()).encode()),
    ):
        files[name] = folder / f"{name}.trace"
        files[name].write_bytes(data)
    for name, arrays in (
        ("routed-experts", {"prompt_routed_experts": routed_array()[:3], "routed_experts": routed_array()[3:]}),
        ("event-counts", {"logical_count": counts_array()}),
        ("router-logits", logits_arrays()),
    ):
        files[name] = folder / f"{name}.npz"
        np.savez(files[name], **arrays)
    files["expert-capture"] = folder / "capture.parquet"
    write_expert_capture(files["expert-capture"])
    return files


OPTIONS: dict[str, dict[str, Any]] = {"router-logits": {"prompt_tokens": 3, "routing": "softmax"}}
"""What the readers of `write_more` must be told."""
