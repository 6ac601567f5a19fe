"""Advice: the best setting of every knob of an engine on a machine, what each is worth, and how sure that is."""

from expert_residency.sim.studies.advise.advise import Advice, advise
from expert_residency.sim.studies.advise.layers import LayerTask
from expert_residency.sim.studies.advise.task import Ask, Control, Setting, Task
from expert_residency.sim.studies.advise.timed import TimedTask, in_fastest_order

__all__ = ["Advice", "Ask", "Control", "LayerTask", "Setting", "Task", "TimedTask", "advise", "in_fastest_order"]
