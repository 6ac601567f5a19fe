"""`residency record`: the routing of a model on prompts, by transformers or, of a GGUF file, by llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import say, writable


@app.command()
def record(
    prompt_file: Annotated[list[Path], typer.Option(help="UTF-8 text of one request; repeat for more.")],
    out: Annotated[Path, typer.Option(metavar="TRACE.parquet", callback=writable, help="File to write.")],
    model: Annotated[
        str | None, typer.Option(help="A mixture-of-experts causal language model: hub name or folder.")
    ] = None,
    gguf: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instead: a GGUF file, run by llama.cpp on the processor.")
    ] = None,
    decode_tokens: Annotated[int, typer.Option(min=0, help="Decode passes of each request.")] = 512,
    prefill_chunk: Annotated[
        int, typer.Option(min=0, help="Tokens of one prefill pass; 0: the whole prompt.")
    ] = 0,
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling; 0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling.")] = 0,
    look_ahead: Annotated[int, typer.Option(min=0, help="Layers ahead for which routers predict.")] = 1,
    device: Annotated[
        str | None, typer.Option(help="Of the whole model: cpu, if not given, cuda, cuda:1.")
    ] = None,
    device_map: Annotated[
        str | None,
        typer.Option(help="Instead: auto spreads it over cards, RAM and drive (by accelerate)."),
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Of the weights: auto, if not given, bfloat16, float16 or float32.")
    ] = None,
    load_in: Annotated[str | None, typer.Option(help="4bit (NF4) or 8bit, by bitsandbytes.")] = None,
) -> None:
    """Run a model on prompts and write which experts each token was routed to, with weights and look-ahead."""
    from expert_residency.errors import TraceError
    from expert_residency.traces.parquet import write_parquet

    if (model is None) == (gguf is None):
        raise TraceError("give --model NAME, or --gguf FILE, and not both")
    texts = [_read(path) for path in prompt_file]
    options: dict[str, Any] = {
        "decode_tokens": decode_tokens, "prefill_chunk": prefill_chunk, "temperature": temperature, "seed": seed,
        "look_ahead": look_ahead, "notes": f"prompts: {', '.join(path.name for path in prompt_file)}",
    }  # fmt: skip
    loading = {"device": device, "device_map": device_map, "dtype": dtype, "load_in": load_in}
    if model is None:
        assert gguf is not None
        for name, value in loading.items():
            if value is not None:
                raise TraceError(f"--{name.replace('_', '-')} is of --model; a GGUF file is run as it is")
        from expert_residency.traces.record.llamacpp import record_gguf

        trace = record_gguf(gguf, texts, **options)
    else:
        trace = _by_transformers(model, texts, loading, options)
    write_parquet(trace, out)
    say(
        f"{out}: {trace.geometry.label}, {trace.n_passes:,} passes, {trace.n_rows:,} rows, "
        f"{trace.n_lookups:,} look-ups, sha256 {trace.content_hash[:16]}"
    )
    for note in trace.meta.get("notes", []):
        if note.startswith("look-ahead"):
            say(note)


def _by_transformers(model: str, texts: list[str], loading: dict[str, Any], options: dict[str, Any]) -> Any:
    from expert_residency.errors import TraceError

    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError:
        raise TraceError(
            "recording needs torch and transformers: pip install 'expert-residency[record]'"
        ) from None
    from expert_residency.traces.record import record as run
    from expert_residency.traces.record.load import load

    loaded, tokenizer = load(model, **loading)
    return run(loaded, [tokenizer(text)["input_ids"] for text in texts], name=Path(model).name, **options)


def _read(path: Path) -> str:
    from expert_residency.errors import TraceError

    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the prompt: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: the prompt is not UTF-8 text") from None
