"""The residency of one cache: who is in, what it costs, and the order in which a policy is asked.

Both the replay and the timed engine drive this class, so that they cannot disagree on a decision.

Invariants: bytes used never exceed a scope's capacity; a protected key never leaves; an event larger than its
scope is served in waves and its own members then make room for each other. What policies answer is checked in
every run (`sim.residency.laws`), the rest by the property tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from expert_residency.errors import MisfitError, PolicyFaultError
from expert_residency.hwmodels.units import format_bytes
from expert_residency.policies.protocol import (
    AdmissionPolicy,
    Allocator,
    Event,
    EvictionPolicy,
    Future,
    Lists,
    PlacementPolicy,
    Pool,
)
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.laws import (
    SWAP_NO_KEY,
    TOO_MANY,
    TOO_MANY_SWAPS,
    fault_of,
    miss_fault,
    ranked_by,
    swap_fault,
    swap_key,
    swap_keys_fault,
    victim_fault,
)
from expert_residency.traces import ModelGeometry

LISTS = Lists()


def make_pool(geometry: ModelGeometry, capacity: Capacity, layer_card: Sequence[int] | None = None) -> Pool:
    """The policy's view of the caches of all cards (one card unless `layer_card` says otherwise).

    Parameters
    ----------
    geometry
        The model.
    capacity
        Bytes or slots, with quotas worked out.
    layer_card
        (layers,) card of each layer.

    Returns
    -------
    Pool
        Sizes and capacities in bytes.

    Raises
    ------
    SimError
        Capacities that do not match cards or layers.
    """
    layer_card = layer_card or (0,) * geometry.n_layers
    room = capacity.per_scope(geometry, layer_card)
    scope_of_layer = list(range(geometry.n_layers)) if capacity.scope == "layer" else list(layer_card)
    largest = [0] * len(room)
    for layer, scope in enumerate(scope_of_layer):
        largest[scope] = max(largest[scope], geometry.expert_bytes[layer])
    return Pool(
        keys=geometry.n_experts,
        layers=geometry.n_layers,
        experts=geometry.experts,
        top_k=geometry.top_k,
        scopes=len(room),
        scope_of=[scope for scope in scope_of_layer for _ in range(geometry.experts)],
        size_of=[size for size in geometry.expert_bytes for _ in range(geometry.experts)],
        capacity=room,
        slots=[max(1, bytes_ // max(1, size)) for bytes_, size in zip(room, largest, strict=True)],
    )


def check_room(pool: Pool, *, none: bool = False) -> None:
    """Refuse a cache with a scope that cannot hold even the smallest of its experts.

    Parameters
    ----------
    pool
        Sizes and capacities.
    none
        A scope of exactly 0 bytes is meant: no cache there, and every look-up is a miss.

    Raises
    ------
    MisfitError
        Naming the room and the expert.
    """
    smallest: dict[int, int] = {}
    for scope, size in zip(pool.scope_of, pool.size_of, strict=True):
        smallest[scope] = min(size, smallest.get(scope, size))
    for scope, size in sorted(smallest.items()):
        room = pool.capacity[scope]
        if room < size and not (none and room == 0):
            share = "" if pool.scopes == 1 else f" for part {scope + 1} of {pool.scopes} of the cache"
            what = f"room of {format_bytes(room)}{share}: one expert takes {format_bytes(size)}"
            raise MisfitError(what, lacks="room")


def fitting(pool: Pool, ranked: Iterable[int], room_bytes: Sequence[int]) -> list[int]:
    """Keys that fit, taken in rank order: one that is too large is passed over.

    Parameters
    ----------
    pool
        Scope and size of each key.
    ranked
        Keys, hottest first; one that is named again counts once.
    room_bytes
        (scopes,) bytes that are free.

    Returns
    -------
    list[int]
        Those that fit, in rank order.
    """
    left, chosen = list(room_bytes), []
    for key in dict.fromkeys(ranked):
        scope, size = pool.scope_of[key], pool.size_of[key]
        if size <= left[scope]:
            left[scope] -= size
            chosen.append(key)
    return chosen


class CachePool:
    """Residents of one cache under an eviction and an admission policy.

    Parameters
    ----------
    pool
        Sizes and capacities.
    eviction, admission
        The policies; their state lives here.
    future
        Given to a policy only if it declares that it needs it.
    overflow
        An event larger than its scope stays whole until the next one, over the capacity, as some replay tools
        have it; by default it is served in waves and the capacity holds.
    alloc
        Makes the sequences of the policies' states.
    """

    def __init__(
        self,
        pool: Pool,
        eviction: EvictionPolicy,
        admission: AdmissionPolicy,
        future: Future | None = None,
        *,
        overflow: bool = False,
        alloc: Allocator = LISTS,
    ) -> None:
        self.pool = pool
        self.eviction = eviction
        self.admission = admission
        self.overflow = overflow
        self.state = eviction.start(pool, alloc, future if eviction.needs_future else None)
        self.admission_state = admission.start(pool, alloc)
        self.resident = [0] * pool.keys
        self.used = [0] * pool.scopes
        self.guard = [-1] * pool.keys
        self.evictions = 0
        self.evicted: list[int] = []
        """Keys that left in the last call of `admit`."""
        self.stuck = False
        """Whether the last call of `admit` failed because every resident was protected, whoever came."""
        self._learn = eviction.learn
        self._victim = eviction.victim
        self._misses = [0] * pool.keys
        self._let_in = [-1] * pool.keys
        """Event of which each position was let in last."""

    def place(self, ranked: Iterable[int]) -> list[int]:
        """Fill empty room with keys in rank order, hottest first; returns those that fit."""
        room = [c - u for c, u in zip(self.pool.capacity, self.used, strict=True)]
        chosen = fitting(self.pool, (key for key in ranked if not self.resident[key]), room)
        for key in reversed(chosen):  # the hottest comes in last, so that recency agrees with rank
            self._insert(key)
        return chosen

    def lookup(self, index: int, keys: list[int]) -> list[int]:
        """Residency of each member before the event; members are protected from now on."""
        resident, guard = self.resident, self.guard
        for key in keys:
            if guard[key] < index:
                guard[key] = index
        return [resident[key] for key in keys]

    def learn(self, event: Event) -> list[int]:
        """Show the event to the policies; returns the misses to admit, as positions in `event.keys`."""
        self._learn(self.state, event)
        misses = self._misses
        n = 0
        for i, hit in enumerate(event.hits):
            if not hit:
                misses[n] = i
                n += 1
        self.admission.learn(self.admission_state, event)
        chosen = self.admission.select(self.admission_state, event, misses, n)
        if not 0 <= chosen <= n:
            raise self._fault(TOO_MANY, chosen)
        for position in misses[:chosen]:
            if fault := miss_fault(position, event.hits, self._let_in, event.number):
                raise self._fault(fault, position)
        return misses[:chosen]

    def admit(self, key: int, index: int, *, forced: bool = True) -> bool:
        """Make room for `key` and insert it; False if it is turned away. `evicted` lists who left.

        With `forced` the event's own members may make room when nothing else is left (a new wave).

        Parameters
        ----------
        key
            An expert that is not resident.
        index
            Running number of the event.
        forced
            Whether members of the event may leave when nothing else is left.

        Returns
        -------
        bool
            Whether it is resident now.
        """
        pool = self.pool
        self.evicted = []
        self.stuck = False
        scope, size = pool.scope_of[key], pool.size_of[key]
        capacity = pool.capacity[scope]
        if size > capacity and not self.overflow:
            return False
        tick = index + 1 if self.eviction.may_evict_members else index
        while self.used[scope] + size > capacity:
            allowed = tick
            victim = self._victim(self.state, scope, key, self.guard, tick)
            if victim < 0:
                if self.overflow:
                    break
                if not forced:
                    self.stuck = True
                    return False
                allowed = index + 1
                victim = self._victim(self.state, scope, key, self.guard, allowed)
            if victim < 0 or victim == key:
                return False
            self._check_victim(victim, scope, allowed)
            if not self.admission.accepts(self.admission_state, key, victim):
                return False
            self._remove(victim)
            self.evicted.append(victim)
        self._insert(key)
        return True

    def trim(self, scope: int, index: int) -> None:
        """With `overflow`: evict until `scope` fits again, members of event `index` excepted."""
        while self.used[scope] > self.pool.capacity[scope]:
            victim = self._victim(self.state, scope, -1, self.guard, index)
            if victim < 0:
                break
            self._check_victim(victim, scope, index)
            self._remove(victim)

    def adapt(self, pass_index: int, newcomers: list[int], victims: list[int]) -> int:
        """Ask a periodic policy for its swaps after pass `pass_index`; returns how many it wrote down.

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

        Raises
        ------
        PolicyFaultError
            More swaps than experts, or one with what is no expert.
        """
        n = self.admission.pass_done(self.admission_state, pass_index, self.resident, newcomers, victims)
        if not 0 <= n <= len(newcomers):
            raise self._fault(TOO_MANY_SWAPS, n)
        if place := swap_keys_fault(newcomers, victims, n, self.pool.keys):
            raise self._fault(SWAP_NO_KEY, newcomers[place - 1] if place > 0 else victims[-place - 1])
        return n

    def swap(self, newcomer: int, victim: int) -> None:
        """Give `newcomer` the slot of `victim` (-1: a free one), as a periodic policy asks."""
        pool = self.pool
        freed = pool.size_of[victim] if victim >= 0 else 0
        if fault := swap_fault(
            newcomer, victim, self.resident, pool.scope_of, pool.size_of[newcomer], freed, self.used, pool.capacity
        ):  # fmt: skip
            raise self._fault(fault, swap_key(fault, newcomer, victim))
        if victim >= 0:
            self._remove(victim)
        self._insert(newcomer)

    def drop(self, key: int) -> None:
        """Take a resident out whatever the policy thinks: a copy that was cancelled, so no eviction."""
        self._remove(key)
        self.evictions -= 1

    def _check_victim(self, victim: int, scope: int, tick: int) -> None:
        fault = victim_fault(victim, scope, self.resident, self.pool.scope_of, self.guard, tick)
        if fault:
            raise self._fault(fault, victim)

    def _fault(self, fault: int, key: int) -> PolicyFaultError:
        return fault_of(fault, (self.eviction, self.admission, None), key, self.pool.experts)

    def _insert(self, key: int) -> None:
        self.resident[key] = 1
        self.used[self.pool.scope_of[key]] += self.pool.size_of[key]
        self.eviction.insert(self.state, key)

    def _remove(self, key: int) -> None:
        self.resident[key] = 0
        self.used[self.pool.scope_of[key]] -= self.pool.size_of[key]
        self.evictions += 1
        self.eviction.remove(self.state, key)


def start_placement(pool: CachePool, placement: PlacementPolicy, future: Future | None) -> list[int]:
    """Fill the cache as the placement says; returns the keys placed.

    Parameters
    ----------
    pool
        An empty cache.
    placement
        The initial placement.
    future
        What comes, for placements that need it.

    Returns
    -------
    list[int]
        Keys, hottest first.
    """
    return pool.place(ranked_by(placement, pool.pool, future))
