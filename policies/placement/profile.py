"""A ranked list of experts: what was wanted before, from a file or by other texts.

    rank: the file's order; without a file, uses by other texts, most first (ties: lower number in its layer)

Without a file other texts of a generated trace are drawn, `texts` of `tokens` tokens each: what an engine has that
keeps a profile of what it served. A recorded trace has no other texts, so that the order is by number there.

The file is CSV with columns `layer,expert` (layer as an index over MoE layers) in rank order, optionally
`count`, which then gives the order. Where experts come again, as in a moe-trace CSV with one line an activation,
the order is by how often they do. A column `index` is taken for the layer's index before `layer`.
Source: thecodacus/llama.cpp#5 (profile CSV).
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Annotated, ClassVar

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import Within
from expert_residency.policies.protocol import Future, PlacementPolicy, Pool


@dataclass(frozen=True)
class Profile(PlacementPolicy):
    """Experts by what was wanted before: a profile file, or other generated texts."""

    name: ClassVar[str] = "profile"
    source: ClassVar[str] = "thecodacus/llama.cpp#5"

    file: str = ""
    texts: Annotated[int, Within(1, 1_000)] = 12
    tokens: Annotated[int, Within(1, 100_000)] = 50

    @property
    def other_texts(self) -> tuple[int, int] | None:
        """Where no file is given."""
        return None if self.file else (self.texts, self.tokens)

    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys in the file's order; a row outside the model is an error that names the line."""
        if not self.file:
            counts = [0] * pool.keys if future is None else future.counts
            return sorted(range(pool.keys), key=lambda key: (-counts[key], key % pool.experts, key))
        path = Path(self.file)
        if not path.is_file():
            raise PolicyError(f"placement profile: no such file {self.file!r} (give profile:file=PATH)")
        ranked: list[tuple[float, int]] = []
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise PolicyError(f"{path}: not a text file") from None
        with StringIO(text) as stream:
            reader = csv.DictReader(stream)
            if not {"layer", "expert"} <= set(reader.fieldnames or ()):
                raise PolicyError(
                    f"{path}: line 1: expected columns layer,expert[,count], found {reader.fieldnames}"
                )
            for line, row in enumerate(reader, start=2):
                try:
                    layer, expert = int(row.get("index") or row["layer"]), int(row["expert"])
                    weight = float(row["count"]) if row.get("count") else 0.0
                    if not math.isfinite(weight):
                        raise ValueError
                except (TypeError, ValueError):
                    raise PolicyError(f"{path}: line {line}: expected numbers, found {dict(row)}") from None
                if not (0 <= layer < pool.layers and 0 <= expert < pool.experts):
                    raise PolicyError(
                        f"{path}: line {line}: layer {layer}, expert {expert} is outside the model "
                        f"({pool.layers} x {pool.experts})"
                    )
                ranked.append((-weight, layer * pool.experts + expert))
        counted = any(weight for weight, _ in ranked)
        uses = Counter(key for _, key in ranked)
        if not counted and len(uses) < len(ranked):  # one line an activation: the order is by how many there are
            return [key for key, _ in uses.most_common()]
        keys = [key for _, key in sorted(ranked, key=lambda item: item[0])]
        if len(uses) != len(keys):
            raise PolicyError(f"{path}: an expert is listed twice")
        return keys
