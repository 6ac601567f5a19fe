"""Where a card's memory goes: a budget of named lines, and the expert slots that are left.

The arithmetic and its constants are those of a published audit of the engine Strata (sergqwer/strata-nvfp4):
usable memory less the reserve, the weights that every token reads, the draft layer and the session of a
context is the expert cache. ``docs/vram.md`` holds it against published slot counts. Sizes of a model come in
as plain numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.profile import Gpu
from expert_residency.hwmodels.units import GIB, MIB, format_bytes

AUDIT = "VRAM arithmetic of a Strata fork (sergqwer/strata-nvfp4)"
SLOT_ALIGN_BYTES = 256
"""A blob in a slot is rounded up to this many bytes."""
MIN_KV_RESIDENT_CELLS = 20_480
"""Smallest part of a streamed KV cache that the engine keeps on the card."""


@dataclass(frozen=True)
class Line:
    """One entry of a budget: what it is, how many bytes, who says so."""

    name: str
    nbytes: int
    source: str


@dataclass(frozen=True)
class SessionShape:
    """What a context occupies in one architecture.

    Parameters
    ----------
    state_bytes, buffer_bytes
        Fixed: recurrent state, small buffers.
    kv_layers
        Layers with a KV cache.
    kv_cell_bytes
        Bytes of one cell (one position in one layer) by KV type.
    index_cell_bytes, rope_cell_bytes
        Bytes a position over all layers together, always on the card.
    draft_cell_bytes
        Bytes a position that the draft layer adds to those of its own KV cell.
    source
        Where the figures come from.
    """

    state_bytes: int
    buffer_bytes: int
    kv_layers: int
    kv_cell_bytes: Mapping[str, int]
    index_cell_bytes: int
    rope_cell_bytes: int
    draft_cell_bytes: int
    source: str

    def cell_bytes(self, kv_type: str) -> int:
        """Bytes of one cell.

        Raises
        ------
        HardwareError
            For an unknown KV type; the valid ones are listed.
        """
        if kv_type not in self.kv_cell_bytes:
            raise HardwareError(f"unknown KV type {kv_type!r}; valid ones are {', '.join(self.kv_cell_bytes)}")
        return self.kv_cell_bytes[kv_type]


FLASH_NEXT_SESSION = SessionShape(
    state_bytes=int(112.2 * MIB),
    buffer_bytes=5 * MIB,
    kv_layers=12,
    kv_cell_bytes={"int8": 1_056, "fp16": 2_048, "q4_0": 576, "k8v4": 816},
    index_cell_bytes=1_536,
    rope_cell_bytes=256,
    draft_cell_bytes=128,
    source=AUDIT,
)
"""Qwen3.8-Flash-Next: 36 layers with a recurrent state, 12 with KV and an index."""

FLASH_NEXT_DRAFT_BYTES = 802 * MIB
"""Its draft layer with all its experts, without KV."""
FLASH_NEXT_DRAFT_HEAD_BYTES = {"iq2": 143 * MIB, "iq3": 218 * MIB, "q4": 281 * MIB}
"""Its draft head by the main head's family: 143 MiB printed without one, 218 for IQ3_S, 281 for UD-Q4_K_XL."""
STAGE_RESERVE_BYTES, LAST_STAGE_RESERVE_BYTES = 96 * MIB, 1000 * MIB
"""What the engine's split keeps free beside the reserve: on each stage after the first, and on the last."""


@dataclass(frozen=True)
class VramBudget:
    """A card's memory line by line.

    Parameters
    ----------
    card
        Name, for messages.
    usable_bytes
        What the driver gives: total less ECC, CUDA context, desktop.
    lines
        What is taken before the expert cache.
    """

    card: str
    usable_bytes: int
    lines: tuple[Line, ...]

    @property
    def taken_bytes(self) -> int:
        """Sum of the lines."""
        return sum(line.nbytes for line in self.lines)

    @property
    def cache_bytes(self) -> int:
        """Bytes left for experts; negative when the lines alone do not fit."""
        return self.usable_bytes - self.taken_bytes

    def require(self, cache_bytes: int = 0) -> None:
        """Refuse a cache that would spill out of the card: a driver that pages VRAM makes it slower, not faster.

        Raises
        ------
        HardwareError
            Naming the limit and by how much it is passed.
        """
        over = cache_bytes - self.cache_bytes
        if over > 0:
            what = f"an expert cache of {format_bytes(cache_bytes)} beside " if cache_bytes else ""
            largest = max(self.lines, key=lambda line: line.nbytes, default=Line("nothing", 0, ""))
            raise HardwareError(
                f"{self.card}: {what}{format_bytes(self.taken_bytes)} of weights, session and reserve needs "
                f"{over / GIB:.2f} GiB more than the {self.usable_bytes / GIB:.2f} GiB usable; "
                f"the largest line is {largest.name} with {format_bytes(largest.nbytes)}"
            )

    def slots(self, expert_bytes: int | Sequence[int]) -> int:
        """Whole experts that fit.

        Parameters
        ----------
        expert_bytes
            Bytes of every expert, or of each expert in the order in which they are taken until room runs out.

        Raises
        ------
        HardwareError
            If the lines alone do not fit, or a size is missing or not positive.
        """
        self.require()
        if isinstance(expert_bytes, int):
            return self.cache_bytes // slot_bytes(expert_bytes)
        left = self.cache_bytes
        for n, size in enumerate(expert_bytes):
            left -= slot_bytes(size)
            if left < 0:
                return n
        return len(expert_bytes)


def slot_bytes(expert_bytes: int) -> int:
    """Bytes that an expert occupies in the cache."""
    if expert_bytes <= 0:
        raise HardwareError(f"an expert of {expert_bytes} bytes has no slot; its size is missing")
    return -(-expert_bytes // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES


def session_lines(
    shape: SessionShape, context_tokens: int, *, kv_type: str = "int8", kv_resident: int = 0, draft: bool = False
) -> list[Line]:
    """Lines of one context on the card.

    Parameters
    ----------
    shape
        The architecture.
    context_tokens
        Positions that the context can hold.
    kv_type
        Storage of a KV cell.
    kv_resident
        Cells a layer kept on the card, the rest streamed from page-locked memory; 0 keeps all.
    draft
        With the draft layer's KV.

    Returns
    -------
    list[Line]
        Lines in bytes.

    Raises
    ------
    HardwareError
        For an unknown KV type, or a `kv_resident` below what the engine needs.
    """
    cells = resident_cells(context_tokens, kv_resident)
    cell = shape.cell_bytes(kv_type)
    lines = [
        Line("recurrent state", shape.state_bytes, shape.source),
        Line(f"KV, {kv_type}, {cells:,} cells", cells * shape.kv_layers * cell, shape.source),
        Line("index", context_tokens * shape.index_cell_bytes, shape.source),
        Line("rope", context_tokens * shape.rope_cell_bytes, shape.source),
        Line("buffers", shape.buffer_bytes, shape.source),
    ]
    if draft:
        # Published slots do not fall with the context once KV is streamed, so the draft's KV is streamed too.
        lines.append(Line("draft KV", cells * (cell + shape.draft_cell_bytes), shape.source))
    return lines


def resident_cells(context_tokens: int, kv_resident: int) -> int:
    """Cells a layer on the card."""
    if context_tokens < 1:
        raise HardwareError(f"a context of {context_tokens} tokens holds nothing")
    if 0 < kv_resident < MIN_KV_RESIDENT_CELLS or kv_resident < 0:
        raise HardwareError(
            f"kv-resident {kv_resident} is below the {MIN_KV_RESIDENT_CELLS} cells that streaming needs"
        )
    return min(context_tokens, kv_resident) if kv_resident else context_tokens


def streamed_kv_bytes(shape: SessionShape, context_tokens: int, *, kv_type: str, kv_resident: int) -> int:
    """Page-locked host bytes of the KV cells that are not on the card.

    Parameters
    ----------
    shape
        The architecture.
    context_tokens
        Positions that the context can hold.
    kv_type
        Storage of a KV cell.
    kv_resident
        Cells a layer kept on the card; 0 keeps all.

    Returns
    -------
    int
        Bytes.
    """
    rest = context_tokens - resident_cells(context_tokens, kv_resident)
    return rest * shape.kv_layers * shape.cell_bytes(kv_type)


@dataclass(frozen=True)
class Weights:
    """Bytes of a model on one card beside its experts; 0 for what this card does not hold.

    Parameters
    ----------
    dense_bytes
        Mixers, norms, routers, shared experts of the card's layers (or of all, if it keeps a whole copy).
    head_bytes, draft_head_bytes, draft_bytes
        Output head, draft head, draft layer with its experts.
    source
        Where the sizes come from.
    """

    dense_bytes: int
    head_bytes: int = 0
    draft_head_bytes: int = 0
    draft_bytes: int = 0
    source: str = "model geometry"

    def lines(self) -> list[Line]:
        """As lines of a budget, without the empty ones."""
        named = {
            "dense weights": self.dense_bytes,
            "head": self.head_bytes,
            "draft head": self.draft_head_bytes,
            "draft layer": self.draft_bytes,
        }
        return [Line(name, nbytes, self.source) for name, nbytes in named.items() if nbytes]


def vram_budget(
    gpu: Gpu,
    weights: Weights,
    session: Sequence[Line] = (),
    *,
    reserve_bytes: int | None = None,
    extra: Sequence[Line] = (),
) -> VramBudget:
    """Budget of a card.

    Parameters
    ----------
    gpu
        The card; its usable memory, and its reserve unless `reserve_bytes` is given.
    weights
        What the card holds of the model beside experts.
    session
        Lines of the context, see `session_lines`.
    reserve_bytes
        Another reserve than the profile's.
    extra
        Further lines: reserves of a split stage, a vision tower, a prompt's buffers.

    Returns
    -------
    VramBudget
        The lines and what they leave (bytes).
    """
    reserve = Line("reserve", gpu.vram_reserve_bytes, gpu.vram_reserve_mib.source)
    if reserve_bytes is not None:
        reserve = Line("reserve", reserve_bytes, "as asked")
    return VramBudget(gpu.name, gpu.vram_usable_bytes, (reserve, *weights.lines(), *session, *extra))
