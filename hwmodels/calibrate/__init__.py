"""Calibration: measure a machine into a profile.

`readings` repeats and interleaves measurements, `card`, `pool` and `storage` say what is measured, `fit` turns
readings into the figures of a profile (once for each round, so that every figure has a spread), `write` makes the
TOML. Measurements know nothing of the fits, and a file of readings can be fitted again.
"""

from expert_residency.hwmodels.calibrate.run import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
