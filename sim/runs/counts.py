"""What a replay counted: look-ups and hits by phase, and what a reader must know before believing them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.policies.protocol import AdmissionPolicy, EvictionPolicy, Pool
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace

if TYPE_CHECKING:
    import pandas as pd

    from expert_residency.sim.kernel.counts.replay import ReplayKernel

IntArray = npt.NDArray[np.integer[Any]]


@dataclass
class Counters:
    """Look-ups and what became of them, over some passes.

    *distinct* counts each expert once an event, *routed* once a row that wants it.
    """

    distinct: int = 0
    distinct_hits: int = 0
    routed: int = 0
    routed_hits: int = 0
    compulsory: int = 0
    """Distinct misses on experts never wanted before (and not placed at the start)."""
    miss_bytes: int = 0
    passes: int = 0

    @classmethod
    def of(cls, sums: IntArray, passes: int) -> Counters:
        """From the first six in their order."""
        return cls(*[int(n) for n in sums], passes)  # type: ignore[call-arg]

    @property
    def hit_rate(self) -> float | None:
        """Hits over distinct look-ups, None without look-ups."""
        return self.distinct_hits / self.distinct if self.distinct else None

    @property
    def routed_hit_rate(self) -> float | None:
        """Hits over routed rows, None without rows."""
        return self.routed_hits / self.routed if self.routed else None

    def to_dict(self) -> dict[str, Any]:
        """Plain form with both rates."""
        return vars(self) | {
            "misses": self.distinct - self.distinct_hits,
            "hit_rate_distinct": self.hit_rate,
            "hit_rate_routed": self.routed_hit_rate,
        }


@dataclass
class ReplayResult:
    """What one replay counted. `phases` has `all` and each phase that occurs; `warm` leaves a warm-up out."""

    policy: str
    admission: str
    contract: str
    capacity_bytes: int
    scope: str
    phases: dict[str, Counters]
    warm: Counters
    evictions: int
    admitted_bytes: int
    placed: int
    waves: int
    """Extra waves: how many times an event had to be split because it did not fit."""
    hits: npt.NDArray[np.uint8]
    """(look-ups,) 1 for a hit, in the trace's order."""
    simulator: str = "reference"
    """`reference` or `kernel`: which ran. The numbers are the same."""
    warnings: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    """What the counts stand on, as `sim.choices.caveats` finds it: `kind: text`."""

    def frame(self) -> pd.DataFrame:
        """One row a phase, with `all` and `warm`: look-ups, hits, rates, `miss_bytes`."""
        import pandas as pd

        counters = self.phases | {"warm": self.warm}
        frame = pd.DataFrame([c.to_dict() for c in counters.values()], index=list(counters))
        frame.index.name = "phase"
        return frame

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-able form without the per-look-up array."""
        plain = {k: v for k, v in vars(self).items() if k not in ("hits", "phases", "warm")}
        return plain | {
            "phases": {name: c.to_dict() for name, c in self.phases.items()},
            "warm": self.warm.to_dict(),
        }


@dataclass
class Counted:
    """What one run counted, whoever ran it."""

    hits: npt.NDArray[Any]
    phases: dict[str, Counters]
    warm: Counters
    evictions: int
    admitted_bytes: int
    waves: int
    placed: int
    simulator: str


def phase_passes(trace: RoutingTrace, warmup_passes: int) -> IntArray:
    """(2, phases) passes with events by phase, of the warm-up and after it."""
    late = np.arange(trace.n_passes) >= warmup_passes
    present = np.bincount(trace.event_pass, minlength=trace.n_passes) > 0
    code = late[present] * len(Phase) + trace.pass_phase[present]
    return np.bincount(code, minlength=2 * len(Phase)).reshape(2, -1)


def counted(kernel: ReplayKernel, passes: IntArray, hits: npt.NDArray[Any], placed: int) -> Counted:
    """What a kernel has counted, over these passes.

    Parameters
    ----------
    kernel
        After the run.
    passes
        (2, phases) passes by warm-up or not, and phase.
    hits
        (look-ups,) 1 for a hit.
    placed
        Experts resident at the start.

    Returns
    -------
    Counted
        Counters by phase.
    """
    from expert_residency.sim.kernel.counts.loop import ADMITTED_BYTES, EVICTIONS, WAVES

    counts = kernel.counters.reshape(*passes.shape, -1)
    phases = {"all": Counters.of(counts.sum(axis=(0, 1)), int(passes.sum()))}
    for value in Phase:
        sums = counts[:, value].sum(axis=0)
        if sums[0]:
            phases[value.name.lower()] = Counters.of(sums, int(passes[:, value].sum()))
    warm = Counters.of(counts[1].sum(axis=0), int(passes[1].sum()))
    totals = kernel.totals
    return Counted(
        hits, phases, warm, int(totals[EVICTIONS]), int(totals[ADMITTED_BYTES]), int(totals[WAVES]), placed,
        "kernel",
    )  # fmt: skip


def result_of(
    run: Counted, eviction: EvictionPolicy, admission: AdmissionPolicy, pool: Pool, geometry: ModelGeometry,
    scope: str, contract: str,
) -> ReplayResult:  # fmt: skip
    """What one run counted, with what a reader must know.

    Parameters
    ----------
    run
        What was counted.
    eviction, admission
        The policies.
    pool
        Sizes and capacities in bytes.
    geometry
        The model.
    scope
        `global` or `layer`.
    contract
        `event`, `sequential` or `sequential-descending`.

    Returns
    -------
    ReplayResult
        The result with its warnings.
    """
    result = ReplayResult(
        policy=eviction.name,
        admission=admission.name,
        contract=contract,
        capacity_bytes=sum(pool.capacity),
        scope=scope,
        phases=run.phases,
        warm=run.warm,
        evictions=run.evictions,
        admitted_bytes=run.admitted_bytes,
        placed=run.placed,
        waves=run.waves,
        hits=run.hits,
        simulator=run.simulator,
    )
    result.warnings = _warnings(geometry, result)
    return result


def count(
    trace: RoutingTrace,
    hits: npt.NDArray[np.uint8],
    compulsory: npt.NDArray[np.uint8],
    chosen: npt.NDArray[np.bool_],
    event: npt.NDArray[Any],
) -> Counters:
    """Counters of the look-ups that `chosen` marks; `event` is the event of each look-up.

    Parameters
    ----------
    trace
        The trace.
    hits
        (look-ups,) 1 for a hit.
    compulsory
        (look-ups,) 1 for a first use of what was not placed.
    chosen
        (look-ups,) which of them count.
    event
        (look-ups,) event of each.

    Returns
    -------
    Counters
        The counters.
    """
    rows = trace.rows_wanting
    size = np.asarray(trace.geometry.expert_bytes, dtype=np.int64)[trace.event_layer[event]]
    hit = hits.astype(bool) & chosen
    return Counters(
        distinct=int(chosen.sum()),
        distinct_hits=int(hit.sum()),
        routed=int(rows[chosen].sum()),
        routed_hits=int(rows[hit].sum()),
        compulsory=int(compulsory[chosen].sum()),
        miss_bytes=int(size[chosen & ~hits.astype(bool)].sum()),
        passes=len(np.unique(trace.event_pass[event[chosen]])) if chosen.any() else 0,
    )


def apart(nbytes: int, other: int) -> str:
    """Bytes in MiB, with as many digits as it takes to be told from another number."""
    digits = next((d for d in range(7) if f"{nbytes / 2**20:.{d}f}" != f"{other / 2**20:.{d}f}"), 7)
    return f"{nbytes / 2**20:.{digits}f} MiB" if digits < 7 else f"{nbytes} bytes"


def _warnings(geometry: ModelGeometry, result: ReplayResult) -> list[str]:
    """What a reader must know before believing the numbers."""
    found = []
    turned_away = (
        result.phases["all"].miss_bytes - result.admitted_bytes
    )  # as `min` does, which evicts nobody then
    if result.evictions == 0 and result.policy != "static" and result.admitted_bytes and turned_away <= 0:
        found.append(f"policy {result.policy} was never exercised: nothing had to leave, so all policies tie")
    cycle = geometry.token_cycle_bytes
    if result.scope == "global" and result.capacity_bytes < cycle:
        plain = (result.policy, result.admission) == ("lru", "always") and not result.hits.any()
        found.append(
            f"capacity {apart(result.capacity_bytes, cycle)} is below one token's experts "
            f"({apart(cycle, result.capacity_bytes)}){': a global LRU then hits exactly 0 %' if plain else ''}"
        )
    if result.waves:
        found.append(f"{result.waves} extra waves: some events want more than their scope holds")
    return found
