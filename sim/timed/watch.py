"""What an observer of a run is told: a class whose methods do nothing, for those that write or keep some of it.

Nothing that a run does depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expert_residency.policies.protocol import Event
    from expert_residency.sim.timed.channels import Batch
    from expert_residency.sim.timed.channels.cpu import Segment
    from expert_residency.sim.timed.channels.disk import Read

MISS, AHEAD, SWAP = "miss", "prefetch", "swap"
"""For whom a resident leaves."""


class Watch:
    """An observer that is not interested."""

    def slice(self, track: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Something took a time on a track.

        Parameters
        ----------
        track, name
            Name of the track, and of the slice.
        start_ns, end_ns
            When it begins and ends.
        args
            What is known of it.
        """

    def transfer(self, track: str, what: Batch | Segment | Read, start_ns: int, end_ns: int) -> None:
        """A transfer has ended, on a channel.

        Parameters
        ----------
        track
            Name of the track.
        what
            What was moved.
        start_ns, end_ns
            When it began and ended.
        """

    def filling(self, now_ns: int, slots: int) -> None:
        """So many slots have an expert on its way that nobody waits for yet."""

    def queue(self, link: str, now_ns: int, waiting: Sequence[int], nbytes: int) -> None:
        """Copies of each class that a link has before it, the one in service included, and their bytes.

        Parameters
        ----------
        link, now_ns
            Name of the link, and the time.
        waiting
            Copies of each class, the one in service included.
        nbytes
            Their bytes.
        """

    def decided(self, event: Event, ready: Sequence[int], admitted: Sequence[int], now_ns: int) -> None:
        """An event was decided: keys that are ready on the card, and positions of misses that may take a slot.

        Parameters
        ----------
        event
            The event, with its hits.
        ready
            Keys that are ready on the card.
        admitted
            Positions of misses that may take a slot.
        now_ns
            The time.
        """

    def spent(self, cause: int, ns: int, keys: Sequence[int]) -> None:
        """Time of the pass went by under a cause, for some experts.

        Parameters
        ----------
        cause, ns
            One of `CAUSES` by its number, and the time.
        keys
            For whom; empty if for no expert.
        """

    def waits_for(self, key: int, ahead: Sequence[tuple[int, int]]) -> None:
        """The card waits for a copy, which these (class, key) stand before; the time is `spent` after it."""

    def pass_done(self, number: int, start_ns: int, end_ns: int) -> None:
        """A pass is over.

        Parameters
        ----------
        number
            Of the pass.
        start_ns, end_ns
            When it began and ended.
        """

    def left(self, victim: int, newcomer: int, why: str) -> None:
        """A resident left for another, for one of `MISS`, `AHEAD` and `SWAP`.

        Parameters
        ----------
        victim, newcomer
            Who left, and for whom.
        why
            One of `MISS`, `AHEAD` and `SWAP`.
        """

    def dropped(self, key: int) -> None:
        """A prefetch into a slot was dropped before it began."""
