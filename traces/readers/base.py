"""What a reader is, how readers are found, and what they share.

A reader is a module or an object with four names: `name`, `description`, `sniff(head, path)` and
`read(path, model)`. `read` may take further keyword options of its own, and `marks` may name columns or fields by
which an unknown file is found to be near the format; `fallback(head, path)` is asked once every `sniff` has said
no. It registers in the entry-point group `expert_residency.readers`; the built-in ones do so in the same way as a
stranger's.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import inspect
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.geometry import ModelGeometry, load_model
from expert_residency.traces.join import JOINS, joined
from expert_residency.traces.sizes import read_limited
from expert_residency.traces.trace import RoutingTrace
from expert_residency.traces.whole import check_whole

GROUP = "expert_residency.readers"
BOM = b"\xef\xbb\xbf"
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
    """`read(path, model, **options)`: the whole trace. Every format's own function takes and raises alike:

    Parameters
    ----------
    path
        The file, gzipped or not; named in messages.
    model
        Shape and sizes, and where the file has them too, in place of its sizes; None if the user gave none.
    partial
        Keep the whole passes, and the layers, of a file that is cut off; where a format can be cut.

    Returns
    -------
    RoutingTrace
        The trace, with notes of what was assumed or left out.

    Raises
    ------
    TraceError
        What does not fit, in one sentence with its place.
    """

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
    path: str | Path | Sequence[str | Path],
    format: str | None = None,  # noqa: A002 - the word that users type
    model: str | ModelGeometry | None = None,
    *,
    partial: bool = False,
    join: str = "recorded",
    **options: Any,
) -> RoutingTrace:
    """Read a trace of any known format.

    Parameters
    ----------
    path
        The file, gzipped or not; or several, or a pattern such as `runs/*.csv`, which become one trace.
    format
        Name of a reader; sniffed from the first bytes if not given.
    model
        Geometry for formats that lack one (name, `name/quant`, TOML file, or the value itself). Where the
        file has its own geometry, `model` must have the same layers and experts and replaces the sizes.
    partial
        Take what is whole: the passes before a file's cut end, and the layers that it has. The trace says so.
    join
        Of several files: `recorded`, their own requests one after the other, or `file`, each file one request.
    options
        Options of the reader, e.g. `prompt_tokens` of `strata`; numbers may be given as text.

    Returns
    -------
    RoutingTrace
        The trace, validated and complete.

    Raises
    ------
    TraceError
        One sentence with file and place: unknown format or option, or whatever the reader found wrong.
    """
    check_known("way to join", join, JOINS, TraceError)
    geometry = load_model(model) if isinstance(model, str) else model
    files = _files(path)
    if partial:
        options["partial"] = True
    known = readers()
    if len(files) == 1 and join == "recorded":
        return _read_one(files[0], format, geometry, known, options)
    return joined([_read_one(file, format, geometry, known, options) for file in files], files, join)


def _files(path: str | Path | Sequence[str | Path]) -> list[Path]:
    """The files that are meant; a pattern's in the order of their names."""
    if not isinstance(path, str | Path):
        if not path:
            raise TraceError("no trace file was given")
        return [file for one in path for file in _files(one)]
    if not glob.has_magic(str(path)) or Path(path).exists():
        return [Path(path)]
    found = [Path(name) for name in sorted(glob.glob(str(path))) if Path(name).is_file()]
    if not found:
        raise TraceError("no file has a name of this pattern", path=path)
    return found


def _read_one(
    path: Path,
    format: str | None,  # noqa: A002
    geometry: ModelGeometry | None,
    known: dict[str, Reader],
    options: dict[str, Any],
) -> RoutingTrace:
    if format is None and "columns" in options and "table" in known:
        reader = known["table"]
    elif format is None:
        reader = _sniffed(path, known)
    else:
        check_known("format", format, known, TraceError)
        reader = known[format]
    own_k = options.get("top_k")
    if own_k is not None and not _takes_k(reader):
        geometry = geometry.with_top_k(int(own_k)) if geometry is not None else None
        options = {name: value for name, value in options.items() if name != "top_k"}
    options = _checked(reader, options)
    try:
        trace = reader.read(path, geometry, **options)
        check_whole(trace)
        if own_k is not None and trace.geometry.top_k != int(own_k):
            raise TraceError(f"the file has {trace.geometry.top_k} experts a token, top-k says {own_k}", path=path)
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
    return trace


def _takes_k(reader: Reader) -> bool:
    """Whether a format's reader asks for k itself, since its files do not say it."""
    return "top_k" in inspect.signature(reader.read).parameters


def _checked(reader: Reader, options: dict[str, Any]) -> dict[str, Any]:
    """Options that the reader has; texts turned into the numbers that it wants."""
    taken = {
        name: p for name, p in inspect.signature(reader.read).parameters.items() if name not in ("path", "model")
    }
    found = {}
    for name, value in options.items():
        if name == "partial" and name not in taken:
            raise TraceError(
                f"format {reader.name} is read whole or not at all, so --partial cannot be used with it"
            )
        check_known(f"format {reader.name}: option", name, taken, TraceError)
        kind = str(taken[name].annotation)
        if isinstance(value, str) and "int" in kind:
            if not value.strip().lstrip("-").isdecimal():
                raise TraceError(f"format {reader.name}: option {name}={value}: expected a whole number")
            value = int(value)
        if isinstance(value, int) and "int" in kind and value < 0:
            raise TraceError(f"format {reader.name}: option {name}={value}: expected 0 or more")
        found[name] = value
    return found


def _sniffed(path: Path, known: dict[str, Reader]) -> Reader:
    head = read_bytes(path, HEAD_BYTES).removeprefix(BOM)
    for reader in known.values():
        if reader.sniff(head, path):
            return reader
    for reader in known.values():
        fallback = getattr(reader, "fallback", None)
        if fallback is not None and fallback(head, path):
            return reader
    words = {word.decode() for word in re.findall(rb"[A-Za-z_][A-Za-z_0-9]{2,}", head[:2000])}
    marks = {name: len(words & set(getattr(reader, "marks", ()))) for name, reader in known.items()}
    near = sorted((name for name, hits in marks.items() if hits), key=lambda name: (-marks[name], name))[:3]
    start = (
        head[:48].decode("ascii", "replace") if head[:48].isascii() else " ".join(f"{b:02x}" for b in head[:16])
    )
    text = "".join(c if c.isprintable() else " " for c in start)
    hint = f"nearest: {', '.join(near)}" if near else f"known: {', '.join(known)}"
    raise TraceError(
        f"not a trace in a known format; it begins with {text!r} ({hint}). Say which with --format, or, for any "
        f"table of routing, which columns mean what: --columns pass=step,layer=l,experts=e0..e5 of import, "
        "elsewhere -o columns=pass=step,layer=l,experts=e0..e5",
        path=path,
    )


def read_bytes(path: Path, limit: int | None = None, *, partial: bool = False) -> bytes:
    """The file's bytes, gunzipped if it is gzipped.

    Parameters
    ----------
    path
        The file.
    limit
        The first so many bytes only.
    partial
        Whether a gzip stream that is cut off gives what it holds.

    Returns
    -------
    bytes
        At least one.

    Raises
    ------
    TraceError
        No such file, an empty one, or one that cannot be read.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as stream:
            read: Callable[[int], bytes] = partly(stream) if partial and packed else stream.read
            data = read_limited(read, path.stat().st_size, path) if limit is None else read(limit)
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"the gzip stream is cut off or damaged ({error})", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None
    if not data:
        raise TraceError("the file is empty", path=path)
    return bytes(data)


def partly(stream: Any) -> Callable[[int], bytes]:
    """`read` of a gzip stream that gives what there is, and nothing after the place where it is cut off."""

    def read(size: int) -> bytes:
        try:
            return bytes(stream.read1(min(size, 1 << 16)))
        except EOFError:
            return b""

    return read


def read_text(path: Path, *, partial: bool = False) -> str:
    """The file's text; UTF-8 with or without a byte order mark, or an error that says at which byte it is not."""
    data = read_bytes(path, partial=partial).removeprefix(BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if partial and error.start >= len(data) - 3:  # the cut went through a character
            return data[: error.start].decode("utf-8")
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
