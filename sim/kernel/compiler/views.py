"""Arrays behind addresses, as a type of compiled code.

A kernel takes the address of one table of integers: addresses and lengths of the arrays of its states, and
their numbers. A *view* is such an array seen from compiled code: a pointer and a length. It owns nothing, so that
passing it on costs no reference counting, and it is a third of an ordinary array in size, which shows in compile
time.

Elements read as int64 or float64 whatever they are stored as: arithmetic is then that of Python, within 64 bits.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import RefType, iternext_impl, lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

WORD = ir.IntType(64)


class ViewIterator(types.SimpleIteratorType):  # type: ignore[name-defined,misc]
    """Iterator over a view."""

    def __init__(self, view: View) -> None:
        self.view = view
        super().__init__(f"iterator({view.name})", view.element)


class View(types.IterableType):
    """Elements of one type side by side.

    Parameters
    ----------
    dtype
        As stored.
    stride
        Distance of neighbours, in elements: more than 1 for a column of records.
    """

    def __init__(self, dtype: types.Type, stride: int) -> None:
        self.dtype = dtype
        self.stride = stride
        self.signed = bool(getattr(dtype, "signed", True))
        self.element = types.float64 if isinstance(dtype, types.Float) else types.int64
        super().__init__(f"view({dtype},{stride})")

    @property
    def iterator_type(self) -> ViewIterator:
        """Type of `iter(view)`."""
        return ViewIterator(self)


@register_model(View)
class _ViewModel(models.StructModel):
    def __init__(self, manager: Any, kind: View) -> None:
        super().__init__(manager, kind, [("data", types.CPointer(kind.dtype)), ("size", types.int64)])


@register_model(ViewIterator)
class _IteratorModel(models.StructModel):
    def __init__(self, manager: Any, kind: ViewIterator) -> None:
        members = [("at", types.EphemeralPointer(types.int64)), ("view", kind.view)]
        super().__init__(manager, kind, members)


# ---- typing ----------------------------------------------------------------------------------

FIRST = {"target": "cpu"}
"""Metadata of a template for one target, which is tried before the general ones: a dozen for an index."""


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    metadata = FIRST

    def generic(self, args: Any, kws: Any) -> Any:
        view, at = args
        if isinstance(view, View) and isinstance(at, types.Integer):
            return signature(view.element, view, types.int64)
        if isinstance(view, View) and isinstance(at, types.SliceType):
            return signature(view, view, at)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    metadata = FIRST

    def generic(self, args: Any, kws: Any) -> Any:
        view, at, _ = args
        if isinstance(view, View) and isinstance(at, types.Integer):
            return signature(types.none, view, types.int64, view.element)
        return None


@infer_global(len)
class _Len(AbstractTemplate):
    metadata = FIRST

    def generic(self, args: Any, kws: Any) -> Any:
        return signature(types.int64, *args) if isinstance(args[0], View) else None


# ---- code ------------------------------------------------------------------------------------


def _place(builder: Any, kind: View, view: Any, at: Any) -> Any:
    """Pointer to an element: no index of a policy is negative."""
    return builder.gep(
        view.data, [at if kind.stride == 1 else builder.mul(at, WORD(kind.stride), flags=("nsw",))], inbounds=True
    )


def _load(builder: Any, kind: View, pointer: Any) -> Any:
    value = builder.load(pointer)
    if kind.element == types.int64 and value.type.width < 64:
        value = builder.sext(value, WORD) if kind.signed else builder.zext(value, WORD)
    return value


@lower_builtin(operator.getitem, View, types.int64)
def _getitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
    return _load(builder, sig.args[0], _place(builder, sig.args[0], view, args[1]))


@lower_builtin(operator.getitem, View, types.SliceType)
def _slice(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    """A slice with 0 <= start <= stop <= size and no step: all that kernels use."""
    view = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
    cut = cgutils.create_struct_proxy(sig.args[1])(context, builder, args[1])
    part = cgutils.create_struct_proxy(sig.args[0])(context, builder)
    part.data = _place(builder, sig.args[0], view, cut.start)
    part.size = builder.sub(cut.stop, cut.start)
    return part._getvalue()


@lower_builtin(operator.setitem, View, types.int64, types.int64)
@lower_builtin(operator.setitem, View, types.int64, types.float64)
def _setitem(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    view = cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0])
    value = args[2]
    stored = context.get_data_type(sig.args[0].dtype)
    if isinstance(stored, ir.IntType) and stored.width < 64:
        value = builder.trunc(value, stored)
    builder.store(value, _place(builder, sig.args[0], view, args[1]))
    return context.get_dummy_value()


@lower_builtin(len, View)
def _len(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return cgutils.create_struct_proxy(sig.args[0])(context, builder, args[0]).size


@lower_builtin("getiter", View)
def _getiter(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    made = cgutils.create_struct_proxy(sig.return_type)(context, builder)
    made.at = cgutils.alloca_once_value(builder, WORD(0))
    made.view = args[0]
    return made._getvalue()


@lower_builtin("iternext", ViewIterator)
@iternext_impl(RefType.UNTRACKED)
def _iternext(context: Any, builder: Any, sig: Any, args: Any, result: Any) -> None:
    kind = sig.args[0]
    iterator = cgutils.create_struct_proxy(kind)(context, builder, args[0])
    view = cgutils.create_struct_proxy(kind.view)(context, builder, iterator.view)
    at = builder.load(iterator.at)
    more = builder.icmp_signed("<", at, view.size)
    result.set_valid(more)
    with builder.if_then(more):
        result.yield_(_load(builder, kind.view, _place(builder, kind.view, view, at)))
        builder.store(builder.add(at, WORD(1)), iterator.at)


# ---- reading a table -------------------------------------------------------------------------


def _word(builder: Any, table: Any, at: Any) -> Any:
    base = builder.inttoptr(table, ir.PointerType(WORD))
    return builder.load(builder.gep(base, [at]))


@functools.cache
def reader(dtype: str, stride: int) -> Any:
    """Compiled function (table, at) to the view whose address and length stand there."""
    stored = getattr(types, dtype)
    kind = View(stored, stride)

    @intrinsic
    def view_at(typing_context: Any, table: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            made = cgutils.create_struct_proxy(kind)(context, builder)
            pointer = context.get_data_type(types.CPointer(stored))
            made.data = builder.inttoptr(_word(builder, *args), pointer)
            made.size = _word(builder, args[0], builder.add(args[1], WORD(1)))
            return made._getvalue()

        return kind(types.int64, types.int64), generate

    return view_at


@intrinsic
def integer_at(typing_context: Any, table: Any, at: Any) -> Any:
    """Number in a table.

    Parameters
    ----------
    typing_context
        Numba's.
    table
        Address.
    at
        Place, in words of 8 bytes.

    Returns
    -------
    Any
        Signature and generator, as numba's extension interface wants them.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _word(builder, *args)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def float_at(typing_context: Any, table: Any, at: Any) -> Any:
    """Number in a table that stands there as its bits.

    Parameters
    ----------
    typing_context
        Numba's.
    table
        Address.
    at
        Place, in words of 8 bytes.

    Returns
    -------
    Any
        Signature and generator, as numba's extension interface wants them.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.bitcast(_word(builder, *args), ir.DoubleType())

    return types.float64(types.int64, types.int64), generate


def prefetch(builder: Any, pointer: Any) -> None:
    """Ask for the cache line of a pointer, to be written and kept."""
    byte, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [byte, flag, flag, flag])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
    builder.call(function, [builder.bitcast(pointer, byte), flag(1), flag(3), flag(1)])


@intrinsic
def fetch_ahead(typing_context: Any, view: Any, at: Any) -> Any:
    """Ask the processor for the cache line of an element that is wanted soon.

    Parameters
    ----------
    typing_context
        Numba's.
    view
        The array.
    at
        Index of the element.

    Returns
    -------
    Any
        Signature and generator, as numba's extension interface wants them.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = sig.args[0]
        seen = cgutils.create_struct_proxy(kind)(context, builder, args[0])
        prefetch(builder, _place(builder, kind, seen, args[1]))
        return context.get_dummy_value()

    return types.none(view, types.int64), generate
