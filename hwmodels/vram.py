"""Where a card's memory goes: a budget of named lines, and the expert slots that are left.

The arithmetic and its constants are those of a published audit of the engine Strata (sergqwer/strata-nvfp4):
usable memory less the reserve, the weights that every token reads, the draft layer and the session of a
context is the expert cache. ``docs/vram.md`` holds it against published slot counts. Sizes of a model come in
as plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.profile import Gpu
from expert_residency.hwmodels.units import GIB, MIB, format_bytes

SLOT_ALIGN_BYTES = 256
"""A blob in a slot is rounded up to this many bytes."""
STAGE_RESERVE_BYTES = 96 * MIB
"""What the engine's split keeps free beside the reserve on each stage after the first."""


@dataclass(frozen=True)
class Line:
    """One entry of a budget: what it is, how many bytes, who says so."""

    name: str
    nbytes: int
    source: str


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
        Lines of the context.
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
