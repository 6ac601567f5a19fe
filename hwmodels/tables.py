"""Tables of the documentation about the shipped profiles; `docs/build.py` puts them into the pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from expert_residency.families import FAMILIES
from expert_residency.hwmodels.quantity import FamilyRates, Quantity, Section
from expert_residency.hwmodels.registry import list_profiles, load_profile, profile_aliases
from expert_residency.text import markdown


def quantities(section: Section) -> Iterator[Quantity]:
    """Every number of a profile."""
    for name in type(section).model_fields:
        value = getattr(section, name)
        for item in value.values() if isinstance(value, dict) else (value,):
            if isinstance(item, Quantity):
                yield item
            elif isinstance(item, Section):
                yield from quantities(item)


def profiles() -> str:
    """One line a machine: the numbers that decide most, and how many are of which kind."""
    rows = []
    for name in list_profiles():
        p = load_profile(name)
        short = ", ".join(f"`{alias}`" for alias, full in profile_aliases().items() if full == name)
        kinds = Counter(q.kind for q in quantities(p))
        cpu = p.cpu.expert_gb_per_s
        rows.append(
            (
                f"`{name}`" + (f" ({short})" if short else ""),
                f"{p.gpu.vram_usable_gib.value:g} of {p.gpu.vram_total_gib.value:g}",
                _rates(p.gpu.expert_gb_per_s),
                _number(p.link.h2d_gb_per_s),
                f"{_number(cpu.pinned.default)} / {_number(cpu.page_cache.default)}",
                f"{p.ram.pin_limit_gib.value:g} of {p.ram.total_gib.value:g}",
                _number(p.disk.seq_gb_per_s),
                " / ".join(str(kinds[kind]) for kind in ("measured", "datasheet", "derived", "assumed")),
            )
        )
    heads = (
        "profile",
        "VRAM usable GiB",
        "experts on the card GB/s",
        "to the card GB/s",
        "CPU pinned / page cache GB/s",
        "RAM pinnable GiB",
        "disk GB/s",
        "numbers m / s / d / a",
    )
    return markdown(heads, rows)


def machines() -> str:
    """Whose machine each profile is."""
    rows = [(f"`{name}`", load_profile(name).summary) for name in list_profiles()]
    return markdown(("profile", "machine"), rows)


def _rates(rates: FamilyRates) -> str:
    by_value: dict[str, list[str]] = {}
    for family in FAMILIES:
        if getattr(rates, family) is not None:
            by_value.setdefault(_number(getattr(rates, family)), []).append(family)
    return "; ".join(
        [_number(rates.default), *(f"{', '.join(families)} {value}" for value, families in by_value.items())]
    )


def _number(quantity: Quantity) -> str:
    return (
        f"{quantity.value:g}"
        + {"measured": "", "datasheet": " s", "derived": " d", "assumed": " a"}[quantity.kind]
    )
