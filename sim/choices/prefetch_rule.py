"""Where a prefetched expert may go: the insertion rule.

`free`
    Into a slot; the eviction policy names a victim. A resident that is wanted soon by the same predictor is
    protected until then.
`guarded`
    Into a slot, but whoever was wanted in the last `events` events (0: as many as the model has layers, one
    token), or is predicted, does not leave for it.
`never-evict`
    Into free room only.
`staging:slots=16`
    Into a ring of `slots` buffers a card, beside the slots and on top of their capacity. At its demand the expert
    becomes a resident without another copy if admission lets it in, and leaves the ring otherwise. A buffer
    whose expert was not wanted in time is taken for the next proposal.
`pages`
    Nowhere on the card: an expert of a file that is not in the page cache is read into it, if the drive is idle.
    It then counts as a copy that was asked for, and its bytes are the drive's.

Source: Strata and Infernix (16 staging slots, promotion by role change), JustVugg/colibri #474 and #497 (guard),
aosama/astronomical #537 (never evicting), Strata's look-ahead on mapped model files (pages).
"""

from __future__ import annotations

from dataclasses import dataclass

from expert_residency.errors import SimError
from expert_residency.text import check_known, parse_call

RULES = {"free": None, "guarded": "events", "never-evict": None, "staging": "slots", "pages": None}
"""Rules and the parameter that each takes."""
DEFAULTS = {"guarded": 0, "staging": 16}


@dataclass(frozen=True)
class Insertion:
    """One rule and its parameter (`events` or `slots`; 0 where it takes none)."""

    rule: str = "free"
    amount: int = 0

    @property
    def staging_slots(self) -> int:
        """Buffers of the ring of each card, 0 without one."""
        return self.amount if self.rule == "staging" else 0


def parse_insertion(spec: str) -> Insertion:
    """Rule from `name` or `name:parameter=value`.

    Raises
    ------
    SimError
        Unknown rule or parameter, or a value that is not a whole number in range.
    """
    rule, given = parse_call(spec, "insertion rule")
    check_known("insertion rule", rule, RULES)
    amount = DEFAULTS.get(rule, 0)
    for name, value in given.items():
        check_known(f"insertion rule {rule}: parameter", name, filter(None, [RULES[rule]]))
        if not value.isdecimal():
            raise SimError(f"insertion rule {rule}: {name} is {value!r}, expected a whole number")
        amount = int(value)
    if rule == "staging" and amount < 1:
        raise SimError("insertion rule staging: slots is 0, expected at least 1")
    return Insertion(rule, amount)
