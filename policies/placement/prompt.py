"""The experts that the prompt used most: what an engine can know when decoding begins.

    rank: rows of the prefill passes that want each expert, most first; ties: lower key

They are resident from the start, that is, already during the prefill that names them: compare decode figures.
With several requests all their prompts count.
Source: the set that a prompt alone can give; no published tool names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.errors import PolicyError
from expert_residency.policies.protocol import Future, PlacementPolicy, Pool


@dataclass(frozen=True)
class Prompt(PlacementPolicy):
    """Most used experts of the prefill passes."""

    name: ClassVar[str] = "prompt"
    source: ClassVar[str] = "static set from the prompt"
    needs_future: ClassVar[bool] = True

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys by rows in prefill."""
        if future is None:
            raise PolicyError("placement prompt needs the prefill passes of the trace")
        used = [key for key in range(pool.keys) if future.prompt_rows[key] > 0]
        if not used:
            raise PolicyError("placement prompt: the trace has no prefill pass")
        return sorted(used, key=lambda key: (-future.prompt_rows[key], key))
