"""Reader of a toy format: `MOE1`, then one line a routing row, `token layer expert expert ...`."""

from __future__ import annotations

from pathlib import Path

from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder, TraceError

name = "moe-words"
description = "toy text format of the sample plug-in (needs --model)"


def sniff(head: bytes, path: Path) -> bool:
    """By the first word."""
    return head.startswith(b"MOE1")


def read(path: Path, model: ModelGeometry | None = None) -> RoutingTrace:
    """One decode pass a token."""
    if model is None:
        raise TraceError("expert sizes are missing; name the model with --model", path=path)
    builder = TraceBuilder(model)
    last = -1
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()[1:], 2):
        try:
            token, layer, *experts = (int(word) for word in line.split())
        except ValueError:
            raise TraceError(
                f"expected whole numbers, found {line!r}", path=path, place=f"line {number}"
            ) from None
        if token != last:
            builder.begin_pass(Phase.DECODE)
            last = token
        builder.row(layer, experts)
    return builder.build()
