"""Models as published, in every mix: shapes of all tensors (`shapes/`) become headers, and those a packaged file.

    python -m expert_residency.traces.weights.blueprint        writes traces/models anew

A packaged model goes the way of a model's own GGUF file, so that both say the same of the same tensors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from expert_residency.errors import TraceError
from expert_residency.toml import Shelf, checked
from expert_residency.traces.model_file import DEFAULT_STYLE, ModelFile, Quant
from expert_residency.traces.weights.checkpoint import model_file
from expert_residency.traces.weights.gguf import Header
from expert_residency.traces.weights.gguf_model import model_of
from expert_residency.traces.weights.mix import Shape, mixed
from expert_residency.traces.weights.write import write_model

SHAPES = Shelf("expert_residency.traces.weights", "shapes", "published model", TraceError)
"""Where the shapes are."""
COMMENT = (
    "Written by expert_residency.traces.weights.blueprint from traces/weights/shapes: change the shapes, not this."
)


class Blueprint(BaseModel):
    """Shapes of a published model.

    `metadata` are GGUF's behind the architecture's name. `tensors` has the dimensions (row length first) of each
    tensor outside of blocks under `model`, of those in blocks under the blocks that have them: `0-2,6-78/4` are 0,
    1, 2 and every fourth from 6 to 78. `quants` are mixes of `mix.BASE`, the default first; `kept` are
    quantizations by hand.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    description: str
    architecture: str
    source: str
    quants: list[str]
    aliases: list[str] = []
    style: str = DEFAULT_STYLE
    trace: str | None = None
    metadata: dict[str, Any]
    tensors: dict[str, dict[str, list[int]]]
    kept: dict[str, Quant] = {}

    def shapes(self) -> list[Shape]:
        """Every tensor's name and dimensions, blocks in their order."""
        blocks: dict[int, list[Shape]] = {}
        for where, tensors in self.tensors.items():
            for block in [] if where == "model" else _blocks(where):
                blocks.setdefault(block, []).extend((f"blk.{block}.{n}", tuple(s)) for n, s in tensors.items())
        outside = [(name, tuple(shape)) for name, shape in self.tensors.get("model", {}).items()]
        return outside + [shape for block in sorted(blocks) for shape in blocks[block]]

    def header(self, mix: str) -> Header:
        """What the header of a file in this mix would say."""
        heads = self.metadata["attention.head_count"]
        kv = self.metadata["attention.head_count_kv"]
        kv_heads = (
            kv[0] if isinstance(kv, list) else kv
        )  # llama-quantize asks the first layer, which may have none
        tensors = mixed(
            self.shapes(),
            mix,
            blocks=self.metadata["block_count"],
            experts=self.metadata["expert_count"],
            query_groups=heads // kv_heads if kv_heads else 0,
        )
        facts = {f"{self.architecture}.{key}": value for key, value in self.metadata.items()}
        path = Path(f"{self.name}-{mix}.gguf")
        return Header(path, {"general.architecture": self.architecture} | facts, tuple(tensors))


def _blocks(where: str) -> list[int]:
    found: list[int] = []
    for part in where.split(","):
        ends, _, step = part.partition("/")
        first, _, last = ends.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


@cache
def read_blueprint(name: str) -> Blueprint:
    """The shapes of a published model by its name.

    Raises
    ------
    TraceError
        There are none of that name, or the file does not validate.
    """
    return checked(Blueprint, SHAPES.read(name), TraceError, SHAPES.where(name))


def packaged_file(blueprint: Blueprint) -> ModelFile:
    """The packaged file of a model: its sizes in every mix."""
    quants: dict[str, Quant] = dict(blueprint.kept)
    files: list[ModelFile] = []
    for mix in blueprint.quants:
        if mix in quants:
            continue
        checkpoint = model_of(blueprint.header(mix))
        files.append(model_file(replace(checkpoint, name=blueprint.name, quant=mix, source=blueprint.source)))
        how = "all tensors in 16 bit" if mix in ("BF16", "FP16") else f"types as llama.cpp's mix {mix}"
        made = files[-1].quants[mix]
        quants[mix] = made.model_copy(update={"kind": "derived", "source": f"published shapes, {how}"})
    whole = files[0]
    session = whole.session
    if session is not None:
        session = session.model_copy(update={"source": f"{blueprint.source}; an engine's buffers are not in it"})
    return whole.model_copy(
        update={
            "description": blueprint.description,
            "aliases": blueprint.aliases,
            "source": blueprint.source,
            "default_quant": blueprint.quants[0],
            "style": blueprint.style,
            "trace": blueprint.trace,
            "session": session,
            "quants": {mix: quants[mix] for mix in blueprint.quants},
        }
    )


def main() -> None:
    """See the module."""
    folder = Path(__file__).resolve().parents[1] / "models"
    for name in SHAPES.names():
        write_model(folder / f"{name}.toml", packaged_file(read_blueprint(name)), COMMENT)


if __name__ == "__main__":
    main()
