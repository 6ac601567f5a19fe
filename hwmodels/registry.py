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

from functools import cache
from pathlib import Path
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.profile import HardwareProfile, parse_profile
from expert_residency.toml import Shelf, is_path


def list_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted, without aliases and without the partial `_generic`."""
    return tuple(PROFILES.names())


@cache
def profile_aliases() -> dict[str, str]:
    """Short names of shipped profiles, and what each stands for."""
    return {alias: name for name in PROFILES.names() for alias in PROFILES.read(name).get("aliases", ())}


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
    if isinstance(name_or_path, Path) or is_path(name_or_path):
        return parse_profile(PROFILES.load(name_or_path), name_or_path)
    return _load_shipped(profile_aliases().get(name_or_path, name_or_path))


@cache
def _load_shipped(name: str) -> HardwareProfile:
    return parse_profile(PROFILES.load(name), PROFILES.where(name))


def _over(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Fields of a profile over those of its base, whose name is not inherited."""
    return _merge({key: value for key, value in below.items() if key not in ("name", "aliases", "summary")}, above)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        # Numbers are atoms, and a new default must not keep the old card's exceptions.
        if isinstance(old, dict) and isinstance(value, dict) and not {"value", "kind", "default"} & set(value):
            value = _merge(old, value)
        merged[key] = value
    return merged


PROFILES = Shelf(
    "expert_residency.hwmodels", "profiles", "hardware profile", HardwareError, _over, profile_aliases
)
"""Where profiles are."""
