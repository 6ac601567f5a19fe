"""Swaps of residents between two passes, as a periodic policy asks for them.

`copy`: newcomers are copied into the victims' slots behind everything urgent; RAM has everybody, so nothing goes
back. `exchange`: a victim is copied to a buffer first, then the newcomer into its slot, and when that has
landed the victim is moved within RAM to the newcomer's place; the host does the copying back and the moving, and
the next pass begins when it is done. `streams`: with a spare slot both directions run at once and nobody waits.

Source: Niko1221/Strata, resident mode (exchange buffer, stream sync, memcpy) and its variant on two streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expert_residency.policies.protocol import NEVER
from expert_residency.sim.timed.channels import ADAPT, Batch
from expert_residency.sim.timed.engine.slots import Slots
from expert_residency.sim.timed.engine.transfers import Transfers


class Exchange:
    """Swaps of one run.

    Parameters
    ----------
    slots, transfers
        Residents and channels.
    on_landed
        Called when a newcomer has landed.
    waits
        Whether the next pass waits for the copies even where the host has nothing to do itself.
    """

    def __init__(
        self, slots: Slots, transfers: Transfers, on_landed: Callable[[Batch, int], None], *, waits: bool
    ) -> None:
        self.slots = slots
        self.transfers = transfers
        self.on_landed = on_landed
        self.mode = transfers.host.plan.swap
        self.blocks = self.mode == "exchange" or (waits and self.mode == "copy")
        self.copying = 0
        """Newcomers that have not landed."""
        self.moving = False
        self._moved_bytes = 0
        self.updates = 0
        self.swaps = 0

    @property
    def busy(self) -> bool:
        """Whether the next pass has to wait."""
        return self.blocks and (self.copying > 0 or self.moving)

    @property
    def under_way(self) -> bool:
        """Whether anything of the last swaps is under way."""
        return self.copying > 0 or self.moving

    def start(self, newcomers: Sequence[int], victims: Sequence[int]) -> None:
        """Begin the swaps; a victim of -1 is a free slot, and one whose own copy is under way stays."""
        under_way = self.slots.copy_of
        swaps = [(n, v) for n, v in zip(newcomers, victims, strict=True) if v < 0 or under_way[v] is None]
        if not swaps:
            return
        self.updates += 1
        self.swaps += len(swaps)
        transfers, host = self.transfers, self.transfers.host
        back: dict[int, list[tuple[int, Batch, int]]] = {}
        self._moved_bytes = 0
        for newcomer, victim in swaps:
            self.slots.swap(newcomer, victim)
            source = host.source(newcomer)
            batch = transfers.batch([newcomer], source, ADAPT, NEVER, self._landed)
            self.slots.under_way(newcomer, batch)
            self.copying += 1
            if self.mode == "copy" or victim < 0:
                transfers.submit(batch, source)
                continue
            host.exchange(newcomer, victim)
            self._moved_bytes += transfers.sizes[victim]
            back.setdefault(transfers.card_of[victim], []).append((victim, batch, source))
        for pairs in back.values():
            self._copy_back(pairs)

    def _copy_back(self, pairs: list[tuple[int, Batch, int]]) -> None:
        if self.mode == "streams":
            for _, batch, source in pairs:
                self.transfers.submit(batch, source)

        def landed(_: Batch, at: int) -> None:
            if self.mode == "exchange":
                self.transfers.submit(*pairs[at][1:])

        self.transfers.copy_back([victim for victim, _, _ in pairs], landed)

    def _landed(self, batch: Batch, at: int) -> None:
        self.copying -= 1
        self.on_landed(batch, at)
        if not self.copying and self._moved_bytes:
            self.moving = True
            self.transfers.move(self._moved_bytes, self._moved)

    def _moved(self) -> None:
        self.moving = False
