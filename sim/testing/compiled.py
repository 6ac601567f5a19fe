"""A policy's functions compiled with numba, on states of arrays: the same source, the same decisions."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.policies.protocol import AdmissionPolicy, Event, EvictionPolicy, Future, Pool
from expert_residency.sim.residency.pool import CachePool


class Arrays:
    """The allocator of numpy arrays."""

    @staticmethod
    def ints(n: int, fill: int = 0, most: int | None = None) -> Any:
        """`n` integers, all `fill`.

        Parameters
        ----------
        n
            Length.
        fill
            First value of every entry.
        most
            Not used: arrays have 64 bits.

        Returns
        -------
        Any
            (n,) int64.
        """
        return np.full(n, fill, dtype=np.int64)

    @staticmethod
    def floats(n: int, fill: float = 0.0) -> Any:
        """`n` floats, all `fill`."""
        return np.full(n, fill, dtype=np.float64)


def as_arrays(value: Any) -> Any:
    """The same named tuple with its lists as arrays."""
    fields = [_array(item) if isinstance(item, list) else item for item in value]
    return type(value)(*fields)


def _array(values: list[int]) -> npt.NDArray[np.int64]:
    return np.asarray(values, dtype=np.int64)


@functools.cache
def jit(function: FunctionType) -> Any:
    """`function` compiled, with the functions of its package that it calls compiled likewise."""
    import numba

    scope = dict(function.__globals__)
    package = function.__module__.partition(".")[0]
    for name in function.__code__.co_names:
        called = scope.get(name)
        if isinstance(called, FunctionType) and called.__module__.partition(".")[0] == package:
            scope[name] = jit(called)
    return numba.njit(FunctionType(function.__code__, scope, function.__name__, function.__defaults__))


class ArrayPool(CachePool):
    """`CachePool` whose policies keep arrays, and are compiled with `compile_policies`."""

    compile_policies = False

    def __init__(
        self, pool: Pool, eviction: EvictionPolicy, admission: AdmissionPolicy, future: Future | None = None
    ) -> None:
        super().__init__(pool, eviction, admission, future)
        arrays: Pool = as_arrays(pool)
        oracle: Future | None = as_arrays(future) if future is not None else None
        self.state = eviction.start(arrays, Arrays, oracle if eviction.needs_future else None)
        self.admission_state = admission.start(arrays, Arrays)
        self.run: dict[str, Any] = {
            name: jit(function) if self.compile_policies else function
            for name, function in {
                "evict_learn": eviction.learn, "insert": eviction.insert, "remove": eviction.remove,
                "victim": eviction.victim, "learn": admission.learn, "select": admission.select,
                "accepts": admission.accepts, "pass_done": admission.pass_done,
            }.items()
        }  # fmt: skip
        self.guard_array = _array(self.guard)
        self._victim = self._find_victim

    def learn(self, event: Event) -> list[int]:
        """As `CachePool.learn`, on arrays."""
        arrays = as_arrays(event)
        self.run["evict_learn"](self.state, arrays)
        positions = _array([i for i, hit in enumerate(event.hits) if not hit])
        self.run["learn"](self.admission_state, arrays)
        chosen = self.run["select"](self.admission_state, arrays, positions, len(positions))
        return [int(i) for i in positions[:chosen]]

    def adapt(self, pass_index: int, newcomers: list[int], victims: list[int]) -> int:
        """As `CachePool.adapt`, on arrays."""
        come, go = _array(newcomers), _array(victims)
        n = int(self.run["pass_done"](self.admission_state, pass_index, _array(self.resident), come, go))
        newcomers[:n], victims[:n] = come[:n].tolist(), go[:n].tolist()
        return n

    def _find_victim(self, state: Any, scope: int, incoming: int, guard: Any, tick: int) -> int:
        victim = int(self.run["victim"](state, scope, incoming, _array(list(guard)), tick))
        if victim >= 0 and victim != incoming and not self.run["accepts"](self.admission_state, incoming, victim):
            return incoming
        return victim

    def _insert(self, key: int) -> None:
        self.resident[key] = 1
        self.used[self.pool.scope_of[key]] += self.pool.size_of[key]
        self.run["insert"](self.state, key)

    def _remove(self, key: int) -> None:
        self.resident[key] = 0
        self.used[self.pool.scope_of[key]] -= self.pool.size_of[key]
        self.evictions += 1
        self.run["remove"](self.state, key)


class CompiledPool(ArrayPool):
    """`ArrayPool` with everything compiled."""

    compile_policies = True
