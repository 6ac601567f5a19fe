"""How good must a predictor be before prefetching pays? A map of noisy oracles, and predictors on it."""

from expert_residency.sim.studies.predictor.grid import Cell, break_even, noisy, recall_worth
from expert_residency.sim.studies.predictor.measured import KNOWN, Measured, lines
from expert_residency.sim.studies.predictor.proposals import Quality, quality
from expert_residency.sim.studies.predictor.studied import PASSES, PredictorStudy, study

__all__ = [
    "KNOWN",
    "PASSES",
    "Cell",
    "Measured",
    "PredictorStudy",
    "Quality",
    "break_even",
    "lines",
    "noisy",
    "quality",
    "recall_worth",
    "study",
]
