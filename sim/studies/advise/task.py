"""What is searched: the knobs of an engine bound to a model and a machine, and the speed of a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.sim.choices.knob import OWN, Knob, Value
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.runs.constants import Constant
from expert_residency.sim.runs.interval import Machine
from expert_residency.sim.studies.advise.workloads import Workload
from expert_residency.traces import RoutingTrace

Setting = tuple[Value, ...]
"""One value of each control."""
ACCEPTANCE = 0.75
"""Drafts accepted of those offered where nothing is said; published rates are 0.64 to 0.85."""
CORE_GB_PER_S = 12.0
"""What one core reads at most, where neither profile nor preset says: the rule that machines of parts have."""


@dataclass(frozen=True)
class Ask:
    """What is asked.

    Parameters
    ----------
    engine
        Preset, NAME or FILE.toml.
    preset
        It, loaded.
    profiles, names
        One a card, in order, and what they are called.
    workloads
        The same model's routing: the first is the one that is searched with.
    context, kv_type
        Tokens that VRAM is kept for, and how they are stored.
    session_bytes
        What the context occupies instead, where the model does not say.
    acceptance
        Chance that a draft is accepted if those before it were.
    headroom_bytes
        Memory that a whole-layer engine leaves free.
    """

    engine: str
    preset: EnginePreset
    profiles: tuple[HardwareProfile, ...]
    names: tuple[str, ...]
    workloads: tuple[Workload, ...]
    context: int
    kv_type: str
    session_bytes: int | None = None
    acceptance: float = ACCEPTANCE
    headroom_bytes: int = 0

    @property
    def traces(self) -> tuple[RoutingTrace, ...]:
        """Of the workloads."""
        return tuple(one.trace for one in self.workloads)


@dataclass(frozen=True)
class Control:
    """A knob with the values that it has here.

    Parameters
    ----------
    name, knob
        As the preset has it.
    values
        To be tried, in order; `default` among them, or None.
    text, label
        A value as the engine's user gives it, and in a word.
    """

    name: str
    knob: Knob
    values: tuple[Value, ...]
    default: Value | None
    text: Callable[[Value], str] = field(compare=False)
    label: Callable[[Value], str] = field(compare=False, default=lambda value: label_of(value))

    def beside(self, value: Value) -> tuple[Value | None, Value | None]:
        """The values next to one, below and above; of a knob without an order none."""
        if self.knob.kind == "words" or value == OWN:
            return None, None
        ordered = [one for one in self.values if one != OWN]
        at = ordered.index(value)
        return ordered[at - 1] if at else None, ordered[at + 1] if at + 1 < len(ordered) else None


class Task(Protocol):
    """Speeds of settings."""

    ask: Ask
    refused: dict[Setting, str]
    """Why a setting cannot be."""

    @property
    def controls(self) -> tuple[Control, ...]:
        """The knobs that do something here."""

    @property
    def constants(self) -> Sequence[Constant]:
        """Numbers that cost time, but for those that a knob sets."""

    @property
    def workloads(self) -> int:
        """How many traces there are."""

    def speed(self, setting: Setting, machine: Machine | None = None, workload: int = 0) -> float | None:
        """Speed of a setting.

        Parameters
        ----------
        setting
            One value of each control.
        machine
            Profiles and preset instead of those that are asked about.
        workload
            Which trace.

        Returns
        -------
        float | None
            Tokens/s; None if it does not fit.
        """

    def headline(self, setting: Setting, machine: Machine | None = None, workload: int = 0) -> float | None:
        """The same of what is advised for the setting, which may be more than the knobs can say.

        Parameters
        ----------
        setting, machine, workload
            As for `speed`.

        Returns
        -------
        float | None
            Tokens/s; None if nothing fits.
        """


def as_set(value: float, why: str = "as the knob sets it") -> Quantity:
    """A number of a knob."""
    return Quantity(value=float(value), kind="measured", source=why)


def whole(shares: Sequence[Value], most: int, least: int = 1) -> tuple[int, ...]:
    """Shares of a number as different whole numbers, ascending.

    Parameters
    ----------
    shares
        0 to 1.
    most, least
        What 1 is, and what none is below.

    Returns
    -------
    tuple of int
        Each once.
    """
    return tuple(sorted({max(least, min(most, round(float(share) * most))) for share in shares}))


def with_workers(profile: HardwareProfile, preset: EnginePreset, workers: int) -> HardwareProfile:
    """The profile with another number of workers in the pool.

    Parameters
    ----------
    profile
        With rates for its own number.
    preset
        An engine that limits a core itself has its limit scale.
    workers
        How many.

    Returns
    -------
    HardwareProfile
        Rates by the measured points of the profile, or with what a core reads at most.
    """
    cpu = profile.cpu
    if workers == cpu.workers.count:
        return profile
    sources = {}
    for name, rates in (
        (n, r) for n in type(cpu.expert_gb_per_s).model_fields if (r := getattr(cpu.expert_gb_per_s, n))
    ):
        data: dict[str, Any] = {}
        for family in type(rates).model_fields:
            rate = getattr(rates, family)
            if rate is not None:
                data[family] = rate.model_copy(
                    update={"value": _rate(profile, preset, rate.value, workers), "spread": None}
                )
        sources[name] = rates.model_copy(update=data)
    cores = min(workers, cpu.cores.count) if preset.cpu_core_gb_per_s else cpu.cores.count
    return profile.model_copy(
        update={
            "cpu": cpu.model_copy(
                update={
                    "expert_gb_per_s": cpu.expert_gb_per_s.model_copy(update=sources),
                    "workers": as_set(workers), "cores": as_set(cores),
                }
            )
        }
    )  # fmt: skip


def _rate(profile: HardwareProfile, preset: EnginePreset, rate: float, workers: int) -> float:
    """By measured points; by the preset's own limit of a core; else a core's time and memory's time add up.

    An i9-13900HX with 6, 7, 12, 15 and 23 workers reads as 50 GB/s of memory and 11 of each worker would.
    """
    if profile.cpu.expert_gb_per_s_by_workers:
        return rate * profile.cpu.scale(workers) / profile.cpu.scale(profile.cpu.workers.count)
    if preset.cpu_core_gb_per_s:
        return rate
    own = profile.cpu.workers.count * CORE_GB_PER_S
    if rate >= own:  # cores limit already
        return rate * workers / profile.cpu.workers.count
    return 1 / (1 / rate - 1 / own + 1 / (workers * CORE_GB_PER_S))


def label_of(value: Value) -> str:
    """A value in a word."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def no_setting(reasons: Mapping[Setting, str]) -> SimError:
    """The error where nothing fits."""
    return SimError(f"no setting fits: {'; '.join(dict.fromkeys(reasons.values()))}")
