"""Things that move or read bytes in time: shared servers, copy engines, the CPU pool, the disk."""

from expert_residency.sim.timed.channels.copy_engine import ADAPT, DEMAND, PREFETCH, Batch, CopyEngine
from expert_residency.sim.timed.channels.cpu import CpuPool
from expert_residency.sim.timed.channels.disk import Disk
from expert_residency.sim.timed.channels.shared import Flow, SharedNet

__all__ = ["ADAPT", "DEMAND", "PREFETCH", "Batch", "CopyEngine", "CpuPool", "Disk", "Flow", "SharedNet"]
