"""Calibrate, predict, run, compare: the whole loop on this machine, without a card.

Prediction and measurement are both taken here and now, in turn, so no speed of any machine is asserted. Where the
two halves of the rounds do not agree on the arms, or on their prediction, the machine was disturbed, and nothing
is held against the model.
"""

from __future__ import annotations

import logging
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

from expert_residency.hwmodels.executor.steps import Measured
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.live.schedule import Schedule, make_schedule, sizes_of
from expert_residency.sim.live.variants import Arm, Outcome, decode_window, run_in_turn
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.validation.cases import Bounds, Case, load_bounds, summarize
from expert_residency.traces import RoutingTrace
from expert_residency.traces.bundled import load

PASSES, WARMUP = 24, {"warm": 6, "cold": 0}
SLOTS = (8, 16, 32, 48)
ROUNDS = 32
"""Of measurements, each with one arm after it: a machine with neighbours changes within seconds."""
TARGET = load_bounds()["live epyc2-cardless", "unseen"][1]
LIMIT = Bounds(0.10, 0.25, 0.05)
"""What fails: the target and the noise of eight short runs on a shared machine (medians of 2.1 to 5.1 % seen)."""


@dataclass
class Found:
    """Predicted beside measured, and how far both are apart between odd and even rounds."""

    cases: list[Case]
    halves: list[tuple[float, float]]

    def over(self, bounds: Bounds) -> list[str]:
        """Which bounds are missed."""
        (summary,) = summarize(self.cases, {})
        return summary.over(bounds)

    @property
    def disturbed(self) -> bool:
        """Whether prediction or runs disagree with themselves by more than the targets."""
        sides = zip(*self.halves, strict=True)
        return any(statistics.median(side) > TARGET.median or max(side) > TARGET.worst for side in sides)

    def __str__(self) -> str:
        rows = [
            f"{case.name}: {case.error:+.1%} of {case.measured:.1f} tokens/s; "
            f"halves of the prediction {predicted:.1%} apart, of the runs {measured:.1%}"
            for case, (predicted, measured) in zip(self.cases, self.halves, strict=True)
        ]
        return "\n".join([*rows, *(f"target: {miss}" for miss in self.over(TARGET))])


def go_round(trace: RoutingTrace, folder: Path) -> Found:
    """Calibrate with arms between the rounds, and predict the arms."""
    from expert_residency.hwmodels.calibrate import calibrate
    from expert_residency.hwmodels.calibrate.cardless import USUAL
    from expert_residency.hwmodels.calibrate.run import default_workers
    from expert_residency.hwmodels.executor.cardless import CardlessEngine

    sizes = sizes_of(trace.geometry)
    arms = [Arm("prose", slots, host="mmap", start=start) for slots in SLOTS for start in ("warm", "cold")]
    outcomes = [Outcome(arm, make_schedule(trace, arm.choices), []) for arm in arms]
    engine = CardlessEngine(sizes, folder, default_workers(card=False))

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine.load(schedule)
        return engine.run(arm.start)

    turns = {state: run_in_turn([one for one in outcomes if one.arm.start == state], run) for state in WARMUP}

    def between(state: str) -> None:
        next(turns[state])

    made = calibrate(sizes, folder, name="here", cardless=True, rounds=ROUNDS, between=between)
    engine.close()

    def predicted(which: slice) -> list[float]:
        some = made.of_rounds(which)
        profile, preset = folder / "here.toml", folder / "here.engine.toml"
        profile.write_text(some.profile_toml)
        preset.write_text(some.engine_toml)
        specs = [
            RunSpec((str(profile),), a.choices.capacity, engine=str(preset), host="mmap", start=a.start)
            for a in arms
        ]
        times = [simulate(trace, spec).pass_ns[WARMUP[spec.start] :] for spec in specs]
        return [1e9 / float(one.mean()) for one in times]

    def measured(which: slice) -> list[float]:
        some = [Outcome(one.arm, one.schedule, one.rounds[which]) for one in outcomes]
        return [one.usual_tok_s(WARMUP[one.arm.start], USUAL) for one in some]

    whole, odd, even = slice(None), slice(0, None, 2), slice(1, None, 2)
    cases = [
        Case("here", "unseen", arm.label, arm.start, "here", p, m)
        for arm, p, m in zip(arms, predicted(whole), measured(whole), strict=True)
    ]
    apart = [
        [abs(one / two - 1) for one, two in zip(side(odd), side(even), strict=True)]
        for side in (predicted, measured)
    ]
    return Found(cases, list(zip(*apart, strict=True)))


@pytest.mark.measured
def test_a_profile_of_this_machine_predicts_its_runs(tmp_path: Path) -> None:
    """Four caches over a file, page cache warm and cold: median error, worst error and order within the limits.

    A miss is a failure, unless prediction or runs disagree with themselves; how far the targets are is logged.
    """
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    found = go_round(decode_window(load("tinymoe-prose"), PASSES), tmp_path)
    logging.getLogger(__name__).info("%d rounds\n%s", ROUNDS, found)
    misses = found.over(LIMIT)
    if misses and found.disturbed:
        pytest.skip(f"the machine is too busy: runs alike differ by more than the targets\n{found}")
    assert not misses, f"{found}\n{misses}"


def test_a_miss_is_told_from_a_disturbed_machine() -> None:
    """The judgement itself: a model that is off fails on a quiet machine, whatever one that is on passes."""
    case = [Case("g", "unseen", str(i), "k", "g", 100.0 * i, 100.0 * i) for i in (1, 2, 3)]
    off = [Case("g", "unseen", str(i), "k", "g", 120.0 * i, 100.0 * i) for i in (1, 2, 3)]
    assert Bounds(0.05, 0.15, 0.0) == TARGET
    assert not Found(case, [(0.3, 0.3)] * 3).over(TARGET)
    assert len(Found(off, [(0.01, 0.01)] * 3).over(TARGET)) == 2
    assert len(Found(off, [(0.01, 0.01)] * 3).over(LIMIT)) == 1
    assert not Found(off, [(0.01, 0.01), (0.02, 0.02), (0.14, 0.14)]).disturbed
    assert Found(off, [(0.01, 0.01), (0.01, 0.01), (0.01, 0.16)]).disturbed
    assert Found(off, [(0.01, 0.01), (0.01, 0.01), (0.16, 0.01)]).disturbed
    assert Found(off, [(0.01, 0.06)] * 3).disturbed
    swapped = [Case("g", "unseen", n, "k", "g", p, m) for n, p, m in (("a", 104.0, 100.0), ("b", 103.0, 111.0))]
    assert any("wrong order" in miss for miss in Found(swapped, [(0.0, 0.0)] * 2).over(LIMIT))
