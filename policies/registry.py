"""Finding policies by name: entry points, built-ins in the same way as a stranger's.

A user writes `name` or `name:param=value,param=value`. A plug-in that cannot be imported warns and is
skipped; a misspelt name or parameter is an error that lists the valid ones. A class that no package registers, as
one of a notebook, is adopted when it is first handed over: from then on its name works in this process like any
other, and sweeps take it to their workers.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import inspect
import marshal
import os
import re
import sys
import typing
import warnings
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any, Literal, TypeAlias, TypeVar, overload

from expert_residency.errors import PolicyError
from expert_residency.policies.protocol import (
    AdmissionPolicy,
    EvictionPolicy,
    PlacementPolicy,
    Policy,
    PrefetchPolicy,
)
from expert_residency.text import check_known, parse_call

Kind = Literal["eviction", "admission", "prefetch", "placement"]
KINDS: dict[Kind, type[Policy]] = {
    "eviction": EvictionPolicy,
    "admission": AdmissionPolicy,
    "prefetch": PrefetchPolicy,
    "placement": PlacementPolicy,
}


P = TypeVar("P", bound=Policy)
Given: TypeAlias = P | type[P] | str
"""A policy as Python may hand it over."""
Adopted = dict[tuple[Kind, str], type[Policy]]
_adopted: Adopted = {}


def adopt(kind: Kind, policy: Policy | type[Policy]) -> str:
    """Words for a policy that Python hands over, which `create` takes from now on.

    Parameters
    ----------
    kind
        What it is to decide.
    policy
        An instance, or a class whose parameters have defaults. A class of the same name that was adopted before,
        as by an earlier run of a notebook's cell, is replaced.

    Returns
    -------
    str
        `name:param=value,...`.

    Raises
    ------
    PolicyError
        It is of another kind, has no name, has the name of a registered policy, or a parameter that words cannot
        give, or is a class with a parameter that has no default.
    """
    cls = policy if isinstance(policy, type) else type(policy)
    if not issubclass(cls, KINDS[kind]):
        raise PolicyError(f"{cls.__name__} is not a {KINDS[kind].__name__}: it cannot be the {kind} policy")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name or set(name) & set(":,= +"):
        raise PolicyError(
            f'class {cls.__name__} needs a name: name = "my-policy", without any of ":,=+" or a space'
        )
    if name not in _names(kind):
        _adopted[kind, name] = cls
        adopted_sha256(kind, name)  # now, while its source can be read
    elif load(kind, name) is not cls:
        raise PolicyError(f"class {cls.__name__}: a {kind} policy is named {name!r} already; give it another name")
    if isinstance(policy, type):
        if bare := [f.name for f in dataclasses.fields(cls) if not _has_default(f)]:
            raise PolicyError(
                f"{cls.__name__} has no default for {', '.join(bare)}: give an instance, "
                f"{cls.__name__}({', '.join(f'{name}=...' for name in bare)})"
            )
        return name
    values = {f.name: getattr(policy, f.name) for f in dataclasses.fields(policy)}
    words = name + ":" * bool(values) + ",".join(f"{key}={_word(value)}" for key, value in values.items())
    if create(kind, words) != policy:
        raise PolicyError(
            f"{cls.__name__}: {words!r} does not say it: parameters are to be int, float, bool or str"
        )
    return words


def words_of(value: Any) -> Any:
    """Words for a policy or its class, whatever it is to decide; anything else as it is."""
    cls = value if isinstance(value, type) else type(value)
    kind = next((kind for kind, base in KINDS.items() if issubclass(cls, base)), None)
    return value if kind is None else adopt(kind, value)


_PLACE = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*):([A-Za-z_]\w*)(:.*)?")


def is_place(word: str) -> bool:
    """Whether words say where a class is, `module:Class`, and do not begin with the name of a policy."""
    found = _PLACE.fullmatch(word.strip())
    return found is not None and not any(found[1] in available(kind) for kind in KINDS)


def placed_class(word: str) -> tuple[Kind, str] | None:
    """Kind and words of a policy named by where its class is: `module:Class` or `module:Class:param=value`.

    The class is imported, also from the folder of the command, and adopted: no package need register it.

    Returns
    -------
    tuple[Kind, str] | None
        As `create` takes them; None if `word` is not of that form or begins with the name of a policy.

    Raises
    ------
    PolicyError
        The module cannot be imported, has no such class, or it is no policy; and as `adopt`.
    """
    found = _PLACE.fullmatch(word.strip())
    if found is None or not is_place(word):
        return None
    module, name, parameters = found.groups(default="")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        cls = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the module is there, and misses another one
            raise PolicyError(f"{word}: {module} cannot be imported ({error})") from error
        raise PolicyError(
            f"{word}: there is no module {module}, here or installed, nor a policy of that name (residency list "
            "policies)"
        ) from None
    except Exception as error:
        raise PolicyError(f"{word}: {module} cannot be imported ({type(error).__name__}: {error})") from error
    kind = next(
        (k for k, b in KINDS.items() if isinstance(cls, type) and issubclass(cls, b) and cls is not b), None
    )
    if cls is None or kind is None:
        what = f"{module} has no {name}" if cls is None else f"{name} of {module} is no policy"
        bases = ", ".join(base.__name__ for base in KINDS.values())
        raise PolicyError(f"{word}: {what}; expected a class over {bases}")
    return kind, adopt(kind, cls) + parameters


def named(kind: Kind, word: str) -> str:
    """Words for a policy by its name, also where `word` says where its class is.

    For words of a user only: whoever wrote a file of results does not say which code is run.

    Raises
    ------
    PolicyError
        As `placed_class`, or a class that decides something else.
    """
    found = placed_class(word)
    if found is None:
        return word
    own, words = found
    if own != kind:
        raise PolicyError(f"{word} is no {kind} policy but decides {own}")
    return words


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def adopted() -> Adopted:
    """Classes that were adopted in this process."""
    return dict(_adopted)


def adopt_all(classes: Mapping[tuple[Kind, str], type[Policy]]) -> None:
    """Take over what another process adopted."""
    _adopted.update(classes)


def adopted_sha256(kind: Kind, spec: str) -> str | None:
    """Hash of the source of a policy that was adopted; None for a registered one.

    Two runs of one name may be runs of two classes, which only this tells apart.
    """
    cls = _adopted.get((kind, spec.partition(":")[0]))
    if cls is None:
        return None
    stated = cls.__dict__.get(_SOURCE_SHA256)
    if stated is None:
        stated = hashlib.sha256(_source(cls).encode()).hexdigest()[:16]
        setattr(cls, _SOURCE_SHA256, stated)  # goes with the class to processes that cannot read its source
    return str(stated)


_SOURCE_SHA256 = "_expert_residency_source_sha256"


def _source(cls: type[Policy]) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        found = [getattr(value, "__func__", value) for value in vars(cls).values()]
        return repr([marshal.dumps(value.__code__) for value in found if hasattr(value, "__code__")])


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@functools.cache
def _names(kind: Kind) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for point in entry_points(group=f"expert_residency.{kind}"):
        if point.name in found and found[point.name].value != point.value:
            warnings.warn(f"two {kind} policies are named {point.name!r}; the first is used", stacklevel=2)
            continue
        found[point.name] = point
    return dict(sorted(found.items()))


def available(kind: Kind) -> list[str]:
    """Names of one kind, sorted, adopted ones among them."""
    return sorted({*_names(kind), *(name for own, name in _adopted if own == kind)})


def load(kind: Kind, name: str) -> type[Policy]:
    """Class registered under `name`.

    Raises
    ------
    PolicyError
        No such name (the valid ones are listed), or the plug-in cannot be imported or is of another kind.
    """
    if (kind, name) in _adopted:
        return _adopted[kind, name]
    points = _names(kind)
    check_known(f"{kind} policy", name, available(kind), PolicyError)
    try:
        cls = points[name].load()
    except Exception as error:
        raise PolicyError(f"{kind} policy {name!r} cannot be imported: {error}") from error
    if not (isinstance(cls, type) and issubclass(cls, KINDS[kind])):
        raise PolicyError(f"{kind} policy {name!r}: {cls!r} is not a {KINDS[kind].__name__}")
    return cls


@overload
def create(kind: Literal["eviction"], spec: str) -> EvictionPolicy: ...
@overload
def create(kind: Literal["admission"], spec: str) -> AdmissionPolicy: ...
@overload
def create(kind: Literal["prefetch"], spec: str) -> PrefetchPolicy: ...
@overload
def create(kind: Literal["placement"], spec: str) -> PlacementPolicy: ...
@overload
def create(kind: Kind, spec: str) -> Policy: ...
def create(kind: Kind, spec: str) -> Policy:
    """Policy from `name` or `name:param=value,...`; values are checked against the parameter's type."""
    name, given = parse_call(spec, f"{kind} policy", PolicyError)
    cls = load(kind, name)
    known = [field.name for field in dataclasses.fields(cls)]
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for key, text in given.items():
        check_known(f"{kind} policy {name}: parameter", key, known, PolicyError)
        values[key] = _convert(text, hints[key], f"{kind} policy {name}: parameter {key}")
    return cls(**values)


@overload
def policy_of(kind: Literal["eviction"], given: Given[EvictionPolicy]) -> EvictionPolicy: ...
@overload
def policy_of(kind: Literal["admission"], given: Given[AdmissionPolicy]) -> AdmissionPolicy: ...
@overload
def policy_of(kind: Literal["prefetch"], given: Given[PrefetchPolicy]) -> PrefetchPolicy: ...
@overload
def policy_of(kind: Literal["placement"], given: Given[PlacementPolicy]) -> PlacementPolicy: ...
def policy_of(kind: Kind, given: Any) -> Policy:
    """The policy that is meant by words or `module:Class`, by a class (adopted, with its defaults) or an instance.

    Raises
    ------
    PolicyError
        As `adopt` and `create`, or what is none of these.
    """
    if isinstance(given, KINDS[kind]):
        return given
    if isinstance(given, Policy) or (isinstance(given, type) and issubclass(given, Policy)):
        return create(kind, adopt(kind, given))
    if not isinstance(given, str):
        raise PolicyError(f"{kind} is {given!r}, expected a name, a policy or its class")
    return create(kind, named(kind, given))


def sees_future(
    eviction: str, prefetch: str = "none", placement: str | None = None, quotas: str = "equal"
) -> bool:
    """Whether a policy, the set that a run starts from, or quotas of layers know the trace in advance.

    What does is a bound and no candidate. Names as of `create`; no placement is the eviction policy's own.

    Parameters
    ----------
    eviction
        Policy spec, `name` or `name:param=value`.
    prefetch
        Policy spec.
    placement
        Policy spec of the initial placement; None is the eviction policy's own.
    quotas
        `equal`, or the placement whose ranking shares capacity out to layers.

    Returns
    -------
    bool
        Whether any of them needs the future.

    Raises
    ------
    PolicyError
        An unknown name or parameter.
    """
    evicting = create("eviction", eviction)
    placements = [placement or evicting.default_placement, *([] if quotas == "equal" else [quotas])]
    others = (create("prefetch", prefetch), *(create("placement", spec) for spec in placements))
    return any(policy.needs_future for policy in (evicting, *others))


def _convert(text: str, hint: Any, where: str) -> Any:
    if typing.get_origin(hint) is Literal:
        choices = [str(c) for c in typing.get_args(hint)]
        if text not in choices:
            raise PolicyError(f"{where} is {text!r} (known: {', '.join(choices)})")
        return text
    try:
        if hint is bool:
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if hint in (int, float, str):
            return hint(text)
    except (ValueError, KeyError):
        raise PolicyError(f"{where} is {text!r}, expected {hint.__name__}") from None
    raise PolicyError(f"{where} cannot be given on the command line")


def describe(kind: Kind) -> list[dict[str, Any]]:
    """One row a policy: name, first docstring line, source, capabilities and parameters with defaults."""
    rows = []
    for name in available(kind):
        try:
            cls = load(kind, name)
        except PolicyError as error:
            warnings.warn(str(error), stacklevel=2)
            continue
        rows.append(
            {
                "name": name,
                "summary": (cls.__doc__ or "").strip().splitlines()[0],
                "source": cls.source,
                "needs_future": cls.needs_future,
                "compiled": cls.compiled,
                "parameters": {f.name: f.default for f in dataclasses.fields(cls)},
            }
        )
    return rows
