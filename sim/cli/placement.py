"""`residency placement`: the experts that a range of tokens uses most, as a profile to start with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, KeptOpt, ModelOpt, given, say, writable
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.traces import ModelGeometry


@app.command()
@takes_reading("join")
def placement(
    context: typer.Context,
    slots: Annotated[int, typer.Option(min=1, help="Room in whole experts.")],
    out: Annotated[
        Path,
        typer.Option(
            callback=writable,
            help="File to write: .csv (layer,expert,count, for llama.cpp forks and placement profile:file=), .pt "
            "(the table of ktransformers), .ot (llama.cpp's -ot, whole layers), else Strata's STRP "
            "(--expert-profile, placement strp:file=).",
        ),
    ],
    trace: Annotated[
        str | None,
        typer.Argument(metavar="[TRACE]", help="Trace file of any known format, a 'pattern*', or bundled:NAME."),
    ] = None,
    counts: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Counts instead of a trace: moe-trace or profile CSV, .coli_usage, an imatrix GGUF, a .pt of "
            "ktransformers or a matrix (npy, npz, safetensors); needs --model.",
        ),
    ] = None,
    first: Annotated[int, typer.Option(min=0, help="First token of the range (prompts do not count).")] = 0,
    tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of the range; to the end by default.")] = None,
    kept_only: KeptOpt = False,
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
) -> None:
    """Write the experts that a range of tokens, or a file of counts, uses most, as a profile to start with."""
    from expert_residency.errors import SimError
    from expert_residency.sim.studies.window import ranked_by, uses

    if (trace is None) == (counts is None):
        raise SimError("give either a trace or a file of counts (--from)")
    table: Any
    if counts is not None:
        from expert_residency.traces import load_model
        from expert_residency.traces.usage import read_usage

        if extra := given(context, "out", "slots", "counts", "model"):
            raise SimError(f"{extra[0]} is of traces; counts (--from) have no tokens")
        if model is None:
            raise SimError("--from needs --model: counts have no sizes")
        geometry = load_model(model)
        table = read_usage(counts, geometry).reshape(-1)
    else:
        assert trace is not None
        recorded = open_trace(trace, fmt, model, reading)
        geometry, table = recorded.geometry, uses(recorded, first, tokens, kept_only=kept_only)
    ranked = ranked_by(table)
    held = _write(out, geometry, ranked, table, slots)
    say(f"{out}: {len(ranked):,} experts used, {held}")


def _write(out: Path, geometry: ModelGeometry, ranked: list[int], table: Any, slots: int) -> str:
    """In the form that the name's end says; what the file then holds, in words."""
    from expert_residency.files import write_text
    from expert_residency.policies.placement.strp import StrpProfile, complete, write_strp

    if out.suffix == ".csv":
        rows = ["layer,expert,count,index"]
        for key in ranked:
            layer, expert = geometry.layer_of_key(key)
            rows.append(f"{layer},{expert},{table[key]:g},{key // geometry.experts}")
        write_text(out, "\n".join(rows) + "\n")
        return f"all in the file, the most used first; {slots:,} slots hold {min(slots, len(ranked)):,} of them"
    if out.suffix == ".pt":
        from expert_residency.traces.usage import write_matrix

        write_matrix(out, table.reshape(geometry.n_layers, geometry.experts))
        return f"the counts of all {geometry.n_experts:,} in the file, whatever the slots"
    if out.suffix == ".ot":
        from expert_residency.traces.usage import override_tensors

        write_text(out, override_tensors(table, geometry, slots) + "\n")
        layers = min(slots // geometry.experts, geometry.n_layers)
        if layers == geometry.n_layers:
            return f"the file is empty: all {layers} layers fit into {slots:,} slots"
        return (
            f"{layers} of {geometry.n_layers} layers stay on the card: {layers * geometry.experts:,} experts in "
            f"{slots:,} slots"
        )
    order = complete(ranked, geometry.n_experts)
    held = min(slots, len(order))
    write_strp(out, StrpProfile(geometry.n_layers, geometry.experts, held, order))
    return f"{min(slots, len(ranked)):,} of them in {slots:,} slots"
