"""The errors of the user's making: one clear sentence with the place and the fix, and exit code 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class UserError(ValueError):
    """Something that the user can put right.

    Parameters
    ----------
    message
        One sentence: what is wrong, and what would be right.
    path
        The file that it is about.
    place
        The line, field or byte in that file.
    """

    def __init__(self, message: str, *, path: object = None, place: str | None = None) -> None:
        where = f"{path}: " if path is not None else ""
        where += f"{place}: " if place else ""
        super().__init__(where + message)


class FileError(UserError):
    """A file that cannot be written."""


class TraceError(UserError):
    """A trace, or a model that it comes from, that cannot be read or is not valid."""


class HardwareError(UserError):
    """A profile, machine, size or table of runs that is not valid."""


class PolicyError(UserError):
    """A policy name or parameter that is not valid; the message lists what is."""


class PolicyFaultError(PolicyError):
    """A policy that breaks its protocol: the message names it, and no result is given."""


class SimError(UserError):
    """Choices of a run that are not valid."""


class MisfitError(SimError):
    """Valid choices, but more bytes than the machine has room for, or less room than one expert takes.

    Parameters
    ----------
    fact
        What does not fit, and by how much: true whoever asked.
    remedy
        What would help, in the words of a run; a command with other options says its own (`told`).
    lacks
        What is too small: `ram`, `vram`, `lockable` memory, or the `room` for one expert.
    """

    def __init__(self, fact: str, remedy: str = "", *, lacks: str = "vram") -> None:
        super().__init__(f"{fact}; {remedy}" if remedy else fact)
        self.fact = fact
        self.remedy = remedy
        self.lacks = lacks

    def told(self, remedies: Mapping[str, str]) -> str:
        """The sentence with the remedy that a command has for what is lacking; without one if it has none."""
        remedy = remedies.get(self.lacks)
        return f"{self.fact}; {remedy}" if remedy else self.fact

    def __reduce__(self) -> tuple[Any, ...]:
        return _misfit, (self.fact, self.remedy, self.lacks)


def _misfit(fact: str, remedy: str, lacks: str) -> MisfitError:
    """As it was before it went to another process."""
    return MisfitError(fact, remedy, lacks=lacks)


class CompileError(SimError):
    """What the compiled kernel cannot run; the reference engine still does."""


class SweepError(SimError):
    """A sweep that cannot start: everything that is wrong with it, at once.

    Parameters
    ----------
    where
        The file.
    problems
        One sentence each.
    """

    def __init__(self, where: str, problems: list[str]) -> None:
        self.where = where
        self.problems = problems
        super().__init__("; ".join(problems), path=where)

    def __reduce__(self) -> tuple[Any, ...]:
        return SweepError, (self.where, self.problems)
