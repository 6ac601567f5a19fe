"""Calibrate, predict, run, compare: the whole loop on this machine, without a card, held to the targets.

Prediction and measurement are both taken here and now, round by round in turn, so no speed of any machine is
asserted. Where the two halves of the rounds do not agree on the arms themselves, the machine was disturbed, and
nothing is held against the prediction.
"""

from __future__ import annotations

import logging
import statistics
from dataclasses import dataclass
from pathlib import Path

import pytest

from hwmodels.live.steps import Measured
from sim.live.arms import Arm, Outcome, decode_window, run_round
from sim.live.schedule import Schedule, make_schedule, sizes_of
from sim.run import RunSpec, simulate
from sim.validate import Bounds, Case, load_bounds, summarize
from traces import RoutingTrace
from traces.bundled import load

PASSES, WARMUP = 24, {"warm": 6, "cold": 0}
SLOTS = (8, 16, 32, 48)
ROUNDS, TRIES = 6, 3
TARGET = load_bounds()["live epyc2-cardless", "unseen"][1]


@dataclass
class Found:
    """Predicted beside measured, and how far the arms of odd and even rounds are apart."""

    cases: list[Case]
    spread: list[float]

    @property
    def misses(self) -> list[str]:
        """Which targets are missed."""
        (summary,) = summarize(self.cases, {})
        return summary.over(TARGET)

    @property
    def disturbed(self) -> bool:
        """Whether the measured figures themselves are less certain than the targets."""
        return statistics.median(self.spread) > TARGET.median or max(self.spread) > TARGET.worst

    def __str__(self) -> str:
        rows = [
            f"{case.name}: {case.error:+.1%} of {case.measured:.1f} tokens/s; halves {apart:.1%} apart"
            for case, apart in zip(self.cases, self.spread, strict=True)
        ]
        return "\n".join([*rows, *self.misses])


class Loop:
    """Arms and predictions of one machine; every call of `go_on` adds rounds of both."""

    def __init__(self, trace: RoutingTrace, folder: Path) -> None:
        self.trace, self.folder = trace, folder
        arms = [Arm("prose", slots, host="mmap", start=start) for slots in SLOTS for start in ("warm", "cold")]
        self.outcomes = [Outcome(arm, make_schedule(trace, arm.choices), []) for arm in arms]
        self.predicted: list[list[float]] = [[] for _ in arms]

    def go_on(self) -> Found:
        """One more calibration, with a round of all arms after each of its rounds."""
        from hwmodels.calibrate import calibrate
        from hwmodels.calibrate.run import default_workers
        from hwmodels.live.cardless import CardlessEngine

        sizes = sizes_of(self.trace.geometry)
        engine = CardlessEngine(sizes, self.folder, default_workers(card=False))

        def run(arm: Arm, schedule: Schedule) -> Measured:
            engine.load(schedule)
            return engine.run(arm.start)

        def between() -> None:
            run_round(self.outcomes, run, seed=len(self.outcomes[-1].rounds))

        made = calibrate(sizes, self.folder, name="here", cardless=True, rounds=ROUNDS, between=between)
        engine.close()
        profile, preset = self.folder / "here.toml", self.folder / "here.engine.toml"
        profile.write_text(made.profile_toml)
        preset.write_text(made.engine_toml)
        for one, predicted in zip(self.outcomes, self.predicted, strict=True):
            arm = one.arm
            spec = RunSpec((str(profile),), arm.choices.capacity, engine=str(preset), host="mmap", start=arm.start)
            predicted.append(1e9 / float(simulate(self.trace, spec).pass_ns[WARMUP[arm.start] :].mean()))
        return self.found()

    def found(self) -> Found:
        """All rounds so far; the prediction is the middle one of the calibrations."""
        from hwmodels.calibrate.cardless import USUAL

        cases, spread = [], []
        for one, predicted in zip(self.outcomes, self.predicted, strict=True):
            arm, warmup = one.arm, WARMUP[one.arm.start]
            measured = one.usual_tok_s(warmup, USUAL)
            middle = statistics.median(predicted)
            cases.append(Case("here", "unseen", arm.label, arm.start, "here", middle, measured))
            odd, even = (Outcome(arm, one.schedule, one.rounds[i::2]).usual_tok_s(warmup, USUAL) for i in (0, 1))
            spread.append(abs(odd / even - 1))
        return Found(cases, spread)


@pytest.mark.measured
def test_a_profile_of_this_machine_predicts_its_runs(tmp_path: Path) -> None:
    """Four caches over a file, page cache warm and cold: median error, worst error and order on target.

    A miss asks for more rounds, twice at most. One that stays is a failure, unless the arms disagree with
    themselves by as much.
    """
    pytest.importorskip("numba", reason="the CPU pool needs numba")
    loop = Loop(decode_window(load("tinymoe-prose"), PASSES), tmp_path)
    for _ in range(TRIES):
        found = loop.go_on()
        logging.getLogger(__name__).info("%d rounds\n%s", len(loop.outcomes[0].rounds), found)
        if not found.misses:
            return
    if found.disturbed:
        pytest.skip(f"the machine is too busy: runs alike differ by more than the targets\n{found}")
    pytest.fail(str(found))


def test_a_miss_is_told_from_a_disturbed_machine() -> None:
    """The judgement itself: a model that is off fails on a quiet machine, whatever one that is on passes."""
    case = [Case("g", "unseen", str(i), "k", "g", 100.0 * i, 100.0 * i) for i in (1, 2, 3)]
    off = [Case("g", "unseen", str(i), "k", "g", 120.0 * i, 100.0 * i) for i in (1, 2, 3)]
    assert Bounds(0.05, 0.15, 0.0) == TARGET
    assert not Found(case, [0.3] * 3).misses
    assert len(Found(off, [0.01] * 3).misses) == 2
    assert not Found(off, [0.01, 0.02, 0.14]).disturbed
    assert Found(off, [0.01, 0.02, 0.16]).disturbed
    assert Found(off, [0.06] * 3).disturbed
    swapped = [Case("g", "unseen", n, "k", "g", p, m) for n, p, m in (("a", 104.0, 100.0), ("b", 103.0, 111.0))]
    assert any("wrong order" in miss for miss in Found(swapped, [0.0, 0.0]).misses)
