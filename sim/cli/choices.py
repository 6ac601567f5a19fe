"""Options for the choices of a run, made from their table (`sim.choices.spec.CHOICES`)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from expert_residency.sim.choices.kv_type import KV_TYPE, named
from expert_residency.sim.choices.spec import CHOICES, DEFAULTS

Words = dict[str, Any]
"""What a command line gives of `CHOICES`, by name."""


def option(name: str, note: str = "", *, default: str | bool = False, also: Sequence[str] = ()) -> Any:
    """The option of a choice, for the `Annotated` type of a parameter.

    Parameters
    ----------
    name
        One of `CHOICES`.
    note
        What this command adds to the table's help.
    default
        What help says of the default; True: that of the parameter.
    also
        Other spellings.

    Returns
    -------
    OptionInfo
        For typer.
    """
    choice = CHOICES[name]
    more: dict[str, Any] = {"min": 0} if choice.kind.option in (int, float) else {}
    if name == "kv_type":
        more["callback"] = _kv_named
    text = f"{choice.help} {note}".rstrip()
    return typer.Option(f"--{name.replace('_', '-')}", *also, help=text, show_default=default, **more)


def _kv_named(param: typer.CallbackParam, value: str | list[str] | None) -> str | list[str] | None:
    if not value:  # older typer (0.15, 0.16) takes None of a repeated option for a list
        return [] if getattr(param, "multiple", False) else value
    return [named(one) for one in value] if isinstance(value, list) else named(value)


def takes_cache_types(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with `kv_type` the two options that llama.cpp has instead, of keys and of values.

    Either alone leaves the other at llama.cpp's own f16.
    """

    @functools.wraps(command)
    def taking(**given: Any) -> None:
        keys, values = given.pop("cache_type_k"), given.pop("cache_type_v")
        if keys or values:
            if given["kv_type"]:
                from expert_residency.errors import SimError

                told = "--cache-type-k" if keys else "--cache-type-v"
                raise SimError(f"{told} beside --kv-type: give how keys and values are stored in one way")
            given["kv_type"] = named(f"{keys or KV_TYPE}/{values or KV_TYPE}")
        command(**given)

    def made(name: str, short: str, text: str) -> inspect.Parameter:
        spelled = typer.Option(f"--{name.replace('_', '-')}", short, help=text)
        annotated: Any = Annotated  # a type made here, which a checker cannot follow
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotated[str | None, spelled]
        )

    own = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in own.parameters.values():
        parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
        if parameter.name == "kv_type":
            parameters.append(
                made("cache_type_k", "-ctk", "llama.cpp's: type of keys, f16 by default beside -ctv.")
            )
            parameters.append(
                made("cache_type_v", "-ctv", "llama.cpp's: type of values, f16 by default beside -ctk.")
            )
    taking.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {p.name: p.annotation for p in parameters}
    return taking


OF_THE_ENGINE = ("eviction", "admission", "scope", "host", "kv_type")
"""Choices that a preset may make; the placement's help says whose it is."""
ALL = tuple(name for name, choice in CHOICES.items() if choice.option)


def takes_words(
    *names: str, several: bool = False, **defaults: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for choices of a run, instead of its parameter `words`.

    Parameters
    ----------
    names
        Which choices; all by default.
    several
        Whether each value given is an alternative: `words` then has lists, and one machine of two cards is `a+b`.
    defaults
        Choices that differ from `RunSpec`'s default where the command line says nothing.

    Returns
    -------
    decorator
        The command gets the choices that were given, or have a default, as one mapping.
    """
    names = names or ALL

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def taking(**given: Any) -> None:
            words = {name: value for name in names if (value := given.pop(name)) not in (None, [])}
            command(words=defaults | words, **given)

        own = inspect.signature(command, eval_str=True)
        made: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            if parameter.name != "words":
                made.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
                continue
            for name in names:
                hint = _annotation(name, several, "engine" in names, defaults)
                made.append(inspect.Parameter(name, parameter.KEYWORD_ONLY, default=None, annotation=hint))
        taking.__signature__ = own.replace(parameters=made)  # type: ignore[attr-defined]
        taking.__annotations__ = {p.name: p.annotation for p in made}
        return taking

    return wrap


def _annotation(name: str, several: bool, preset: bool, defaults: Words) -> Any:
    annotated: Any = Annotated  # types are made here, which a checker cannot follow
    kind: Any = CHOICES[name].kind.option
    said = defaults.get(name) or (DEFAULTS | {"scope": "global", "kv_type": KV_TYPE}).get(name)
    if several and kind is not bool:
        lists: Any = list
        return annotated[(kind if kind == list[str] else lists[kind]) | None, option(name)]
    if preset and name in OF_THE_ENGINE:
        said = f"the engine's, or {said}"
    default = False if said is None or kind is bool else str(said)
    return annotated[kind | None, option(name, "Or repeat it." if kind == list[str] else "", default=default)]
