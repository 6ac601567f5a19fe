"""Trace-driven discrete-event simulation of where the experts of a mixture-of-experts model are.

The verbs of the command line as functions, and what they take. Each is loaded when it is first used, so that
importing the package costs nothing; type checkers and `help` see the functions themselves.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.choices.capacity import Capacity
    from expert_residency.sim.choices.spec import RunSpec
    from expert_residency.sim.runs.cliffs import cliffs
    from expert_residency.sim.runs.interval import interval_90
    from expert_residency.sim.runs.replay import replay
    from expert_residency.sim.runs.simulate import simulate
    from expert_residency.sim.split.api import split
    from expert_residency.sim.studies.leaderboard import leaderboard
    from expert_residency.sim.studies.tune import tune
    from expert_residency.sim.sweep import sweep
    from expert_residency.traces import load_model, read_trace
else:
    _HOME = {
        "Capacity": "sim.choices.capacity",
        "RunSpec": "sim.choices.spec",
        "cliffs": "sim.runs.cliffs",
        "interval_90": "sim.runs.interval",
        "leaderboard": "sim.studies.leaderboard",
        "load_model": "traces",
        "load_profile": "hwmodels.registry",
        "read_trace": "traces",
        "replay": "sim.runs.replay",
        "simulate": "sim.runs.simulate",
        "split": "sim.split.api",
        "sweep": "sim.sweep",
        "tune": "sim.studies.tune",
    }

    def __getattr__(name):
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = found
        return found


__all__ = [
    "Capacity",
    "RunSpec",
    "cliffs",
    "interval_90",
    "leaderboard",
    "load_model",
    "load_profile",
    "read_trace",
    "replay",
    "simulate",
    "split",
    "sweep",
    "tune",
]


def __dir__() -> list[str]:
    return sorted(__all__)
