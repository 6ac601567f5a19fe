"""Settings of an engine that places whole layers: each is a placement, and its speed an exact sum."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

from expert_residency.errors import SimError
from expert_residency.sim.choices.cliffs import Standing
from expert_residency.sim.choices.knob import Knob, Value, flag_of
from expert_residency.sim.choices.longest import Longest
from expert_residency.sim.choices.workers import with_workers
from expert_residency.sim.runs.constants import Constant, constants_of
from expert_residency.sim.runs.interval import Machine
from expert_residency.sim.split.cliffs import layer_standing
from expert_residency.sim.split.layers.lines import OptionLine, option_lines
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem, evaluate
from expert_residency.sim.split.layers.planner import LayerPlanner
from expert_residency.sim.split.layers.study import limit_of
from expert_residency.sim.split.layers.times import LayerCosts
from expert_residency.sim.split.longest import layers_longest
from expert_residency.sim.split.memory import needs_of
from expert_residency.sim.studies.advise.task import Ask, Control, Setting, whole
from expert_residency.sim.timed.attention import Context


@dataclass
class LayerTask:
    """Knobs of a preset that places layers, on a machine.

    Parameters
    ----------
    ask
        What is asked.

    Raises
    ------
    SimError
        An engine that keeps single experts.
    """

    ask: Ask
    refused: dict[Setting, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.ask.preset.places != "layers":
            raise SimError(f"engine {self.ask.engine} keeps single experts on a card")
        if not self.controls:
            raise SimError(f"engine {self.ask.engine} has no knobs: its preset has no table [knobs]")
        self._planners: dict[tuple[bool, int, int], tuple[Machine, LayerPlanner]] = {}

    @property
    def workloads(self) -> int:
        """How many traces there are."""
        return len(self.ask.traces)

    @cached_property
    def constants(self) -> list[Constant]:
        """Numbers that cost time."""
        return constants_of(self.ask.profiles, self.ask.preset)

    @cached_property
    def controls(self) -> tuple[Control, ...]:
        """The knobs that do something here."""
        found = [self._control(name, knob) for name, knob in self.ask.preset.knobs.items()]
        return tuple(one for one in found if one is not None and len(one.values) > 1)

    def _control(self, name: str, knob: Knob) -> Control | None:
        if knob.sets == "cpu_layers":
            if not any(profile.has_card for profile in self.ask.profiles):
                return None  # everything is the CPU's
            geometry = self.ask.traces[0].geometry
            layers = max(geometry.total_layers, geometry.layer_ids[-1] + 1)
            least = geometry.layer_ids[0]  # up to here no layer has experts
            values = (0, *range(least + 1, layers + 1))
            return Control(name, knob, values, knob.default, lambda value: flag_of(knob, value) if value else "")
        if knob.sets == "workers":
            most = self.ask.profiles[0].cpu.cores.count
            default = None if knob.default is None else whole([knob.default], most)[0]
            return Control(name, knob, whole(knob.values, most), default, lambda value: flag_of(knob, value))
        return None

    def _values(self, setting: Setting) -> dict[str, Value]:
        """What each knob sets, by its name."""
        return {c.knob.sets: v for c, v in zip(self.controls, setting, strict=True)}

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
        placement = self.placement(setting, machine, workload)
        if placement is None:
            self.refused[setting] = self._limit
            return None
        return placement.tokens_per_s

    def placement(
        self, setting: Setting, machine: Machine | None = None, workload: int = 0
    ) -> LayerPlacement | None:
        """What a setting places where, layers divided over the cards as is fastest.

        Parameters
        ----------
        setting, machine, workload
            As for `speed`.

        Returns
        -------
        LayerPlacement | None
            None if it does not fit.
        """
        planner = self._planner(setting, machine, workload)
        values = self._values(setting)
        if "cpu_layers" not in values:
            return planner.best()
        return planner.of_first_layers(int(values["cpu_layers"]))

    def lines(self, setting: Setting) -> list[OptionLine]:
        """The engine's options of the fastest placement with these threads, and of the setting."""
        planner = self._planner(setting, None, 0)
        best, simple = planner.best(), self.placement(setting)
        values = self._values(setting)
        first = (int(values["cpu_layers"]), simple) if simple and "cpu_layers" in values else None
        return option_lines(planner.problem, best, first) if best else []

    @cached_property
    def _limit(self) -> str:
        """What is missing where nothing fits."""
        problem = self._problem((self.ask.profiles, self.ask.preset), 0, 0)
        planner = LayerPlanner(replace(problem, mapped=self.mapped))
        if (best := planner.best()) is None:
            return limit_of(problem, planner)
        if not best.host_layers:
            return "a card has not the room, or the host not the memory"
        return (
            f"VRAM: weights without experts and a context of {self.ask.context:,} fit only with "
            f"{best.host_layers} layers on the CPU altogether, which no knob sets "
            f"({best.tokens_per_s:.1f} tok/s {best.how}; "
            "residency split has its options); a shorter --context or a smaller --kv-type takes less"
        )

    def standing(self, setting: Setting) -> Standing | None:
        """Where what is advised for a setting stands to the engine's cliffs; None if nothing fits."""
        lines = self.lines(setting)
        return layer_standing(self._planner(setting, None, 0).problem, lines[0].placement) if lines else None

    def longest(self, setting: Setting) -> Longest | None:
        """The largest context beside what is advised for a setting."""
        lines = self.lines(setting)
        return layers_longest(self._planner(setting, None, 0).problem, lines[0].placement) if lines else None

    def fewer_cards(self, setting: Setting) -> OptionLine | None:
        """The fastest of some of the cards with these threads, if it is as fast as all of them or faster."""
        problem, names = self._planner(setting, None, 0).problem, self.ask.names
        found: list[OptionLine] = []
        for cards in dict.fromkeys(some for n in range(1, len(names)) for some in combinations(names, n)):
            planner = LayerPlanner(replace(problem, cards=cards))
            if (best := planner.best()) is not None:
                found += option_lines(planner.problem, best, planner.by_first_layers())[:1]
        fastest = max(found, key=lambda line: line.placement.tokens_per_s, default=None)
        all_cards = self.headline(setting)
        if fastest is None or (all_cards and fastest.placement.tokens_per_s < all_cards):
            return None
        return fastest

    def why_estimated(self, setting: Setting, line: OptionLine) -> str:
        """Why the speed of a line is estimated; empty if it is not."""
        return self._planner(setting, None, 0).problem.drive_note(line.placement)

    def headline(self, setting: Setting, machine: Machine | None = None, workload: int = 0) -> float | None:
        """Tokens/s of the fastest placement by layers and tensors, with the threads of a setting.

        Parameters
        ----------
        setting, machine, workload
            As for `speed`.

        Returns
        -------
        float | None
            None if nothing fits.
        """
        if (lines := self._advised.get(setting)) is None:
            lines = self._advised[setting] = self.lines(setting)
        if not lines:
            return None
        best, problem = lines[0].placement, self._planner(setting, machine, workload).problem
        placed = evaluate(problem, best.cards, best.layers_each, best.thirds, best.host_layers)
        return None if placed is None else placed.tokens_per_s

    @cached_property
    def _advised(self) -> dict[Setting, list[OptionLine]]:
        return {}

    @cached_property
    def mapped(self) -> bool:
        """Whether the model's file has to be mapped: it does not fit into memory beside the cards."""
        return LayerPlanner(self._problem((self.ask.profiles, self.ask.preset), 0, 0)).best() is None

    def _planner(self, setting: Setting, machine: Machine | None, workload: int) -> LayerPlanner:
        workers = int(self._values(setting).get("workers", 0))
        key = machine is None, workload, workers
        known = self._planners.get(key)
        if known is None or (machine is not None and known[0] is not machine):
            asked = machine or (self.ask.profiles, self.ask.preset)
            problem = replace(self._problem(asked, workload, workers), mapped=self.mapped)
            known = self._planners[key] = asked, LayerPlanner(problem)
        return known[1]

    def _problem(self, machine: Machine, workload: int, workers: int) -> LayerProblem:
        ask = self.ask
        profiles, preset = machine
        if workers:
            profiles = tuple(with_workers(profile, preset, workers) for profile in profiles)
        geometry = ask.traces[workload].geometry
        needs = needs_of(
            geometry, context=ask.context, kv_type=ask.kv_type, session_bytes=ask.session_bytes, carve=True
        )  # fmt: skip
        costs = LayerCosts(
            ask.traces[workload], dict(zip(ask.names, profiles, strict=True)), profiles[0], preset,
            context=Context(kv_type=ask.kv_type),
        )  # fmt: skip
        if counted := self._counts.get(workload):
            costs.count_as(counted)
        else:
            self._counts[workload] = costs
        return LayerProblem(costs, needs, ask.names, profiles[0].ram.total_bytes, ask.headroom_bytes)

    @cached_property
    def _counts(self) -> dict[int, LayerCosts]:
        return {}
