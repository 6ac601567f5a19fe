"""Compiling a loop together with the policies that it names, and keeping the result on disk.

Policies and loops are plain Python. `Linker` copies each function that is reached and compiles the copy, with
the functions that it calls compiled likewise: the source stays one, and importing it costs nothing.

What is compiled is kept in the user's cache folder. The place holds a digest of every source file that took part,
so that a changed policy never runs old code, and the Python, numba and processor that it was compiled for.
"""

from __future__ import annotations

import builtins
import dis
import functools
import hashlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from expert_residency.errors import CompileError, FileError, PolicyError
from expert_residency.files import write_text
from expert_residency.sim.kernel.compiler.state import FROM_FORM

SIGNATURE = "void(int64)"
INNER = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of inner functions: never called from Python."""
ENVIRONMENT = "EXPERT_RESIDENCY_CACHE"


def cache_folder() -> Path:
    """Folder of compiled kernels: $EXPERT_RESIDENCY_CACHE, else in the user's cache folder."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return Path(chosen)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "expert-residency"


class Linker:
    """Copies of functions whose calls lead to other copies, all of them to be compiled.

    Parameters
    ----------
    bound
        What the names of the seam stand for.
    kinds
        Types that stand for annotations: functions are then compiled once, for what their annotations say. Without
        it they are compiled for the arguments that are passed, and every call is replaced by what it calls, so
        that many arguments are never passed in memory.
    """

    def __init__(self, bound: Mapping[str, Any], *, kinds: Mapping[str, Any] | None = None) -> None:
        import numba

        self._njit: Any = numba.njit
        self._kinds = kinds
        self._bound = bound
        self._made: dict[FunctionType, Any] = {}
        self.sources: set[str] = set()
        """Files of all functions and classes that were reached."""

    def copy(self, function: FunctionType) -> FunctionType:
        """A function with globals of its own: what it names, compiled where that is a function."""
        scope: dict[str, Any] = {"__builtins__": builtins, "__name__": function.__module__}
        made = FunctionType(function.__code__, scope, function.__name__, function.__defaults__)
        self._fill(scope, function)
        return made

    def _fill(self, scope: dict[str, Any], function: FunctionType) -> None:
        self.sources.add(function.__code__.co_filename)
        for name in _names(function.__code__):
            if name in self._bound:
                scope[name] = self._value(self._bound[name])
            elif name in function.__globals__:
                scope[name] = self._value(function.__globals__[name])

    def _value(self, value: Any) -> Any:
        if isinstance(value, type):
            file = getattr(sys.modules.get(value.__module__), "__file__", None)
            self.sources |= {file} if file else set()
        if not isinstance(value, FunctionType):
            return value
        if value not in self._made:
            scope: dict[str, Any] = {"__builtins__": builtins, "__name__": value.__module__}
            copied = FunctionType(value.__code__, scope, value.__name__, value.__defaults__)
            if self._kinds is None:
                self._made[value] = self._njit(**INNER, forceinline=True)(copied)
                self._fill(scope, value)  # afterwards, since functions may call themselves
            else:
                self._fill(scope, value)
                self._made[value] = self._njit(self._signature(value), **INNER, error_model="numpy")(copied)
        return self._made[value]

    def _signature(self, function: FunctionType) -> Any:
        """Of a function whose annotations are all known; None to compile it for what is passed."""
        assert self._kinds is not None
        kinds = dict(function.__annotations__)
        result = kinds.pop("return", "None")
        if not {result, *kinds.values()} <= self._kinds.keys():
            return None
        return self._kinds[result](*[self._kinds[kind] for kind in kinds.values()])


def _names(code: CodeType) -> list[str]:
    """Global names that a function reads, not those of attributes."""
    inner = [name for const in code.co_consts if isinstance(const, CodeType) for name in _names(const)]
    own = [op.argval for op in dis.get_instructions(code) if op.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    return [*dict.fromkeys(own), *inner]


def compile_loop(
    loop: Callable[..., Any], bound: Mapping[str, Any], label: str, signature: str = SIGNATURE, *,
    kinds: Mapping[str, Any] | None = None, callback: bool = False,
) -> Any:  # fmt: skip
    """Compiled form of `loop` with the seam's names bound.

    Parameters
    ----------
    loop
        Plain function that names things of the seam.
    bound
        Functions and values by these names.
    label
        Names the kernel among those of the same sources: policies and forms of states.
    signature
        Of the compiled function.
    kinds
        As for `Linker`.
    callback
        Whether it is to be called by compiled code, by `groups.call`: the result then has an `address`.

    Returns
    -------
    Any
        The compiled function.

    Raises
    ------
    CompileError
        The policies use something that cannot be compiled.
    """
    import numba
    from numba.core.errors import NumbaError

    from expert_residency.sim.kernel.compiler.parts import parts_of

    linker = Linker(bound)
    copied = linker.copy(loop)  # type: ignore[arg-type]
    anchor = _anchor(linker.sources, label)
    kept = anchor is not None
    try:
        with parts_of(copied.__qualname__):
            if kinds is not None and not (anchor is not None and _on_disk(_placed(copied, anchor))):
                # Functions of given types are compiled as they are linked, which a kernel on disk does not need.
                # Left to numba's inference, all of them are optimized as one: minutes instead of seconds.
                copied = Linker(bound, kinds=kinds).copy(loop)  # type: ignore[arg-type]
            if anchor is not None:
                copied = _placed(copied, anchor)
            if callback:
                return _Callback(numba.cfunc(signature, cache=kept)(copied))
            njit: Any = numba.njit
            return njit(signature, nogil=True, no_cfunc_wrapper=True, cache=kept)(copied)
    except NumbaError as error:
        raise CompileError(f"{label.split('|')[0]} cannot be compiled: {said(str(error))}") from error


def said(text: str) -> str:
    """What the compiler says, in one line: the reason whole, and the place and source line that it is about."""
    lines = [line.rstrip() for line in text.splitlines()]
    reason: list[str] = []
    place = source = ""
    for i, line in enumerate(lines):
        found = re.match(r'File "(.*)", line (\d+):', line)
        if found and not place:
            place = f"{Path(found[1]).name} line {found[2]}"
            mark = next((j for j in range(i, len(lines)) if lines[j].strip() == "^"), None)
            source = lines[mark - 1].strip() if mark is not None else ""
        if not place and line and not line.startswith(("Failed in", "During:", "- ")):
            reason.append(line.strip())
    where = ": ".join(part for part in (place, source) if part)
    return " ".join(reason or [lines[0]]) + (f" ({where})" if where else "")


class _Callback:
    """A compiled function that compiled code calls."""

    def __init__(self, made: Any) -> None:
        self._made = made  # keeps the code in memory
        # Not the C function, which prints what is raised and goes on: the function that it wraps.
        name = made.native_name.removeprefix("cfunc.")
        self.address: int = made._library.get_pointer_to_function(name)


def run_kernel(kernel: Callable[[int], None], address: int, who: Callable[[], str]) -> None:
    """Run a compiled loop on the table at `address`; `who` says which policies may have raised.

    Parameters
    ----------
    kernel
        The compiled loop.
    address
        Of its table.
    who
        Says which policies may have raised.

    Raises
    ------
    PolicyError
        A policy raised it.
    CompileError
        A policy raised anything else; the reference engine shows where.
    """
    try:
        kernel(address)
    except PolicyError:
        raise
    except Exception as error:
        raise CompileError(
            f"{who()} raised {type(error).__name__} ({error}) in the kernel; the reference engine shows where"
        ) from error


def _placed(function: FunctionType, anchor: Path) -> FunctionType:
    """The function, said to come from this file: numba keeps what it compiles beside it."""
    function.__code__ = function.__code__.replace(co_filename=str(anchor))
    return function


def _on_disk(function: FunctionType) -> bool:
    """Whether numba keeps this function compiled, be it where $NUMBA_CACHE_DIR says."""
    from numba.core.caching import FunctionCache

    folder = Path(FunctionCache(function).cache_path)  # type: ignore[no-untyped-call]
    return any(folder.glob("*.nbi")) and any(folder.glob("*.nbc"))


@functools.cache
def _compiled_for() -> str:
    """What compiled code depends on beside its sources."""
    import llvmlite.binding
    import numba

    features = llvmlite.binding.get_host_cpu_features().flatten()
    return f"{sys.implementation.cache_tag} {numba.__version__} {llvmlite.binding.get_host_cpu_name()} {features}"


@functools.cache
def _digest(path: str, mtime_ns: int) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


def _anchor(sources: set[str], label: str) -> Path | None:
    """Empty file beside which numba keeps one kernel; None if no place can be written or a source is no file."""
    digest = hashlib.sha256(f"{_compiled_for()} {label}".encode())
    own = {str(path) for path in Path(__file__).parent.glob("*.py")}
    files = sorted(own | sources - {FROM_FORM})
    if not all(map(os.path.isfile, files)):
        return None
    for path in files:
        digest.update(_digest(path, os.stat(path).st_mtime_ns))
    folder = cache_folder() / digest.hexdigest()[:24]
    anchor = folder / "kernel.py"
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        if not _private(folder):
            warnings.warn(
                f"{folder}: others can write there, so compiled kernels are neither read from it nor kept in it",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
            return None
        if not anchor.exists():
            for old in folder.rglob("*.nb?"):  # of a file that is gone: numba would take none of it
                old.unlink()
            write_text(anchor, f'"""{label.split("|")[0]}: compiled kernel; may be deleted."""\n')
    except (OSError, FileError):
        return None
    return anchor


def _private(folder: Path) -> bool:
    """Whether only this user (or the administrator) writes there: numba unpickles what it finds."""
    if not hasattr(os, "geteuid"):  # such systems keep a user's folder for that user
        return True
    found = folder.stat()
    return found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022
