"""A cache that checks every step that policies make it take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from expert_residency.policies.protocol import AdmissionPolicy, Event, EvictionPolicy, PlacementPolicy
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.future import make_future
from expert_residency.sim.residency.pool import CachePool, make_pool, start_placement
from expert_residency.traces import RoutingTrace


class WatchedPool(CachePool):
    """`CachePool` with its laws asserted at every call.

    Raises
    ------
    AssertionError
        A scope over its capacity; a victim that is not resident, of another scope, or protected; a member of the
        current event that left while it fits; bytes that do not add up.
    """

    tick = -1
    """Event whose members are protected."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._asked = self._victim
        self._victim = self._watched_victim
        self._wanted: list[int] = []
        self.departures: list[int] = []
        """Keys that left, in order."""

    def lookup(self, index: int, keys: list[int]) -> list[int]:
        """Remember who must stay."""
        self.tick = index
        self._wanted = keys
        return super().lookup(index, keys)

    def adapt(self, pass_index: int, newcomers: list[int], victims: list[int]) -> int:
        """The pass is over: nobody must stay.

        Parameters
        ----------
        pass_index
            Number of the pass that ended.
        newcomers
            (keys,) written: keys that get a slot.
        victims
            (keys,) written: the key that leaves for each, or -1.

        Returns
        -------
        int
            How many swaps were written.
        """
        self._wanted = []
        return super().adapt(pass_index, newcomers, victims)

    def _watched_victim(self, state: Any, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        before = list(guard)
        victim = self._asked(state, scope, incoming, guard, tick)
        name = self.eviction.name
        assert list(guard) == before, f"{name}: victim() wrote into guard"
        if victim in (-1, incoming):
            free = [
                k for k, r in enumerate(self.resident) if r and self.pool.scope_of[k] == scope and guard[k] < tick
            ]
            assert victim == incoming or not free, f"{name}: found nobody to evict, but {free} may leave"
            return victim
        assert 0 <= victim < self.pool.keys, f"{name}: victim {victim} is no key"
        assert self.resident[victim], f"{name}: victim {victim} is not resident"
        assert self.pool.scope_of[victim] == scope, f"{name}: victim {victim} is of another scope than {scope}"
        assert guard[victim] < tick, f"{name}: victim {victim} is protected"
        return victim

    def _insert(self, key: int) -> None:
        assert not self.resident[key], f"{key} was inserted twice"
        super()._insert(key)
        self.check()

    def _remove(self, key: int) -> None:
        assert self.resident[key], f"{key} was removed without being there"
        scope = self.pool.scope_of[key]
        if self.guard[key] >= self.tick and key in self._wanted and not self.eviction.may_evict_members:
            needed = sum(self.pool.size_of[k] for k in self._wanted)
            assert needed > self.pool.capacity[scope], f"{self.eviction.name}: member {key} left its own event"
        super()._remove(key)
        self.departures.append(key)
        self.check()

    def check(self) -> None:
        """Bytes add up and fit."""
        used = [0] * self.pool.scopes
        for key, here in enumerate(self.resident):
            used[self.pool.scope_of[key]] += here * self.pool.size_of[key]
        assert used == self.used, f"bytes used are {self.used}, but residents have {used}"
        for scope, (nbytes, room) in enumerate(zip(used, self.pool.capacity, strict=True)):
            assert self.overflow or nbytes <= room, f"scope {scope} holds {nbytes} bytes in {room}"


def visited_pool(seed: int) -> type[WatchedPool]:
    """A watched cache in which before each event up to three experts that nobody wanted come or go."""
    rng = random.Random(seed)

    class VisitedPool(WatchedPool):
        def lookup(self, index: int, keys: list[int]) -> list[int]:
            self._wanted = []
            for key in rng.sample(range(self.pool.keys), min(3, self.pool.keys)):
                if self.resident[key]:
                    self.drop(key)
                else:
                    self.admit(key, index, forced=False)
            return super().lookup(index, keys)

    return VisitedPool


def replay_watched(
    trace: RoutingTrace,
    eviction: EvictionPolicy,
    admission: AdmissionPolicy,
    capacity: Capacity,
    *,
    placement: PlacementPolicy | None = None,
    pool_type: type[CachePool] = WatchedPool,
) -> tuple[list[int], CachePool]:
    """Event-atomic replay, step by step; returns the hits and the cache at the end.

    Parameters
    ----------
    trace
        What is replayed.
    eviction, admission
        The policies.
    capacity
        Cache capacity.
    placement
        Initial placement; an empty cache if None.
    pool_type
        The cache, which checks each step.

    Returns
    -------
    tuple[list[int], CachePool]
        (look-ups,) 1 for a hit, and the cache.
    """
    pool = make_pool(trace.geometry, capacity)
    future = make_future(trace)
    cache = pool_type(pool, eviction, admission, future)
    if placement is not None:
        start_placement(cache, placement, future)
    hits_of: list[int] = []
    offsets, keys, rows = trace.event_offsets.tolist(), trace.keys.tolist(), trace.rows_wanting.tolist()
    newcomers, victims = [0] * pool.keys, [0] * pool.keys
    for number in range(trace.n_events):
        lo, hi = offsets[number], offsets[number + 1]
        wanted = keys[lo:hi]
        hits = cache.lookup(number, wanted)
        hits_of += hits
        passing = int(trace.event_pass[number])
        event = Event(
            number, passing, int(trace.event_layer[number]), lo, wanted, rows[lo:hi], hits,
            int(trace.pass_phase[passing]), int(trace.pass_request[passing]),
        )  # fmt: skip
        for position in cache.learn(event):
            cache.admit(wanted[position], number)
        if admission.periodic and (number + 1 == trace.n_events or trace.event_pass[number + 1] != passing):
            for i in range(cache.adapt(passing, newcomers, victims)):
                cache.swap(newcomers[i], victims[i])
    return hits_of, cache
