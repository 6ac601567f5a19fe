"""Groups of named values behind an address, as a type of compiled code.

A *group* is what a tuple with named fields becomes when its arrays, numbers and further groups lie in a table. To
pass one on takes one register, and a field is read where it is named; so a large loop may be cut into many
functions, none of which is compiled with a hundred arguments.

Addresses, lengths and numbers in a table do not change while a kernel runs: what changes lies in the arrays.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import intrinsic, lower_getattr_generic, models, register_model

from expert_residency.errors import CompileError
from expert_residency.sim.kernel.compiler.views import WORD, View, prefetch

Spec = tuple[str, tuple[tuple[str, int, Any], ...]]
"""Name of a group, and of each field its name, its place in words, and what stands there."""


class Table:
    """A tuple with named fields as a table of words.

    Parameters
    ----------
    state
        Arrays, whole numbers, floats and further such tuples.

    Raises
    ------
    CompileError
        A field of another type.
    """

    def __init__(self, state: Any) -> None:
        self.kept = state
        """What the addresses point to."""
        words: list[int] = []
        self.spec: Spec = self._walk(state, words)
        self.words = marked(words)

    @property
    def address(self) -> int:
        """Where the words are."""
        return int(self.words.ctypes.data)

    def _walk(self, state: Any, words: list[int]) -> Spec:
        fields: list[tuple[str, int, Any]] = []
        start = len(words)
        for name, value in zip(state._fields, state, strict=True):
            at = len(words) - start
            if isinstance(value, np.ndarray):
                words += [value.ctypes.data, len(value)]
                stride = value.strides[0] // value.itemsize if len(value) > 1 else 1
                fields.append((name, at, (value.dtype.name, stride)))
            elif isinstance(value, tuple):
                fields.append((name, at, self._walk(value, words)))
            elif isinstance(value, (bool, int, np.integer)):
                words.append(int(value))
                fields.append((name, at, "int64"))
            elif isinstance(value, float):
                words.append(struct.unpack("<q", struct.pack("<d", value))[0])
                fields.append((name, at, "float64"))
            else:
                raise CompileError(
                    f"{type(state).__name__}.{name} is a {type(value).__name__}, not a number or array"
                )
        return type(state).__name__, tuple(fields)


def marked(words: list[int]) -> npt.NDArray[np.int64]:
    """A table of these words; `call` sets the one before it if the function that was given the table raised."""
    return np.array([0, *words], dtype=np.int64)[1:]


def has_raised(table: npt.NDArray[np.int64]) -> bool:
    """Whether a function that was given this table has raised."""
    assert table.base is not None
    return bool(table.base[0])


class Group(types.Type):
    """Type of a group; `fields` gives place and type of each name."""

    def __init__(self, spec: Spec) -> None:
        name, fields = spec
        self.fields: dict[str, tuple[int, Any]] = {field: (at, _kind(what)) for field, at, what in fields}
        super().__init__(f"{name}-{hashlib.sha256(repr(spec).encode()).hexdigest()[:12]}")


def _kind(what: Any) -> Any:
    if isinstance(what, str):
        return getattr(types, what)
    if isinstance(what[1], int):
        return View(getattr(types, what[0]), what[1])
    return Group(what)


@register_model(Group)
class _GroupModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Group) -> None:
        super().__init__(manager, kind, WORD)


@infer_getattr
class _Fields(AttributeTemplate):
    key = Group

    def generic_resolve(self, group: Any, name: Any) -> Any:  # type: ignore[override]
        return group.fields[name][1] if name in group.fields else None


@lower_getattr_generic(Group)
def _field(context: Any, builder: Any, group: Group, address: Any, name: str) -> Any:
    at, kind = group.fields[name]
    if isinstance(kind, Group):
        return builder.add(address, WORD(8 * at))
    word = _word(builder, address, at)
    if isinstance(kind, View):
        made = cgutils.create_struct_proxy(kind)(context, builder)
        made.data = builder.inttoptr(word, context.get_data_type(types.CPointer(kind.dtype)))
        made.size = _word(builder, address, at + 1)
        return made._getvalue()
    return builder.bitcast(word, ir.DoubleType()) if kind == types.float64 else word


def _word(builder: Any, address: Any, at: int) -> Any:
    base = builder.inttoptr(address, ir.PointerType(WORD))
    loaded = builder.load(builder.gep(base, [WORD(at)]))
    loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def kinds_of(groups: Mapping[str, Group]) -> dict[str, Any]:
    """Types that annotations stand for (`link.Linker`): plain ones, and these groups by name."""
    return {"int": types.int64, "bool": types.boolean, "None": types.void, **groups}


def group_at(kind: Group) -> Any:
    """Compiled function from the address of a table to the group that lies there."""

    @intrinsic
    def group(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return args[0]

        return kind(types.int64), generate

    return group


@intrinsic
def call(typing_context: Any, code: Any, table: Any, what: Any, a: Any, b: Any, c: Any) -> Any:
    """Call the compiled function (table, what, a, b, c) at the address `code`; what it raises is raised.

    Parameters
    ----------
    typing_context
        Numba's.
    code
        Address of the function.
    table
        Address handed on.
    what
        Number of what is asked.
    a, b, c
        Integers handed on.

    Returns
    -------
    Any
        Signature and generator, as numba's extension interface wants them.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kinds = sig.args[1:]
        kind = context.call_conv.get_function_type(sig.return_type, kinds)
        function = builder.inttoptr(args[0], ir.PointerType(kind))
        status, result = context.call_conv.call_function(builder, function, sig.return_type, kinds, args[1:])
        with builder.if_then(status.is_error, likely=False):
            mark = builder.gep(builder.inttoptr(args[1], ir.PointerType(WORD)), [WORD(-1)])
            builder.store(WORD(1), mark)
            context.call_conv.return_status_propagate(builder, status)
        return result

    return types.int64(*[types.int64] * 6), generate


@intrinsic
def fetch_line(typing_context: Any, address: Any) -> Any:
    """Ask the processor for the cache line at an address that is wanted soon."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        prefetch(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.none(types.int64), generate
