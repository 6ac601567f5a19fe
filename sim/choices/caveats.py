"""What a reader must know about every number of a result: found by code that looks, never by prose.

A *warning* is about one run (nothing had to leave, an event did not fit). A *caveat* is about what the run stands
on: trace, sizes, machine, what was left out. Every entrance gives the same ones, in JSON and on screen.

A new one is a function more in `CHECKS`, which is given `Asked` and yields `Caveat`s; it must look at what is
there, and be silent where it cannot apply.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.runs import compared_pairs
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.cliffs import Cliff, cliffs, standing_of
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace
from expert_residency.traces.file_sizes import check_of
from expert_residency.traces.geometry import list_models, load_model

FEW_REQUESTS, FEW_TOKENS = 10, 1_300
"""A trace of fewer requests or decoded tokens is short: the order of policies may be another on the next one.
Measured (docs/policies.md, "How long a trace must be"): of the pairs of policies that 200 recorded requests tell
apart, one request orders 83 % as these do, ten with 1,352 tokens 98 %, fifty 99.9 %."""


@dataclass(frozen=True)
class Caveat:
    """One thing to know; `kind` is the word by which programs find it."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class TraceFacts:
    """What the checks look at in a trace; parts of one that is streamed are joined.

    Parameters
    ----------
    geometry
        Of the trace.
    synthetic
        Whether it was generated.
    layers, requests
        MoE layers (by index) with events, and requests, that occur.
    decode_tokens
        Emitted by all passes but prefills.
    most_rows
        Rows of the largest event.
    longest
        Positions of the longest request.
    unplaced
        Whether rows have no position.
    windows
        Whether drafts are verified in it.
    meta
        What the reader noted.
    """

    geometry: ModelGeometry
    synthetic: bool
    layers: frozenset[int]
    requests: frozenset[int]
    decode_tokens: int
    most_rows: int
    longest: int = 1
    unplaced: bool = False
    windows: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: RoutingTrace) -> TraceFacts:
        """Of a whole trace or a part."""
        present = np.flatnonzero(np.bincount(trace.event_layer, minlength=1))
        return cls(
            trace.geometry, trace.synthetic, frozenset(present.tolist()),
            frozenset(np.unique(trace.pass_request).tolist()),
            int(trace.pass_emits[trace.pass_phase != 0].sum()), int(trace.event_rows.max(initial=1)),
            int(trace.row_position.max(initial=0)) + 1, bool((trace.row_position < 0).any()),
            bool((trace.pass_phase == Phase.VERIFY).any()), trace.meta,
        )  # fmt: skip

    def joined(self, part: TraceFacts) -> TraceFacts:
        """Facts of it and a later part together."""
        return replace(
            self, layers=self.layers | part.layers, requests=self.requests | part.requests,
            decode_tokens=self.decode_tokens + part.decode_tokens, most_rows=max(self.most_rows, part.most_rows),
            longest=max(self.longest, part.longest), unplaced=self.unplaced or part.unplaced,
            windows=self.windows or part.windows,
        )  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What a result stands on.

    Parameters
    ----------
    geometry
        The model whose sizes are used.
    trace
        What is replayed, or None where nothing is.
    hardware
        Profiles of the cards; none where only hits are counted.
    spec
        Choices of a timed run, or None.
    context_counted
        Whether context and the engine's reserve are taken from the card's memory.
    """

    geometry: ModelGeometry
    trace: TraceFacts | None
    hardware: tuple[HardwareProfile, ...]
    spec: RunSpec | None
    context_counted: bool


def synthetic(asked: Asked) -> Iterator[Caveat]:
    """The trace was generated."""
    if asked.trace is not None and asked.trace.synthetic:
        yield Caveat("synthetic", "the trace is synthetic: generated, not recorded from a model")


def partial_layers(asked: Asked) -> Iterator[Caveat]:
    """Layers that the model has and the trace has not."""
    geometry, trace = asked.geometry, asked.trace
    have = geometry.n_layers if trace is None else len(trace.layers)
    whole = geometry.n_layers
    if geometry.name in list_models():
        whole = max(whole, load_model(geometry.name).n_layers)
    if trace is not None and (cut := trace.meta.get("partial")):
        whole = max(whole, int(cut[1]))
    if have < whole:
        yield Caveat(
            "partial",
            f"{have} of the {whole} MoE layers of {geometry.name} are in it: times, bytes and hits are those "
            "of a part",
        )


def as_read(asked: Asked) -> Iterator[Caveat]:
    """What the reader of the trace had to leave out, sort, or could not know."""
    meta = {} if asked.trace is None else asked.trace.meta
    if meta.get("order") == "lost":
        yield Caveat(
            "order",
            "the trace was made of counts: its events are exact, the order inside them is lost, so ties of "
            "recency are not the engine's",
        )
    if meta.get("cut"):
        yield Caveat("cut", "the trace is what is whole of a file that is cut off")
    if meta.get("sorted"):
        yield Caveat("sorted", "rows of the trace were out of order and were sorted")
    if meta.get("incomplete"):
        yield Caveat("incomplete", "rows are missing in some layers of the trace: times are too short by them")


def missing_sizes(asked: Asked) -> Iterator[Caveat]:
    """What has no size or rate, so that it costs nothing."""
    if not asked.hardware:
        return
    geometry = asked.geometry
    if not all(geometry.dense_bytes):
        n = sum(not nbytes for nbytes in geometry.dense_bytes)
        yield Caveat(
            "dense", f"the sizes of {geometry.label} lack the dense part of {n} layers, which then costs nothing"
        )
    if geometry.gap:
        yield Caveat("sizes", geometry.gap)


def unchecked_sizes(asked: Asked) -> Iterator[Caveat]:
    """Packaged sizes that were compared with no published file, or are not that file's."""
    check = check_of(asked.geometry) if asked.hardware else None
    if check is not None and check.matters:
        yield Caveat("file-size", check.sentence())


def cpu_arithmetic(asked: Asked) -> Iterator[Caveat]:
    """Many rows on a CPU whose arithmetic stands on a rule."""
    if not asked.hardware or asked.hardware[0].cpu.gflops is not None or asked.spec is None:
        return
    miss = asked.spec.miss or load_engine(asked.spec.engine).miss
    rows = 1 if asked.trace is None else asked.trace.most_rows
    if miss in ("cpu", "hybrid") and rows > 1:
        prior = asked.hardware[0].cpu.arithmetic
        low, high = prior.spread or (prior.value, prior.value)
        yield Caveat(
            "cpu-rate",
            f"{asked.hardware[0].name} has no cpu.gflops: the CPU's time for up to {rows:,} rows stands on a rule "
            f"({prior.value:,.0f} GFLOP/s, {low:,.0f} to {high:,.0f})",
        )


def context_left_out(asked: Asked) -> Iterator[Caveat]:
    """VRAM of the context: how long a one was taken off, or that it is not known."""
    if not asked.hardware or asked.context_counted:
        return
    if asked.spec is None or asked.trace is None or asked.geometry.session_shape is None:
        yield Caveat(
            "context",
            f"the card's memory was checked for experts, dense weights and the reserve; what a context of "
            f"{asked.geometry.name} occupies is not taken off (residency vram, or capacity auto:session=SIZE)",
        )
        return
    tokens = asked.trace.longest + asked.spec.depth
    length = f"{tokens:,} token{'s' * (tokens != 1)}"
    yield Caveat(
        "context",
        f"the card's memory was checked for a context of {length} ({asked.spec.kv_type} KV), the trace's "
        "longest, and the profile's reserve: a longer one leaves less (--depth, or capacity auto:context=N)",
    )


def positions_missing(asked: Asked) -> Iterator[Caveat]:
    """A context whose length was counted from rows, or is not known."""
    if asked.spec is None or asked.trace is None or asked.geometry.session_shape is None:
        return
    if asked.trace.unplaced:
        yield Caveat(
            "positions",
            "positions are not recorded for some rows: attention there reads the --depth tokens "
            f"({asked.spec.depth:,}) and no more; import the source again, which counts "
            "positions from the rows of each request",
        )
    elif asked.trace.meta.get("positions") == "counted":
        yield Caveat(
            "positions",
            "positions are not recorded: context is counted from the rows of each request; give --depth for what "
            "came before",
        )


def attention_left_out(asked: Asked) -> Iterator[Caveat]:
    """Attention over the context, of a model whose KV cells are not known."""
    if asked.spec is not None and asked.geometry.session_shape is None:
        yield Caveat(
            "attention",
            f"what attention reads of a context is not known for {asked.geometry.name}, so it costs nothing "
            "however long: give the model's own file with --model, or one with a [session] table",
        )


def near_a_cliff(asked: Asked) -> Iterator[Caveat]:
    """A setting beyond a size at which the engine falls off, or near to it."""
    if asked.spec is None or not asked.hardware:
        return
    tokens = 1 if asked.trace is None else asked.trace.longest + asked.spec.depth
    standing = standing_of(asked.spec, asked.geometry, tokens=tokens, profiles=asked.hardware)
    yield from cliff_caveats([] if standing is None else cliffs(standing))


def cliff_caveats(found: Iterable[Cliff]) -> Iterator[Caveat]:
    """Of cliffs those that the setting is near to, or beyond."""
    for cliff in found:
        if cliff.warned:
            yield Caveat("cliff", cliff.text)


def free_drafts(asked: Asked) -> Iterator[Caveat]:
    """Verify windows under an engine whose drafting has no cost."""
    if asked.trace is None or not asked.trace.windows or asked.spec is None:
        return
    if load_engine(asked.spec.engine).draft_us is None:
        yield Caveat(
            "drafts",
            f"engine {asked.spec.engine} has no cost of drafting (draft_us), so the drafts of these windows cost "
            "nothing but their rows: Strata's take 0.55 to 1.3 ms each",
        )


def never_compared(asked: Asked) -> Iterator[Caveat]:
    """Model and card of which no measured run was ever laid beside a predicted one."""
    model = asked.geometry.name.lower()
    cards = list(dict.fromkeys(profile.name for profile in asked.hardware))
    missing = [card for card in cards if (model, card) not in compared_pairs()]
    if missing:
        yield Caveat(
            "uncompared",
            f"no measured run of {asked.geometry.name} on {' or '.join(missing)} was compared with this simulator "
            "(residency validate): trust orders more than tokens a second",
        )


def short(asked: Asked) -> Iterator[Caveat]:
    """Few requests or tokens."""
    trace = asked.trace
    if trace is None:
        return
    requests, tokens = len(trace.requests), trace.decode_tokens
    if requests < FEW_REQUESTS or tokens < FEW_TOKENS:
        yield Caveat(
            "short",
            f"it stands on {requests:,} request{'s' if requests != 1 else ''} and {tokens:,} decoded tokens: the "
            "order of policies may be another on a longer trace",
        )


CHECKS: tuple[Callable[[Asked], Iterable[Caveat]], ...] = (
    synthetic, partial_layers, as_read, missing_sizes, unchecked_sizes, cpu_arithmetic, context_left_out,
    positions_missing, attention_left_out, near_a_cliff, free_drafts, never_compared, short,
)  # fmt: skip


def caveats(
    trace: RoutingTrace | TraceFacts | None,
    geometry: ModelGeometry | None = None,
    hardware: Sequence[HardwareProfile] = (),
    spec: RunSpec | None = None,
    *,
    context_counted: bool | None = None,
) -> list[Caveat]:
    """Everything that a reader of a result must know of what it stands on.

    Parameters
    ----------
    trace
        What is replayed, or its facts; None for a result that replays nothing.
    geometry
        The model; the trace's own if None.
    hardware
        Profiles of the cards; none where only hits are counted.
    spec
        Choices of a timed run.
    context_counted
        Whether context and reserve are taken off the card's memory; by default what `spec.capacity` says.

    Returns
    -------
    list of Caveat
        In the order of `CHECKS`.
    """
    facts = TraceFacts.of(trace) if isinstance(trace, RoutingTrace) else trace
    geometry = geometry if geometry is not None else facts.geometry if facts is not None else None
    assert geometry is not None, "a trace or a model"
    if context_counted is None:
        context_counted = spec is not None and counts_context(spec.capacity)
    asked = Asked(geometry, facts, tuple(hardware), spec, context_counted)
    return [caveat for check in CHECKS for caveat in check(asked)]


def counts_context(capacity: Capacity) -> bool:
    """Whether a capacity was worked out from what a context leaves."""
    return capacity.auto is not None or bool(capacity.assumes)


def texts(found: Iterable[Caveat]) -> list[str]:
    """As they stand in JSON and datasets: `kind: text`."""
    return [str(caveat) for caveat in found]
