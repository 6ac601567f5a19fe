"""Sweeps: many runs, checked before they start, safe against anything while they run, one dataset at the end.

`sweep` is the entry; the module itself can be called like it (`sim.sweep(...)`).
"""

from sim.callable import make_callable
from sim.sweep.dataset import read_dataset
from sim.sweep.run import SweepResult, sweep
from sim.sweep.spec import SweepError, SweepFile, load_sweep

__all__ = ["SweepError", "SweepFile", "SweepResult", "load_sweep", "read_dataset", "sweep"]

make_callable(__name__, sweep)
