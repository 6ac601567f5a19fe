"""`simulate`: one timed run from plain choices to a `RunResult`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from expert_residency.errors import CompileError, MisfitError, SimError
from expert_residency.families import rate_notes
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import ns_for_bytes
from expert_residency.policies import adopted_sha256, create
from expert_residency.policies.registry import KINDS
from expert_residency.sim.choices.caveats import TraceFacts, caveats, counts_context, texts
from expert_residency.sim.choices.prefetch_rule import parse_insertion
from expert_residency.sim.choices.preset import MISS_MODES, EnginePreset, load_engine
from expert_residency.sim.choices.spec import START_STATES, RunSpec
from expert_residency.sim.choices.vram import run_budgets
from expert_residency.sim.kernel import choose_timed
from expert_residency.sim.residency.future import kept_with, make_future
from expert_residency.sim.residency.laws import ranked_by
from expert_residency.sim.residency.other_texts import future_for, has_other_texts
from expert_residency.sim.residency.pool import LISTS, CachePool, check_room, make_pool
from expert_residency.sim.residency.quotas import share_out
from expert_residency.sim.runs.requests import apart, joined_run, one_by_one
from expert_residency.sim.timed.attention import Context, lengths
from expert_residency.sim.timed.engine import Policies, SimPyEngine
from expert_residency.sim.timed.host import HostPlan, plan_host
from expert_residency.sim.timed.host.weights import IN_MEMORY, MappedWeights
from expert_residency.sim.timed.machine import Machine
from expert_residency.sim.timed.page_cache import PageCache
from expert_residency.sim.timed.result import RunResult
from expert_residency.sim.timed.timeline import Timeline, passes_of
from expert_residency.sim.timed.watch import Watch
from expert_residency.text import check_known, hash_of
from expert_residency.traces import ModelGeometry, RoutingTrace

if TYPE_CHECKING:
    from expert_residency.policies.protocol import Allocator, Future, Pool
    from expert_residency.sim.kernel.compiler.state import Recorder
    from expert_residency.sim.kernel.timed.engine import TimedKernel

MOST_PREDICT_US = 1e9


@dataclass(frozen=True)
class Prepared:
    """A run whose choices are all valid, about to start; `placed` are the experts that begin on the cards."""

    profiles: tuple[HardwareProfile, ...]
    preset: EnginePreset
    machine: Machine
    cache: CachePool
    policies: Policies
    miss: str
    host_plan: HostPlan
    page_cache: PageCache | None
    placed: list[int]
    context: Context
    start: dict[str, str | None]
    """Hashes of who is resident, and what lies in the page cache, when the clock starts."""
    recorder: Recorder | None = None
    """What the policies' states were made by, for the compiled kernel; None for the reference engine."""


def prepare(
    trace: RoutingTrace,
    spec: RunSpec,
    *,
    profiles: Sequence[HardwareProfile] | None = None,
    preset: EnginePreset | None = None,
    page_cache: PageCache | None = None,
    simulator: str = "reference",
    runs: int = 1,
    timeline: bool = False,
    alloc: Allocator = LISTS,
) -> Prepared:
    """Everything that `simulate` does before the clock starts; takes and raises the same.

    `alloc` makes the states of policies that are not compiled.

    Raises
    ------
    MisfitError
        Valid choices on a machine that is too small for them.
    """
    profiles = tuple(profiles or map(load_profile, spec.hardware))
    spec = spec.settled(trace.geometry, profiles)
    preset = preset or load_engine(spec.engine)
    machine = _machine(trace.geometry, spec, profiles)
    preset = preset.on(machine.cards[-1].gpu)
    context = Context(spec.depth, spec.kv_type)
    miss = _miss_mode(spec, preset)
    chosen = _policies(spec)
    eviction, admission = chosen.eviction, chosen.admission
    placement = create("placement", spec.placement or eviction.default_placement)
    look_ups = runs * trace.n_lookups
    which = choose_timed(simulator, look_ups, eviction, admission, chosen.prefetch, timeline=timeline)
    recorder = _recorder(trace) if which == "kernel" else None
    if eviction.needs_future or chosen.prefetch.needs_future or placement.needs_future:
        chosen.future = _future(trace, recorder is not None)
    told = future_for(placement, trace, lambda: chosen.future)
    pool = _pool(trace, spec, machine)
    weights = _check_vram(machine, trace, pool.capacity, spec, preset, chosen.insertion.staging_slots)
    cache = CachePool(pool, eviction, admission, chosen.future, alloc=recorder or alloc)
    ranked = ranked_by(placement, pool, told)
    placed = cache.place(ranked)
    host_plan = plan_host(trace.geometry, machine.host, spec.host, on_card=placed, ranked=ranked)
    host_plan = replace(host_plan, weights=weights)
    cached = _page_cache(spec, machine.host, trace.geometry, host_plan, page_cache)
    return Prepared(
        machine.cards, preset, machine, cache, chosen, miss, host_plan, cached, placed, context,
        start_hashes(placed, cached), recorder,
    )  # fmt: skip


def start_hashes(placed: Sequence[int], pages: PageCache | None) -> dict[str, str | None]:
    """What a run begins with, for its manifest: runs that carry state from one another are told apart by it."""
    lists = None if pages is None else [pages.capacity, [*pages.inactive], [*pages.active]]
    return {
        "resident_sha256": hash_of([int(key) for key in placed]),
        "pages_sha256": None if lists is None else hash_of(lists),
    }


def _machine(geometry: ModelGeometry, spec: RunSpec, profiles: tuple[HardwareProfile, ...]) -> Machine:
    """The cards, and the layers that each of them runs."""
    layers_each = spec.layers_each or (geometry.n_layers,) + (0,) * (len(profiles) - 1)
    if sum(layers_each) != geometry.n_layers or min(layers_each) < 0:
        raise SimError(f"stages of {list(layers_each)} layers do not add up to {geometry.n_layers} MoE layers")
    if len(spec.capacity.card_bytes or ()) > len(profiles):
        raise SimError(f"capacities of {len(spec.capacity.card_bytes or ())} card(s) given for {len(profiles)}")
    return Machine.split(profiles, layers_each, p2p=spec.p2p)


def _miss_mode(spec: RunSpec, preset: EnginePreset) -> str:
    miss = spec.miss or preset.miss
    check_known("miss mode", miss, MISS_MODES)
    return miss


def _policies(spec: RunSpec) -> Policies:
    """The algorithms and the prefetcher's limits; the future is still to be given."""
    if not 0 <= spec.predict_us <= MOST_PREDICT_US:
        raise SimError(f"a prediction that costs {spec.predict_us:g} us: expected 0 to {MOST_PREDICT_US:g}")
    if (spec.prefetch_bytes or 0) < 0:
        raise SimError("the prefetch budget cannot be negative")
    return Policies(
        create("eviction", spec.eviction), create("admission", spec.admission), create("prefetch", spec.prefetch),
        None, parse_insertion(spec.insertion), spec.prefetch_bytes, round(spec.predict_us * 1000),
    )  # fmt: skip


def _pool(trace: RoutingTrace, spec: RunSpec, machine: Machine) -> Pool:
    """What policies may know: sizes and room of each scope, and the rates of links and processor."""
    geometry, layer_card = trace.geometry, machine.layer_card
    pool = make_pool(geometry, share_out(trace, spec.capacity, layer_card), layer_card)
    check_room(pool, none=True)
    return pool._replace(
        link_mb_per_s=[machine.cards[card].link.h2d_mb_per_s for card in layer_card],
        cpu_mb_per_s=machine.host.cpu.expert_mb_per_s("pinned", geometry.quant_family),
    )


def _recorder(trace: RoutingTrace) -> Recorder:
    """Allocator of the policies' states for the kernel."""
    from expert_residency.sim.kernel.compiler.state import Recorder

    return Recorder(trace.geometry.n_experts)


def simulate(
    trace: RoutingTrace,
    spec: RunSpec,
    *,
    profiles: Sequence[HardwareProfile] | None = None,
    preset: EnginePreset | None = None,
    page_cache: PageCache | None = None,
    timeline: str | Path | None = None,
    watch: Watch | None = None,
    progress: Callable[[int], None] | None = None,
    simulator: str = "auto",
    runs: int = 1,
    cold: str = "trace",
) -> RunResult:
    """Run `trace` on the machine and under the policies of `spec`.

    Parameters
    ----------
    profiles
        Cards to use in the place of those that `spec.hardware` names (derived ones, say with other RAM).
    preset
        Engine to use in the place of the one that `spec.engine` names.
    page_cache
        The machine's page cache, shared with other runs; with `start` `carry` this one goes on from its state.
    timeline
        File for a Chrome trace of the run.
    watch
        Told what happens, by the reference engine, instead of a timeline.
    progress
        Called with the number of passes done.
    simulator
        `reference` (SimPy, the definition), `kernel` (compiled, the same integers) or `auto`: the kernel where it
        can run and pays. `RunResult.simulator` says which it was.
    runs
        How many such runs the whole job has, for `auto`.
    cold
        `trace`: one cache from the first pass to the last. `request`: every request starts from the initial
        placement and the page cache's start state, with policies that have learned nothing.

    Raises
    ------
    SimError, PolicyError, HardwareError
        Any choice that is not valid, a machine that is too small for it, or a kernel that cannot run it.
    """
    profiles = tuple(profiles or (load_profile(name) for name in spec.hardware))
    spec = spec.settled(trace.geometry, profiles)
    if parts := apart(trace, cold):
        if timeline is not None or watch is not None or page_cache is not None:
            raise SimError("cold = request makes a run of each request: it goes with no timeline and no variants")
        found = one_by_one(
            parts,
            lambda part, done: simulate(
                part, spec, profiles=profiles, preset=preset, simulator=simulator, runs=runs * len(parts),
                progress=None if progress is None else lambda n: progress(done + n),
            ),
        )  # fmt: skip
        whole = manifest(trace, spec, profiles, preset or load_engine(spec.engine)) | {"cold": cold}
        result = joined_run(trace, found, whole)
        result.caveats = texts(caveats(trace, hardware=profiles, spec=spec))
        return result

    def prepared(simulator: str) -> Prepared:
        return prepare(
            trace, spec, profiles=profiles, preset=preset, page_cache=page_cache, simulator=simulator,
            runs=runs, timeline=timeline is not None or watch is not None,
        )  # fmt: skip

    ready = prepared(simulator)
    engine: SimPyEngine | TimedKernel
    try:
        engine = _ran(trace, spec, ready, timeline or watch, progress)
    except CompileError:
        if simulator == "kernel":
            raise
        ready = prepared("reference")
        engine = _ran(trace, spec, ready, timeline or watch, progress)
    sizes, host_plan = ready.cache.pool.size_of, ready.host_plan
    made = manifest(trace, spec, ready.profiles, preset or load_engine(spec.engine)) | {"start": ready.start}
    result = engine.result(made, sum(sizes[key] for key in ready.placed))
    result.simulator = "reference" if ready.recorder is None else "kernel"
    result.load_ns = ns_for_bytes(host_plan.load_bytes, ready.machine.host.disk.seq_mb_per_s)
    result.caveats = texts(
        caveats(kept_with(trace, "facts", lambda: TraceFacts.of(trace)), hardware=ready.profiles, spec=spec)
    )
    result.warnings = _warnings(trace, result, spec, ready.machine, sum(ready.cache.pool.capacity))
    if missing := host_plan.weights.missing_bytes:
        result.warnings.append(
            f"{missing / 2**30:.2f} of {host_plan.weights.nbytes / 2**30:.2f} GiB of weights beside experts do "
            "not fit into memory with this cache and are read again for every token, at the least: a smaller one "
            "is faster"
        )
    return result


def _ran(
    trace: RoutingTrace, spec: RunSpec, ready: Prepared, watch: str | Path | Watch | None,
    progress: Callable[[int], None] | None,
) -> SimPyEngine | TimedKernel:  # fmt: skip
    """The engine after the run."""
    machine = ready.machine
    common = (
        trace, machine, ready.preset, ready.cache, ready.policies, ready.miss, ready.host_plan, ready.page_cache
    )  # fmt: skip
    context = ready.context
    engine: SimPyEngine | TimedKernel
    if ready.recorder is not None:
        from expert_residency.sim.kernel.timed.engine import TimedKernel

        engine = TimedKernel(*common, ready.recorder, progress, context=context)
        engine.run()
    elif watch is None or isinstance(watch, Watch):
        engine = SimPyEngine(*common, watch, progress, context=context)
        engine.run()
    else:
        title = f"{trace.geometry.label} on {machine.label}, {spec.eviction}, {spec.prefetch}, {ready.miss}"
        with Timeline(watch, trace.geometry, title, passes=passes_of(trace)) as writer:
            engine = SimPyEngine(*common, writer, progress, context=context)
            engine.run()
    return engine


def _future(trace: RoutingTrace, compiled: bool) -> Future:
    """What oracles may know: lists for plain Python, arrays for the kernel."""
    if not compiled:
        return make_future(trace)
    from expert_residency.sim.runs.steps import Steps

    return kept_with(trace, "future", lambda: Steps.of(trace).future_arrays)


def _check_vram(
    machine: Machine, trace: RoutingTrace, room: Sequence[int], spec: RunSpec, preset: EnginePreset,
    staging_slots: int,
) -> MappedWeights:  # fmt: skip
    """Refuse a cache that a card cannot hold beside dense weights, the trace's longest context and the reserve.

    A capacity that was worked out from what a context leaves has its own, which is counted in it. Weights that are
    a mapped file need no room: what of them memory holds is the answer.
    """
    geometry, worked_out = trace.geometry, counts_context(spec.capacity)
    tokens = int(lengths(trace, spec.depth).max(initial=1))
    budgets = run_budgets(
        geometry, machine.cards, machine.layer_card, tokens=tokens, kv_type=spec.kv_type,
        divided=preset.places == "layers", worked_out=worked_out,
    )  # fmt: skip
    needs = vram_needs(
        geometry, machine.layer_card, room, by_layer=spec.capacity.scope == "layer", staging_slots=staging_slots
    )
    found, mapped = IN_MEMORY, preset.weights == "mapped"
    for number, (cache, weights) in needs.items():
        card, budget = machine.cards[number], budgets[number]
        left = budget.cache_bytes + (card.gpu.vram_reserve_bytes if worked_out else 0) + (weights if mapped else 0)
        if mapped:
            free = card.ram.total_bytes - card.ram.os_reserve_bytes
            found = MappedWeights(weights, free - cache - (budget.taken_bytes - weights))
        if cache > left:
            counted = geometry.session_shape is not None and not worked_out
            context = f", a context of {tokens:,} tokens ({spec.kv_type} KV)" if counted else ""
            raise MisfitError(
                f"{card.name}: an expert cache of {cache / 2**30:.2f} GiB beside dense weights{context} and the "
                f"engine's reserve, {budget.taken_bytes / 2**30:.2f} GiB, does not fit into "
                f"{budget.usable_bytes / 2**30:.2f} GiB of usable VRAM; at most {max(0, left) / 2**20:.0f}MiB are "
                "left for experts (residency vram)",
                lacks="vram",
            )
    return found


def vram_needs(
    geometry: ModelGeometry, layer_card: Sequence[int], room: Sequence[int], *, by_layer: bool, staging_slots: int
) -> dict[int, tuple[int, int]]:
    """What each card holds: its part of the expert cache with the staging ring, and all weights beside it.

    Parameters
    ----------
    geometry
        The model.
    layer_card : (layers,)
        Card of each layer.
    room
        Bytes of each scope: of each layer if `by_layer`, else of each card.
    by_layer
        What `room` is of.
    staging_slots
        Buffers of a card, each for its largest expert.

    Returns
    -------
    dict of card to (cache bytes, weight bytes)
        Cards that have layers; layers without experts are on the first of them, the head is on the last.
    """
    needs = {}
    for card in dict.fromkeys(layer_card):
        layers = [i for i, c in enumerate(layer_card) if c == card]
        cache = sum(room[i] for i in layers) if by_layer else room[card]
        cache += staging_slots * max(geometry.expert_bytes[i] for i in layers)
        weights = sum(geometry.dense_bytes[i] for i in layers)
        weights += geometry.dense_only_bytes if card == layer_card[0] else 0
        needs[card] = cache, weights + (geometry.head_bytes if card == layer_card[-1] else 0)
    return needs


def _page_cache(
    spec: RunSpec, host: HardwareProfile, geometry: ModelGeometry, plan: HostPlan, shared: PageCache | None
) -> PageCache | None:
    """The page cache of this run; one that is shared with other runs also shrinks for those that do not use it."""
    check_known("start state", spec.start, START_STATES)
    if spec.start == "carry" and shared is None:
        raise SimError("start carry goes on from the run before: list both as variants of one scenario")
    cache = shared or PageCache(0, host.disk.page_bytes.count)
    if spec.start != "carry":
        cache.resize(0)
    cache.resize(plan.page_cache_bytes)
    if not plan.from_file:
        return None
    if spec.start == "warm":
        sizes = [size for size in geometry.expert_bytes for _ in range(geometry.experts)]
        cache.warm(range(geometry.n_experts), sizes, file=plan.file)
    return cache


def manifest(
    trace: RoutingTrace, spec: RunSpec, profiles: tuple[HardwareProfile, ...], preset: EnginePreset
) -> dict[str, Any]:
    """Everything that decides a result; equal manifests give byte-identical files."""
    shape = trace.geometry.session_shape
    own = {kind: adopted_sha256(kind, words) for kind in KINDS if (words := getattr(spec, kind))}
    own = {kind: found for kind, found in own.items() if found}
    return {
        "version": version("expert-residency"),
        "model": trace.geometry.label,
        "trace_sha256": trace.content_hash,
        "synthetic": trace.synthetic,
        "hardware_sha256": [hash_of(profile.model_dump(mode="json", exclude_none=True)) for profile in profiles],
        "engine_sha256": hash_of(preset.model_dump(mode="json", exclude_none=True)),
        "spec": spec.to_dict(),
        **({"session_sha256": hash_of(asdict(shape))} if shape else {}),
        **({"policies_sha256": own} if own else {}),
    }


def _all_got_in(trace: RoutingTrace, result: RunResult) -> bool:
    """Whether a run that evicted nothing had room for all that was wanted: else a policy turned some away."""
    wanted = np.unique(trace.keys) // trace.geometry.experts
    return int(np.asarray(trace.geometry.expert_bytes)[wanted].sum()) <= result.start_bytes + result.admitted_bytes


def _warnings(trace: RoutingTrace, result: RunResult, spec: RunSpec, machine: Machine, room: int) -> list[str]:
    found = []
    idle = [str(card + 1) for card in range(len(machine.cards)) if card not in machine.layer_card]
    if idle:
        found.append(
            f"no layer is on card {', '.join(idle)} of {len(machine.cards)}: layers_each says how many each"
        )
    if spec.capacity.assumes:
        found.append(spec.capacity.assumes)
    found += rate_notes(trace.geometry.label, trace.geometry.quant_family)
    start = create("placement", spec.placement or create("eviction", spec.eviction).default_placement)
    if start.other_texts and not has_other_texts(trace):
        found.append(
            "the start is a profile of other texts, and a recorded trace has none: it begins with experts by "
            "number; give what you have as --placement profile:file=PATH (residency placement)"
        )
    if (
        result.evictions == 0
        and result.admitted_bytes
        and spec.eviction != "static"
        and _all_got_in(trace, result)
    ):
        found.append(f"policy {spec.eviction} was never exercised: nothing had to leave")
    if result.waves:
        found.append(f"{result.waves} events did not fit their part of the cache and were served in waves")
    if not room:
        found.append("no card has room for experts: every look-up misses")
    cycle = trace.geometry.token_cycle_bytes
    if spec.capacity.scope == "global" and (spec.capacity.total_bytes or cycle) < cycle:
        plain = (spec.eviction, spec.admission, spec.prefetch) == ("lru", "always", "none")
        nothing = ": a global LRU then hits exactly 0 %" if plain and not result.decode_hit_rate() else ""
        found.append(f"the cache is below one token's experts ({cycle / 2**20:.0f} MiB){nothing}")
    return found


__all__ = ["manifest", "prepare", "simulate"]
