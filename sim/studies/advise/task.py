"""What is searched: the knobs of an engine bound to a model and a machine, and the speed of a setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.choices.cliffs import Standing
from expert_residency.sim.choices.knob import OWN, Knob, Value
from expert_residency.sim.choices.longest import Longest
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.runs.constants import Constant
from expert_residency.sim.runs.interval import Machine
from expert_residency.sim.studies.advise.workloads import Workload
from expert_residency.traces import RoutingTrace

Setting = tuple[Value, ...]
"""One value of each control."""
ACCEPTANCE = 0.75
"""Drafts accepted of those offered where nothing is said; published rates are 0.64 to 0.85."""


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

    def standing(self, setting: Setting) -> Standing | None:
        """Where a setting stands to the engine's cliffs; None if nothing fits."""

    def longest(self, setting: Setting) -> Longest | None:
        """The largest context beside a setting, with its speed; None where contexts are not known line by line."""

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


def label_of(value: Value) -> str:
    """A value in a word."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def no_setting(reasons: Mapping[Setting, str]) -> SimError:
    """The error where nothing fits."""
    return SimError(f"no setting fits: {'; '.join(dict.fromkeys(reasons.values()))}")
