"""Small trace files of every format, for tests: the same routing, two layers of eight experts, top-2."""

from __future__ import annotations

import json
import struct
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
