"""Experts in the order of an engine's own profile file, and the file itself, read and written.

    rank: the file's order

The format is Strata's (`--expert-profile`, `data/expert-profile*.bin`), little endian: "STRP", then five u32
(version 1, layers, experts, slots, pairs), `pairs` times u16 layer and u16 expert in rank order, then layers x
experts int32: the slot of each expert, its rank, or -1 without one. It holds an order and no counts.
Source: Niko1221/Strata docs and sources.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from expert_residency.errors import PolicyError
from expert_residency.files import atomic
from expert_residency.policies.protocol import Future, PlacementPolicy, Pool

MAGIC, VERSION = b"STRP", 1
_HEAD = struct.Struct("<4s5I")


class StrpProfile(NamedTuple):
    """Contents of a profile: `ranked` are keys `layer * experts + expert`, hottest first."""

    layers: int
    experts: int
    slots: int
    ranked: list[int]


def read_strp(path: str | Path) -> StrpProfile:
    """Profile of a file.

    Raises
    ------
    PolicyError
        No such file, another format, a cut file, or an expert outside the model or named twice.
    """
    path = Path(path)
    if not path.is_file():
        raise PolicyError(f"{path}: no such profile file")
    data = path.read_bytes()
    if len(data) < _HEAD.size:
        raise PolicyError(f"{path}: {len(data)} bytes are less than the header of {_HEAD.size}")
    magic, version, layers, experts, slots, pairs = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        raise PolicyError(
            f"{path}: byte 0: expected {MAGIC!r} version {VERSION}, found {magic!r} version {version}"
        )
    wanted = _HEAD.size + 4 * pairs + 4 * layers * experts
    if len(data) != wanted:
        raise PolicyError(
            f"{path}: {len(data)} bytes, expected {wanted} for {pairs} pairs of {layers} x {experts}"
        )
    flat = struct.unpack_from(f"<{2 * pairs}H", data, _HEAD.size)
    ranked = []
    for rank, (layer, expert) in enumerate(zip(flat[::2], flat[1::2], strict=True)):
        if layer >= layers or expert >= experts:
            place = _HEAD.size + 4 * rank
            raise PolicyError(
                f"{path}: byte {place}: layer {layer}, expert {expert} is outside {layers} x {experts}"
            )
        ranked.append(layer * experts + expert)
    if len(set(ranked)) != len(ranked):
        raise PolicyError(f"{path}: an expert is ranked twice")
    return StrpProfile(layers, experts, slots, ranked)


def write_strp(path: str | Path, profile: StrpProfile) -> None:
    """Write a profile, whole or not at all.

    Raises
    ------
    PolicyError
        Sizes that the format cannot hold.
    FileError
        The file cannot be written.
    """
    layers, experts, slots, ranked = profile
    if max(layers, experts) > 1 << 16 or any(not 0 <= key < layers * experts for key in ranked):
        raise PolicyError(f"a profile of {layers} x {experts} does not fit the STRP format")
    table = [-1] * (layers * experts)
    for rank, key in enumerate(ranked[:slots]):
        table[key] = rank
    pairs = [part for key in ranked for part in divmod(key, experts)]
    data = _HEAD.pack(MAGIC, VERSION, layers, experts, slots, len(ranked))
    data += struct.pack(f"<{len(pairs)}H", *pairs) + struct.pack(f"<{len(table)}i", *table)
    with atomic(path) as part:
        part.write_bytes(data)


def complete(ranked: Sequence[int], keys: int) -> list[int]:
    """`ranked` and after it the keys that it does not name, in order: profiles of the engine hold every expert."""
    named = set(ranked)
    return [*ranked, *(key for key in range(keys) if key not in named)]


@dataclass(frozen=True)
class Strp(PlacementPolicy):
    """Experts in the order of a STRP profile."""

    name: ClassVar[str] = "strp"
    source: ClassVar[str] = "Niko1221/Strata --expert-profile"

    file: str = ""

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys in the file's order."""
        if not self.file:
            raise PolicyError("placement strp: give the file, strp:file=PATH")
        profile = read_strp(self.file)
        if (profile.layers, profile.experts) != (pool.layers, pool.experts):
            raise PolicyError(
                f"{self.file}: a profile of {profile.layers} x {profile.experts} experts does not fit a model of "
                f"{pool.layers} x {pool.experts}"
            )
        return profile.ranked
