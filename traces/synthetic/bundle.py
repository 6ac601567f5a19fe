"""The synthetic trace that ships with the package, and how it was made.

`python -m expert_residency.traces.synthetic.bundle [FILE]` writes it again, by default over the one in
`traces/bundled`. Run it after a change of the generator, the style or the geometry.
"""

from __future__ import annotations

import sys
from pathlib import Path

from expert_residency.traces.geometry import load_model
from expert_residency.traces.parquet import write_parquet
from expert_residency.traces.synthetic.generator import generate
from expert_residency.traces.synthetic.style import load_style
from expert_residency.traces.trace import RoutingTrace

NAME = "flash-next-synthetic"
MODEL = "qwen3.8-flash-next/IQ2_XS"
STYLE = "qwen3.8-flash-next"
PROMPT_TOKENS, TOKENS, SEED = 64, 448, 1


def bundled_trace() -> RoutingTrace:
    """One request at Qwen3.8-Flash-Next size: 64 prompt rows in one pass, then 448 decode passes."""
    trace = generate(load_model(MODEL), load_style(STYLE), tokens=TOKENS, prompt_tokens=PROMPT_TOKENS, seed=SEED)
    trace.meta["style_name"] = STYLE
    trace.meta["notes"] = [
        "SYNTHETIC: a random model fitted to published statistics of Qwen3.8-Flash-Next, no run was recorded",
        "regenerate with: python -m expert_residency.traces.synthetic.bundle",
    ]
    return trace


def main(path: Path) -> None:
    """Write the trace to `path`."""
    write_parquet(bundled_trace(), path)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent / "bundled" / f"{NAME}.parquet"
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else here)
