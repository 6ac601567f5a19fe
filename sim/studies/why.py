"""Why a pass took so long: its time in parts that add up to it, what it waited for, and why that was not there.

The run is simulated once more by the reference engine, which is watched; watching changes nothing. The pass stands
beside the median pass of its phase.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from expert_residency.errors import SimError
from expert_residency.policies.protocol import Event
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.requests import apart
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.channels.copy_engine import CLASSES
from expert_residency.sim.timed.result import (
    ADAPT_WAIT,
    CPU_WAIT,
    DENSE,
    DISK_WAIT,
    DRAFT,
    EXPERTS,
    HANDOFF,
    OVERHEAD,
    PCIE_WAIT,
    SYNC,
    RunResult,
)
from expert_residency.sim.timed.watch import AHEAD, MISS, SWAP, Watch
from expert_residency.traces import Phase, RoutingTrace

HITS, LANDED = "experts on the card, ready", "experts on the card, just copied"
LINK, DRIVE = "waiting for copies", "waiting for the drive, then copies"
POOL, POOL_DRIVE = "waiting for the CPU", "the CPU waiting for the drive"
PARTS = {
    DENSE: "dense part, attention, head", SYNC: "ids to the host, planning, sending", HANDOFF: "hand-offs",
    OVERHEAD: "fixed work of a pass", DRAFT: "drafting", ADAPT_WAIT: "waiting for swaps", PCIE_WAIT: LINK,
    CPU_WAIT: POOL,
}  # fmt: skip
"""Causes that are one part each; two are split by what they were for."""
FOR_WHOM = {MISS: "which was missed", AHEAD: "which was prefetched", SWAP: "in a swap"}
EVICTED, DROPPED, PASSED, NEW = "evicted", "prefetch dropped", "given no slot", "first wanted here"
REASONS = (EVICTED, DROPPED, PASSED, NEW)
"""Why a missed expert was not there."""


@dataclass
class Waited:
    """Waits of one pass for one expert; `ahead` are (class, key) that stood before its copy when it began."""

    key: int
    part: str
    ns: int = 0
    ahead: Sequence[tuple[int, int]] = ()


@dataclass
class Missed:
    """An expert that a pass wanted and the card did not have ready.

    Parameters
    ----------
    key, in_flight
        The expert, and whether it had a slot and its copy was under way.
    reason, since, newcomer, why
        Why it was not there, the pass in which that came about, and for whom it left (-1: nobody).
    wanted
        Pass that wanted it last, -1 if none did.
    """

    key: int
    in_flight: bool
    reason: str
    since: int = -1
    newcomer: int = -1
    why: str = ""
    wanted: int = -1


@dataclass
class Page:
    """What is kept of one pass."""

    parts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    waits: dict[tuple[str, int], Waited] = field(default_factory=dict)
    missed: list[Missed] = field(default_factory=list)
    copied: set[int] = field(default_factory=set)
    """Experts that the card computed after a copy had landed."""
    hits: int = 0
    ns: int = 0


class Diary(Watch):
    """Keeps what happens in some passes, and of every expert why it is not there."""

    def __init__(self, passes: Sequence[int]) -> None:
        self.pages = {number: Page() for number in passes}
        self._now = 0
        self._page = self.pages.get(0)
        self._ready: set[int] = set()
        self._awaited: tuple[int, Sequence[tuple[int, int]]] | None = None
        self._gone: dict[int, tuple[str, int, int, str]] = {}
        self._wanted: dict[int, int] = {}

    def decided(self, event: Event, ready: Sequence[int], admitted: Sequence[int], now_ns: int) -> None:
        """Note hits and misses, and who was turned away.

        Parameters
        ----------
        event
            The event, with its hits.
        ready
            Keys that are ready on the card.
        admitted
            Positions of misses that may take a slot.
        now_ns
            The time.
        """
        self._ready = set(ready)
        if self._page is not None:
            self._page.hits += len(self._ready)
            self._page.missed += self._missed(event)
        taken = set(admitted)
        for i, (key, hit) in enumerate(zip(event.keys, event.hits, strict=True)):
            self._wanted[key] = event.pass_index
            if not hit and i not in taken and key not in self._ready:
                self._gone[key] = PASSED, event.pass_index, -1, ""
            elif hit or i in taken:
                self._gone.pop(key, None)

    def _missed(self, event: Event) -> Iterator[Missed]:
        for key, hit in zip(event.keys, event.hits, strict=True):
            if key not in self._ready:
                known = self._gone.get(key) or (PASSED if key in self._wanted else NEW, -1, -1, "")
                yield Missed(key, bool(hit), *known, wanted=self._wanted.get(key, -1))

    def waits_for(self, key: int, ahead: Sequence[tuple[int, int]]) -> None:
        """The time that comes next is a copy's."""
        self._awaited = key, ahead

    def spent(self, cause: int, ns: int, keys: Sequence[int]) -> None:
        """Book time under its part.

        Parameters
        ----------
        cause, ns
            One of `CAUSES` by its number, and the time.
        keys
            For whom; empty if for no expert.
        """
        page, awaited = self._page, self._awaited
        if cause == PCIE_WAIT:
            self._awaited = None
        if page is None or not ns:
            return
        if cause == EXPERTS:
            part = HITS if keys[0] in self._ready else LANDED
            page.copied.update(keys if part == LANDED else ())
        elif cause == DISK_WAIT:
            part = POOL_DRIVE if awaited is None else DRIVE
        else:
            part = PARTS[cause]
        page.parts[part] += ns
        if awaited is not None and part in (LINK, DRIVE):
            key, ahead = awaited
            page.waits.setdefault((part, key), Waited(key, part, ahead=ahead)).ns += ns

    def pass_done(self, number: int, start_ns: int, end_ns: int) -> None:
        """On to the next pass.

        Parameters
        ----------
        number
            Of the pass.
        start_ns, end_ns
            When it began and ended.
        """
        if self._page is not None:
            self._page.ns = end_ns - start_ns
        self._now = number + 1
        self._page = self.pages.get(self._now)

    def left(self, victim: int, newcomer: int, why: str) -> None:
        """Note who left, for whom.

        Parameters
        ----------
        victim, newcomer
            Who left, and for whom.
        why
            One of `MISS`, `AHEAD` and `SWAP`.
        """
        self._gone[victim] = EVICTED, self._now, newcomer, why

    def dropped(self, key: int) -> None:
        """Note a copy that never began."""
        self._gone[key] = DROPPED, self._now, -1, ""


@dataclass(frozen=True)
class Why:
    """A pass beside the median pass of its phase.

    Parameters
    ----------
    trace, spec
        What was run: of `--cold request` the request alone.
    number, median
        The pass, and the median one, as `trace` numbers them; `first` is added to name them.
    page, beside
        What is kept of both.
    result
        The watched run.
    """

    trace: RoutingTrace
    spec: RunSpec
    number: int
    median: int
    first: int
    page: Page
    beside: Page
    result: RunResult

    def name(self, key: int) -> str:
        """Layer and expert as the model numbers them."""
        layer, expert = self.trace.geometry.layer_of_key(key)
        return f"L{layer} E{expert}"

    @property
    def parts(self) -> list[tuple[str, int, int]]:
        """(part, ns of the pass, ns of the median one), the largest first; each column adds up to its pass."""
        names = sorted({*self.page.parts, *self.beside.parts}, key=lambda name: -self.page.parts.get(name, 0))
        return [(name, self.page.parts.get(name, 0), self.beside.parts.get(name, 0)) for name in names]

    @property
    def waits(self) -> list[Waited]:
        """Waits for single experts, the longest first."""
        return sorted(self.page.waits.values(), key=lambda one: (-one.ns, one.key))

    def queue(self, one: Waited) -> str:
        """What stood before its copy, in words."""
        if not one.ahead:
            return "nothing: its own time"
        counts = Counter(CLASSES[priority] for priority, _ in one.ahead)
        sizes = self.trace.geometry.expert_bytes
        nbytes = sum(sizes[key // self.trace.geometry.experts] for _, key in one.ahead)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in CLASSES if counts[kind])
        return f"{kinds} ({nbytes / 1e6:.1f} MB)"

    def reason(self, one: Missed) -> str:
        """Why it was not there, in words."""
        if one.in_flight:
            return "its copy was under way"
        last = f"; wanted in pass {one.wanted + self.first}" if one.wanted >= 0 else ""
        since = (one.since if one.since >= 0 else one.wanted) + self.first
        if one.reason == EVICTED:
            return f"left in pass {since} for {self.name(one.newcomer)}, {FOR_WHOM[one.why]}{last}"
        if one.reason == NEW:
            return "first wanted here, and not placed at the start"
        return f"{one.reason} in pass {since}"

    def served(self, one: Missed) -> str:
        """By whom it was computed."""
        return "card" if one.key in self.page.copied else "CPU"

    @property
    def sentences(self) -> list[str]:
        """What a person wants to know."""
        page, beside, phase = self.page, self.beside, Phase(int(self.trace.pass_phase[self.number])).name.lower()
        request = int(self.trace.pass_request[self.number])
        whose = f"pass {self.median + self.first}, the median {phase} pass"
        own = f"Pass {self.number + self.first} ({phase}, request {request})"
        said = [f"{own} takes {page.ns / 1e6:.3f} ms; {whose}, {beside.ns / 1e6:.3f} ms."]
        more = sorted(((ns - usual, part) for part, ns, usual in self.parts), reverse=True)
        if page.ns > beside.ns:
            most = [f"{part} {ns / 1e6:+.3f} ms" for ns, part in more[:3] if ns > 0]
            said.append(f"It has more of: {'; '.join(most)}.")
        missed, usual = len(page.missed), len(beside.missed)
        said.append(f"Of {page.hits + missed:,} experts it missed {missed:,}, the median pass {usual:,}.")
        if missed:
            counts = Counter("on their way" if one.in_flight else one.reason for one in page.missed)
            said[-1] = (
                said[-1][:-1] + ": " + ", ".join(f"{n} {reason}" for reason, n in counts.most_common()) + "."
            )
        return said

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "pass": self.number + self.first, "median_pass": self.median + self.first, "ns": self.page.ns,
            "median_ns": self.beside.ns, "sentences": self.sentences,
            "parts_ns": {part: ns for part, ns, _ in self.parts if ns},
            "median_parts_ns": {part: usual for part, _, usual in self.parts if usual},
            "waits": [
                {"expert": self.name(one.key), "part": one.part, "ns": one.ns,
                 "ahead": [{"class": CLASSES[kind], "expert": self.name(key)} for kind, key in one.ahead]}
                for one in self.waits
            ],
            "missed": [
                {"expert": self.name(one.key), "served_by": self.served(one), "why": self.reason(one)}
                for one in self.page.missed
            ],
            "caveats": list(self.result.caveats),
        }  # fmt: skip


def explain(trace: RoutingTrace, spec: RunSpec, number: int | None = None, *, cold: str = "trace") -> Why:
    """Why pass `number` of a run took as long as it did.

    Parameters
    ----------
    trace, spec
        The run.
    number
        The pass, from 0; by default the slowest one that is no prefill, or of all where there are only these.
    cold
        As of the run.

    Returns
    -------
    Why
        The answer.

    Raises
    ------
    SimError
        A pass that the trace does not have.
    """
    if number is not None and not 0 <= number < trace.n_passes:
        raise SimError(
            f"pass {number} of a trace of {trace.n_passes:,} passes: expected 0 to {trace.n_passes - 1}"
        )
    times = simulate(trace, spec, cold=cold).pass_ns
    decode = trace.pass_phase != Phase.PREFILL
    if number is None:
        number = int(np.argmax(np.where(decode if decode.any() else True, times, -1)))
    first = 0
    for chosen, part in apart(trace, cold):
        if chosen[number]:  # a request that starts cold is a run of its own
            first, times, trace = int(np.flatnonzero(chosen)[0]), times[chosen], part
            number = int(chosen[:number].sum())
            break
    alike = np.flatnonzero(trace.pass_phase == trace.pass_phase[number])
    median = int(alike[np.argsort(times[alike], kind="stable")[(len(alike) - 1) // 2]])
    diary = Diary([number, median])
    result = simulate(trace, spec, watch=diary)
    return Why(trace, spec, number, median, first, diary.pages[number], diary.pages[median], result)
