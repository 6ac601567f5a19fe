"""The compiled replay counts exactly what the reference counts, whatever the policy, contract and room."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from expert_residency.errors import SimError
from expert_residency.policies import available, create, tally
from expert_residency.policies.eviction.fifo import Fifo
from expert_residency.policies.eviction.lfu import Lfu
from expert_residency.policies.eviction.lru import Lru
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.kernel import choice, choose
from expert_residency.sim.kernel.counts import loop
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.runs.curve import even_capacities, hit_curve
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.steps import Steps
from expert_residency.sim.testing.cases import capacities, random_trace
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder

pytest.importorskip("numba")

EVICTION = [name for name in available("eviction") if create("eviction", name).compiled]
ADMISSION = [name for name in available("admission") if create("admission", name).compiled]
RATES = ":link_gb_per_s=13,host_gb_per_s=44"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Kernels of the tests stay out of the user's cache."""
    before = os.environ.get("EXPERT_RESIDENCY_CACHE")
    base = tmp_path_factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base  # shared by all workers
    os.environ.setdefault("EXPERT_RESIDENCY_CACHE", str(base / "kernels"))
    yield
    if before is None:
        del os.environ["EXPERT_RESIDENCY_CACHE"]


def same(trace, eviction, capacity, **options):
    plain = replay(trace, eviction, capacity, simulator="reference", **options)
    fast = replay(trace, eviction, capacity, simulator="kernel", **options)
    assert (plain.simulator, fast.simulator) == ("reference", "kernel")
    assert np.array_equal(plain.hits, fast.hits)
    fields = [f.name for f in dataclasses.fields(plain) if f.name not in ("hits", "simulator")]
    assert {f: getattr(plain, f) for f in fields} == {f: getattr(fast, f) for f in fields}


def every_way(eviction, admission):
    trace = random_trace(2)
    for capacity in capacities(trace.geometry):
        same(trace, eviction, capacity, admission=admission, warmup_passes=20)
        same(trace, eviction, capacity, admission=admission, oversize="overflow", placement="hindsight")
        same(trace, eviction, capacity, admission=admission, contract="sequential", lag_passes=3)


CASES = max(65, settings.default.max_examples)
"""Drawn cases of each pair of policies: 30 pairs have 1,950, and LRU at every capacity 200; `deep` draws more."""
drawn = settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def traces(draw, least_experts=2):
    """Few experts, many ties: rows of any phase over some layers."""
    layers, experts = draw(st.integers(1, 3)), draw(st.integers(least_experts, 7))
    k = draw(st.integers(1, min(3, experts)))
    sizes = tuple(draw(st.sampled_from([(1,) * layers, tuple(range(1, layers + 1))])))
    builder = TraceBuilder(ModelGeometry("drawn", tuple(range(layers)), experts, k, sizes, (1,) * layers))
    row = st.permutations(range(experts)).map(lambda order: order[:k])
    for _ in range(draw(st.integers(1, 12))):
        phase = draw(st.sampled_from(list(Phase)))
        builder.begin_pass(phase, request=draw(st.integers(0, 1)))
        for layer in range(layers):
            for _ in range(1 if phase == Phase.DECODE else draw(st.integers(1, 3))):
                builder.row(layer, draw(row))
    return builder.build(whole=False)


@st.composite
def cases(draw):
    """A trace, a capacity, and everything else that a replay may be told.

    From five experts on no small array is as long as there are keys, so each policy is laid out and compiled once.
    """
    trace = draw(traces(least_experts=5))
    scope, sizes = draw(st.sampled_from(["global", "layer"])), trace.geometry.expert_bytes
    least = max(sizes) * len(sizes) if scope == "layer" else min(sizes)  # one expert of each part
    room = Capacity(total_bytes=draw(st.integers(least, 20)), scope=scope)
    options = {
        "contract": draw(st.sampled_from(["event", "sequential", "sequential-descending"])),
        "oversize": draw(st.sampled_from(["waves", "overflow"])),
        "placement": draw(st.sampled_from([None, "none", "hindsight"])),
        "warmup_passes": draw(st.integers(0, 3)),
        "lag_passes": draw(st.integers(1, 3)),
    }
    return trace, room, options


PAIRS = [(name, "always") for name in EVICTION] + [("lru", name) for name in ADMISSION if name != "always"]
OFTEN = {"lru", "lfu", "belady", "s3fifo"}


def with_rates(admission):
    """Parameters that make something happen in a short trace."""
    eager = {"balanced": RATES, "strata-adaptive": ":every=2,min_usage=1,min_gain=0,swaps=2"}
    return admission + eager.get(admission, "")


@pytest.mark.parametrize(
    ("eviction", "admission"),
    [
        pytest.param(*pair, marks=() if pair[0] in OFTEN and pair[1] == "always" else pytest.mark.slow)
        for pair in PAIRS
    ],
)
def test_any_case(eviction, admission):
    @given(cases())
    @drawn
    def counts_the_same(case):
        trace, room, options = case
        same(trace, eviction, room, admission=with_rates(admission), **options)

    counts_the_same()
    every_way(eviction, with_rates(admission))


def caught(plain, mutant, change):
    """Whether drawn cases tell the reference from a kernel in which `change` is at work."""

    def differs(case):
        trace, room, options = case
        expected = replay(trace, plain, room, simulator="reference", **options)
        with change():
            found = replay(trace, mutant, room, simulator="kernel", **options)
        return not np.array_equal(expected.hits, found.hits) or expected.evictions != found.evictions

    try:
        find(cases(), differs, settings=drawn)
    except NoSuchExample:
        return False
    return True


class LfuAgain(Lfu):
    name = "lfu-again"


class FifoAgain(Fifo):
    name = "fifo-again"


def newest_free(s, which, guard, tick):
    end = len(s.home) + which
    node = s.prev[end]
    while node != end and guard[node] >= tick:
        node = s.prev[node]
    return node if node != end else -1


def last_miss_first():
    """The loop with the misses of an event admitted from the last to the first."""
    source = inspect.getsource(loop.replay_steps)
    changed = source.replace(
        "for i in range(chosen):\n            key = keys[lo + misses[i]]",
        "for i in range(chosen):\n            key = keys[lo + misses[chosen - 1 - i]]",
    )
    assert changed != source
    scope = dict(vars(loop))
    exec(compile(changed, loop.__file__, "exec"), scope)
    return scope["replay_steps"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plain", "again", "owner", "attribute", "mutated"),
    [
        ("lfu", LfuAgain(), tally, "first_free", newest_free),
        ("fifo", FifoAgain(), loop, "replay_steps", last_miss_first()),
    ],
    ids=["lfu: ties to the newer", "loop: last miss first"],
)
def test_a_changed_order_of_ties_is_caught(plain, again, owner, attribute, mutated):
    """The same cases find nothing in the code as it is (`test_any_case`)."""

    class Mutant(type(again)):
        name = again.name + "-changed"

    @contextlib.contextmanager
    def changed():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, attribute, mutated)
            yield

    assert not caught(plain, again, contextlib.nullcontext)
    assert caught(plain, Mutant(), changed)


@given(traces(), st.sampled_from(["global", "layer"]))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_pass_counts_lru_at_every_capacity(trace, scope):
    rooms = [Capacity(slots_per_layer=n, scope=scope) for n in range(1, trace.geometry.experts + 1)]
    for fast, plain in zip(
        hit_curve(trace, "lru", rooms, simulator="kernel"), hit_curve(trace, "lru", rooms, simulator="reference"),
        strict=True,
    ):  # fmt: skip
        assert (fast.capacity_bytes, fast.phases) == (plain.capacity_bytes, plain.phases)


def test_one_pass_is_used_exactly_where_every_event_fits():
    """Fewer slots than the largest event: members displace each other, and the stack property is lost."""
    trace = random_trace(5, uniform=True)
    largest = int(np.diff(trace.event_offsets).max())
    rooms = even_capacities(trace, trace.geometry.experts, "layer")
    points = hit_curve(trace, "lru", rooms, simulator="kernel")
    methods = [point.method for point in points]
    assert methods == ["one pass" if room.slots_per_layer >= largest else "kernel" for room in rooms]
    assert {"one pass", "kernel"} == set(methods)


def test_unequal_sizes_in_one_pool_are_replayed():
    trace = random_trace(5, uniform=False)
    points = hit_curve(trace, "lru", even_capacities(trace, 3, "global"), simulator="kernel")
    assert {point.method for point in points} == {"kernel"}


def test_a_stream_in_chunks_counts_as_the_whole(own_cache):
    from expert_residency.sim.kernel.counts.replay import ReplayKernel

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
        "import sys; from expert_residency.sim.testing.cases import random_trace;"
        "from expert_residency.sim.choices.capacity import Capacity;"
        "from expert_residency.sim.runs.replay import replay; import numba.core.event as event\n"
        "with event.install_recorder('numba:compile') as log:\n"
        "    replay(random_trace(1), 'fifo', Capacity(total_bytes=100), simulator='kernel')\n"
        "print(sum(e.is_start for _, e in log.buffer))"
    )
    compiled = [
        int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert compiled[1] == 0


@pytest.mark.slow
def test_a_numba_that_was_not_tried_compiles_in_its_own_way(tmp_path):
    """What is replaced of its code generator may be gone in another version: the same counts, compiled slower."""
    code = (
        "from expert_residency.sim.kernel.compiler import tried; tried.TRIED = ()\n"
        "from expert_residency.sim.testing.cases import random_trace\n"
        "from expert_residency.sim.choices.capacity import Capacity\n"
        "from expert_residency.sim.runs.replay import replay\n"
        "print(replay(random_trace(1), 'fifo', Capacity(total_bytes=100), simulator='kernel').phases)"
    )
    away = os.environ | {"EXPERT_RESIDENCY_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=away)
    counts = replay(random_trace(1), "fifo", Capacity(total_bytes=100), simulator="reference").phases
    assert done.stdout.strip() == str(counts)


def test_a_cache_that_others_can_write_to_is_not_read(tmp_path, monkeypatch):
    """numba keeps pickles there: whoever writes them runs code in this process."""
    import pickle

    class Planted:
        def __reduce__(self):
            return Path.touch, (tmp_path / "planted",)

    monkeypatch.setenv("EXPERT_RESIDENCY_CACHE", str(tmp_path / "cache"))
    code = (
        "from expert_residency.sim.testing.cases import random_trace\n"
        "from expert_residency.sim.choices.capacity import Capacity\n"
        "from expert_residency.sim.runs.replay import replay\n"
        "print(replay(random_trace(1), 'fifo', Capacity(total_bytes=100), simulator='kernel').phases)"
    )

    def run():
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    first = run()
    assert first.stderr == ""
    indices = list((tmp_path / "cache").rglob("*.nbi"))
    assert indices
    assert {path.parent.parent.stat().st_mode & 0o077 for path in indices} == {0}
    for path in indices:
        path.write_bytes(pickle.dumps(Planted()))
        path.parent.parent.chmod(0o777)
    second = run()
    assert "others can write there" in second.stderr
    assert second.stdout == first.stdout
    assert not (tmp_path / "planted").exists()


def doubled(number: int64) -> int64:  # noqa: F821
    return number * 2


def toy_loop(address):
    doubled(address)


def test_parts_are_linked_by_type_unless_numba_keeps_this_very_kernel(tmp_path, monkeypatch):
    """Left to inference, the timed kernel took ten minutes to compile where another Python had done it before."""
    numba = pytest.importorskip("numba")
    from expert_residency.sim.kernel.compiler import link

    monkeypatch.setenv("EXPERT_RESIDENCY_CACHE", str(tmp_path / "cache"))
    linked, whole = [], link.Linker.__init__

    def seen(self, bound, *, kinds=None):
        linked.append(kinds is not None)
        whole(self, bound, kinds=kinds)

    monkeypatch.setattr(link.Linker, "__init__", seen)

    def by_type():
        linked.clear()
        link.compile_loop(toy_loop, {}, "toy", kinds={"int64": numba.int64})
        return any(linked)

    assert by_type()
    assert not by_type()
    for compiled in (tmp_path / "cache").rglob("*.nbc"):
        compiled.unlink()
    assert by_type()
    for anchor in (tmp_path / "cache").rglob("kernel.py"):
        anchor.unlink()
    assert by_type()
    assert not by_type()
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "other"))
    assert by_type()
    assert not by_type()
    monkeypatch.setattr(link, "_compiled_for", lambda: "another Python or processor")
    assert by_type()


def test_importing_compiles_nothing_and_loads_no_numba():
    code = (
        "import sys; from expert_residency.sim import kernel\n"
        "from expert_residency.sim.runs import curve, replay, simulate; print('numba' in sys.modules)"
    )
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
        replay(trace, Plain(), room, simulator="kernel")
    assert replay(trace, Plain(), room).simulator == "reference"
    with pytest.raises(SimError, match="known: auto, reference, kernel"):
        replay(trace, "lru", room, simulator="fast")
    monkeypatch.setattr(choice, "_has_numba", lambda: False)
    with pytest.raises(SimError, match="numba is not installed"):
        replay(trace, "lru", room, simulator="kernel")


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
        replay(trace, Wordy(), room, simulator="kernel")
    monkeypatch.setattr(choice, "WORTH_LOOK_UPS", 0)
    assert replay(trace, Wordy(), room).simulator == "reference"
