"""Slots of the cards in time: a resident expert is ready, or its copy is under way.

The cache (`CachePool`) decides who has a slot; this class knows when the bytes are there, whom a prefetcher
brought, and what became of it. An expert whose copy is under way cannot be a victim; one that was
prefetched is protected until the event it was fetched for has passed.
"""

from __future__ import annotations

from collections.abc import Callable

from expert_residency.policies.protocol import NEVER
from expert_residency.sim.residency.pool import CachePool
from expert_residency.sim.timed.channels import Batch
from expert_residency.sim.timed.channels.copy_engine import QUEUED
from expert_residency.sim.timed.result import PrefetchStats
from expert_residency.sim.timed.watch import AHEAD, MISS, SWAP, Watch


class Slots:
    """Residents of one run.

    Parameters
    ----------
    cache
        Who has a slot.
    stats
        Accounts of prefetching.
    settled
        Gives the bytes that the drive was asked for ahead for a key, and closes their account.
    """

    def __init__(self, cache: CachePool, stats: PrefetchStats, settled: Callable[[int], int]) -> None:
        self.cache = cache
        self.sizes = cache.pool.size_of
        self.ready = list(cache.resident)
        self.copy_of: list[Batch | None] = [None] * cache.pool.keys
        self.unused = [0] * cache.pool.keys
        """1: prefetched, and no event has wanted it yet."""
        self.displaced = [0] * cache.pool.keys
        """1: left for a prefetched expert, and neither came back nor was missed since."""
        self.stats = stats
        self._settled = settled
        self.admitted_bytes = 0
        self.number = -1
        """Running number of the current event."""
        self.filling = 0
        """Slots whose copy is under way."""
        self.observer: Callable[[int], None] | None = None
        """Told `filling` whenever it changes."""
        self.watch: Watch | None = None

    def admit(self, key: int, number: int, *, forced: bool = True, why: str = MISS) -> tuple[bool, bool]:
        """Give `key` a slot for event `number`.

        Parameters
        ----------
        key
            An expert that is not resident.
        number
            Running number of the event.
        forced
            Whether members of the event may leave when nothing else is left.
        why
            What it comes for, to be told.

        Returns
        -------
        admitted, deferred
            `deferred`: a member of the event had to leave for it, so its copy must wait until that is computed.
        """
        cache = self.cache
        admitted = cache.admit(key, number, forced=forced)
        deferred = False
        for victim in cache.evicted:
            if cache.guard[victim] >= number:
                deferred = True
            self._left(victim, key, why)
        if admitted:
            self.ready[key] = 1  # a demand: landed before the event is over
            self.displaced[key] = 0
            self.admitted_bytes += self.sizes[key]
        return admitted, deferred

    def admit_ahead(self, key: int, number: int) -> bool:
        """Give a prefetched `key` a slot, without touching whoever is protected at event `number`."""
        admitted, _ = self.admit(key, number, forced=False, why=AHEAD)
        for victim in self.cache.evicted:
            self.displaced[victim] = 1
        return admitted

    def swap(self, newcomer: int, victim: int) -> None:
        """A periodic policy's exchange."""
        self.cache.swap(newcomer, victim)
        if victim >= 0:
            self._left(victim, newcomer, SWAP)
        self.admitted_bytes += self.sizes[newcomer]

    def under_way(self, key: int, batch: Batch) -> None:
        """A copy into `key`'s slot was asked for that the current event does not wait for."""
        self.ready[key] = 0
        self._copy(key, batch)
        self.cache.guard[key] = NEVER

    def landed(self, key: int, batch: Batch, number: int) -> None:
        """The copy into `key`'s slot landed during event `number`.

        Parameters
        ----------
        key
            The expert.
        batch
            Its copy.
        number
            Running number of the event.
        """
        self._copy(key, None)
        self.ready[key] = 1
        self.cache.guard[key] = max(number, batch.deadline) if self.unused[key] else number

    def copy_ended(self, batch: Batch, at: int) -> None:
        """A copy into a slot that nobody waited for at the start landed (or, with -1, was dropped)."""
        if at < 0:
            self.cancelled(batch.keys[0], batch.begun_bytes)
        else:
            self.landed(batch.keys[at], batch, self.number)

    def cancelled(self, key: int, begun_bytes: int) -> None:
        """A prefetch into `key`'s slot was dropped before it began, its read when so much of it had begun."""
        if self.unused[key]:  # else an event had wanted it: it was late
            self.stats.cancelled_copy(self.sizes[key], self._settled(key), begun_bytes)
        self._copy(key, None)
        self.unused[key] = 0
        self.cache.guard[key] = -1
        self.cache.drop(key)
        if self.watch is not None:
            self.watch.dropped(key)

    def prefetched(self, key: int, batch: Batch) -> None:
        """A prefetch was asked for and queued."""
        self.unused[key] = 1
        self.under_way(key, batch)

    def missed(self, key: int) -> None:
        """An event wants an expert that left for a prefetched one: that prefetch did harm."""
        self.displaced[key] = 0
        self.stats.polluted += 1
        self.stats.polluted_bytes += self.sizes[key]

    def wanted(self, key: int) -> None:
        """An event wants a resident expert: settle the account of its prefetch."""
        if self.unused[key]:
            self.unused[key] = 0
            self.stats.wanted += 1
            if self.ready[key]:
                self.stats.useful_copy(self.sizes[key], self._settled(key))
            else:
                self.stats.late_copy(self.sizes[key], self._settled(key))

    def close(self) -> None:
        """End of the run: prefetched experts that nobody wanted were wasted, or not begun."""
        for key, unused in enumerate(self.unused):
            if unused:
                copy = self.copy_of[key]
                if copy is not None and copy.state <= QUEUED:
                    self.stats.cancelled_copy(self.sizes[key], self._settled(key), copy.so_far())
                else:
                    self._waste(key)

    def _copy(self, key: int, batch: Batch | None) -> None:
        self.filling += (batch is not None) - (self.copy_of[key] is not None)
        self.copy_of[key] = batch
        if self.observer is not None:
            self.observer(self.filling)

    def _left(self, victim: int, newcomer: int, why: str) -> None:
        self.ready[victim] = 0
        if self.watch is not None:
            self.watch.left(victim, newcomer, why)
        if self.unused[victim]:
            self._waste(victim)

    def _waste(self, key: int) -> None:
        self.unused[key] = 0
        self.stats.wasted_copy(self.sizes[key], self._settled(key))
