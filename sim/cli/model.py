"""`residency model`: a model's shape and sizes, from wherever it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import JsonOpt, number, say, show, table, warn, writable, write_json

if TYPE_CHECKING:
    from expert_residency.traces import ModelGeometry
    from expert_residency.traces.model_file import ModelFile


@app.command()
def model(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="NAME or NAME/QUANT of a packaged model, FILE.toml, FILE.gguf (of several files any one), "
            "or a folder or config.json of Hugging Face with safetensors files.",
        ),
    ],
    layers: Annotated[bool, typer.Option("--layers", help="Also one row for each MoE layer.")] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", callback=writable, help="Write it as TOML, which --model takes everywhere."),
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Shape, sizes and context of a model; only headers of its files are read."""
    from expert_residency.traces import load_model
    from expert_residency.traces.geometry import read_model
    from expert_residency.traces.weights.write import write_model

    geometry = load_model(source)
    file = read_model(source)
    if out is not None:
        write_model(out, file)
    if json is not None:
        write_json(json, geometry.to_dict() | {"notes": file.notes, "session": _plain(file)})
        if str(json) == "-":
            return
    show(_summary(geometry, file))
    if layers:
        show(_per_layer(geometry))
    for note in file.notes:
        say(note)
    warn([gap] if (gap := geometry.gap) else [])
    if out is not None:
        say(f"wrote {out}")


def _plain(file: ModelFile) -> dict[str, Any] | None:
    return file.session.model_dump() if file.session else None


def _summary(geometry: ModelGeometry, file: ModelFile) -> Any:
    from expert_residency.hwmodels.units import GIB, format_bytes
    from expert_residency.traces.file_sizes import check_of

    chosen = file.quants[geometry.quant]
    dense = sum(geometry.dense_bytes)
    rows = [
        ("what it is", file.description),
        ("layers", f"{geometry.total_layers}, {geometry.n_layers} with experts ({_ranges(geometry.layer_ids)})"),
        ("experts", f"{geometry.experts} a layer, top-{geometry.top_k}"),
        ("an expert", f"{_several(geometry.expert_bytes)}; {geometry.expert_params:,} weights"),
        ("all experts", format_bytes(geometry.all_expert_bytes)),
        ("dense part of a layer", _several(geometry.dense_bytes)),
        (
            "dense parts",
            f"{format_bytes(dense)} in MoE layers, {format_bytes(geometry.dense_only_bytes)} in others",
        ),
        ("output head", format_bytes(geometry.head_bytes)),
        ("width", f"{geometry.hidden_size:,}; {geometry.token_handoff_bytes:,} B a token from stage to stage"),
        ("family of rates", geometry.quant_family),
        ("quantizations", ", ".join(file.quants)),
    ]
    if chosen.file_bytes:
        rows.append(
            ("all tensors of its files", f"{number(chosen.file_bytes / GIB)} GiB ({chosen.file_bytes:,} B)")
        )
    if (check := check_of(geometry)) is not None:
        rows.append(
            ("compared", check.sentence() or f"a published file has {check.gib:,.2f} GiB ({check.source})")
        )
    rows += _context(geometry)
    rows.append(("source", geometry.source))
    shown = table(geometry.label, ["what", "value"], left=2)
    for row in rows:
        shown.add_row(*row)
    return shown


def _context(geometry: ModelGeometry) -> list[tuple[str, str]]:
    from expert_residency.hwmodels.units import format_bytes

    shape = geometry.session_shape
    if shape is None:
        return [("context", "not known: give --session where it is asked for")]
    rows = [("KV", f"{shape.kv_layers} layers x {shape.cell_bytes('fp16'):,} B a token in fp16")]
    if shape.window_layers:
        cell = shape.window_cell_bytes("fp16")
        rows.append(
            ("KV of windows", f"{shape.window_layers} layers x {cell:,} B, {shape.window_tokens:,} tokens")
        )
    if shape.index_cell_bytes:
        rows.append(("index", f"{shape.index_cell_bytes:,} B a token"))
    if shape.state_bytes:
        rows.append(("recurrent state", format_bytes(shape.state_bytes)))
    return rows


def _per_layer(geometry: ModelGeometry) -> Any:
    shown = table(None, ["layer", "bytes of an expert", "of the dense part"], left=1)
    for layer, expert, dense in zip(geometry.layer_ids, geometry.expert_bytes, geometry.dense_bytes, strict=True):
        shown.add_row(str(layer), f"{expert:,}", f"{dense:,}")
    return shown


def _ranges(layers: tuple[int, ...]) -> str:
    """`1 to 45`, or the first ones of an irregular list."""
    step = layers[1] - layers[0] if len(layers) > 1 else 1
    if list(layers) == list(range(layers[0], layers[-1] + 1, step)):
        each = "" if step == 1 else f", every {step}."
        return f"{layers[0]} to {layers[-1]}{each}"
    return ", ".join(map(str, layers))


def _several(sizes: tuple[int, ...]) -> str:
    """`10,452,992 B x 45`, each size with its layers."""
    from collections import Counter

    counted = sorted(Counter(sizes).items())
    if len(counted) > 4:
        return f"{counted[0][0]:,} to {counted[-1][0]:,} B ({len(counted)} sizes)"
    return ", ".join(f"{size:,} B x {n}" for size, n in counted)
