"""What a few measured runs say about a machine's and an engine's constants, and what they cannot say."""

from expert_residency.sim.runs.constants import Constant, constants_of
from expert_residency.sim.studies.fit.fit import FitResult, NextRun, fit_runs
from expert_residency.sim.studies.fit.runs import MeasuredRun, read_runs

__all__ = ["Constant", "FitResult", "MeasuredRun", "NextRun", "constants_of", "fit_runs", "read_runs"]
