"""`residency record`: the routing of a Hugging Face model on prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import say, writable


@app.command()
def record(
    model: Annotated[str, typer.Option(help="A mixture-of-experts causal language model: hub name or folder.")],
    prompt_file: Annotated[list[Path], typer.Option(help="UTF-8 text of one request; repeat for more.")],
    out: Annotated[Path, typer.Option(metavar="TRACE.parquet", callback=writable, help="File to write.")],
    decode_tokens: Annotated[int, typer.Option(min=0, help="Decode passes of each request.")] = 512,
    prefill_chunk: Annotated[
        int, typer.Option(min=0, help="Tokens of one prefill pass; 0: the whole prompt.")
    ] = 0,
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling; 0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling.")] = 0,
    look_ahead: Annotated[int, typer.Option(min=0, help="Layers ahead for which routers predict.")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the weights: auto, bfloat16, float16 or float32.")] = "auto",
) -> None:
    """Run a model on prompts and write which experts each token was routed to, with weights and look-ahead."""
    from expert_residency.errors import TraceError

    try:
        import torch
        import transformers
    except ImportError:
        raise TraceError(
            "recording needs torch and transformers: pip install 'expert-residency[record]'"
        ) from None
    from expert_residency.traces.parquet import write_parquet
    from expert_residency.traces.record import record as run

    if dtype not in ("auto", "bfloat16", "float16", "float32"):
        raise TraceError(f"unknown dtype {dtype!r} (known: auto, bfloat16, float16, float32)")
    texts = [_read(path) for path in prompt_file]
    try:
        place = torch.device(device)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(model, torch_dtype=dtype)
        loaded.to(place)
    except (OSError, ValueError, RuntimeError) as error:
        raise TraceError(f"{model}: cannot be loaded: {str(error).splitlines()[0]}") from None
    trace = run(
        loaded, [tokenizer(text)["input_ids"] for text in texts], decode_tokens=decode_tokens,
        prefill_chunk=prefill_chunk, temperature=temperature, seed=seed, look_ahead=look_ahead,
        name=Path(model).name, notes=f"prompts: {', '.join(path.name for path in prompt_file)}",
    )  # fmt: skip
    write_parquet(trace, out)
    say(
        f"{out}: {trace.geometry.label}, {trace.n_passes:,} passes, {trace.n_rows:,} rows, "
        f"{trace.n_lookups:,} look-ups, sha256 {trace.content_hash[:16]}"
    )


def _read(path: Path) -> str:
    from expert_residency.errors import TraceError

    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TraceError(f"{path}: cannot read the prompt: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: the prompt is not UTF-8 text") from None
