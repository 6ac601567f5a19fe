"""Weights in a mapped file compete with the expert cache for one memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.host.weights import MappedWeights
from expert_residency.traces import RoutingTrace, load_model
from expert_residency.traces.synthetic import generate, load_style

GIB = 1 << 30


@pytest.fixture(scope="module")
def trace() -> RoutingTrace:
    return generate(load_model("gpt-oss-120b/MXFP4"), load_style("gpt-oss-20b"), tokens=4, seed=1, weights=False)


def _run(trace: RoutingTrace, mib: int, system: str = "", simulator: str = "auto"):
    spec = RunSpec.for_engine("bigmoe-edge", "bigmoe-phone" + system, f"{mib}MiB")
    return simulate(trace, spec, simulator=simulator)


@given(st.integers(0, 8 * GIB), st.integers(-GIB, 8 * GIB))
def test_what_is_missing_is_what_does_not_fit(nbytes: int, room: int) -> None:
    found = MappedWeights(nbytes, room)
    assert 0 <= found.missing_bytes <= nbytes
    assert found.missing_of(nbytes) == found.missing_bytes
    assert (found.missing_bytes == 0) == (room >= nbytes or nbytes == 0)


def test_a_cache_that_drives_weights_out_costs_their_reading_in_every_pass(trace: RoutingTrace) -> None:
    fits, crowded = _run(trace, 3000), _run(trace, 3000, ":system=6.5GiB")
    disk = load_profile("bigmoe-phone").disk
    more_ns = (crowded.total_ns - fits.total_ns) / trace.n_passes
    (said,) = [line for line in crowded.warnings if "read again" in line]
    missing = float(said.split()[0]) * GIB
    assert missing > 0.3 * GIB
    assert more_ns == pytest.approx(missing / disk.read_ahead_gb_per_s.value, rel=0.02)
    assert not any("read again" in line for line in fits.warnings)


def test_both_engines_read_them_again(trace: RoutingTrace) -> None:
    one, other = (_run(trace, 3000, ":system=6.5GiB", which) for which in ("reference", "kernel"))
    assert one.pass_ns.tolist() == other.pass_ns.tolist()


def test_a_larger_cache_is_faster_until_it_takes_the_weights_memory(trace: RoutingTrace) -> None:
    small, large, larger = (_run(trace, mib).tokens_per_s for mib in (2000, 3000, 5500))
    assert small <= large
    assert larger < large
