"""The SimPy engine: the definition of the timed model."""

from expert_residency.sim.timed.engine.walk import Policies, SimPyEngine

__all__ = ["Policies", "SimPyEngine"]
