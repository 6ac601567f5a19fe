"""No miss takes a slot: the cache is what the placement made it.

    select: none

Source: ktransformers and `--n-cpu-moe` style placements, where residency never changes while decoding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from expert_residency.policies.admission.always import Always
from expert_residency.policies.protocol import Event, Ints


@dataclass(frozen=True)
class Never(Always):
    """No miss is admitted."""

    name: ClassVar[str] = "never"
    source: ClassVar[str] = "ktransformers; llama.cpp --n-cpu-moe"
    compiled: ClassVar[bool] = True

    @staticmethod
    def select(state: tuple[()], event: Event, misses: Ints, n: int) -> int:
        """None of them."""
        return 0
