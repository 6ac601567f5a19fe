"""The ways to hold experts on the host, one function each, and the names by which they are asked for.

`arena`
    One copy of all experts in RAM, read from the file at the start. `pin=slices` page-locks as much of it as the
    machine lets (the rest is pageable), `pin=whole` all or nothing, `pin=none` nothing.
`mmap`
    The file of whole experts through the page cache. `access=read-ahead` (default), `fault` without
    read-ahead, `direct` for large reads on all lanes.
`gguf-in-place`
    The model file as it is: an expert is three slices (gate, up, down) that are read and put together.
`resident`
    RAM holds only what no card holds; a swap exchanges victim and newcomer. `swap=exchange` (the host waits) or
    `streams` (a spare slot and two streams); `pin=slices` page-locks as much as the machine lets, `pin=none`
    nothing.
`budget:gib=N`
    The hottest N GiB of the experts that no card holds (all of them if they are fewer) are page-locked, the
    rest is read from the file: `file=blobs` or `gguf`. Page-locked bytes are taken from the page cache; with
    `cache=none` reads go past it, so that what lies behind the budget comes from the drive every time.
`flash`
    Nothing in RAM but the expert cache itself: every miss is a direct read of three slices.

Source: Niko1221/Strata docs and its PR #416 (the first five), Helldez/BigMoeOnEdge (`flash`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from expert_residency.errors import MisfitError, SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.timed.host.plan import BLOBS, GGUF, PAGE_CACHE, PAGEABLE, PINNED, SOURCES, HostPlan
from expert_residency.text import check_known, parse_call
from expert_residency.traces import ModelGeometry

SLICES = 3
"""Gate, up and down lie apart in a model file."""


@dataclass(frozen=True)
class Ask:
    """What a tier is planned from: model, machine, parameters, who is on a card, and how hot the others are.

    `ranked` holds every key, hottest first.
    """

    geometry: ModelGeometry
    profile: HardwareProfile
    spec: str
    params: dict[str, str]
    on_card: frozenset[int]
    ranked: Sequence[int]
    sizes: list[int] = field(repr=False)

    @property
    def usable_bytes(self) -> int:
        """RAM beside the system."""
        return self.profile.ram.total_bytes - self.profile.ram.os_reserve_bytes

    def refuse(self, what: str, nbytes: int, limit: int, hint: str) -> MisfitError:
        """The error of a tier that does not fit.

        Parameters
        ----------
        what
            What does not fit.
        nbytes
            What it takes.
        limit
            Bytes that there are.
        hint
            What would fit, in the words of a run.

        Returns
        -------
        MisfitError
            The error, to be raised.
        """
        return MisfitError(
            f"{what} of {self.geometry.label} takes {nbytes / GIB:.1f} GiB, {self.profile.name} has "
            f"{limit / GIB:.1f} GiB of RAM for it",
            hint,
            lacks="ram",
        )


def arena(ask: Ask) -> HostPlan:
    """Everything in RAM."""
    total, usable = ask.geometry.all_expert_bytes, ask.usable_bytes
    if total > usable:
        raise ask.refuse("an arena", total, usable, "use --host mmap, or a smaller quantization")
    limit, pin = ask.profile.ram.pin_limit_bytes, ask.params["pin"]
    if pin == "none" or (pin == "whole" and total > limit):
        limit = 0
    source, pinned = [], 0
    for size in ask.sizes:
        fits = pinned + size <= limit
        source.append(PINNED if fits else PAGEABLE)
        pinned += size if fits else 0
    return HostPlan(ask.spec, pinned, total - pinned, usable - total, source, load_bytes=total)


def mmap(ask: Ask) -> HostPlan:
    """Everything in the file of whole experts."""
    source = [PAGE_CACHE] * len(ask.sizes)
    return HostPlan(ask.spec, 0, 0, ask.usable_bytes, source, access=ask.params["access"])


def gguf_in_place(ask: Ask) -> HostPlan:
    """Everything in the model file."""
    return HostPlan(
        ask.spec, 0, 0, ask.usable_bytes, [PAGE_CACHE] * len(ask.sizes), ("pinned", "pageable", "assembled"),
        file=GGUF, slices=SLICES,
    )  # fmt: skip


def resident(ask: Ask) -> HostPlan:
    """RAM holds the complement of the cards."""
    rest = [key for key in range(len(ask.sizes)) if key not in ask.on_card]
    total, usable = sum(ask.sizes[key] for key in rest), ask.usable_bytes
    if total > usable:
        hint = "" if ask.on_card else "start with full cards (--placement full), "
        raise ask.refuse("what no card holds", total, usable, f"{hint}use --host budget:gib=N, or mmap")
    limit = ask.profile.ram.pin_limit_bytes if ask.params["pin"] == "slices" else 0
    source, pinned = [PAGE_CACHE] * len(ask.sizes), 0
    for key in rest:
        fits = pinned + ask.sizes[key] <= limit
        source[key] = PINNED if fits else PAGEABLE
        pinned += ask.sizes[key] if fits else 0
    return HostPlan(
        ask.spec, pinned, total - pinned, usable - total, source, swap=ask.params["swap"], load_bytes=total
    )


def budget(ask: Ask) -> HostPlan:
    """The hottest part of the complement page-locked, the rest in the file."""
    try:
        budget_bytes = round(float(ask.params["gib"]) * GIB)
    except (ValueError, OverflowError):
        raise SimError(f"host budget: gib is {ask.params['gib']!r}, expected a number of GiB") from None
    if budget_bytes <= 0:
        raise SimError(f"host budget: gib is {ask.params['gib']}, expected more than 0")
    beside = sum(size for key, size in enumerate(ask.sizes) if key not in ask.on_card)
    budget_bytes = min(budget_bytes, beside)  # more than no card holds cannot be kept
    limit = min(ask.profile.ram.pin_limit_bytes, ask.usable_bytes)
    if budget_bytes > limit:
        raise MisfitError(
            f"host budget: {budget_bytes / GIB:g} GiB cannot be page-locked on {ask.profile.name}; "
            f"its limit is {limit / GIB:.1f} GiB",
            lacks="lockable",
        )
    source, pinned = [PAGE_CACHE] * len(ask.sizes), 0
    for key in ask.ranked:
        if key not in ask.on_card and pinned + ask.sizes[key] <= budget_bytes:
            source[key] = PINNED
            pinned += ask.sizes[key]
    gguf, unbuffered = ask.params["file"] == "gguf", ask.params["cache"] == "none"
    return HostPlan(
        ask.spec, pinned, 0, 0 if unbuffered else ask.usable_bytes - pinned, source,
        ("budget", "pageable", "assembled" if gguf else "page_cache"),
        file=GGUF if gguf else BLOBS, slices=SLICES if gguf else 1,
        access="direct" if gguf or unbuffered else "read-ahead",
        swap=ask.params["swap"], load_bytes=pinned,
    )  # fmt: skip


def flash(ask: Ask) -> HostPlan:
    """Everything on the drive, past the page cache."""
    return HostPlan(ask.spec, 0, 0, 0, [PAGE_CACHE] * len(ask.sizes), SOURCES, file=GGUF, slices=SLICES)


TIERS: dict[str, tuple[Callable[[Ask], HostPlan], dict[str, tuple[str, ...]]]] = {
    "arena": (arena, {"pin": ("slices", "whole", "none")}),
    "mmap": (mmap, {"access": ("read-ahead", "fault", "direct")}),
    "gguf-in-place": (gguf_in_place, {}),
    "resident": (resident, {"swap": ("exchange", "streams"), "pin": ("slices", "none")}),
    "budget": (
        budget,
        {"gib": (), "file": ("blobs", "gguf"), "swap": ("exchange", "streams"), "cache": ("pages", "none")},
    ),
    "flash": (flash, {}),
}
"""Name to planner and parameters with their values, the default first; () is a number that must be given."""
HOST_MODES = tuple(TIERS)
BESIDE_CARDS = ("resident",)
"""Tiers that fit into RAM or not depending on which experts the cards hold."""


def parse_host(spec: str) -> tuple[str, dict[str, str]]:
    """Name and parameters of `name` or `name:param=value,...`, defaults filled in.

    Raises
    ------
    SimError
        An unknown name, parameter or value; the message lists the valid ones.
    """
    name, given = parse_call(spec, "host")
    check_known("host mode", name, HOST_MODES)
    known = TIERS[name][1]
    for key, value in given.items():
        check_known(f"host {name}: parameter", key, known)
        if known[key]:
            check_known(f"host {name}: {key}", value, known[key])
    params = {key: values[0] for key, values in known.items() if values} | given
    missing = [key for key in known if key not in params]
    if missing:
        raise SimError(f"host {name}: {missing[0]} is missing, as in {name}:{missing[0]}=40")
    return name, params


def plan_host(
    geometry: ModelGeometry,
    profile: HardwareProfile,
    spec: str,
    *,
    on_card: Sequence[int] = (),
    ranked: Sequence[int] = (),
) -> HostPlan:
    """Split the experts over the tiers of the host.

    Parameters
    ----------
    geometry, profile
        The model, and the machine whose RAM it is.
    spec
        `name` or `name:param=value,...`.
    on_card
        Keys that a card holds at the start.
    ranked
        Keys by heat, hottest first; those that are not named follow in order.

    Returns
    -------
    HostPlan
        Where each expert lies, and what that costs.

    Raises
    ------
    SimError
        An unknown mode or parameter, or more than the machine's RAM.
    """
    name, params = parse_host(spec)
    sizes = [size for size in geometry.expert_bytes for _ in range(geometry.experts)]
    named = dict.fromkeys(ranked)
    order = [*named, *(key for key in range(len(sizes)) if key not in named)]
    return TIERS[name][0](Ask(geometry, profile, spec, params, frozenset(on_card), order, sizes))
