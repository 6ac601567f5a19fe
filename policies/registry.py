"""Finding policies by name: entry points, built-ins in the same way as a stranger's.

A user writes `name` or `name:param=value,param=value`. A plug-in that cannot be imported warns and is
skipped; a misspelt name or parameter is an error that lists the valid ones.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
import warnings
from importlib.metadata import entry_points
from typing import Any, Literal, overload

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
    """Names of one kind, sorted."""
    return list(_names(kind))


def load(kind: Kind, name: str) -> type[Policy]:
    """Class registered under `name`.

    Raises
    ------
    PolicyError
        No such name (the valid ones are listed), or the plug-in cannot be imported or is of another kind.
    """
    points = _names(kind)
    check_known(f"{kind} policy", name, points, PolicyError)
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
