"""States as tables: the nested tuples of a policy flattened to addresses, and the code that puts them together.

The layout of a state (its *form*) is found once from a real one: which tuple classes nest how, and of what type
each leaf is. From the form comes a small function that compiled code uses to see the state in a table.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import CompileError
from expert_residency.policies.protocol import Floats, Ints

LINE = 64
"""Bytes of a cache line."""
NARROW_MOST = 2**31 - 1
"""Largest integer of four bytes."""


BY_PLACE = ("items", "scores", "stamps")
"""Fields of `policies.structures` and `policies.heaps` that have an entry a place, and are read side by side."""


FROM_FORM = "<state>"
"""Named as the file of what `state_function` makes."""


class Recorder:
    """An allocator of Python's own arrays, which are laid out in memory when their first contents are there.

    Plain Python fills those as fast as lists, and what stands in two states must become one array in memory.
    Those with an entry a key become columns of one array of records, so that all that is known of a key lies in
    one or two cache lines; integers that are promised to be small take a byte or four.

    Parameters
    ----------
    keys
        Entries of a column, at least.
    """

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._arrays: dict[int, npt.NDArray[Any]] = {}
        self._kept: list[Any] = []
        """Sequences whose ids were noted: an id is free again when its owner is gone."""
        self._elsewhere: set[int] = set()
        """Ids of sequences whose arrays an engine owns: they are packed into no records."""

    @staticmethod
    def ints(n: int, fill: int = 0, most: int | None = None) -> Ints:
        """`n` integers, all `fill`: flags of one byte, others of four if `most` says that they fit.

        Parameters
        ----------
        n
            Length.
        fill
            First value of every entry.
        most
            Promised upper limit; None for 64 bits.

        Returns
        -------
        Ints
            (n,) integers.
        """
        wide = most is None or most > NARROW_MOST
        return array("q" if wide else "b" if most == 1 else "i", [fill]) * n

    @staticmethod
    def floats(n: int, fill: float = 0.0) -> Floats:
        """`n` floats, all `fill`."""
        return array("d", [fill]) * n

    def pack(self, *states: Any) -> None:
        """Put the columns of these states side by side, wide ones first."""
        self._pack(
            _by_width(values for state in states for values in self._columns(state) if isinstance(values, array))
        )

    def _pack(self, columns: list[Sequence[Any]]) -> None:
        if not columns:
            return
        used = sum(_kind(values).itemsize for values in columns)
        width = -(-used // 8) * 8 if used > LINE else 1 << (used - 1).bit_length()
        rows = max(map(len, columns))
        self._fill(columns, _aligned(rows * width).reshape(rows, width), 0)

    def line_up(self, state: Any, room: int) -> npt.NDArray[np.uint8]:
        """(rows, LINE): a cache line a key with `room` bytes for others, then as many columns of a state as fit.

        Those that do not fit are packed by themselves. Sequences of Python count as columns of 64 bits.
        """
        columns = _by_width(self._columns(state))
        rows = max([self._keys, *map(len, columns)])
        lines = _aligned(rows * LINE).reshape(rows, LINE)
        self._pack(columns[self._fill(columns, lines, room) :])
        return lines

    def _fill(self, columns: list[Sequence[Any]], records: npt.NDArray[np.uint8], at: int) -> int:
        """Put columns into records from a place on, while they fit; returns how many did."""
        for done, values in enumerate(columns):
            kind = _kind(values)
            if at + kind.itemsize > records.shape[1]:
                return done
            column = records[: len(values), at : at + kind.itemsize].view(kind)[:, 0]
            self._keep(values, column)
            at += kind.itemsize
        return len(columns)

    def _columns(self, state: Any, name: str = "") -> Iterator[Sequence[Any]]:
        """Sequences with an entry a key."""
        if isinstance(state, tuple):
            for part, field in zip(state, getattr(state, "_fields", [""] * len(state)), strict=True):
                yield from self._columns(part, field)
        elif (
            isinstance(state, (array, list))
            and self._keys <= len(state) <= 2 * self._keys
            and name not in BY_PLACE
            and id(state) not in self._elsewhere
        ):
            yield state

    def array(self, values: Sequence[Any] | npt.NDArray[Any]) -> Any:
        """The array in memory that stands for a sequence; those of numpy stand for themselves."""
        if isinstance(values, np.ndarray):
            return values
        if id(values) not in self._arrays:
            kind = _kind(values)
            made = _aligned(len(values) * kind.itemsize).view(kind)
            self._keep(values, made)
        return self._arrays[id(values)]

    def stands_for(self, values: Sequence[Any], made: Any) -> None:
        """Let an array that an engine keeps up to date stand for a sequence in the states to come."""
        self._arrays[id(values)] = made
        self._kept.append(values)
        self._elsewhere.add(id(values))

    def _keep(self, values: Sequence[Any], made: npt.NDArray[Any]) -> None:
        """Let an array stand for a sequence."""
        try:
            made[:] = values
        except (TypeError, ValueError, OverflowError) as error:
            raise CompileError(f"a state holds what is no number of 64 bits ({error})") from None
        self._arrays[id(values)] = made
        self._kept.append(values)


def _kind(values: Sequence[Any]) -> np.dtype[Any]:
    return np.dtype(values.typecode if isinstance(values, array) else np.int64)


def _by_width(columns: Iterator[Sequence[Any]]) -> list[Sequence[Any]]:
    """Each once, wide ones first."""
    unique = {id(values): values for values in columns}
    return sorted(unique.values(), key=lambda values: -_kind(values).itemsize)


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    """Memory that begins with a cache line."""
    raw = np.zeros(nbytes + LINE, dtype=np.uint8)
    start = -raw.ctypes.data % LINE
    return raw[start : start + nbytes]


class Flat:
    """One state flattened.

    Parameters
    ----------
    state
        A named tuple of lists, arrays, numbers and further tuples.
    recorder
        The allocator that made its lists.

    Raises
    ------
    CompileError
        A leaf of another type.
    """

    def __init__(self, state: Any, recorder: Recorder) -> None:
        self._recorder = recorder
        self.arrays: list[npt.NDArray[Any]] = []
        """What the addresses point to."""
        self.table: list[int] = []
        self.classes: dict[str, type] = {}
        self.form = self._walk(state, "state")
        """Expression that makes the state from a table `t` in which it begins at `o`."""

    def _walk(self, value: Any, where: str) -> str:
        at = len(self.table)
        if isinstance(value, (np.ndarray, array, list)):
            made = self._recorder.array(value)
            self.arrays.append(made)
            self.table += [made.ctypes.data, len(made)]
            stride = made.strides[0] // made.itemsize if len(made) > 1 else 1  # of one element numpy says anything
            return f"{made.dtype.name}_{stride}_at(t, o + {at})"
        if isinstance(value, tuple):
            parts = [self._walk(part, f"{where}.{i}") for i, part in enumerate(value)]
            if hasattr(value, "_fields"):
                name = type(value).__name__
                if self.classes.setdefault(name, type(value)) is not type(value):
                    raise CompileError(f"{where}: two kinds of tuple in one state are named {name}")
                return f"{name}({', '.join(parts)})"
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if isinstance(value, (bool, int, np.integer)):
            self.table.append(int(value))
            return f"integer_at(t, o + {at})"
        if isinstance(value, float):
            self.table.append(struct.unpack("<q", struct.pack("<d", value))[0])
            return f"float_at(t, o + {at})"
        raise CompileError(
            f"{where} is a {type(value).__name__}: compiled states hold numbers and sequences of numbers"
        )


def state_function(form: str, offset: int, classes: dict[str, type]) -> Any:
    """Function from a table to the state of this form that begins at `offset` in it.

    Parameters
    ----------
    form
        Expression that puts the state together, of places `o + n`.
    offset
        Place at which it begins in the table.
    classes
        Named tuples by name.

    Returns
    -------
    Any
        The function, to be compiled.
    """
    from expert_residency.sim.kernel.compiler.views import float_at, integer_at, reader

    placed = re.sub(r"o \+ (\d+)", lambda found: str(offset + int(found[1])), form)
    source = f"def state_at(t):\n    return {placed}\n"
    scope: dict[str, Any] = {"integer_at": integer_at, "float_at": float_at, **classes, "__name__": __name__}
    for name, dtype, stride in set(re.findall(r"\b((\w+?)_(\d+)_at)\b", form)):
        scope[name] = reader(dtype, int(stride))
    exec(compile(source, FROM_FORM, "exec"), scope)
    return scope["state_at"]
