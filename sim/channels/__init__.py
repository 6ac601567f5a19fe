"""Things that move or read bytes in time: shared servers, copy engines, the CPU pool, the disk."""

from sim.channels.copy_engine import ADAPT, DEMAND, PREFETCH, Batch, CopyEngine
from sim.channels.cpu import CpuPool
from sim.channels.disk import Disk
from sim.channels.shared import Flow, SharedNet

__all__ = ["ADAPT", "DEMAND", "PREFETCH", "Batch", "CopyEngine", "CpuPool", "Disk", "Flow", "SharedNet"]
