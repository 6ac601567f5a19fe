"""Profiles by name: the shipped ones and files of the user's.

A user's file may start from another profile and change only some fields::

    name = "my-5070"
    base = "rtx-5070-7900x"        # a name, or a path relative to this file
    summary = "the same card in a Gen5 slot"
    [link]
    pcie = "5.0 x16"
    h2d_gb_per_s = { value = 54.0, kind = "measured", source = "nvbandwidth, 2026-11-02" }

Tables are merged field by field; a number is replaced whole, with its kind and source, and a table of rates is
replaced whole when the file gives a new `default`.
"""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.profile import HardwareProfile, parse_profile

_MAX_BASES = 8


def list_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted, without aliases and without the partial `_generic`."""
    return tuple(sorted(name for name in _shipped() if not name.startswith("_")))


@cache
def profile_aliases() -> dict[str, str]:
    """Short names of shipped profiles, and what each stands for."""
    return {alias: name for name, data in sorted(_shipped().items()) for alias in data.get("aliases", ())}


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """A profile by name, alias, or path of a TOML file.

    Parameters
    ----------
    name_or_path
        Anything that ends in ``.toml`` or holds a slash is a path.

    Raises
    ------
    HardwareError
        For a misspelt name (the valid ones and the closest are listed), a file that cannot be read, or a profile
        that does not pass its checks.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text:
        path = Path(name_or_path)
        return parse_profile(_with_base(_read(path), path), path)
    return _load_shipped(_resolve(text))


@cache
def _load_shipped(name: str) -> HardwareProfile:
    where = f"{name}.toml"
    return parse_profile(_with_base(_shipped()[name], None, where), where)


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    folder = resources.files("expert_residency.hwmodels") / "profiles"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {file.name.removesuffix(".toml"): tomllib.loads(file.read_text("utf-8")) for file in files}


def _resolve(name: str, *, as_base: bool = False) -> str:
    name = profile_aliases().get(name, name)
    if name in list_profiles() or (as_base and name in _shipped()):
        return name
    valid = [*list_profiles(), *profile_aliases()]
    close = difflib.get_close_matches(name.lower(), valid, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise HardwareError(f"no hardware profile {name!r}; {hint}valid names are {', '.join(sorted(valid))}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise HardwareError(f"cannot read the profile: {error.strerror}", path=path) from None
    except UnicodeDecodeError:
        raise HardwareError("not a text file", path=path) from None
    except tomllib.TOMLDecodeError as error:
        raise HardwareError(f"not valid TOML: {error}", path=path) from None


def _with_base(data: dict[str, Any], path: Path | None, where: object = None, depth: int = 0) -> dict[str, Any]:
    """Merge `base`, and the base's base, under `data`."""
    if "base" not in data:
        return data
    base = data["base"]
    where = path or where
    if not isinstance(base, str):
        raise HardwareError("base must be the name or path of a profile", path=where)
    if depth == _MAX_BASES:
        raise HardwareError(f"more than {_MAX_BASES} bases on top of each other; is there a circle?", path=where)
    if base.endswith(".toml") or "/" in base:
        below_path = (path.parent if path else Path()) / base
        below = _with_base(_read(below_path), below_path, depth=depth + 1)
    else:
        name = _resolve(base, as_base=True)
        below = _with_base(_shipped()[name], None, f"{name}.toml", depth + 1)
    own = {key: value for key, value in data.items() if key != "base"}
    inherited = {key: value for key, value in below.items() if key not in ("name", "aliases", "summary")}
    return _merge(inherited, own)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        # Numbers are atoms, and a new default must not keep the old card's exceptions.
        if isinstance(old, dict) and isinstance(value, dict) and not {"value", "kind", "default"} & set(value):
            value = _merge(old, value)
        merged[key] = value
    return merged
