"""States as tables: the nested tuples of a policy flattened to addresses, and the code that puts them together.

The layout of a state (its *form*) is found once from a real one: which tuple classes nest how, and of what type
each leaf is. From the form comes a small function that compiled code uses to see the state in a table.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.protocol import Floats, Ints
from sim.errors import CompileError

WORDS_A_LINE = 8
"""Integers in a cache line."""


class Recorder:
    """An allocator of Python lists, which turns them into arrays when their first contents are there.

    Lists are filled faster than arrays by plain Python, and a list that stands in two states must become one
    array. Lists with an entry a key become columns of one array of records, so that all that is known of a key
    lies in one or two cache lines.

    Parameters
    ----------
    keys
        Entries of a column, at least.
    """

    def __init__(self, keys: int) -> None:
        self._keys = keys
        self._floats: set[int] = set()
        self._arrays: dict[int, npt.NDArray[Any]] = {}
        self._kept: list[Any] = []
        """Lists whose ids were noted: an id is free again when its list is gone."""

    def ints(self, n: int, fill: int = 0) -> Ints:
        """`n` integers, all `fill`."""
        return [fill] * n

    def floats(self, n: int, fill: float = 0.0) -> Floats:
        """`n` floats, all `fill`."""
        made = [float(fill)] * n
        self._floats.add(id(made))
        self._kept.append(made)
        return made

    def pack(self, *states: Any) -> None:
        """Put the columns of these states side by side."""
        columns = {id(values): values for state in states for values in self._columns(state)}
        if not columns:
            return
        width = len(columns) if len(columns) > WORDS_A_LINE else 1 << (len(columns) - 1).bit_length()
        rows = max(map(len, columns.values()))
        raw = np.zeros(rows * width + WORDS_A_LINE, dtype=np.int64)
        start = -raw.ctypes.data // raw.itemsize % WORDS_A_LINE
        records = raw[start : start + rows * width].reshape(rows, width)
        for i, (number, values) in enumerate(columns.items()):
            column = records[: len(values), i]
            if number in self._floats:
                column = column.view(np.float64)
            column[:] = values
            self._arrays[number] = column
            self._kept.append(values)

    def _columns(self, state: Any, name: str = "") -> Iterator[list[Any]]:
        """Lists with an entry a key; `items` are by position, and read one after the other."""
        if isinstance(state, tuple):
            for part, field in zip(state, getattr(state, "_fields", [""] * len(state)), strict=True):
                yield from self._columns(part, field)
        elif isinstance(state, list) and self._keys <= len(state) <= 2 * self._keys and name != "items":
            yield state

    def array(self, values: Sequence[Any] | npt.NDArray[Any]) -> Any:
        """The array that stands for a list; arrays stand for themselves."""
        if isinstance(values, np.ndarray):
            return values
        if id(values) not in self._arrays:
            kind = np.float64 if id(values) in self._floats else np.int64
            self._arrays[id(values)] = np.array(values, dtype=kind)
            self._kept.append(values)
        return self._arrays[id(values)]


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
        if isinstance(value, (np.ndarray, list)):
            array = self._recorder.array(value)
            self.arrays.append(array)
            self.table += [array.ctypes.data, len(array)]
            return f"{array.dtype.name}_{array.strides[0] // array.itemsize}_at(t, o + {at})"
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
    """Function from a table to the state of this form that begins at `offset` in it."""
    from sim.kernel.views import float_at, integer_at, reader

    source = f"def state_at(t):\n    o = {offset}\n    return {form}\n"
    scope: dict[str, Any] = {"integer_at": integer_at, "float_at": float_at, **classes, "__name__": __name__}
    for name, dtype, stride in set(re.findall(r"\b((\w+?)_(\d+)_at)\b", form)):
        scope[name] = reader(dtype, int(stride))
    exec(compile(source, "<state>", "exec"), scope)
    return scope["state_at"]
