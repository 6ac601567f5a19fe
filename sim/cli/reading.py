"""Options for how a trace is read, and which of it, the same at every command that takes one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading, reader_options

_OPTIONS: dict[str, Any] = {
    "reader": Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            metavar="NAME=VALUE",
            help="Option of the trace's reader, such as prompt_tokens=27 or top_k=6; or repeat it.",
        ),
    ],
    "partial": Annotated[
        bool,
        typer.Option(
            "--partial", help="Take the whole passes of a file that is cut off, and the layers that it has."
        ),
    ],
    "join": Annotated[
        str,
        typer.Option(help="Of several files: recorded, each its own requests, or file, each file one request."),
    ],
    "requests": Annotated[str | None, typer.Option(help="Only these requests: 2, or 0,3, or 0..9.")],
    "top_k": Annotated[
        int | None,
        typer.Option("--top-k", min=1, help="Experts a token in the recorded run, if not the model's."),
    ],
    "phase": Annotated[str | None, typer.Option(help="Only passes of this phase: prefill, decode or verify.")],
}
ColdOpt = Annotated[
    str,
    typer.Option(
        "--cold", help="When the cache is empty: trace, at the start, or request, again before every request."
    ),
]
_DEFAULTS: dict[str, Any] = {"partial": False, "join": "recorded"}


def takes_reading(*without: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `Reading`, in the place of its parameter `reading`.

    Parameters
    ----------
    without
        Those that the command has no use for, or has itself under that name.

    Returns
    -------
    decorator
        The command gets a `Reading`.
    """
    names = [name for name in _OPTIONS if name not in without]

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def taking(**given: Any) -> None:
            words = {name: given.pop(name) for name in names}
            options = reader_options(words.pop("reader", None) or ())
            command(reading=Reading(options=options, **words), **given)

        own = inspect.signature(command, eval_str=True)
        made: list[inspect.Parameter] = []
        for parameter in own.parameters.values():
            if parameter.name != "reading":
                made.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
                continue
            made += [
                inspect.Parameter(
                    name, parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name), annotation=_OPTIONS[name]
                )
                for name in names
            ]
        taking.__signature__ = own.replace(parameters=made)  # type: ignore[attr-defined]
        taking.__annotations__ = {p.name: p.annotation for p in made}
        return taking

    return wrap
