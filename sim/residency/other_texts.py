"""What an engine remembers of texts that it has served before: those of a generated trace are generated too.

Engines that keep a profile (`strata`) start with the experts that *other* texts wanted. Of a generated trace other
texts are drawn from the same model with another seed, as many and as long as the placement asks for.
"""

from __future__ import annotations

from collections.abc import Callable

from expert_residency.policies.protocol import Future, PlacementPolicy
from expert_residency.sim.residency.future import kept_with, make_future
from expert_residency.traces import RoutingTrace

OTHER_SEED = 1_000_003
"""Added to the seed of the trace: its other texts are no text of it."""


def has_other_texts(trace: RoutingTrace) -> bool:
    """Whether other texts of the same model can be drawn: a recorded trace has none."""
    return trace.synthetic and "style" in trace.meta


def future_for(placement: PlacementPolicy, trace: RoutingTrace, own: Callable[[], Future | None]) -> Future | None:
    """What a placement is given: nothing, the trace's future, or what other texts wanted.

    Parameters
    ----------
    placement
        Which may declare `needs_future`, or ask for `other_texts`.
    trace
        That is run.
    own
        Makes the future of the trace.

    Returns
    -------
    Future or None
        Of other texts also where `placement` asks for them and the trace is generated.
    """
    asked = placement.other_texts
    if asked is None:
        return own() if placement.needs_future else None
    if not has_other_texts(trace):
        return None
    texts, tokens = asked

    def made() -> Future:
        from expert_residency.traces.synthetic import RoutingStyle, generate

        style = RoutingStyle.model_validate(trace.meta["style"])
        seed = int(trace.meta.get("seed", 0)) + OTHER_SEED
        other = generate(trace.geometry, style, tokens=tokens, requests=texts, seed=seed, weights=False)
        return make_future(other)

    return kept_with(trace, f"other texts {texts} x {tokens}", made)
