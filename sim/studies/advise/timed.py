"""Settings of an engine that keeps single experts on a card, each a run of the compiled engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from weakref import finalize

from expert_residency.errors import MisfitError, SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GIB, MIB
from expert_residency.sim.choices.capacity import Auto, Capacity
from expert_residency.sim.choices.cliffs import Standing, standing_of
from expert_residency.sim.choices.knob import OWN, Knob, Value, flag_of
from expert_residency.sim.choices.longest import Longest, largest_context
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.choices.spec import RunSpec, make_spec
from expert_residency.sim.choices.workers import as_set, with_workers
from expert_residency.sim.runs.constants import Constant, constants_of
from expert_residency.sim.runs.interval import Machine
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.advise.task import (
    Ask,
    Control,
    Setting,
    label_of,
    whole,
)
from expert_residency.sim.studies.advise.workloads import Workload
from expert_residency.sim.studies.drafts import gated
from expert_residency.sim.timed.attention import lengths
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace
from expert_residency.traces.windows import compose_windows

REMEDIES = {
    "ram": "give more --ram, ask --engine llama.cpp, which maps its file, or take a smaller quantization",
    "vram": "a shorter --context, a smaller --kv-type or a smaller quantization takes less",
}
"""What helps in `advise`, by what is too small."""
RUNS = 1_000
"""Runs that the choice of the engine is made for: worth compiling."""


@dataclass
class TimedTask:
    """Knobs of a preset on a machine.

    Parameters
    ----------
    ask
        What is asked.
    fixed
        Choices of a run that are no knob, by name.

    Raises
    ------
    SimError
        An engine without knobs, or one of whole layers.
    """

    ask: Ask
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refused: dict[Setting, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.ask.preset.places == "layers":
            raise SimError(f"engine {self.ask.engine} places whole layers")
        if not self.controls:
            raise SimError(f"engine {self.ask.engine} has no knobs: its preset has no table [knobs]")
        self._folder = Path(mkdtemp(prefix="advise-"))
        finalize(self, rmtree, self._folder, ignore_errors=True)
        self._warm = [self._profile(one, number) for number, one in enumerate(self.ask.workloads)]
        self._windows: dict[tuple[int, int, float], RoutingTrace] = {}

    def _profile(self, workload: Workload, number: int) -> str | None:
        """Placement of the experts that were used before."""
        if not workload.ranked:
            return None
        path, experts = self._folder / f"{number}.csv", workload.trace.geometry.experts
        lines = [f"{key // experts},{key % experts}" for key in workload.ranked]
        path.write_text("\n".join(["layer,expert", *lines]), encoding="utf-8")
        return f"profile:file={path}"

    @property
    def workloads(self) -> int:
        """How many traces there are."""
        return len(self.ask.traces)

    @cached_property
    def constants(self) -> list[Constant]:
        """Numbers that cost time, but for those that a knob sets."""
        given = frozenset(c.knob.sets.removeprefix("engine.") for c in self.controls)
        return constants_of(self.ask.profiles, self.ask.preset, given)

    @cached_property
    def room(self) -> tuple[int, ...]:
        """Bytes of each card that are left for experts, with the layers divided as the default has it."""
        return self._room(None)

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """The knobs that do something here."""
        found = [self._control(name, knob) for name, knob in self.ask.preset.knobs.items()]
        return tuple(one for one in found if one is not None and len(one.values) > 1)

    def _control(self, name: str, knob: Knob) -> Control | None:
        geometry, cards = self.ask.traces[0].geometry, len(self.ask.profiles)
        values, default = knob.values, knob.default
        if knob.sets == "cpu_layers" or (knob.sets == "first_card" and cards != 2):
            return None
        if knob.sets in ("rows", "floor") and (not _drafts(geometry) or windowed(self.ask.traces[0])):
            return None
        if knob.sets == "workers":
            most = self.ask.profiles[0].cpu.workers.count
            values = whole(values, most)
            default = None if default is None else whole([default], most)[0]
        if knob.sets == "first_card":
            values = whole(values, geometry.n_layers)
            default = None if default is None else whole([default], geometry.n_layers)[0]

        if default == OWN:
            values = (*values, OWN)
        return Control(
            name, knob, values, default, lambda value: flag_of(knob, value, **self._sizes(knob, value)),
            lambda value: self._label(knob, value),
        )  # fmt: skip

    def _sizes(self, knob: Knob, value: Value) -> dict[str, Any]:
        """What a flag may name beside the value."""
        if knob.sets == "capacity":
            nbytes = float(value) * sum(self.room)
            slots = int(
                nbytes * self.ask.traces[0].geometry.n_layers // sum(self.ask.traces[0].geometry.expert_bytes)
            )
            return {"mib": nbytes / MIB, "gib": nbytes / GIB, "slots": slots}
        return {"gib": self._budget(value)} if knob.sets == "host" else {}

    def _label(self, knob: Knob, value: Value) -> str:
        if knob.sets == "capacity":
            return f"{float(value) * sum(self.room) / GIB:.2f} GiB"
        if knob.sets == "host" and "@" in str(value):
            return f"{str(value).partition('@')[0]} {self._budget(value):.0f} GiB"
        return label_of(value)

    def speed(self, setting: Setting, machine: Machine | None = None, workload: int = 0) -> float | None:
        """Tokens/s of a setting.

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
            None if it does not fit; `refused` then says why.
        """
        try:
            result = self._run(setting, machine or (self.ask.profiles, self.ask.preset), workload)
        except MisfitError as error:
            self.refused[setting] = error.told(REMEDIES)
            return None
        return result

    headline = speed

    def _run(self, setting: Setting, machine: Machine, workload: int) -> float:
        spec, profiles, preset, trace = self._asked(setting, machine, workload)
        result = simulate(trace, spec, profiles=profiles, preset=preset, runs=RUNS)
        if not result.tokens_per_s:
            raise SimError("the trace decodes nothing, so that there is no speed to compare")
        return result.tokens_per_s

    def standing(self, setting: Setting) -> Standing:
        """Where a setting stands to the engine's cliffs."""
        ask = self.ask
        spec, profiles, preset, trace = self._asked(setting, (ask.profiles, ask.preset), 0)
        found = standing_of(spec, trace.geometry, profiles=profiles, preset=preset)
        assert found is not None, "the layers add up"
        room = self._room(spec.layers_each[0] if spec.layers_each and len(ask.profiles) == 2 else None)
        context = f"a context of {ask.context:,} tokens ({ask.kv_type} KV)"
        beside = f"dense weights, {context if ask.session_bytes is None else 'the context'} and the reserve"
        values = {c.knob.sets: v for c, v in zip(self.controls, setting, strict=True)}
        if values.get("host") == "budget@1.0":  # as large as memory lets it: all that no card holds, at the edge
            found = replace(found, host="mmap", moves=False)
        return replace(found, room_bytes=room, beside=beside, meant=found.cache_bytes == room)

    def longest(self, setting: Setting) -> Longest | None:
        """The largest context beside a setting's cache, and the speed when it is full."""
        ask, geometry = self.ask, self.ask.traces[0].geometry
        if ask.session_bytes is not None or geometry.session_shape is None:
            return None
        spec, profiles, preset, trace = self._asked(setting, (ask.profiles, ask.preset), 0)
        layers = spec.layers_each[0] if spec.layers_each and len(ask.profiles) == 2 else None
        cache = spec.capacity.card_bytes or (int(spec.capacity.total_bytes or 0),)

        def fits(tokens: int) -> bool:
            try:
                room = self._room(layers, tokens)
            except MisfitError:
                return False
            return all(held <= left for held, left in zip(cache, room, strict=True))

        tokens = largest_context(fits, ask.context)
        depth = max(0, tokens - int(lengths(trace, 0).max(initial=1)))
        deep = replace(spec, depth=depth)
        full = simulate(trace, deep, profiles=profiles, preset=preset, runs=RUNS).tokens_per_s
        return Longest(tokens, ask.context, full) if full else None

    def _asked(
        self, setting: Setting, machine: Machine, workload: int
    ) -> tuple[RunSpec, tuple[HardwareProfile, ...], EnginePreset, RoutingTrace]:
        """A setting as a run."""
        words: dict[str, Any] = {
            "hardware": list(self.ask.names), "engine": self.ask.engine, "kv_type": self.ask.kv_type,
            "placement": self._warm[workload], **self.fixed
        }  # fmt: skip
        profiles, preset = machine
        drafting: dict[str, Value] = {}
        share, layers = 1.0, None
        for control, value in zip(self.controls, setting, strict=True):
            sets = control.knob.sets
            if sets in ("rows", "floor"):
                drafting[sets] = value
            elif sets == "capacity":
                share = float(value)
            elif sets == "first_card":
                layers = int(value)
            elif sets == "workers":
                profiles = tuple(with_workers(profile, preset, int(value)) for profile in profiles)
            elif sets == "host":
                words["host"] = self._host(value)
            elif sets == "miss":
                words["miss"] = value
            else:
                preset = self._set(preset, words, control.knob, value)
        each = self._each(layers)
        words["layers_each"] = list(each) if each else None
        room = self._room(layers) if layers else self.room
        words["capacity"] = "+".join(f"{int(share * nbytes)}B" for nbytes in room)
        trace = self._trace(workload, int(drafting.get("rows", 1)), float(drafting.get("floor", 0.0)))
        return make_spec(words), profiles, preset, trace

    def _set(self, preset: EnginePreset, words: dict[str, Any], knob: Knob, value: Value) -> EnginePreset:
        kind, _, name = knob.sets.partition(".")
        if value == OWN:
            return preset
        if kind == "engine":
            return preset.model_copy(update=dict.fromkeys(knob.clears) | {name: as_set(float(value))})
        spec = str(words.get(kind) or {str(key): word for key, word in preset.policy.items()}.get(kind, ""))
        words[kind] = f"{spec}{',' if ':' in spec else ':'}{name}={value}"
        return preset

    def _trace(self, workload: int, rows: int, floor: float) -> RoutingTrace:
        key = workload, rows, floor
        if key not in self._windows:
            trace = self.ask.traces[workload]
            self._windows[key] = (
                trace if rows == 1 else compose_windows(trace, *gated(rows, self.ask.acceptance, floor))
            )
        return self._windows[key]

    def _each(self, layers: int | None) -> tuple[int, ...] | None:
        cards, n = len(self.ask.profiles), self.ask.traces[0].geometry.n_layers
        if cards == 1:
            return None
        if layers is not None:
            return layers, n - layers
        return tuple(n * (i + 1) // cards - n * i // cards for i in range(cards))

    def _room(self, layers: int | None, context: int | None = None) -> tuple[int, ...]:
        drafts = any(knob.sets == "rows" for knob in self.ask.preset.knobs.values())
        auto = Auto(
            context=context or self.ask.context, kv=self.ask.kv_type, session=self.ask.session_bytes,
            draft=drafts and _drafts(self.ask.traces[0].geometry),
        )  # fmt: skip
        spec = RunSpec(list(self.ask.names), Capacity(auto=auto), layers_each=self._each(layers))
        found = spec.settled(self.ask.traces[0].geometry, self.ask.profiles).capacity
        return found.card_bytes or (int(found.total_bytes or 0),)

    def _host(self, value: Value) -> str:
        word, at, _ = str(value).partition("@")
        return f"{word}:gib={self._budget(value):.2f}" if at else word

    def _budget(self, value: Value) -> float:
        """GiB of a share of the memory that is left for a budget, or of what no card holds if that is less."""
        share = float(str(value).partition("@")[2] or 1)
        ram = self.ask.profiles[0].ram
        free = min(ram.total_bytes - ram.os_reserve_bytes, ram.pin_limit_bytes)
        return max(0.1, share * min(free, self.ask.traces[0].geometry.all_expert_bytes - sum(self.room)) / GIB)


def windowed(trace: RoutingTrace) -> bool:
    """Whether a trace has verify windows of its own."""
    decode = trace.event_phase != Phase.PREFILL
    return bool((trace.pass_phase == Phase.VERIFY).any() or (trace.event_rows[decode] > 1).any())


def _drafts(geometry: ModelGeometry) -> bool:
    return geometry.session_shape is not None and geometry.session_shape.draft is not None


def in_fastest_order(ask: Ask) -> Ask:
    """The question with its cards in the order that is fastest with the engine's defaults, as plans have it.

    Processor, memory and drive stay those of the first that was named.
    """
    host = {name: getattr(ask.profiles[0], name) for name in ("cpu", "dram", "ram", "disk")}
    cards = [
        (name, profile.model_copy(update=host)) for name, profile in zip(ask.names, ask.profiles, strict=True)
    ]
    found: list[tuple[float, Ask]] = []
    for order in dict.fromkeys(permutations(ask.names)):
        left = list(cards)
        ordered = [left.pop([one for one, _ in left].index(name)) for name in order]
        asked = replace(ask, names=order, profiles=tuple(profile for _, profile in ordered))
        try:
            task = TimedTask(asked)
            setting = tuple(c.values[0] if c.default is None else c.default for c in task.controls)
            speed = task.speed(setting)
        except SimError:
            continue  # a card that has not the room there; what is wrong in any order is said later
        found.append((speed or 0.0, asked))
    return max(found, key=lambda one: one[0], default=(0.0, ask))[1]
