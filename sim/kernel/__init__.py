"""The compiled engine: the same policies and the same integers, in machine code.

`choice` decides who runs, `replay` counts, `curves` counts at every capacity. What is compiled is plain Python:
the loops of this package (`loop`, `stack`) and the policies themselves, copied and compiled by `link` on states
that `state` lays out in memory and `views` lets compiled code see. Nothing here imports numba before a kernel is
wanted.
"""

from expert_residency.sim.kernel.choice import SIMULATORS, choose, choose_timed, refusal

__all__ = ["SIMULATORS", "choose", "choose_timed", "refusal"]
