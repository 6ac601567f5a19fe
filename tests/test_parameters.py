"""Parameters of policies: numbers of their kind, finite, in a range that both engines can take."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pytest

from expert_residency.errors import PolicyError
from expert_residency.policies import available, create
from expert_residency.policies.eviction.lru import Lru
from expert_residency.policies.parameters import Share, Within, _rules
from expert_residency.policies.registry import KINDS, load
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.testing.cases import random_trace

NUMBERED = [
    (kind, name, field, number, within)
    for kind in KINDS
    for name in available(kind)
    for field, number, within in _rules(load(kind, name))
]


@pytest.mark.parametrize(("kind", "name", "field", "number", "within"), NUMBERED)
def test_what_is_out_of_range_is_refused(kind: Any, name: str, field: str, number: type, within: Within) -> None:
    for text in ("nan", "inf", "-inf", "1e999", "x", ""):
        with pytest.raises(PolicyError, match=rf"{name}.*{field}"):
            create(kind, f"{name}:{field}={text}")
    policy = create(kind, name)
    for value in (
        math.nan,
        math.inf,
        -math.inf,
        min(within.low - 1, within.low * 2 - 1),
        within.high * 2 + 1,
        True,
        "1",
        None,
    ):
        if number is int and isinstance(value, float) and math.isfinite(value):
            value = int(value)
        with pytest.raises(PolicyError, match=rf"{field} is .*, expected"):
            dataclasses.replace(policy, **{field: value})  # type: ignore[type-var]
    for bound in (within.low, within.high):
        dataclasses.replace(policy, **{field: number(bound)})  # type: ignore[type-var]


@pytest.mark.parametrize("name", available("eviction"))
@pytest.mark.parametrize("simulator", ["reference", pytest.param("kernel", marks=pytest.mark.slow)])
def test_both_ends_of_every_range_run(name: str, simulator: str) -> None:
    """What is allowed neither raises nor hangs, and is the same in both engines."""
    if simulator == "kernel":
        pytest.importorskip("numba")
    trace = random_trace(2, passes=12)
    plain = create("eviction", name)
    for field, number, within in _rules(type(plain)):
        for bound in (within.low, within.high):
            policy = dataclasses.replace(plain, **{field: number(bound)})
            result = replay(trace, policy, Capacity(slots_per_layer=3), simulator="reference")
            assert result.hits.sum() < trace.n_lookups
            if simulator == "kernel":
                fast = replay(trace, policy, Capacity(slots_per_layer=3), simulator="kernel")
                assert fast.hits.tolist() == result.hits.tolist()


def test_most_parameters_have_a_range_of_their_own() -> None:
    free = [f"{name}.{field}" for _, name, field, _, within in NUMBERED if within.high == float(1 << 62)]
    assert all(place.endswith(".seed") for place in free), free


def test_a_plug_in_declares_ranges_in_the_same_way() -> None:
    @dataclass(frozen=True)
    class Own(Lru):
        """With parameters."""

        name: ClassVar[str] = "own"
        share: Share = 0.5
        depth: Annotated[int, Within(1, 4)] = 2
        plain: float = 1.0

    assert Own(share=1.0, depth=4, plain=-5.0).share == 1.0
    for wrong, words in (({"share": 1.5}, "share is 1.5, expected 0 to 1"), ({"depth": 5}, "expected 1 to 4"),
                         ({"depth": 2.0}, "a whole number"), ({"plain": math.nan}, "plain is nan")):  # fmt: skip
        with pytest.raises(PolicyError, match=words):
            Own(**wrong)
