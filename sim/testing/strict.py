"""Sequences that hold a policy to what compiled code takes for granted: indices and promised ranges."""

from __future__ import annotations

from typing import Any, SupportsIndex

from expert_residency.policies.protocol import AdmissionPolicy, Event, EvictionPolicy, Future, Ints, Pool
from expert_residency.sim.residency.pool import CachePool


class Strict(list[Any]):
    """A list that takes no negative index and, with `most`, no value outside -1 to `most`."""

    most: int | None = None

    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, slice):
            _check(at)
        return super().__getitem__(at)

    def __setitem__(self, at: Any, value: Any) -> None:
        _check(at)
        if self.most is not None:
            assert -1 <= value <= self.most, f"{value} in a sequence that promised -1 to {self.most}"
        super().__setitem__(at, value)


def _check(at: SupportsIndex) -> None:
    assert at.__index__() >= 0, f"index {at}: compiled code does not count from the end"


class StrictLists:
    """The allocator of strict lists."""

    @staticmethod
    def ints(n: int, fill: int = 0, most: int | None = None) -> Ints:
        """`n` integers, all `fill`.

        Parameters
        ----------
        n
            Length.
        fill
            First value of every entry.
        most
            Promised upper limit, which every write is held to.

        Returns
        -------
        Ints
            (n,) integers.
        """
        made = Strict([fill] * n)
        made.most = most
        return made

    @staticmethod
    def floats(n: int, fill: float = 0.0) -> Any:
        """`n` floats, all `fill`."""
        return Strict([fill] * n)


def strict(state: Any) -> Any:
    """The same named tuple with strict lists."""
    return type(state)(*(Strict(part) if isinstance(part, list) else part for part in state))


class StrictPool(CachePool):
    """`CachePool` whose policies see strict lists only."""

    def __init__(
        self, pool: Pool, eviction: EvictionPolicy, admission: AdmissionPolicy, future: Future | None = None
    ) -> None:
        super().__init__(pool, eviction, admission, future)
        seen: Pool = strict(pool)
        oracle: Future | None = strict(future) if future is not None else None
        self.state = eviction.start(seen, StrictLists, oracle if eviction.needs_future else None)
        self.admission_state = admission.start(seen, StrictLists)
        self.guard = Strict(self.guard)
        self.resident = Strict(self.resident)

    def learn(self, event: Event) -> list[int]:
        """As `CachePool.learn`."""
        return super().learn(strict(event))
