"""What users type and are told: misspelt names, `name:a=1,b=2`, what a check of pydantic found, tables."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_args

from expert_residency.errors import SimError, UserError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError


_FORM = re.compile(r"(function-|constrained-|literal\[|list\[)|(int|float|str|bool)$")
"""What pydantic puts into a place to say which form of several it tried."""


def hash_of(data: Any) -> str:
    """First 16 hex digits of `sha256_of`."""
    return sha256_of(data)[:16]


def sha256_of(data: Any) -> str:
    """SHA-256 of JSON data, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def unknown(what: str, name: object, known: Iterable[str], *, listed: str = "") -> str:
    """Sentence about a name that is not known.

    Parameters
    ----------
    what
        The kind of name, as in "eviction policy".
    name
        What was given.
    known
        The valid names.
    listed
        Command that lists them, where they are too many for a sentence.

    Returns
    -------
    str
        The names that it may have meant, and all that there are.
    """
    names, word = list(known), str(name).lower()
    close = [full for full in names if word and full.startswith(word)]
    close = close or difflib.get_close_matches(word.replace(" ", "-"), names, 3 if listed else 1)
    hint = f"; did you mean {' or '.join(close[:3])}?" if close else ""
    every = listed or f"known: {', '.join(names) or 'none'}"
    return f"unknown {what} {name!r}{hint} ({every})"


def check_known(what: str, name: object, known: Iterable[str], error: type[UserError] = SimError) -> None:
    """See that `name` is one of `known`.

    Parameters
    ----------
    what
        The kind of name, as in "eviction policy"; a place may stand before a colon ("policy lru: parameter").
    name
        What was given.
    known
        The valid names.
    error
        What to raise.

    Raises
    ------
    UserError
        Of the class `error`: `name` is not known.
    """
    names = list(known)
    if name not in names:
        place, colon, kind = what.rpartition(": ")
        raise error(f"{place}{colon}{unknown(kind, name, names)}")


def parse_call(text: str, what: str, error: type[UserError] = SimError) -> tuple[str, dict[str, str]]:
    """Name and parameters of `name` or `name:a=1,b=2`, all still text; a `-` in a parameter's name is read as `_`.

    Parameters
    ----------
    text
        What was given.
    what
        The kind of name, for messages.
    error
        What to raise.

    Returns
    -------
    name, parameters
        Without spaces.

    Raises
    ------
    UserError
        Of the class `error`: a parameter without a value, or given twice.
    """
    name, _, tail = (part.strip() for part in text.partition(":"))
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise error(f"{what} {name}: {part!r} has no value, as in {name}:{part}=1")
        key = key.replace("-", "_")
        if key in found:
            raise error(f"{what} {name}: parameter {key} is given twice")
        found[key] = value
    return name, found


def problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Everything that a check of pydantic found, one sentence a place or fault, misspelt keys first.

    Parameters
    ----------
    error
        What was found.
    model
        What was checked: its fields are the names that a misspelt key may have meant.
    """
    wrong: dict[str, tuple[str, str]] = {}
    misspelt: list[str] = []
    missing: list[str] = []
    for detail in error.errors():
        # Of what may be a number or a word pydantic names each form; the sentence about the first one is kept.
        parts = [str(part) for part in detail["loc"] if not _FORM.match(str(part))]
        place = ".".join(parts)
        if detail["type"] == "missing":
            missing.append(place)
        elif detail["type"] == "extra_forbidden":
            table = f"{'.'.join(parts[:-1])}: " if parts[1:] else ""
            misspelt.append(table + unknown("key", parts[-1], _fields_at(model, parts[:-1])))
        else:
            given, said = detail["input"], detail["msg"].removeprefix("Value error, ")
            found = "" if isinstance(given, dict | list) else f" (found {given!r})"
            wrong.setdefault(place, (f"{said[:1].lower()}{said[1:]}", found))
    absent = [f"{', '.join(missing)} {'are' if missing[1:] else 'is'} missing"] if missing else []
    return [*misspelt, *_by_sentence(wrong), *absent]


_MOST_PLACES = 3


def _by_sentence(wrong: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A sentence for each fault; one that many places have is said once, with the first of them."""
    places: dict[tuple[str, str], list[str]] = {}
    for place, fault in wrong.items():
        places.setdefault(fault, []).append(place)
    for (said, found), at in places.items():
        if len(at) <= _MOST_PLACES:
            yield from (f"{place}{': ' if place else ''}{said}{found}" for place in at)
        else:
            more = len(at) - _MOST_PLACES
            yield f"{', '.join(at[:_MOST_PLACES])} and {more} more: {said}{found}"


def _fields_at(model: Any, place: Iterable[str]) -> list[str]:
    """Names of the fields of the model that stands at `place` in `model`, through lists, tables and unions."""
    for name in place:
        field = model.model_fields.get(name)
        if field is not None:
            model = next(_models(field.annotation), None) or model
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[Any]:
    """Models that a type names."""
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown."""
    names = list(heads)
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def visible(text: str) -> str:
    """Text for a terminal: what would steer it, or turn the writing round, is written as its number.

    Names come out of files that somebody else made. Line ends and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t\xa0" else letter.encode("unicode_escape").decode()
        for letter in text
    )


def inert_json(text: str) -> str:
    """JSON that can stand in a `<script>` of a page: nothing that its strings say opens or ends a tag."""
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def inert_script(text: str) -> str:
    """JavaScript that can stand in a `<script>`: in its strings and patterns an escaped letter is that letter."""
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
