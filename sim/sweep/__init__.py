"""Sweeps: many runs, checked before they start, safe against anything while they run, one dataset at the end."""

from expert_residency.errors import SweepError
from expert_residency.sim.sweep.dataset import read_dataset
from expert_residency.sim.sweep.run import SweepResult, sweep
from expert_residency.sim.sweep.spec import SweepFile, load_sweep

__all__ = ["SweepError", "SweepFile", "SweepResult", "load_sweep", "read_dataset", "sweep"]
