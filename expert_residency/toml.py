"""TOML files: one set of errors, the packaged ones by name, bases below them."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from expert_residency.errors import SimError, UserError
from expert_residency.text import problems, unknown

if TYPE_CHECKING:
    from pydantic import BaseModel

_MAX_BASES = 8

Table = dict[str, Any]
Model = TypeVar("Model", bound="BaseModel")


def load(path: Path | Traversable, error: type[UserError] = SimError, where: object = None) -> Table:
    """What a TOML file holds.

    Parameters
    ----------
    path
        The file.
    error
        What to raise.
    where
        What to call it in errors, if not by its path.

    Returns
    -------
    dict
        Its tables.

    Raises
    ------
    UserError
        Of the class `error`: no such file, a folder, not text, or not TOML.
    """
    where = where or path
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        said = "no such file" if isinstance(problem, FileNotFoundError) else f"cannot be read ({problem.strerror})"
        raise error(said, path=where) from None
    except UnicodeDecodeError as problem:
        raise error("not a text file", path=where, place=f"byte {problem.start}") from None
    except (ValueError, RecursionError) as problem:  # also a number of thousands of digits
        raise error(f"not valid TOML ({problem})", path=where) from None


def checked(model: type[Model], data: object, error: type[UserError] = SimError, where: object = None) -> Model:
    """A model of pydantic made from plain data.

    Parameters
    ----------
    model
        What it has to be.
    data
        The tables.
    error
        What to raise.
    where
        The file, for messages.

    Returns
    -------
    BaseModel
        The checked value.

    Raises
    ------
    UserError
        Of the class `error`: everything that is wrong, at once.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(data)
    except ValidationError as found:
        raise error("; ".join(problems(found, model)), path=where) from None


def is_path(name: str | Path) -> bool:
    """Whether a file of the user's is meant: a path, or a name that ends in `.toml` or holds a slash."""
    return isinstance(name, Path) or name.endswith(".toml") or "/" in name


def _over(below: Table, above: Table) -> Table:
    return below | above


def _none(name: str) -> Table | None:
    return None


@dataclass(frozen=True)
class Shelf:
    """TOML files of one kind, by name where they come with the package and by path where they are the user's.

    Parameters
    ----------
    package, folder
        Where the packaged ones are; those whose names begin with `_` are bases only.
    what
        The kind, in errors.
    error
        What to raise.
    over
        Puts a file's fields over those of its `base`.
    aliases
        Other names.
    made
        Tables of a name that stands for no file, as a machine from parts; None where it stands for nothing.
    """

    package: str
    folder: str
    what: str
    error: type[UserError] = SimError
    over: Callable[[Table, Table], Table] = _over
    aliases: Callable[[], Mapping[str, str]] = field(default=dict)
    made: Callable[[str], Table | None] = _none

    def names(self) -> list[str]:
        """Names of the packaged files, sorted."""
        return [name for name in self._all() if not name.startswith("_")]

    def read(self, name: str | Path, *, as_base: bool = False) -> Table:
        """One file as it is, its `base` not looked at.

        Raises
        ------
        UserError
            Of the class `error`: as `load`, or an unknown name (the valid ones are listed).
        """
        known = self._all() if as_base else self.names()
        if not is_path(name) and (plain := str(name).lower()) not in known and plain not in self.aliases():
            made = self.made(str(name))
            if made is not None:
                return dict(made)
        return load(self._file(name, known), self.error, self.where(name))

    def where(self, name: str | Path) -> str:
        """What a file is called in errors."""
        return str(name) if is_path(name) else f"{self.what} {name}"

    def load(self, name: str | Path, depth: int = 0) -> Table:
        """One file over its base, and that one over its own.

        Raises
        ------
        UserError
            Of the class `error`: as `read`, or for a base that is no name, or bases in a circle.
        """
        data = self.read(name, as_base=depth > 0)
        base = data.pop("base", None)
        if base is None:
            return data
        where = self.where(name)
        if not isinstance(base, str):
            raise self.error(f"base is {base!r}, expected a name or path ({self.what})", path=where)
        if depth == _MAX_BASES:
            raise self.error(f"more than {_MAX_BASES} bases on top of each other; is there a circle?", path=where)
        if is_path(base):
            base = Path(name).parent / base if is_path(name) else Path(base)
        return self.over(self.load(base, depth + 1), data)

    def _all(self) -> list[str]:
        entries = resources.files(self.package).joinpath(self.folder).iterdir()
        return sorted(entry.name.removesuffix(".toml") for entry in entries if entry.name.endswith(".toml"))

    def _file(self, name: str | Path, known: list[str]) -> Path | Traversable:
        if isinstance(name, Path) or is_path(name):
            return Path(name)
        name = name.lower()
        if name not in known:
            aliases = self.aliases()
            if name not in aliases:
                raise self.error(unknown(self.what, name, [*self.names(), *aliases]))
            name = aliases[name]
        return resources.files(self.package).joinpath(self.folder, f"{name}.toml")
