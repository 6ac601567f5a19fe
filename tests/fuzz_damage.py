"""Damage at random, for `tests.fuzz`: bytes, tables and numbers as a slip or a broken disk leaves them."""

from __future__ import annotations

import copy
import functools
import json
import math
import random
from collections.abc import Iterator
from typing import Any

NUMBERS: list[Any] = [
    0, 1, -1, 2, 7, 1.5, -0.0, 1e-300, 1e300, 1e400, -1e400, math.nan, 255, 256, 32767, 32768, 65536, 2**31 - 1,
    2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64, -(2**31), -(2**63), 10**12, 10**30,
]  # fmt: skip
WORDS: list[Any] = [
    "", " ", "a", "x" * 300, "[/b]", "[bold]", "<!--<script>", "\x1b[31m", "\x00", "..", "/", "nan", "inf", "-1",
    "1e9", "1GiB", "-1GiB", "0%", "101%", "nan%", "1e400GiB", "999999999999TiB", "0/layer", "99999999999/layer",
    "lru", "min", "lru:k=1", "previous-token", "oracle:window=9999999999", "bundled:tinymoe-code", "layer:prompt",
    "auto", "mmap", "budget:gib=nan", "budget:gib=-1", "resident", "{p}", "\u202e", "🙂",
]  # fmt: skip
ODD: list[Any] = [*NUMBERS, *WORDS, True, False, None, [], {}, [[]], [1, "a"], {"a": 1}, [0] * 50]
BYTES = [
    b"\x00", b"\xff", b"\n", b"\r\n", b",", b'"', b"{", b"[" * 2000, b"}", b"-1", b"nan", b"inf", b"1e400",
    b"9" * 30, b"9" * 5000, b"4294967296", b"2147483648", b"99999999999", b"null", b"\xef\xbb\xbf", b"\x1f\x8b",
    b"\x80\x00\x00\x00", b"\xff\xff\xff\x7f", b"\xff" * 8, b"true", b" ",
]  # fmt: skip


def damaged_bytes(draw: random.Random, data: bytes) -> bytes:
    """One to four changes: a bit, a byte, a piece put in, taken out, repeated or moved, or the end cut off."""
    out = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(out) + 1)
        end = min(len(out), at + draw.choice((1, 2, 4, 8, 40, 400)))
        match draw.randrange(9):
            case 0 if out:
                out[at % len(out)] ^= 1 << draw.randrange(8)
            case 1 if out:
                out[at % len(out)] = draw.randrange(256)
            case 2:
                out[at:at] = draw.choice(BYTES)
            case 3:
                out[at:end] = draw.choice(BYTES)
            case 4:
                del out[at:end]
            case 5:
                out[at:at] = out[at:end] * draw.choice((1, 3, 50))
            case 6:
                del out[at:]
            case 7:
                digits = [i for i, byte in enumerate(out) if 48 <= byte <= 57]
                if digits:
                    spot = draw.choice(digits)
                    out[spot : spot + 1] = draw.choice((b"0", b"9", b"-1", b"99999", b"4294967295", b"1e5", b"x"))
            case _:
                there = draw.randrange(len(out) + 1)
                piece = bytes(out[at:end])
                out[there:there] = piece
    return bytes(out)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in nested tables and lists."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*at, key)
        yield from places(item, (*at, key))


def damaged_tree(draw: random.Random, data: Any) -> Any:
    """One to three changes of nested tables and lists."""
    out = copy.deepcopy(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        spots = list(places(out))
        if not spots:
            return draw.choice(ODD)
        *way, last = draw.choice(spots)
        holder = functools.reduce(lambda inner, key: inner[key], way, out)
        value = holder[last]
        match draw.randrange(6):
            case 0:
                del holder[last]
            case 1 if isinstance(holder, dict):
                holder[draw.choice(("x", "", last + "s" if isinstance(last, str) else "y", "a.b"))] = holder.pop(
                    last
                )
            case 2 if isinstance(value, str) and value:
                holder[last] = damaged_bytes(draw, value.encode()).decode("utf-8", "replace")
            case 3 if isinstance(value, int | float) and not isinstance(value, bool):
                holder[last] = draw.choice(
                    (-value, value * 10 ** draw.randrange(20), value + 0.5, str(value), [value])
                )
            case 4 if isinstance(holder, list):
                holder.append(copy.deepcopy(value))
            case _:
                holder[last] = copy.deepcopy(draw.choice(ODD))
    return out


def toml_text(data: dict[str, Any]) -> str:
    """TOML with every table inline."""
    return "".join(f"{json.dumps(str(key))} = {toml_value(value)}\n" for key, value in data.items())


def toml_value(value: Any) -> str:
    """A value; what TOML lacks (null) is a word."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return (
                "nan" if value != value else ("inf" if value > 0 else "-inf") if math.isinf(value) else repr(value)
            )
        case int():
            return str(value)
        case dict():
            return "{" + ", ".join(f"{json.dumps(str(k))} = {toml_value(v)}" for k, v in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case _:
            return json.dumps(str(value)).replace("\x7f", "\\u007F")
