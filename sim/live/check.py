"""A calibration checked where it was made: three short runs that no fit has seen, predicted and measured."""

from __future__ import annotations

import statistics
from pathlib import Path

from expert_residency.sim.live.plan import Plan, make_plan
from expert_residency.sim.live.predict import load_live_runs, predict
from expert_residency.sim.live.variants import Arm
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace

WARN_PERCENT = 10.0
PASSES, DEPTH = 40, 4096
"""Of a run, and positions of context behind it where the model's file says what these occupy."""


def check_plan(trace: RoutingTrace, name: str, label: str, *, cardless: bool, rounds: int) -> Plan | None:
    """A calibration with three short runs; None if the trace has too few decode passes for them.

    Parameters
    ----------
    trace, name
        What is run, and the name it has in the table.
    label
        Of the profile.
    cardless
        Without a CUDA card.
    rounds
        Of measurements.

    Returns
    -------
    Plan or None
        Nothing has been allocated or run.
    """
    there = int((trace.pass_phase == Phase.DECODE).sum())
    if there < 4 or trace.geometry.hidden_size <= 0:
        return None
    arms = check_arms(name, trace.geometry, cardless)
    if cardless:
        rounds = -(-rounds // len(arms))
    known = not cardless and trace.geometry.session_shape is not None
    return make_plan(
        trace, name, label, cardless=cardless, passes=min(PASSES, there), rounds=rounds, arms=arms,
        depth=DEPTH if known else None,
    )  # fmt: skip


def check_arms(trace: str, geometry: ModelGeometry, cardless: bool) -> list[Arm]:
    """Demand copies, copies ahead, and with a card misses on the CPU.

    Parameters
    ----------
    trace
        Its name in the table.
    geometry
        Experts a layer.
    cardless
        Without a card.

    Returns
    -------
    list of Arm
        Three.
    """

    def slots(count: int) -> int:
        return max(geometry.top_k, count * geometry.experts // 64)

    if cardless:
        few, many = slots(16), slots(40)
        return [
            Arm(trace, few, host="mmap"),
            Arm(trace, many, host="mmap"),
            Arm(trace, many, host="mmap", prefetch="oracle:window=1"),
        ]
    return [
        Arm(trace, slots(40)),
        Arm(trace, slots(32), prefetch="oracle:window=1"),
        Arm(trace, slots(20), eviction="static", miss="cpu"),
    ]


def compared(label: str, folder: Path, *, each: bool) -> list[str]:
    """Lines that set measured runs beside predicted ones, and a warning if they are far apart.

    Parameters
    ----------
    label
        Of the table and its profile.
    folder
        Where they are.
    each
        Also a line for each run.

    Returns
    -------
    list of str
        What to print.

    Raises
    ------
    SimError
        No such table.
    """
    runs = load_live_runs(label, folder)
    pairs = [(run, predict(run)) for run in runs]
    errors = [100 * (predicted / run.tok_s - 1) for run, predicted in pairs]
    lines = []
    if each:
        lines = [
            f"  {run.label}: measured {run.tok_s:,.1f}, predicted {predicted:,.1f} tokens/s ({error:+.1f} %)"
            for (run, predicted), error in zip(pairs, errors, strict=True)
        ]
    sizes = sorted(map(abs, errors))
    lines.append(
        f"{len(runs)} runs that no fit has seen, predicted: median error {statistics.median(sizes):.1f} %, worst "
        f"{sizes[-1]:.1f} %, bias {statistics.fmean(errors):+.1f} %"
    )
    if sizes[-1] > WARN_PERCENT:
        lines.append(
            f"warning: past {WARN_PERCENT:.0f} %: the profile is no better here; more rounds, or an idle "
            "machine, may help"
        )
    return lines
