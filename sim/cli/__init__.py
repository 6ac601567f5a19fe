"""The command line: one module a command, heavy imports inside the commands.

Errors of the user's making (`UserError`) become one sentence on stderr and exit code 2.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup


class _Sorted(TyperGroup):
    """Commands by name, whichever module was imported first."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands)


app = typer.Typer(
    name="residency",
    cls=_Sorted,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs no rich, which takes as long to load as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"residency {version('expert-residency')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Simulate where a mixture-of-experts model keeps its experts, and what that costs."""


def _register() -> None:
    """Each module adds its command to `app` when imported."""
    from expert_residency.sim.cli import (  # noqa: F401
        advise,
        calibrate,
        curve,
        demo,
        drafts,
        fit,
        import_,
        inspect,
        leaderboard,
        learn,
        list_,
        machine,
        measure,
        model,
        placement,
        predictor,
        record,
        replay,
        report,
        run,
        score,
        split,
        sweep,
        tune,
        validate,
        vram,
        why,
        window,
    )


def main(args: list[str] | None = None) -> None:
    """Entry point of `residency`."""
    from expert_residency.errors import UserError
    from expert_residency.text import visible

    _register()
    try:
        try:
            _keep_inputs(sys.argv[1:] if args is None else args)
            app(args=args, standalone_mode=True)
        finally:
            sys.stdout.flush()  # while a full disk can still be said in a sentence
    except UserError as error:
        sys.stderr.write(f"residency: {visible(' '.join(str(error).split()))}\n")
        raise SystemExit(2) from None
    except MemoryError as error:
        sys.stderr.write(f"residency: not enough memory here ({str(error) or 'for what was asked'})\n")
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        sys.stderr.write("residency: interrupted\n")
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()
        raise SystemExit(141) from None
    except OSError as error:
        place = error.filename if error.filename is not None else "the output"
        sys.stderr.write(f"residency: {place}: cannot be read or written ({error.strerror or error})\n")
        _drop_output()
        raise SystemExit(2) from None


_OUTPUTS = ("--json", "--out", "--plot", "--timeline")


def _keep_inputs(words: list[str]) -> None:
    """Refuse to write over a file that the same command reads.

    Raises
    ------
    UserError
        An output is, by whatever name, a file that is named elsewhere on the command line.
    """
    from expert_residency.errors import UserError

    outputs, rest, values = [], [], iter(words)
    for word in values:
        option, equals, value = word.partition("=")
        if option in _OUTPUTS:
            outputs.append(value if equals else next(values, ""))
        else:
            rest.append(value if equals and option.startswith("--") else word)
    inputs = [word for word in rest if os.path.isfile(word)]
    for output in filter(os.path.isfile, outputs):
        for name in inputs:
            if os.path.samefile(output, name):
                raise UserError(f"{output} is read by this command, so it is not written over; name another file")


def _drop_output() -> None:
    """Close an output that takes no more, before Python tries to write the rest of it at the end."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
