"""First in, first out.

    learn:  nothing
    insert: to the back
    victim: the first from the front that is not protected

Source: textbook.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from expert_residency.policies.protocol import Allocator, EvictionPolicy, Future, Ints, Pool
from expert_residency.policies.structures import Links, first_free, links, push_back, unlink


class FifoState(NamedTuple):
    """Insertion lists, one a scope, oldest in front."""

    order: Links
    scope_of: Ints


@dataclass(frozen=True)
class Fifo(EvictionPolicy):
    """Oldest insertion leaves first, however often it was used."""

    name: ClassVar[str] = "fifo"
    source: ClassVar[str] = "textbook"
    compiled: ClassVar[bool] = True

    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> FifoState:
        """Empty lists."""
        return FifoState(links(alloc, pool.keys, pool.scopes), pool.scope_of)

    @staticmethod
    def insert(state: FifoState, key: int) -> None:
        """To the back."""
        push_back(state.order, state.scope_of[key], key)

    @staticmethod
    def remove(state: FifoState, key: int) -> None:
        """Forget it."""
        unlink(state.order, key)

    @staticmethod
    def victim(state: FifoState, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Oldest insertion that is not protected."""
        return first_free(state.order, scope, guard, tick)
