"""What ships as measured or derived is what its runs determine, by the rules of `residency fit`."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from expert_residency.hwmodels.registry import PROFILES, load_profile
from expert_residency.hwmodels.runs import ConstantSource, load_constant_sources, load_strata_runs
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.runs.constants import constants_of
from expert_residency.sim.studies.fit.identified import Answer, answer, constant_of

NAMED = load_constant_sources()
LAPTOP = ConstantSource(
    report="2026-10-04-community-rtx-4090-laptop", where="rtx-4090-laptop",
    constant="cpu.expert_gb_per_s.pinned.default", how="slope of ten requests",
)  # fmt: skip


@cache
def answered(named: ConstantSource) -> Answer:
    return answer(named)


def known(one: ConstantSource) -> bool:
    return constant_of(one).kind in ("measured", "derived")


@pytest.mark.parametrize(
    "named", [one for one in NAMED if known(one)], ids=lambda one: f"{one.where} {one.constant}"
)
def test_a_number_from_whole_runs_is_derived_only_if_they_determine_it(named):
    found = answered(named)
    assert found.rows, "its report has no row that can be predicted"
    assert found.determined, found


@pytest.mark.slow
@pytest.mark.parametrize(
    "named", [one for one in NAMED if not known(one)], ids=lambda one: f"{one.where} {one.constant}"
)
def test_an_assumed_one_is_not_what_its_runs_determine(named):
    found = answer(named)
    assert not found.determined, "it may be called derived"
    assert found.constant.spread is not None


def test_ten_requests_at_one_share_do_not_tell_a_slow_processor_from_a_fast_one():
    """The rate of 17.5 GB/s was once called derived; 58 by data sheet explains them as well."""
    found = answer(LAPTOP)
    assert found.ends[0] < 17.5 < 58 < found.ends[1]
    assert not found.determined
    shipped = load_profile("rtx-4090-laptop").cpu.expert_gb_per_s.pinned.default
    assert shipped.kind == "assumed"
    assert min(shipped.spread) <= 17.5 < 54 <= max(shipped.spread)


def test_times_of_the_pool_determine_its_rate_and_a_wrong_value_is_no_answer():
    named = next(one for one in NAMED if one.where == "rtx-2080ti" and "pinned" in one.constant)
    found = answered(named)
    assert found.ends[1] < 1.2 * found.ends[0]
    twice = replace(found, constant=replace(found.constant, value=2 * found.constant.value, spread=None))
    assert found.determined
    assert not twice.determined


@pytest.mark.slow
def test_without_the_times_of_the_pool_less_is_known():
    named = next(one for one in NAMED if one.where == "rtx-2080ti" and "pinned" in one.constant)
    found = answered(named)
    silent = [run.model_copy(update={"ms_cpu_experts": None}) for run in load_strata_runs()]
    wide = answer(named, silent)
    assert wide.ends[1] / wide.ends[0] > found.ends[1] / found.ends[0]


def test_expert_rates_from_whole_runs_are_named_with_their_report():
    """A rate of experts is measured by a kernel or a log, or its runs stand in constants.csv; else assumed."""
    listed = {(one.where, one.constant) for one in NAMED}
    for name in PROFILES.names():
        profile = load_profile(name)
        base = {c.path: c for c in constants_of((profile,), load_engine("strata")) if c.card is not None}
        for path, one in base.items():
            if "expert_gb_per_s" in path[1] and one.kind == "derived":
                assert (name, ".".join(path)) in listed, (
                    f"{name}: {'.'.join(path)} is called derived: {one.source}"
                )
