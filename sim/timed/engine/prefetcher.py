"""A prefetcher's proposals in time: which become copies, where these go, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expert_residency.policies.protocol import Event, Lists, PrefetchPolicy
from expert_residency.sim.choices.prefetch_rule import Insertion
from expert_residency.sim.residency.laws import AHEAD_NO_KEY, TOO_MANY_AHEAD, policy_fault
from expert_residency.sim.timed.channels import ADAPT, PREFETCH, Batch
from expert_residency.sim.timed.channels.copy_engine import COPYING, DONE, QUEUED
from expert_residency.sim.timed.engine.slots import Slots
from expert_residency.sim.timed.engine.transfers import Transfers
from expert_residency.sim.timed.host import PAGE_CACHE


class Prefetcher:
    """Proposals of one policy under one insertion rule.

    Parameters
    ----------
    policy, state
        The prefetch policy and its state.
    slots, transfers
        Where copies go and how.
    rule
        Insertion rule.
    budget_bytes
        Most bytes asked for in one pass; None for no limit.
    layers
        MoE layers, the default reach of `guarded`.
    slot_landed
        Called when a copy into a slot has landed or was dropped.
    """

    def __init__(
        self,
        policy: PrefetchPolicy,
        state: Any,
        slots: Slots,
        transfers: Transfers,
        rule: Insertion,
        budget_bytes: int | None,
        layers: int,
        slot_landed: Callable[[Batch, int], None],
    ) -> None:
        self.policy = policy
        self.state = state
        self.slots = slots
        self.transfers = transfers
        self.rule = rule.rule
        self.reach = (rule.amount or layers) if rule.rule == "guarded" else 0
        self.budget_bytes = budget_bytes
        self.spent_bytes = 0
        """Asked for in this pass."""
        self._slot_landed = slot_landed
        self.frames = rule.staging_slots
        self.staged: list[dict[int, Batch]] = [{} for _ in transfers.h2d]
        """Of each card the ring's experts, oldest first."""
        pool = slots.cache.pool
        self._stuck: dict[int, int] = {}
        """Scopes in which nobody could leave any more during this call, with the size that did not fit."""
        self._keys = Lists.ints(pool.keys)
        self._deadlines = Lists.ints(pool.keys)

    def propose(self, event: Event, tick: int) -> None:
        """Ask the policy, and send the copies that find room; residents that it wants are protected."""
        cache, stats = self.slots.cache, self.slots.stats
        self._stuck.clear()
        n = self.policy.propose(self.state, event, self._keys, self._deadlines)
        if not 0 <= n <= cache.pool.keys:
            raise policy_fault(TOO_MANY_AHEAD, "prefetch", self.policy.name, n, cache.pool.experts)
        stats.proposed += n
        for i in range(n):
            key, deadline = self._keys[i], self._deadlines[i]
            if not 0 <= key < cache.pool.keys:
                raise policy_fault(AHEAD_NO_KEY, "prefetch", self.policy.name, key, cache.pool.experts)
            if cache.resident[key]:
                if cache.guard[key] < deadline:
                    cache.guard[key] = deadline
            elif self.frames and (batch := self.staged[self.transfers.card_of[key]].get(key)) is not None:
                batch.deadline = max(batch.deadline, deadline)
            elif self.rule == "pages":
                self._warm(key)
            elif self.budget_bytes is not None and self.spent_bytes + self.slots.sizes[key] > self.budget_bytes:
                stats.over_budget += 1
            elif self._room(key, tick):
                self._copy(key, deadline)
            else:
                stats.refused += 1

    def _warm(self, key: int) -> None:
        """Read pages of `key` ahead, unless the drive has other things to do."""
        if self.transfers.disk.active:
            return
        nbytes = self.transfers.host.warm(key)
        if nbytes:
            stats, size = self.slots.stats, self.slots.sizes[key]
            if self.transfers.ahead_read[key]:  # they were read before, and have left the page cache
                stats.wasted_copy(size, self.transfers.settled(key))
            stats.ask(size)
            stats.ask_drive(nbytes)
            self.transfers.ahead_read[key] = nbytes

    def looked_up(self, keys: list[int], sources: list[int]) -> None:
        """An event misses experts, which lie there now: pages that were asked for ahead have come, or not."""
        stats, sizes, transfers = self.slots.stats, self.slots.sizes, self.transfers
        for key, source in zip(keys, sources, strict=True):
            if not transfers.ahead_read[key]:
                continue
            if source == PAGE_CACHE:
                stats.useful_copy(sizes[key], transfers.settled(key))
            elif transfers.host.is_reading(key):
                stats.late_copy(sizes[key], transfers.settled(key))
            else:
                stats.wasted_copy(sizes[key], transfers.settled(key))

    def _room(self, key: int, tick: int) -> bool:
        """Make room for `key` as the rule has it; `tick`: whose members at least are protected."""
        if self.frames:
            ring = self.staged[self.transfers.card_of[key]]
            return len(ring) < self.frames or self._reclaim(ring, tick)
        cache = self.slots.cache
        scope, size = cache.pool.scope_of[key], cache.pool.size_of[key]
        if size >= self._stuck.get(scope, size + 1):
            return False
        if self.rule == "never-evict" and cache.used[scope] + size > cache.pool.capacity[scope]:
            return False
        admitted = self.slots.admit_ahead(key, tick - self.reach)
        if cache.stuck:
            self._stuck[scope] = size
        return admitted

    def _reclaim(self, ring: dict[int, Batch], tick: int) -> bool:
        """Free the oldest buffer whose expert's time has passed, or whose copy can still be dropped then."""
        for key, batch in ring.items():
            if batch.deadline < tick and batch.state != COPYING:
                if not self.transfers.h2d[self.transfers.card_of[key]].cancel(batch):
                    self._discard(ring, key)
                return True
        return False

    def _copy(self, key: int, deadline: int) -> None:
        transfers, size = self.transfers, self.slots.sizes[key]
        self.spent_bytes += size
        self.slots.stats.ask(size)
        on_landed = self._staged_landed if self.frames else self._slot_landed
        source = transfers.host.source(key)
        batch = transfers.batch([key], source, PREFETCH, deadline, on_landed)
        if self.frames:
            self.staged[transfers.card_of[key]][key] = batch
        else:
            self.slots.prefetched(key, batch)
        transfers.submit(batch, source)

    # ---- the ring --------------------------------------------------------------------------------

    def take(self, key: int, *, waits: bool, kept: bool) -> Batch:
        """An event wants the staged `key`: its batch, taken out of the ring.

        Parameters
        ----------
        key
            The expert.
        waits
            Whether the event waits for a copy that has not landed.
        kept
            Whether it has been given a slot. If neither holds, a copy that has not begun is dropped.

        Returns
        -------
        Batch
            Its batch.
        """
        card = self.transfers.card_of[key]
        batch = self.staged[card].pop(key)
        stats, size = self.slots.stats, self.slots.sizes[key]
        if batch.state == DONE:
            stats.useful_copy(size, self.transfers.settled(key))
        elif waits or kept or not self.transfers.h2d[card].cancel(batch):
            stats.late_copy(size, self.transfers.settled(key))
            if kept and not waits:  # it is a fill now, and never stale
                self.transfers.h2d[card].promote(batch, ADAPT)
        else:
            stats.cancelled_copy(size, self.transfers.settled(key), batch.begun_bytes)
        return batch

    def close(self) -> None:
        """End of the run: staged experts and pages that nobody wanted were wasted, or not begun."""
        stats, sizes = self.slots.stats, self.slots.sizes
        for ring in self.staged:
            for key, batch in list(ring.items()):
                if batch.state <= QUEUED:
                    stats.cancelled_copy(sizes[key], self.transfers.settled(key), batch.so_far())
                else:
                    self._discard(ring, key)
        if stats.pages:
            for key, nbytes in enumerate(self.transfers.ahead_read):
                if nbytes:
                    stats.wasted_copy(sizes[key], nbytes)

    def _discard(self, ring: dict[int, Batch], key: int) -> None:
        del ring[key]
        self.slots.stats.wasted_copy(self.slots.sizes[key], self.transfers.settled(key))

    def _staged_landed(self, batch: Batch, at: int) -> None:
        key = batch.keys[0]
        ring = self.staged[self.transfers.card_of[key]]
        if at < 0:
            if ring.get(key) is batch:
                del ring[key]
                self.slots.stats.cancelled_copy(
                    self.slots.sizes[key], self.transfers.settled(key), batch.begun_bytes
                )  # fmt: skip
        elif self.slots.copy_of[key] is batch:
            self._slot_landed(batch, at)
