"""The cache under any order of calls: look-ups, admissions, prefetches, cancelled copies, swaps."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from expert_residency.policies import available, create
from expert_residency.policies.admission.always import Always
from expert_residency.policies.protocol import Event
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.testing import WatchedPool
from expert_residency.sim.testing.strategies import capacities, geometries

CAUSAL = [name for name in available("eviction") if not create("eviction", name).needs_future]


class PoolMachine(RuleBasedStateMachine):
    """A model of the residents beside the cache; every step of the cache asserts its own laws as well."""

    @initialize(data=st.data(), spec=st.sampled_from(CAUSAL))
    def begin(self, data, spec):
        geometry = data.draw(geometries())
        self.geometry = geometry
        self.pool = make_pool(geometry, data.draw(capacities(geometry)))
        self.cache = WatchedPool(self.pool, create("eviction", spec), Always())
        self.residents: set[int] = set()
        self.number = -1
        self.look_ups = 0

    def _settle(self) -> None:
        self.residents = {key for key, here in enumerate(self.cache.resident) if here}

    @rule(data=st.data())
    def event(self, data):
        """A whole event: classified by the residency before it, then learned, then admitted."""
        layer = data.draw(st.integers(0, self.geometry.n_layers - 1))
        experts = data.draw(st.sets(st.integers(0, self.geometry.experts - 1), min_size=1))
        keys = [layer * self.geometry.experts + expert for expert in data.draw(st.permutations(sorted(experts)))]
        self.number += 1
        hits = self.cache.lookup(self.number, keys)
        assert hits == [int(key in self.residents) for key in keys]
        event = Event(self.number, self.number, layer, self.look_ups, keys, [1] * len(keys), hits)
        self.look_ups += len(keys)
        for position in self.cache.learn(event):
            key = keys[position]
            admitted = self.cache.admit(key, self.number)
            assert admitted == bool(self.cache.resident[key])
        self._settle()

    @rule(data=st.data())
    @precondition(lambda self: len(self.residents) < self.geometry.n_experts)
    def prefetch(self, data):
        """A prefetch may displace, but never a member of the current event."""
        absent = sorted(set(range(self.pool.keys)) - self.residents)
        key = data.draw(st.sampled_from(absent))
        admitted = self.cache.admit(key, max(self.number, 0), forced=False)
        before = self.residents
        self._settle()
        assert self.residents - before == ({key} if admitted else set())
        assert before - self.residents <= set(self.cache.evicted)

    @rule(data=st.data())
    @precondition(lambda self: self.residents)
    def cancel(self, data):
        key = data.draw(st.sampled_from(sorted(self.residents)))
        self.cache._wanted = []
        self.cache.drop(key)
        self._settle()
        assert key not in self.residents

    @rule(data=st.data())
    @precondition(lambda self: self.residents)
    def swap(self, data):
        """A periodic policy's exchange within a layer."""
        victim = data.draw(st.sampled_from(sorted(self.residents)))
        first = victim // self.geometry.experts * self.geometry.experts
        others = [key for key in range(first, first + self.geometry.experts) if key not in self.residents]
        if others:
            newcomer = data.draw(st.sampled_from(others))
            self.cache._wanted = []
            self.cache.swap(newcomer, victim)
            before = self.residents
            self._settle()
            assert self.residents == before - {victim} | {newcomer}

    @invariant()
    def bytes_fit(self):
        if hasattr(self, "cache"):
            self.cache.check()


TestPool = PoolMachine.TestCase
TestPool.settings = settings(stateful_step_count=30)
