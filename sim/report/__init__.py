"""Reports of sweeps: one HTML file that needs nothing but a browser, and the same charts as pictures."""

from expert_residency.sim.report.page import write_report
from expert_residency.sim.report.plots import write_plots

__all__ = ["write_plots", "write_report"]
