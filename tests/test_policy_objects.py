"""Policies of one's own, handed over as objects: timed, swept in worker processes and told apart in manifests."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import expert_residency as er
from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import EvictionPolicy, adopt, available, create
from expert_residency.policies.admission.always import Always
from expert_residency.policies.admission.never import Never
from expert_residency.policies.eviction.lru import Lru
from expert_residency.sim.runs.curve import hit_curve
from expert_residency.sim.runs.stream import replay_stream
from expert_residency.sim.testing import check_admission, check_eviction
from expert_residency.traces.bundled import load

SOURCE = '''
from dataclasses import dataclass
from typing import Any, ClassVar
from expert_residency.policies import EvictionPolicy

@dataclass(frozen=True)
class Newest(EvictionPolicy):
    """{summary}"""

    name: ClassVar[str] = "newest-first"
    source: ClassVar[str] = "test"
    depth: int = 1
    bold: bool = False

    def start(self, pool: Any, alloc: Any, future: Any) -> Any:
        return {{"pool": pool, "order": [[] for _ in range(pool.scopes)], "depth": self.depth}}

    @staticmethod
    def insert(state: Any, key: int) -> None:
        state["order"][state["pool"].scope_of[key]].append(key)

    @staticmethod
    def remove(state: Any, key: int) -> None:
        state["order"][state["pool"].scope_of[key]].remove(key)

    @staticmethod
    def victim(state: Any, scope: int, incoming: int, guard: Any, tick: int) -> int:
        free = [key for key in state["order"][scope] if guard[key] < tick]
        return free[-min({depth}, len(free))] if free else -1
'''


def of_a_cell(depth: str = 'state["depth"]', summary: str = "Newest first.") -> Any:
    """The class as a cell of a notebook makes it: in `__main__`, with no file behind it."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(SOURCE.format(depth=depth, summary=summary), "<cell>", "exec"), space)
    return space["Newest"]


@dataclass(frozen=True)
class Oldest(EvictionPolicy):
    """First in, first out, of a module."""

    name: ClassVar[str] = "oldest-first"
    source: ClassVar[str] = "test"

    def start(self, pool: Any, alloc: Any, future: Any) -> Any:
        return {"pool": pool, "order": [[] for _ in range(pool.scopes)]}

    @staticmethod
    def insert(state: Any, key: int) -> None:
        state["order"][state["pool"].scope_of[key]].append(key)

    @staticmethod
    def remove(state: Any, key: int) -> None:
        state["order"][state["pool"].scope_of[key]].remove(key)

    @staticmethod
    def victim(state: Any, scope: int, incoming: int, guard: Any, tick: int) -> int:
        return next((key for key in state["order"][scope] if guard[key] < tick), -1)


@pytest.fixture(scope="module")
def trace():
    return load("tinymoe-code")


@pytest.fixture
def spec():
    return {"hardware": "rtx-5070", "capacity": "25%", "miss": "fetch"}


def test_an_object_is_timed_as_its_registered_twin_is(trace, spec):
    own = er.simulate(trace, er.RunSpec(**spec, eviction=Oldest()))
    fifo = er.simulate(trace, er.RunSpec(**spec, eviction="fifo"))
    assert own.total_ns == fifo.total_ns
    assert own.evictions == fifo.evictions > 0
    assert own.manifest["spec"]["eviction"] == "oldest-first"


def test_parameters_are_part_of_its_words(trace, spec):
    cls = of_a_cell()
    run = er.RunSpec(**spec, eviction=cls(depth=2, bold=True))
    assert run.eviction == "newest-first:depth=2,bold=true"
    assert create("eviction", run.eviction) == cls(depth=2, bold=True)
    assert "newest-first" in available("eviction")
    assert er.RunSpec.from_dict(run.to_dict()) == run
    one, two = (er.simulate(trace, er.RunSpec(**spec, eviction=cls(depth=d))) for d in (1, 40))
    assert one.total_ns != two.total_ns


@pytest.mark.slow
def test_a_class_that_was_changed_has_another_manifest(trace, spec):
    before = er.simulate(trace, er.RunSpec(**spec, eviction=of_a_cell()))
    same = er.simulate(trace, er.RunSpec(**spec, eviction=of_a_cell()))
    after = er.simulate(trace, er.RunSpec(**spec, eviction=of_a_cell("30")))
    assert before.manifest == same.manifest
    assert before.manifest["spec"] == after.manifest["spec"]
    assert before.manifest["policies_sha256"] != after.manifest["policies_sha256"]
    assert "policies_sha256" not in er.simulate(trace, er.RunSpec(**spec, eviction="lru")).manifest


def test_a_registered_class_is_its_name(spec):
    assert er.RunSpec(**spec, eviction=Lru()) == er.RunSpec(**spec, eviction="lru")
    assert er.RunSpec(**spec, eviction=Lru) == er.RunSpec(**spec)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_sweep_takes_objects_and_traces_to_its_workers(trace, spec, workers):
    found = er.sweep(
        {
            "traces": {"mine": trace},
            "constants": spec,
            "axes": {"eviction": ["fifo", Oldest, of_a_cell()(depth=3)]},
        },
        workers=workers,
    ).frame
    assert found["status"].tolist() == ["ok"] * 3
    assert found["eviction"].tolist() == ["fifo", "oldest-first", "newest-first:depth=3,bold=false"]
    fifo, own, newest = found["ms_per_token"]
    assert fifo == own != newest
    assert set(found["trace"]) == {"mine"}


def test_a_resumed_sweep_runs_a_changed_class_again(trace, spec, tmp_path):
    def ran(depth, resume=True):
        sweep = {"traces": {"mine": trace}, "constants": spec | {"eviction": of_a_cell(depth)}}
        return er.sweep(sweep, tmp_path / "out", workers=1, resume=resume).ran

    assert [ran("1", resume=False), ran("1"), ran("30")] == [1, 0, 1]


@pytest.mark.parametrize(
    ("kind", "policy", "words"),
    [
        ("prefetch", Oldest(), "not a PrefetchPolicy"),
        ("eviction", type("Lru", (Oldest,), {"name": "lru"}), "'lru' already"),
        ("eviction", type("Spaced", (Oldest,), {"name": "a b"}), "needs a name"),
        ("eviction", EvictionPolicy, "needs a name"),
    ],
)
def test_what_cannot_be_adopted_is_said(kind, policy, words):
    with pytest.raises(PolicyError, match=words):
        adopt(kind, policy)


def test_what_is_no_policy_is_refused(spec):
    with pytest.raises(SimError, match="eviction is 3, expected a name, or in Python also a policy"):
        er.RunSpec(**spec, eviction=3)


@dataclass(frozen=True)
class Deep(Oldest):
    """First in, first out, with a parameter that must be given."""

    name: ClassVar[str] = "oldest-deep"
    depth: int


@dataclass(frozen=True)
class Shy(Never):
    """Admits nothing."""

    name: ClassVar[str] = "shy"


def test_a_class_will_do_wherever_python_hands_a_policy(trace):
    own = er.replay(trace, Oldest, "25%")
    fifo = er.replay(trace, "fifo", "25%")
    assert own.policy == "oldest-first"
    assert own.phases == fifo.phases
    assert er.replay(trace, Oldest(), "25%").phases == fifo.phases
    assert er.replay(trace, Lru, "25%", admission=Shy).admitted_bytes == 0
    for one, two in zip(hit_curve(trace, Oldest, ["25%"]), hit_curve(trace, "fifo", ["25%"]), strict=True):
        assert one.phases == two.phases
    assert hit_curve(trace, Lru, ["25%"], admission=Shy)[0].phases["all"].distinct_hits == 0
    (streamed,) = replay_stream([trace], trace.geometry, [Lru], "25%", admission=Always)
    assert streamed.phases == er.replay(trace, "lru", "25%").phases


def test_tune_takes_classes_as_choice_and_as_values(spec, tmp_path):
    pytest.importorskip("optuna", reason="needs the extra 'tune'")
    file: dict[str, Any] = {
        "traces": {"code": "bundled:tinymoe-code"},
        "choices": spec | {"passes": 3, "eviction": "{who}", "admission": Shy},
        "parameters": {"who": {"values": [Oldest, "lru"]}},
    }
    found = er.tune(file, tmp_path / "out", trials=4).frame
    assert set(found["eviction"]) <= {"oldest-first", "lru"}
    assert set(found["admission"]) == {"shy"}
    assert set(found["status"]) == {"ok"}


@pytest.mark.parametrize("given", [3, None, int])
def test_what_replay_cannot_take_is_said(trace, given):
    with pytest.raises(PolicyError, match="expected a name, a policy or its class"):
        er.replay(trace, given, "25%")


def test_a_class_without_defaults_is_told_to_be_an_instance(trace, spec):
    fix = r"Deep has no default for depth: give an instance, Deep\(depth=...\)"
    with pytest.raises(PolicyError, match=fix):
        er.replay(trace, Deep, "25%")
    with pytest.raises(SimError, match=fix):
        er.RunSpec(**spec, eviction=Deep)
    with pytest.raises(AssertionError, match=r"Deep cannot be made with defaults .*: give an instance"):
        check_eviction(Deep)
    with pytest.raises(PolicyError, match="not a EvictionPolicy"):
        er.replay(trace, Shy, "25%")


def test_the_laws_take_a_class():
    check_admission(Shy)
    check_eviction(Oldest)
    with pytest.raises(AssertionError, match="Shy is no EvictionPolicy"):
        check_eviction(Shy)
