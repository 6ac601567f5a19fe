"""The compiled replay counts exactly what the reference counts, whatever the policy, contract and room."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policies import available, create
from policies.eviction.lru import Lru
from sim.curve import even_capacities, hit_curve
from sim.errors import SimError
from sim.kernel import choice, choose
from sim.pool import Capacity, make_pool
from sim.replay import Steps, replay
from sim.testing.cases import capacities, random_trace
from traces import ModelGeometry, Phase, TraceBuilder

pytest.importorskip("numba")

EVICTION = [name for name in available("eviction") if create("eviction", name).compiled]
ADMISSION = [name for name in available("admission") if create("admission", name).compiled]
RATES = ":link_gb_per_s=13,host_gb_per_s=44"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Kernels of the tests stay out of the user's cache."""
    before = os.environ.get("EXPERT_RESIDENCY_CACHE")
    os.environ.setdefault("EXPERT_RESIDENCY_CACHE", str(tmp_path_factory.mktemp("kernels")))
    yield
    if before is None:
        del os.environ["EXPERT_RESIDENCY_CACHE"]


def same(trace, eviction, capacity, **options):
    plain = replay(trace, eviction, capacity, engine="reference", **options)
    fast = replay(trace, eviction, capacity, engine="kernel", **options)
    assert (plain.engine, fast.engine) == ("reference", "kernel")
    assert np.array_equal(plain.hits, fast.hits)
    fields = [f.name for f in dataclasses.fields(plain) if f.name not in ("hits", "engine")]
    assert {f: getattr(plain, f) for f in fields} == {f: getattr(fast, f) for f in fields}


def every_way(eviction, admission):
    trace = random_trace(2)
    for capacity in capacities(trace.geometry):
        same(trace, eviction, capacity, admission=admission, warmup_passes=20)
        same(trace, eviction, capacity, admission=admission, oversize="overflow", placement="hindsight")
        same(trace, eviction, capacity, admission=admission, contract="sequential", lag_passes=3)


@pytest.mark.slow
@pytest.mark.parametrize("eviction", EVICTION)
def test_every_eviction_policy(eviction):
    every_way(eviction, "always")


@pytest.mark.slow
@pytest.mark.parametrize("admission", [name for name in ADMISSION if name != "always"])
def test_every_admission_policy(admission):
    every_way("lru", admission + (RATES if admission == "balanced" else ""))


@st.composite
def traces(draw):
    """Few experts, many ties: rows of any phase over some layers."""
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(2, 6))
    k = draw(st.integers(1, min(3, experts)))
    sizes = tuple(draw(st.sampled_from([(1,) * layers, tuple(range(1, layers + 1))])))
    builder = TraceBuilder(ModelGeometry("drawn", tuple(range(layers)), experts, k, sizes, (1,) * layers))
    row = st.permutations(range(experts)).map(lambda order: order[:k])
    for _ in range(draw(st.integers(1, 12))):
        phase = draw(st.sampled_from(list(Phase)))
        builder.begin_pass(phase)
        for layer in range(layers):
            for _ in range(1 if phase == Phase.DECODE else draw(st.integers(1, 3))):
                builder.row(layer, draw(row))
    return builder.build()


@given(
    traces(), st.sampled_from(["lru", "lfu", "belady", "min", "s3fifo"]), st.integers(0, 20),
    st.sampled_from(["global", "layer"]), st.sampled_from(["event", "sequential"]),
    st.sampled_from(["waves", "overflow"]),
)  # fmt: skip
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_trace(trace, eviction, room, scope, contract, oversize):
    same(trace, eviction, Capacity(total_bytes=room, scope=scope), contract=contract, oversize=oversize)


@given(traces(), st.sampled_from(["global", "layer"]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_pass_counts_lru_at_every_capacity(trace, scope):
    rooms = [Capacity(slots_per_layer=n, scope=scope) for n in range(1, trace.geometry.experts + 1)]
    for fast, plain in zip(
        hit_curve(trace, "lru", rooms, engine="kernel"), hit_curve(trace, "lru", rooms, engine="reference"),
        strict=True,
    ):  # fmt: skip
        assert (fast.capacity_bytes, fast.phases) == (plain.capacity_bytes, plain.phases)


def test_one_pass_is_used_exactly_where_every_event_fits():
    """Fewer slots than the largest event: members displace each other, and the stack property is lost."""
    trace = random_trace(5, uniform=True)
    largest = int(np.diff(trace.event_offsets).max())
    rooms = even_capacities(trace, trace.geometry.experts, "layer")
    points = hit_curve(trace, "lru", rooms, engine="kernel")
    methods = [point.method for point in points]
    assert methods == ["one pass" if room.slots_per_layer >= largest else "kernel" for room in rooms]
    assert {"one pass", "kernel"} == set(methods)


def test_unequal_sizes_in_one_pool_are_replayed():
    trace = random_trace(5, uniform=False)
    points = hit_curve(trace, "lru", even_capacities(trace, 3, "global"), engine="kernel")
    assert {point.method for point in points} == {"kernel"}


def test_a_stream_in_chunks_counts_as_the_whole(own_cache):
    from sim.kernel.replay import ReplayKernel

    trace = random_trace(7)
    pool = make_pool(trace.geometry, Capacity(total_bytes=trace.geometry.all_expert_bytes // 2))
    whole, parts = (ReplayKernel(pool, Lru(), create("admission", "two-hit")) for _ in range(2))
    steps = Steps.of(trace).arrays
    hits = whole.feed(steps)
    fed = np.concatenate([parts.feed(chunk) for chunk in steps.chunks(passes=9)])
    assert np.array_equal(hits, fed)
    assert np.array_equal(whole.counters, parts.counters)
    assert np.array_equal(whole.totals, parts.totals)


def test_a_second_process_finds_the_compiled_kernel(own_cache):
    code = (
        "import sys; from sim.testing.cases import random_trace; from sim.pool import Capacity;"
        "from sim.replay import replay; import numba.core.event as event\n"
        "with event.install_recorder('numba:compile') as log:\n"
        "    replay(random_trace(1), 'fifo', Capacity(total_bytes=100), engine='kernel')\n"
        "print(sum(e.is_start for _, e in log.buffer))"
    )
    compiled = [
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert compiled[1] == 0


def test_importing_compiles_nothing_and_loads_no_numba():
    code = "import sys, sim.replay, sim.curve, sim.kernel; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_auto_takes_the_kernel_where_it_pays():
    assert choose("auto", 10, Lru()) == "reference"
    assert choose("auto", 10**8, Lru()) == "kernel"
    assert choose("reference", 10**8, Lru()) == "reference"


class Plain(Lru):
    compiled = False
    name = "plain"


def test_the_kernel_refuses_with_the_reason(monkeypatch):
    trace = random_trace(1)
    room = Capacity(total_bytes=60)
    with pytest.raises(SimError, match="plain is outside the compiled subset"):
        replay(trace, Plain(), room, engine="kernel")
    assert replay(trace, Plain(), room).engine == "reference"
    with pytest.raises(SimError, match="known: auto, reference, kernel"):
        replay(trace, "lru", room, engine="fast")
    monkeypatch.setattr(choice, "_has_numba", lambda: False)
    with pytest.raises(SimError, match="numba is not installed"):
        replay(trace, "lru", room, engine="kernel")


class Wordy(Lru):
    """Says that it compiles, and does not."""

    name = "wordy"

    @staticmethod
    def learn(state, event):
        Lru.learn(state, {"event": event}["event"])


def test_a_policy_that_does_not_compile_says_so(monkeypatch):
    trace = random_trace(1)
    room = Capacity(total_bytes=60)
    with pytest.raises(SimError, match="replay with wordy and always cannot be compiled"):
        replay(trace, Wordy(), room, engine="kernel")
    monkeypatch.setattr(choice, "WORTH_LOOK_UPS", 0)
    assert replay(trace, Wordy(), room).engine == "reference"
