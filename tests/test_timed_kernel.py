"""The compiled timed kernel gives the reference's integers: every pass, every cause, every byte."""

import inspect
import io
import re
import textwrap
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from expert_residency.errors import CompileError, SimError
from expert_residency.policies import PolicyError, create, policy_of
from expert_residency.policies.eviction.lru import Lru
from expert_residency.policies.prefetch.previous_token import PreviousToken
from expert_residency.policies.structures import first_free
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.kernel import choice, choose_timed
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.runs.simulate import prepare, simulate
from expert_residency.sim.timed.channels import CopyEngine, Disk
from expert_residency.sim.timed.engine import SimPyEngine
from expert_residency.sim.timed.engine.transfers import drive_rates
from expert_residency.sim.timed.result import CAUSES, FATES, TIERS
from expert_residency.sim.timed.rules import page_bytes_of
from expert_residency.traces.bundled import load
from tests.interpreted import interpret
from tests.tiny_runs import CHANGED, SWAPS, Tiny, compiled, tiny_runs

pytest.importorskip("numba")

FEW = tiny_runs(["lru", "belady"], ["always", SWAPS], ("none", "oracle:window=3"))
ALL = tiny_runs(compiled("eviction"), [*compiled("admission"), SWAPS, SWAPS])


def found(tiny: Tiny, simulator: str):
    try:
        return simulate(tiny.trace, tiny.spec, profiles=tiny.profiles, preset=tiny.preset, simulator=simulator)
    except (SimError, PolicyError, ValueError) as error:
        return str(error)


def check_equal(tiny: Tiny):
    """Both engines find the same, or refuse with the same words; the result, or None if it was refused."""
    reference, kernel = found(tiny, "reference"), found(tiny, "kernel")
    if isinstance(reference, str) or isinstance(kernel, str):
        assert reference == kernel
        return None
    for field in fields(reference):
        if field.name == "simulator":
            continue
        one, other = getattr(reference, field.name), getattr(kernel, field.name)
        if isinstance(one, np.ndarray):
            assert one.tolist() == other.tolist(), field.name
        else:
            assert one == other, field.name
    assert (reference.simulator, kernel.simulator) == ("reference", "kernel")
    check_accounts(reference)
    wasted = reference.prefetch.channels()["drive"]["wasted_bytes"]
    assert wasted <= reference.link_bytes["disk"] + most_under_way(tiny)
    return reference


def check_accounts(result):
    """Issued = useful + late + wasted + cancelled, in copies and bytes, on every channel."""
    stats = result.prefetch
    channels = stats.channels()
    for found in channels.values():
        assert min(found.values()) >= 0
        assert found["issued"] == sum(found[fate] for fate in FATES)
        assert found["issued_bytes"] == sum(found[f"{fate}_bytes"] for fate in FATES)
    assert stats.issued == stats.useful + stats.late + stats.wasted + stats.cancelled
    assert stats.wasted_bytes == channels["link"]["wasted_bytes"] + channels["drive"]["wasted_bytes"]
    moved = sum(channels["link"][f"{fate}_bytes"] for fate in FATES[:3])
    assert result.link_bytes["h2d_prefetch"] <= moved  # of those that are late some move as demands


def most_under_way(tiny: Tiny) -> int:
    """Bytes that the drive can have begun and not ended: one slice of the largest expert on each lane."""
    ready = prepare(tiny.trace, tiny.spec, profiles=tiny.profiles, preset=tiny.preset)
    disk, plan = ready.machine.host.disk, ready.host_plan
    lanes, _, _ = drive_rates(disk, plan.access)
    return lanes * page_bytes_of(max(tiny.trace.geometry.expert_bytes), plan.slices, disk.page_bytes.count)


def for_each(cases: int, drawn, check) -> None:
    """Call `check` on so many runs, the same every time; under the profile `deep` on ten times as many new."""
    deep = settings.get_current_profile_name() == "deep"

    @settings(
        max_examples=10 * cases if deep else cases, deadline=None, derandomize=not deep, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(drawn)
    def run(tiny):
        check(tiny)

    run()


def test_the_kernel_is_the_reference():
    for_each(300, FEW, check_equal)


@pytest.mark.slow  # compiles every policy
def test_the_kernel_is_the_reference_under_every_policy_and_meets_everything():
    met = Counter()

    def check(tiny: Tiny) -> None:
        result = check_equal(tiny)
        if result is None:
            met["not run"] += 1
            return
        moved, stats, causes = result.link_bytes, result.prefetch, result.pass_causes.sum(axis=0)
        met.update(
            {
                name: int(bool(seen))
                for name, seen in {
                    **moved, **vars(stats), **dict(zip(CAUSES, causes.tolist(), strict=True)),
                    **dict(zip(TIERS, result.served_distinct.sum(axis=0).tolist(), strict=True)),
                    "waves": result.waves, "evictions": result.evictions,
                    "exchange": moved["d2h"] and causes[CAUSES.index("adapt")],
                    "streams": moved["d2h"] and not causes[CAUSES.index("adapt")],
                    "reads by the link": moved["disk"] and tiny.preset.reads == "link",
                }.items()
            }
        )  # fmt: skip

    for_each(1700, ALL, check)
    assert met.pop("not run") < 400
    assert min(met.values()) >= 5, met


@pytest.mark.slow
def test_its_source_never_leaves_an_array():
    """Compiled code would not notice an index out of range: the same source on lists that do."""

    def check(tiny: Tiny) -> None:
        reference = found(tiny, "reference")
        if not isinstance(reference, str):
            run = interpret(tiny.trace, tiny.spec, profiles=tiny.profiles, preset=tiny.preset)
            assert list(run.found.pass_ns) == reference.pass_ns.tolist()

    for_each(200, ALL, check)


def test_whoever_is_under_way_is_not_swapped_out():
    """Bytes in use are those of the residents, also where prefetches and swaps meet."""

    def check(tiny: Tiny) -> None:
        if isinstance(found(tiny, "reference"), str):
            return
        ready = prepare(tiny.trace, tiny.spec, profiles=tiny.profiles, preset=tiny.preset)
        engine = SimPyEngine(
            tiny.trace, ready.machine, ready.preset, ready.cache, ready.policies, ready.miss, ready.host_plan,
            ready.page_cache,
        )  # fmt: skip
        engine.run()
        cache = ready.cache
        for scope, used in enumerate(cache.used):
            inside = [
                key for key, there in enumerate(cache.resident) if there and cache.pool.scope_of[key] == scope
            ]
            assert used == sum(cache.pool.size_of[key] for key in inside)

    for_each(300, tiny_runs(["lru"], [SWAPS], ("previous-token", "oracle:window=3")), check)


def test_auto_takes_the_kernel_where_it_pays(monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "timed_marker", lambda: tmp_path / "compiled")
    lru, own = Lru(), replace(Lru())
    object.__setattr__(own, "compiled", False)
    few, many = choice.WORTH_LOADING_LOOK_UPS, choice.WORTH_TIMED_LOOK_UPS
    assert choose_timed("auto", many - 1, lru) == "reference"
    assert choose_timed("auto", many, lru) == "kernel"
    (tmp_path / "compiled").touch()
    assert choose_timed("auto", few - 1, lru) == "reference"
    assert choose_timed("auto", few, lru) == "kernel"
    assert choose_timed("auto", many, own) == "reference"
    assert choose_timed("auto", many, lru, timeline=True) == "reference"
    with pytest.raises(SimError, match="outside the compiled subset; the reference engine can"):
        choose_timed("kernel", many, own)
    with pytest.raises(SimError, match="timeline"):
        choose_timed("kernel", many, lru, timeline=True)
    with pytest.raises(SimError, match="auto, reference, kernel"):
        choose_timed("fast", many, lru)


def test_what_does_not_compile_is_left_to_the_reference(monkeypatch):
    @dataclass(frozen=True)
    class Wordy(Lru):
        """Says that it can be compiled, and keeps words."""

        def start(self, pool, alloc, future):
            return super().start(pool, alloc, future)._replace(scope_of=["a"] * pool.keys)

        @staticmethod
        def insert(state, key):
            state.stamp[key] = len(state.scope_of[key])

        remove = victim = staticmethod(lambda state, *_: -1)

    monkeypatch.setattr(
        "expert_residency.sim.runs.simulate.create",
        lambda kind, spec: Wordy() if kind == "eviction" else create(kind, spec),
    )
    monkeypatch.setattr(choice, "WORTH_TIMED_LOOK_UPS", 0)
    trace = load("tinymoe-code").select_passes(np.arange(load("tinymoe-code").n_passes) < 3)
    spec = RunSpec(("tesla-p40",), Capacity(slots_per_layer=8))
    assert simulate(trace, spec).simulator == "reference"
    with pytest.raises(CompileError):
        simulate(trace, spec, simulator="kernel")


@dataclass(frozen=True)
class DividingEviction(Lru):
    """Divides by the layer."""

    @staticmethod
    def learn(state, event):
        state.clock[0] += 100 // event.layer


@dataclass(frozen=True)
class RaisingEviction(Lru):
    """Cannot say who leaves once many look-ups were seen."""

    @staticmethod
    def victim(state, scope, incoming, guard, tick):
        if state.clock[0] > 100:
            raise RuntimeError("no more")
        return first_free(state.order, scope, guard, tick)


@dataclass(frozen=True)
class RefusingEviction(Lru):
    """Refuses with a sentence of its own."""

    @staticmethod
    def insert(state, key):
        if key >= 0:
            raise PolicyError("lru takes nobody in")


@dataclass(frozen=True)
class DividingPrefetch(PreviousToken):
    """Divides by the layer."""

    @staticmethod
    def propose(state, event, keys, deadlines):
        return 0 // event.layer


@dataclass(frozen=True)
class RaisingPrefetch(PreviousToken):
    """Cannot learn."""

    @staticmethod
    def learn(state, event):
        if event.number > 5:
            raise IndexError(7)


def with_policy(monkeypatch, kind, policy):
    """A short trace and a run whose policy of a kind is this one."""
    makers = {"simulate.create": create, "replay.policy_of": policy_of}
    for name, make in makers.items():
        made = partial(lambda make, k, given: policy if k == kind else make(k, given), make)
        monkeypatch.setattr(f"expert_residency.sim.runs.{name}", made)
    monkeypatch.setattr(choice, "WORTH_TIMED_LOOK_UPS", 0)
    monkeypatch.setattr(choice, "WORTH_LOOK_UPS", 0)
    trace = load("tinymoe-code").select_passes(np.arange(load("tinymoe-code").n_passes) < 3)
    return trace, RunSpec(("tesla-p40",), Capacity(slots_per_layer=8), prefetch="previous-token")


RAISING = [
    ("eviction", DividingEviction(), ZeroDivisionError, CompileError),
    ("eviction", RaisingEviction(), RuntimeError, CompileError),
    ("eviction", RefusingEviction(), PolicyError, PolicyError),
    ("prefetch", DividingPrefetch(), ZeroDivisionError, CompileError),
    ("prefetch", RaisingPrefetch(), IndexError, CompileError),
]


@pytest.mark.parametrize(("kind", "policy", "reference", "kernel"), RAISING)
def test_a_policy_that_raises_stops_the_run(monkeypatch, capfd, kind, policy, reference, kernel):
    """By itself a compiled function that is called by address would be left, and the run would go on."""
    trace, spec = with_policy(monkeypatch, kind, policy)
    said = "takes nobody in" if kernel is PolicyError else f"policy {policy.name} raised {reference.__name__}"
    with pytest.raises(reference):
        simulate(trace, spec, simulator="reference")
    with pytest.raises(kernel, match=said):
        simulate(trace, spec, simulator="kernel")
    with pytest.raises(reference):
        simulate(trace, spec)
    if kind == "eviction":
        with pytest.raises(kernel, match=said.replace(" raised", " or always raised")):
            replay(trace, policy, spec.capacity, simulator="kernel")
        with pytest.raises(reference):
            replay(trace, policy, spec.capacity)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("policy", [RaisingEviction(), RefusingEviction()])
@pytest.mark.parametrize("command", ["run", "replay"])
def test_a_policy_that_raises_is_one_sentence(monkeypatch, capfd, policy, command):
    with_policy(monkeypatch, "eviction", policy)
    trace = "bundled:tinymoe-code"
    options = [trace] if command == "replay" else ["--trace", trace, "--passes", "3", "--hardware", "tesla-p40"]
    with pytest.raises(SystemExit, match="2"):
        main([command, *options, "--slots-per-layer", "8", "--simulator", "kernel"])
    assert re.fullmatch("residency: .*(no more|takes nobody in).*\n", capfd.readouterr().err)


def test_a_run_says_who_computed_it(tmp_path):
    options = ["run", "--trace", "bundled:tinymoe-code", "--passes", "4", "--hardware", "tesla-p40",
               "--slots-per-layer", "8"]  # fmt: skip
    written = {}
    for simulator in ("reference", "kernel"):
        path = tmp_path / f"{simulator}.json"
        with redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit, match="0"):
            main([*options, "--simulator", simulator, "--json", str(path)])
        assert f"by the {simulator}" in " ".join(shown.getvalue().split())
        written[simulator] = path.read_bytes()
    assert written["reference"] == written["kernel"]


def mutated(patch, owner: type, name: str, old: str, new: str) -> None:
    """Change one place of a method's source."""
    method = getattr(owner, name)
    text = textwrap.dedent(inspect.getsource(method))
    assert text.count(old) == 1
    scope = dict(method.__globals__)
    exec(text.replace(old, new), scope)
    patch.setattr(owner, name, scope[name])


@pytest.mark.parametrize(
    ("owner", "name", "old", "new"),
    [
        (Disk, "submit", ".append(read)", ".appendleft(read)"),
        (CopyEngine, "_enqueue", ".append(batch)", ".appendleft(batch)"),
    ],
    ids=["reads-newest-first", "copies-newest-first"],
)
def test_another_order_at_equal_times_is_noticed(monkeypatch, owner, name, old, new):
    mutated(monkeypatch, owner, name, old, new)
    with pytest.raises(AssertionError):
        for_each(300, FEW, check_equal)


def test_every_rule_and_time_of_a_preset_is_drawn():
    """A preset field that the kernel does not know would be ignored by it: it must be met in the runs above."""
    told = {"name", "summary", "source", "policy", "notes", "miss", "dense_launches", "expert_launches"}
    told |= {"places", "compared", "knobs"}  # how an engine is planned, not how it runs
    told |= {"kernels", "row_at_tflops", "draft_at_gb_per_s"}  # in times of a card, made before either engine runs
    assert set(EnginePreset.model_fields) == told | set(CHANGED)
