"""Profiles by name: the shipped ones and files of the user's.

A user's file may start from another profile and change only some fields::

    name = "my-5070"
    base = "rtx-5070-7900x"        # a name, a card, CARD:cpu=...,ram=..., or a path relative to this file
    summary = "the same card in a Gen5 slot"
    [link]
    pcie = "5.0 x16"
    h2d_gb_per_s = { value = 54.0, kind = "measured", source = "nvbandwidth, 2026-11-02" }

Tables are merged field by field; a number is replaced whole, with its kind and source, and a table of rates is
replaced whole when the file gives a new `default`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.parts.compose import is_machine, machine, parse_memory
from expert_residency.hwmodels.parts.rows import gpus, plain, the_gpu
from expert_residency.hwmodels.profile import HardwareProfile, parse_profile
from expert_residency.text import unknown
from expert_residency.toml import Shelf, is_path


def list_profiles() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted, without aliases and without the partial `_generic`."""
    return tuple(PROFILES.names())


@cache
def profile_aliases() -> dict[str, str]:
    """Short names of shipped profiles, and what each stands for."""
    return {alias: name for name in PROFILES.names() for alias in PROFILES.read(name).get("aliases", ())}


def load_profile(name_or_path: str | Path) -> HardwareProfile:
    """A profile by name, alias, path of a TOML file, or parts (`hwmodels.parts`).

    Parameters
    ----------
    name_or_path
        Anything that ends in ``.toml`` or holds a slash is a path; what is no profile's name may be a card of the
        table, or `CARD:cpu=...,ram=...,link=...`.

    Raises
    ------
    HardwareError
        For a misspelt name (the valid ones and the closest are listed), a file that cannot be read, or a profile
        that does not pass its checks.
    """
    if isinstance(name_or_path, Path) or is_path(name_or_path):
        return parse_profile(PROFILES.load(name_or_path), name_or_path)
    name = spelled(name_or_path)
    name = profile_aliases().get(name, name)
    if name not in PROFILES.names() and is_machine(name):
        return parse_profile(machine_tables(name), f"machine {name}")
    if name not in PROFILES.names():
        every = [*PROFILES.names(), *profile_aliases(), *gpus()]
        raise HardwareError(unknown("hardware profile", name, every, listed="residency list hardware, gpus"))
    return _load_shipped(name)


def spelled(name: str) -> str:
    """A user's spelling of a profile or card (`RTX 3090`, `Arc B580:ram=32GB`), as the tables have it.

    Raises
    ------
    HardwareError
        A card of which there are several, by a name that does not say which.
    """
    head, colon, words = name.partition(":")
    names = [*PROFILES.names(), *profile_aliases()]
    if head in names or is_machine(head):
        return name
    card = the_gpu(head)  # also of a profile's name: of two cards it is one
    same = next((one for one in names if plain(head) and plain(one) == plain(head)), card and card.name)
    return f"{same}{colon}{words}" if same else name


@cache
def machine_tables(text: str) -> dict[str, Any]:
    """What the file of a machine from parts would hold.

    Raises
    ------
    HardwareError
        A part that no table has.
    """
    return _merge(PROFILES.load("_generic", 1), machine(text, _known()))


@cache
def _known() -> dict[str, dict[str, Any]]:
    """Shipped profiles by name and alias, bases merged in."""
    own = {name: PROFILES.load(name) for name in PROFILES.names()}
    return own | {alias: own[name] for alias, name in profile_aliases().items()}


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


def _from_parts(name: str) -> dict[str, Any] | None:
    return machine_tables(name) if is_machine(name) else None


PROFILES = Shelf(
    "expert_residency.hwmodels", "profiles", "hardware profile", HardwareError, _over, profile_aliases, _from_parts
)
"""Where profiles are."""


def check_cards(profiles: Sequence[HardwareProfile]) -> None:
    """Refuse a second card beside one that shares the processor's memory.

    Raises
    ------
    HardwareError
        Such a set of cards.
    """
    shared = next((profile for profile in profiles if profile.link.pcie == "unified"), None)
    if shared is not None and len(profiles) > 1:
        raise HardwareError(
            f"{shared.name}: card and processor share one memory, so that a machine has one of them and no other "
            f"card; {len(profiles)} are asked for: name it alone, with a count of 1"
        )


def with_parts(
    names: Sequence[str], *, cpu: str | None = None, ram: str | None = None, link: str | None = None
) -> list[tuple[str, HardwareProfile | None]]:
    """Machines of names, each with the parts that are given; a name that comes twice is two cards.

    Parameters
    ----------
    names
        Profiles, files or cards.
    cpu, ram, link
        Parts, as `machine` takes them; None: those of the profile, or what is assumed for the card.

    Returns
    -------
    list of (str, HardwareProfile or None)
        Name and profile of each, in order; None for a shipped profile or file that is used as it is. Different
        machines have different names.

    Raises
    ------
    HardwareError
        A part that no table has, or parts beside a file.
    """
    parts = {"cpu": cpu, "ram": ram, "link": link}
    given = [f"{word}={text}" for word, text in parts.items() if text is not None]
    only_size = ram is not None and not parse_memory(ram).mt_per_s and cpu is None and link is None
    found: list[tuple[str, HardwareProfile | None]] = []
    for given_name in names:
        name = given_name if is_path(given_name) else spelled(given_name)
        shipped = is_path(name) or name in PROFILES.names() or name in profile_aliases()
        if shipped and (not given or only_size):
            found.append((name, None))
            continue
        if is_path(name):
            raise HardwareError(
                f"{given[0].partition('=')[0]} goes with the name of a card: {name} is a whole machine"
            )
        profile = load_profile(
            name + (":" if given and ":" not in name else "," if given else "") + ",".join(given)
        )
        found.append(_named_apart(profile, found))
    return found


def _named_apart(
    made: HardwareProfile, before: Sequence[tuple[str, HardwareProfile | None]]
) -> tuple[str, HardwareProfile]:  # fmt: skip
    """A machine by its name, or by a longer one where another machine has it: a link is not in the name."""
    names = {name: other for name, other in before if other is not None}
    for name, other in names.items():
        if other.model_copy(update={"name": made.name}) == made:
            return name, other
    longer = (f"{made.name}-{end}" for end in (made.link.pcie.replace(" ", ""), *range(2, 9)))
    name = made.name
    while name in names:
        name = next(longer)
    return name, made.model_copy(update={"name": name})
