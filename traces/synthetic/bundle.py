"""The synthetic traces that ship with the package, and how they were made.

`python -m expert_residency.traces.synthetic.bundle [FOLDER]` writes them again, by default over those in
`traces/bundled`. Run it after a change of the generator, the style or the geometry.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from expert_residency.traces.geometry import load_model
from expert_residency.traces.parquet import write_parquet
from expert_residency.traces.synthetic.generator import generate
from expert_residency.traces.synthetic.style import load_style
from expert_residency.traces.trace import RoutingTrace

MODEL = "qwen3.8-flash-next/IQ2_XS"
STYLE = "qwen3.8-flash-next"
ONE_TEXT = {
    "base_skew": 0.8032, "request_tilt": 2.5794, "tilt_half_life_tokens": 617.4132, "dead_tail": 0.2094,
    "memory": 0.6264, "memory_half_life_tokens": 0.5691, "first_layer": 0.5695,
}  # fmt: skip
"""Parameters of these traces: the style before it was fitted to what texts share. Within a request both give the
same curve (0.1 to 0.6 points apart from 31 slots a layer on); requests of these share less than real texts do."""
SIZES: dict[str, dict[str, Any]] = {
    "flash-next-synthetic": {"tokens": 448, "prompt_tokens": 64, "seed": 1},
    "flash-next-requests": {"tokens": 320, "prompt_tokens": 16, "requests": 10, "seed": 2, "weights": False},
}
"""What `generate` is asked for, by name: one request, and as many as a ranking of policies needs."""


def bundled_trace(name: str = "flash-next-synthetic") -> RoutingTrace:
    """A trace at Qwen3.8-Flash-Next size; each request is a prompt in one pass and its decode passes."""
    trace = generate(load_model(MODEL), load_style(STYLE).model_copy(update=ONE_TEXT), **SIZES[name])
    trace.meta["style_name"] = STYLE
    trace.meta["notes"] = [
        "SYNTHETIC: a random model fitted to published statistics of Qwen3.8-Flash-Next, no run was recorded",
        "regenerate with: python -m expert_residency.traces.synthetic.bundle",
    ]
    return trace


def main(folder: Path) -> None:
    """Write the traces into `folder`."""
    for name in SIZES:
        write_parquet(bundled_trace(name), folder / f"{name}.parquet")


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent / "bundled"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
