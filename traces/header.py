"""The metadata block of a Parquet trace: its form, and the hashes that tell a whole file from a damaged one."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr

from expert_residency.errors import TraceError
from expert_residency.text import sha256_of
from expert_residency.toml import checked
from expert_residency.traces.geometry import LARGEST_BYTES, LARGEST_ID, ModelGeometry

FORMAT_VERSION = 1
CONTENT, PARTS, HEADER = "content_sha256", "parts_sha256", "header_sha256"
"""Keys of the hashes: of the trace as `RoutingTrace.content_hash`, of the same by `traces.digest` for whoever
reads it in parts, and of all other entries of the block."""
MOST_EMITTED = 1 << 16
"""Tokens that one pass may emit: far above any verify window."""

Bytes = Annotated[StrictInt, Field(ge=0, le=LARGEST_BYTES)]
Id = Annotated[StrictInt, Field(ge=0, le=LARGEST_ID)]
Count = Annotated[StrictInt, Field(ge=1, le=LARGEST_ID)]
Pass = Annotated[str, Field(pattern=r"^\d{1,9}$")]
Tokens = Annotated[StrictInt, Field(ge=0, le=MOST_EMITTED)]


class GeometryForm(BaseModel):
    """`ModelGeometry` as plain data: nothing is rounded, cut or taken for a number that is none."""

    model_config = ConfigDict(extra="forbid")

    name: StrictStr
    layer_ids: list[Id]
    experts: Count
    top_k: Count
    expert_bytes: list[Bytes]
    dense_bytes: list[Bytes]
    quant: StrictStr = ""
    quant_family: StrictStr = "unknown"
    head_bytes: Bytes = 0
    dense_only_bytes: Bytes = 0
    expert_params: Bytes = 0
    hidden_size: Bytes = 0
    handoff_bytes: Bytes = 0
    total_layers: Id = 0
    source: StrictStr = ""


class Meta(BaseModel):
    """What the program itself reads of a trace's `meta`; anything else is kept as it is."""

    model_config = ConfigDict(extra="allow")

    synthetic: StrictBool = False


class Header(BaseModel):
    """The block, without its hashes."""

    geometry: GeometryForm
    emits: dict[Pass, Tokens] = Field(default_factory=dict)
    meta: Meta = Field(default_factory=Meta)


def seal(header: dict[str, Any], content_hash: str, parts_hash: str) -> bytes:
    """The block as it is written: the header and its hashes.

    Parameters
    ----------
    header
        Entries of the block.
    content_hash, parts_hash
        Of the trace: whole, and as `traces.digest.parts_hash`.

    Returns
    -------
    bytes
        JSON.

    Raises
    ------
    ValueError
        NaN, or what JSON cannot hold.
    """
    whole = header | {CONTENT: content_hash, PARTS: parts_hash}
    return json.dumps(whole | {HEADER: sha256_of(whole)}, allow_nan=False).encode()


def parse(block: bytes, path: object) -> tuple[dict[str, Any], ModelGeometry]:
    """Header and geometry of a block, checked.

    Raises
    ------
    TraceError
        Not JSON, another version, values that are not of their kind, or a header that is not what was written.
    """
    try:
        data = json.loads(block)
        if not isinstance(data, dict) or "format_version" not in data or "geometry" not in data:
            raise ValueError("format_version and geometry are expected in it")
    except (ValueError, RecursionError) as error:
        raise TraceError(f"the metadata block is not readable ({error})", path=path) from None
    version = data["format_version"]
    if version != FORMAT_VERSION:
        raise TraceError(f"format version {version}, expected {FORMAT_VERSION}", path=path)
    form = checked(Header, data, TraceError, path).geometry
    if len(form.expert_bytes) < len(form.layer_ids):
        layer = form.layer_ids[len(form.expert_bytes)]
        raise TraceError(f"expert bytes of layer {layer} are missing", path=path, place="geometry")
    try:
        geometry = ModelGeometry.from_dict(form.model_dump())
    except TraceError as error:
        raise TraceError(str(error), path=path, place="geometry") from None
    if HEADER in data and data.pop(HEADER) != sha256_of(data):
        raise TraceError(_damaged("the metadata block", HEADER), path=path)
    return data, geometry


def check_content(header: dict[str, Any], content_hash: str, path: object, key: str = CONTENT) -> None:
    """See that the rows are those that were written; files of other programs need no hash.

    Parameters
    ----------
    header
        Of the file.
    content_hash
        Of the trace that was read.
    path
        Named in the error.
    key
        Which hash it is, CONTENT or PARTS.

    Raises
    ------
    TraceError
        They are not.
    """
    if header.get(key, content_hash) != content_hash:
        raise TraceError(_damaged("the content", key), path=path)


def _damaged(what: str, key: str) -> str:
    return (
        f"{what} is not what was written (its {key} differs): the file is damaged; or it was edited by another "
        f"program, which then has to leave out {CONTENT}, {PARTS} and {HEADER}"
    )
