"""What a reader is, how readers are found, and what they share.

A reader is a module or an object with four names: `name`, `description`, `sniff(head, path)` and
`read(path, model)`. `read` may take further keyword options of its own. It registers in the entry-point
group `expert_residency.readers`; the built-in ones do so in the same way as a stranger's.
"""

from __future__ import annotations

import gzip
import hashlib
import inspect
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.geometry import ModelGeometry, load_model
from expert_residency.traces.sizes import read_limited
from expert_residency.traces.trace import RoutingTrace

GROUP = "expert_residency.readers"
HEAD_BYTES = 1 << 16
_NOT_FORESEEN = (
    ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, NotImplementedError, OSError,
    RecursionError, TypeError, ValueError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What damaged files raise in libraries and in readers that did not think of them."""
_SAID = 200


@runtime_checkable
class Reader(Protocol):
    """One trace format."""

    name: str
    description: str
    read: Callable[..., RoutingTrace]
    """`read(path, model, **options)`: the whole trace, or a `TraceError`; `model` None if the user gave none."""

    def sniff(self, head: bytes, path: Path) -> bool:
        """Whether the first bytes (after gunzip) look like this format; cheap, never raises."""
        ...


def readers() -> dict[str, Reader]:
    """Readers that are installed, by name; a plug-in that does not load warns and is left out."""
    found: dict[str, Reader] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name):
        reader = _load(entry)
        if reader is not None:
            found[entry.name] = reader
    return found


def _load(entry: EntryPoint) -> Reader | None:
    try:
        reader = entry.load()
    except Exception as error:
        warnings.warn(f"trace reader {entry.name!r} ({entry.value}) does not load: {error}", stacklevel=3)
        return None
    if not isinstance(reader, Reader):
        warnings.warn(f"trace reader {entry.name!r} ({entry.value}) lacks name, description, sniff or read",
                      stacklevel=3)  # fmt: skip
        return None
    return reader


def list_formats() -> dict[str, str]:
    """Names of the known formats, each with its one-line description."""
    return {name: reader.description for name, reader in readers().items()}


def read_trace(
    path: str | Path,
    format: str | None = None,  # noqa: A002 - the word that users type
    model: str | ModelGeometry | None = None,
    **options: Any,
) -> RoutingTrace:
    """Read a trace of any known format.

    Parameters
    ----------
    path
        The file, gzipped or not.
    format
        Name of a reader; sniffed from the first bytes if not given.
    model
        Geometry for formats that lack one (name, `name/quant`, TOML file, or the value itself). Where the
        file has its own geometry, `model` must have the same layers and experts and replaces the sizes.
    options
        Options of the reader, e.g. `prompt_tokens` of `strata`.

    Returns
    -------
    RoutingTrace
        The trace, validated.

    Raises
    ------
    TraceError
        One sentence with file and place: unknown format or option, or whatever the reader found wrong.
    """
    path = Path(path)
    geometry = load_model(model) if isinstance(model, str) else model
    known = readers()
    if format is None:
        reader = _sniffed(path, known)
    else:
        check_known("format", format, known, TraceError)
        reader = known[format]
    allowed = [p for p in inspect.signature(reader.read).parameters if p not in ("path", "model")]
    for option in options:
        check_known(f"format {reader.name}: option", option, allowed, TraceError)
    try:
        return reader.read(path, geometry, **options)
    except TraceError as error:
        if str(path) in str(error):
            raise
        raise TraceError(str(error), path=path) from None
    except _NOT_FORESEEN as error:  # a sentence for who reads files, the cause for who writes readers
        said = " ".join(str(error).split())[:_SAID]
        raise TraceError(
            f"cannot be read as {reader.name} ({type(error).__name__}: {said}); the file is damaged, or of "
            "another form than this reader knows",
            path=path,
        ) from error


def _sniffed(path: Path, known: dict[str, Reader]) -> Reader:
    head = read_bytes(path, HEAD_BYTES)
    for reader in known.values():
        if reader.sniff(head, path):
            return reader
    raise TraceError(f"not a trace in a known format ({', '.join(known)}); say which with --format", path=path)


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The file's bytes, gunzipped if it is gzipped; the first `limit` of them if given."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            data = read_limited(stream.read, path.stat().st_size, path) if limit is None else stream.read(limit)
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the gzip stream is cut off or damaged ({error})", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None
    if not data:
        raise TraceError("the file is empty", path=path)
    return bytes(data)


def read_text(path: Path) -> str:
    """The file's text; UTF-8, or an error that says at which byte it is not."""
    data = read_bytes(path)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"not valid UTF-8 (0x{data[error.start]:02x})", path=path,
                         place=f"byte {error.start}") from None  # fmt: skip


def source_meta(path: Path, engine: str, *notes: str) -> dict[str, Any]:
    """Standard `meta` of an imported trace: engine, name and SHA-256 of the file as stored, notes.

    Parameters
    ----------
    path
        The file that was read.
    engine
        What wrote it.
    notes
        Whatever a reader of results should know.

    Returns
    -------
    dict[str, Any]
        The block, plain data.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"source_engine": engine, "source_file": path.name, "source_sha256": digest,
            "synthetic": False, "notes": list(notes)}  # fmt: skip
