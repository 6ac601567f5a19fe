"""Where the bytes of a split go: what each card holds beside experts, the slots left, and the RAM it takes.

By default every card keeps a whole copy of the dense weights, as the engine Strata does; carved, a card keeps
those of its own layers and only the last one has the output head. The session (recurrent state, KV, index) is on
every card either way. The draft layer is on the last card. Constants are those of `hwmodels.vram`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GB, GIB
from expert_residency.hwmodels.vram import (
    STAGE_RESERVE_BYTES,
    Line,
    VramBudget,
    slot_bytes,
)
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.sim.choices.session import session_lines, session_shape, streamed_kv_bytes
from expert_residency.sim.split.cards import Card
from expert_residency.traces import ModelGeometry

HostMode = Literal["arena", "mmap", "resident", "budget"]
HOST_MODES: tuple[HostMode, ...] = ("arena", "mmap", "resident", "budget")
HEADROOM_BYTES = 10 * GB
"""RAM kept free of experts: system, program, page-locked buffers (the "+ 10 GB" of both rules of the docs)."""


@dataclass(frozen=True)
class Needs:
    """What the model takes beside experts.

    Parameters
    ----------
    geometry
        The model in one quantization.
    session
        Lines of the context, on every card.
    draft
        Lines of the draft layer, on the last card.
    carve
        Whether a card keeps only the dense weights of its own layers.
    streamed_kv_bytes
        Page-locked RAM of KV cells that are not on the card.
    context, kv_type, kv_resident
        As asked; a context of 0: the session was given in bytes.
    stage_reserve_bytes
        Kept free on each card after the first, beside its reserve.
    """

    geometry: ModelGeometry
    session: tuple[Line, ...] = ()
    draft: tuple[Line, ...] = ()
    carve: bool = False
    streamed_kv_bytes: int = 0
    context: int = 0
    kv_type: str = KV_TYPE
    kv_resident: int = 0
    stage_reserve_bytes: int = STAGE_RESERVE_BYTES

    def budget(self, card: Card, stage: int, stages: int, first: int, end: int) -> VramBudget:
        """Memory of `card` as stage `stage` of `stages` with layers `first` to `end - 1`.

        Parameters
        ----------
        card
            The card.
        stage
            Its place in the order of stages, from 0.
        stages
            How many there are.
        first, end
            MoE layers from `first` to `end - 1`.

        Returns
        -------
        VramBudget
            Lines in bytes, and what they leave for experts.
        """
        geometry, last = self.geometry, stage == stages - 1
        dense = sum(geometry.dense_bytes[first:end] if self.carve else geometry.dense_bytes)
        lines = [Line("reserve", card.reserve_bytes, "profile"), Line("dense weights", dense, geometry.source)]
        if geometry.dense_only_bytes and (stage == 0 or not self.carve):
            lines.append(Line("layers without experts", geometry.dense_only_bytes, geometry.source))
        if geometry.head_bytes and (last or not self.carve):
            lines.append(Line("head", geometry.head_bytes, geometry.source))
        lines += self.session
        if stage > 0:
            lines.append(Line("stage reserve", self.stage_reserve_bytes, "Strata's split, later stages"))
        if last:
            lines += self.draft
        return VramBudget(card.name, card.usable_bytes, tuple(lines))


def needs_of(
    geometry: ModelGeometry,
    *,
    context: int = 32_768,
    kv_type: str = KV_TYPE,
    kv_resident: int = 0,
    session_bytes: int | None = None,
    draft: bool = False,
    carve: bool = False,
) -> Needs:
    """Needs of a model with a context.

    Parameters
    ----------
    geometry
        The model.
    context, kv_type, kv_resident
        As in `sim.choices.session.session_lines`.
    session_bytes
        Bytes of the session a card, for models whose context is not known line by line.
    draft
        With the draft layer (multi-token prediction).
    carve
        Whether a card holds only the dense weights of its own layers.

    Returns
    -------
    Needs
        Bytes by line.

    Raises
    ------
    SimError
        A model without a known context and no `session_bytes`, or a draft layer that is not known.
    TraceError
        An unknown KV type.
    """
    if session_bytes is not None:
        return Needs(geometry, (Line("session", session_bytes, "as given"),), (), carve)
    shape = session_shape(geometry)
    lines = session_lines(shape, context, kv_type=kv_type, kv_resident=kv_resident, draft=draft)
    session = tuple(line for line in lines if line.name != "draft KV")
    draft_lines: tuple[Line, ...] = ()
    if draft:
        if shape.draft is None:
            raise SimError(
                f"the sizes of a draft layer of {geometry.name} are not known: leave --draft out, or add a "
                "[draft] table to the model's file"
            )
        draft_lines = (
            Line("draft head", shape.draft.head_bytes, shape.source),
            Line("draft layer", shape.draft.layer_bytes, shape.source),
            *(line for line in lines if line.name == "draft KV"),
        )
    streamed = streamed_kv_bytes(shape, context, kv_type=kv_type, kv_resident=kv_resident)
    return Needs(geometry, session, draft_lines, carve, streamed, context, kv_type, kv_resident)


def spread_slots(cache_bytes: int, expert_bytes: Sequence[int], experts: int) -> tuple[int, ...]:
    """Slots of each layer of a card: equal numbers, the rest one more to the first layers, never above `experts`.

    Parameters
    ----------
    cache_bytes
        Cache capacity.
    expert_bytes
        Bytes of one expert of each layer.
    experts
        Experts of a layer.

    Returns
    -------
    tuple[int, ...]
        Slots, one number a layer.
    """
    sizes = [slot_bytes(size) for size in expert_bytes]
    each = min(experts, cache_bytes // sum(sizes))
    slots, left = [], cache_bytes - each * sum(sizes)
    for size in sizes:
        more = each < experts and size <= left
        slots.append(each + more)
        left -= size * more
    return tuple(slots)


@dataclass(frozen=True)
class RamNeed:
    """RAM of one placement, in bytes.

    Parameters
    ----------
    mode
        How the host holds experts.
    experts_bytes
        Experts that lie in RAM (`mmap`: in the page cache).
    file_bytes
        Experts that are in no card and do not fit into RAM: read from the drive when wanted.
    streamed_kv_bytes, headroom_bytes
        KV cells in RAM; what is kept free.
    must_bytes
        What the mode cannot do without: `experts_bytes` for arena and resident, else nothing.
    """

    mode: HostMode
    experts_bytes: int
    file_bytes: int
    streamed_kv_bytes: int
    headroom_bytes: int
    must_bytes: int

    @property
    def needed_bytes(self) -> int:
        """RAM for which nothing is read from the drive."""
        return self.experts_bytes + self.file_bytes + self.streamed_kv_bytes + self.headroom_bytes

    @property
    def least_bytes(self) -> int:
        """RAM without which the mode does not start."""
        return self.must_bytes + self.streamed_kv_bytes + self.headroom_bytes


def ram_need(
    needs: Needs, mode: HostMode, ram_bytes: int, on_cards_bytes: int, headroom_bytes: int = HEADROOM_BYTES
) -> RamNeed:
    """RAM that a placement takes.

    `arena` holds a copy of every expert. `resident` holds those that no card holds, all of them. `budget` and
    `mmap` hold as many of these as fit (`mmap` in the page cache; pages of experts that a card holds go out of it,
    since nobody reads them again), the rest stays on the drive.

    Parameters
    ----------
    needs
        Of the model.
    mode
        How the host holds experts.
    ram_bytes
        Memory that is fitted.
    on_cards_bytes
        Experts in VRAM.
    headroom_bytes
        Memory that is left free.

    Returns
    -------
    RamNeed
        Bytes by what they are for.
    """
    everything = needs.geometry.all_expert_bytes
    complement = everything if mode == "arena" else everything - on_cards_bytes
    if complement == 0:  # a machine may have less memory than is to be kept free of experts it does not hold
        headroom_bytes = max(0, min(headroom_bytes, ram_bytes - needs.streamed_kv_bytes))
    room = max(0, ram_bytes - needs.streamed_kv_bytes - headroom_bytes)
    must = complement if mode in ("arena", "resident") else 0
    held = must or min(complement, room)
    return RamNeed(mode, held, complement - held, needs.streamed_kv_bytes, headroom_bytes, must)


def default_headroom(host: HardwareProfile) -> int:
    """Bytes that stay free where nobody says how many: none beside what a card leaves of one memory, else the
    round number of the docs, or what the system and other programs hold if that is more.
    """
    return 0 if host.one_memory else max(HEADROOM_BYTES, host.ram.os_reserve_bytes)


def fitting_headroom(ram_bytes: int, held_bytes: int) -> str:
    """Largest `--headroom` beside what memory holds, in steps of 0.1 GB; empty below 1 GB, too little for any."""
    tenths = (ram_bytes - held_bytes) * 10 // GB
    return f"--headroom {tenths / 10:g}GB" if tenths >= 10 else ""


def gib(nbytes: int) -> str:
    """`12.3 GB (11.5 GiB)`."""
    return f"{nbytes / GB:.1f} GB ({nbytes / GIB:.1f} GiB)"
