"""The leaderboard of `leaderboard.md`: the page of the command, on the recorded traces. It takes some minutes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from expert_residency.sim.cli import main

TRACES = (
    "bigmoe-edge/qwen.route.csv@qwen3-30b-a3b/Q4_K_M",
    "bigmoe-edge/gptoss.route.csv@gpt-oss-120b",
    "granite3/moe_expert_trace.json@granite-3.0-1b-a400m",
    "gptoss20b/gptoss20b_decode.npz@gpt-oss-20b",
    "warp/trace_olmoe_299.jsonl@olmoe-1b-7b",
)
BUNDLED = ("bundled:tinymoe-prose", "bundled:tinymoe-code")
CELLS = "EXPERT_RESIDENCY_CELLS"
"""Folder that keeps the runs between two makings, if it is set."""


def board() -> str:
    """The page without its title; its heads one level lower."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.md")
        _run("--out", str(page))
        text = page.read_text(encoding="utf-8")
    return text.partition("\n\n")[2].replace("\n## ", "\n### ")


def draw(path: Path) -> None:
    """Speeds of all policies, with intervals."""
    _run("--plot", str(path))


def _run(*options: str) -> None:
    traces = [str(Path(os.environ["EXPERT_RESIDENCY_SHARED"], "traces", name)) for name in TRACES]
    kept = ["--cells", os.environ[CELLS]] if CELLS in os.environ else []
    try:
        main(["leaderboard", *BUNDLED, *traces, *kept, *options])
    except SystemExit as end:
        if end.code:
            raise
