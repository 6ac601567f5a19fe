"""Cliffs of a run on a trace, before it is run."""

from __future__ import annotations

from collections.abc import Sequence

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.choices.cliffs import Cliff, standing_of
from expert_residency.sim.choices.cliffs import cliffs as cliffs_of
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.timed.attention import lengths
from expert_residency.traces import RoutingTrace


def cliffs(
    trace: RoutingTrace, spec: RunSpec, *, profiles: Sequence[HardwareProfile] | None = None
) -> list[Cliff]:
    """Sizes beyond which a run falls off, and how far its setting is from each.

    Parameters
    ----------
    trace
        Whose model and longest context count.
    spec
        Choices of the run.
    profiles
        Cards instead of those that `spec` names.

    Returns
    -------
    list of Cliff
        Near and far; `warned` are those that the run's caveats name.

    Raises
    ------
    SimError, HardwareError
        A card, engine or capacity that cannot be.
    """
    tokens = int(lengths(trace, spec.depth).max(initial=1))
    standing = standing_of(spec, trace.geometry, tokens=tokens, profiles=profiles)
    return [] if standing is None else cliffs_of(standing)
