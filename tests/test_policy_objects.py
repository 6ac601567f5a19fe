"""Policies of one's own, handed over as objects: timed, swept in worker processes and told apart in manifests."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

import expert_residency as er
from expert_residency.errors import PolicyError, SimError
from expert_residency.policies import EvictionPolicy, adopt, available, create
from expert_residency.policies.eviction.lru import Lru
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
