"""Placements of an engine that moves nothing: machines x quantizations, every one of them simulated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from expert_residency.families import rate_notes
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.trace import fit_geometry
from expert_residency.sim.runs.interval import Interval
from expert_residency.sim.split.interval import placement_interval
from expert_residency.sim.split.layers.lines import OptionLine, option_lines
from expert_residency.sim.split.layers.placement import LayerPlacement, LayerProblem
from expert_residency.sim.split.layers.planner import LayerPlanner
from expert_residency.sim.split.layers.times import LayerCosts
from expert_residency.sim.split.memory import HostMode, fitting_headroom, gib, needs_of
from expert_residency.sim.split.study import Question
from expert_residency.sim.timed.attention import Context
from expert_residency.traces import ModelGeometry, RoutingTrace, load_model

if TYPE_CHECKING:
    import pandas as pd

MODES: tuple[HostMode, ...] = ("resident", "mmap")
"""How the host holds what no card holds: in memory, or in a mapped file of which memory keeps a part."""
NO_LESS = "--headroom 0GB"
NTH = ("second", "third", "fourth")


@dataclass
class LayerAnswer:
    """One row: a set of cards and a quantization.

    Parameters
    ----------
    cards
        As asked.
    mode
        `resident` where everything fits into memory, else `mmap`.
    placement
        The fastest that fits; then `lines` are the options that make it and a simpler one. Else None, and `limit`
        says why.
    exact
        Whether the search left no filling out.
    """

    cards: tuple[str, ...]
    geometry: ModelGeometry
    mode: HostMode
    problem: LayerProblem
    placement: LayerPlacement | None
    lines: list[OptionLine]
    limit: str = ""
    exact: bool = True
    notes: list[str] = field(default_factory=list)

    @property
    def ordered(self) -> tuple[str, ...]:
        """Cards in the order of their layers; as asked if nothing fits."""
        return self.placement.cards if self.placement else self.cards

    @property
    def tokens_per_s(self) -> float:
        """Simulated; 0 if nothing fits."""
        return self.placement.tokens_per_s if self.placement else 0.0

    @cached_property
    def interval_90(self) -> Interval | None:
        """Where its speed lies in nine of ten cases; None if nothing fits."""
        return None if self.placement is None else placement_interval(self.problem, self.placement)

    @property
    def has_card(self) -> bool:
        """Whether there is a card; else the machine's memory holds everything and its processor computes it."""
        return self.problem.has_card

    @property
    def on_cpu(self) -> int:
        """Layers of which the CPU computes experts; 0 if nothing fits."""
        if self.placement is None:
            return 0
        return self.placement.on_cpu if self.has_card else self.geometry.n_layers

    @property
    def vram_bytes(self) -> int:
        """Experts on cards."""
        return sum(self.placement.expert_bytes) if self.placement and self.has_card else 0

    @property
    def ram_bytes(self) -> int:
        """What the host holds of the model; of a machine without a card, experts."""
        if self.placement is None:
            return 0
        return self.placement.ram_bytes if self.has_card else sum(self.placement.expert_bytes)

    @property
    def estimated(self) -> bool:
        """Whether reads of the drive, which are estimated, are in it."""
        return bool(self.placement and self.placement.drive_ns)


@dataclass
class LayerStudy:
    """Answers in the order asked."""

    question: Question
    preset: EnginePreset
    answers: list[LayerAnswer]
    synthetic: bool

    @property
    def best(self) -> LayerAnswer | None:
        """The fastest answer; one with estimated reads of the drive only where nothing fits into memory."""
        fitting = [a for a in self.answers if a.placement]
        return max(fitting, key=lambda a: (not a.estimated, a.tokens_per_s), default=None)

    @property
    def best_of_quants(self) -> list[LayerAnswer]:
        """The fastest answer of each quantization that fits, in the order asked."""
        found: dict[str, LayerAnswer] = {}
        for answer in self.answers:
            label, old = answer.geometry.label, found.get(answer.geometry.label)
            rank = not answer.estimated, answer.tokens_per_s
            if answer.placement and (old is None or rank > (not old.estimated, old.tokens_per_s)):
                found[label] = answer
        return list(found.values())

    @property
    def best_interval_90(self) -> Interval | None:
        """Of the fastest answer."""
        return None if self.best is None else self.best.interval_90

    def next_cards(self) -> Iterator[str]:
        """One sentence for each card more, with the best answer's quantization."""
        best = self.best
        if best is None:
            return
        alike = [a for a in self.answers if a.geometry == best.geometry]
        several = len({a.geometry.label for a in self.answers}) > 1
        by_count = {
            n: max((a for a in alike if len(a.cards) == n), key=lambda a: (not a.estimated, a.tokens_per_s))
            for n in sorted({len(a.cards) for a in alike})
        }
        for n, answer in by_count.items():
            fewer = by_count.get(n - 1)
            if fewer is None or answer.placement is None:
                continue
            name = f"The {NTH[n - 2]} card{f' in {best.geometry.quant}' if several else ''}"
            bound = f"; then {answer.placement.binding} binds"
            if fewer.placement is None:
                speed = f"{answer.tokens_per_s:.1f} tok/s"
                yield f"Without a {NTH[n - 2]} card it does not fit; with it {speed}{bound}."
                continue
            gain = 100 * (answer.tokens_per_s / fewer.tokens_per_s - 1)
            how = " (one of them with estimated reads of the drive)" if answer.estimated or fewer.estimated else ""
            yield (
                f"{name} {'gains' if gain >= 0 else 'loses'} {abs(gain):.1f} %: {answer.tokens_per_s:.1f} tok/s "
                f"against {fewer.tokens_per_s:.1f} of {' + '.join(fewer.ordered)}{how}{bound}."
            )

    def frame(self) -> pd.DataFrame:
        """One row an answer, fastest first."""
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for answer in self.answers:
            row: dict[str, Any] = {
                "cards": "+".join(answer.ordered), "quant": answer.geometry.quant, "host": answer.mode,
                "fits": answer.placement is not None, "limit": answer.limit or None,
            }  # fmt: skip
            if placement := answer.placement:
                row |= {
                    "layers_each": "+".join(map(str, placement.layers_each)),
                    "cpu_layers": answer.on_cpu,
                    "vram_expert_bytes": answer.vram_bytes,
                    "ram_bytes": answer.ram_bytes,
                    "options": answer.lines[0].text,
                }
            rows.append(row | {"tokens_per_s": answer.tokens_per_s})
        return pd.DataFrame(rows).sort_values("tokens_per_s", ascending=False, kind="stable", ignore_index=True)


def study_layers(
    question: Question,
    trace: RoutingTrace,
    profiles: dict[str, HardwareProfile],
    progress: Callable[[str], None] | None = None,
) -> LayerStudy:
    """Plan every machine and quantization.

    Parameters
    ----------
    question
        What is asked of an engine whose preset places layers.
    trace
        Of the model's shape; its decode passes are timed.
    profiles
        By the names that the question uses.
    progress
        Told what is done next.

    Returns
    -------
    LayerStudy
        The fastest placement of each.

    Raises
    ------
    SimError, TraceError, HardwareError
        Anything in the question that is not valid.
    """
    preset = load_engine(question.engine)
    answers = []
    for quant in question.quants:
        geometry = load_model(question.model, quant)
        for names in question.cards:
            if progress:
                progress(f"{'+'.join(names)}, {geometry.quant or geometry.name}")
            answers.append(
                _answer(
                    make_problem(question, fit_geometry(trace, geometry), geometry, names, profiles, preset),
                    question,
                )
            )
    return LayerStudy(question, preset, answers, trace.synthetic)


def make_problem(
    question: Question, trace: RoutingTrace, geometry: ModelGeometry, names: tuple[str, ...],
    profiles: dict[str, HardwareProfile], preset: EnginePreset,
) -> LayerProblem:  # fmt: skip
    """The problem of one machine and quantization.

    Parameters
    ----------
    question
        Context, memory and headroom.
    trace, geometry
        Whose routing, and the sizes.
    names, profiles
        The cards, and all profiles by name.
    preset
        The engine.

    Returns
    -------
    LayerProblem
        With everything in memory; `mapped` is the caller's choice.

    Raises
    ------
    SimError, TraceError
        A context that is not known, a trace without decode passes.
    """
    host = profiles[question.host]
    needs = needs_of(
        geometry, context=question.context, kv_type=question.kv_type, session_bytes=question.session_bytes,
        draft=question.draft, carve=True,
    )  # fmt: skip
    costs = LayerCosts(
        trace,
        {name: profiles[name] for name in dict.fromkeys(names)},
        host,
        preset,
        p2p=question.p2p,
        context=Context(kv_type=question.kv_type),
    )
    ram = host.ram.total_bytes if question.ram_bytes is None else question.ram_bytes
    return LayerProblem(costs, needs, names, ram, question.headroom_bytes)


def _answer(problem: LayerProblem, question: Question) -> LayerAnswer:
    geometry, planner = problem.geometry, LayerPlanner(problem)
    placement: LayerPlacement | None = None
    mode: HostMode = "resident"
    for mode in [mode for mode in MODES if mode in question.modes]:
        planner = LayerPlanner(replace(problem, mapped=mode == "mmap"))
        if placement := planner.best():
            break
    if placement is None:
        return LayerAnswer(problem.cards, geometry, mode, problem, None, [], limit_of(problem, planner))
    problem = planner.problem
    lines = option_lines(problem, placement, planner.by_first_layers())
    notes = rate_notes(geometry.label, geometry.quant_family)
    if note := problem.drive_note(placement):
        notes = [*notes, note]
    if problem.room_bytes == 0:
        less = fitting_headroom(problem.ram_bytes, problem.ram_bytes // 2) or NO_LESS
        nothing = (
            f"{gib(problem.headroom_bytes)} of headroom leave nothing of the {gib(problem.ram_bytes)} of memory"
        )
        notes = [*notes, f"{nothing} for experts; {less} would"]
    if not planner.exact:
        notes = [*notes, "too many different sizes for an exact filling: bytes are rounded up by 1/4096 of a card"]
    return LayerAnswer(
        problem.cards, geometry, mode, problem, lines[0].placement, lines, exact=planner.exact, notes=notes
    )


def what_fits(problem: LayerProblem) -> list[OptionLine]:
    """Options of placements that fit, the cards in the order named; empty if none does."""
    planner = LayerPlanner(problem, as_named=True)
    placement = planner.best()
    return [] if placement is None else option_lines(problem, placement, planner.by_first_layers())


def _no_room_for_context(problem: LayerProblem, host_layers: int) -> str:
    wanted = "a smaller --context, or keys and values in fewer bits (--kv-type)"
    return (
        f"RAM: {gib(problem.context_on_host(host_layers))} of the context are of the first {host_layers} MoE "
        f"layers, for which no card has room; beside {gib(problem.headroom_bytes)} of headroom they are more than "
        f"the {gib(problem.ram_bytes)} of memory: {wanted}"
    )


def limit_of(problem: LayerProblem, planner: LayerPlanner) -> str:
    """Why nothing fits."""
    geometry = problem.geometry
    room = sum(problem.costs.cards[card].gpu.vram_usable_bytes for card in problem.cards)
    if planner.short is not None and not planner.feasible:
        short = planner.short
        largest = sorted(short.lines, key=lambda line: -line.nbytes)[:3]
        parts = ", ".join(f"{line.name} {line.nbytes / GIB:.1f}" for line in largest)
        memory = "VRAM" if problem.has_card else "RAM"
        return (
            f"{memory}: {short.card} needs {-short.cache_bytes / GIB:.1f} GiB more than its "
            f"{short.usable_bytes / GIB:.1f} GiB before it holds one expert ({parts} GiB)"
        )
    if (host_layers := planner.host_layers) and problem.room_beside(host_layers) == 0:
        return _no_room_for_context(problem, host_layers)
    need = max(geometry.all_expert_bytes - room, 0) + problem.headroom_bytes
    mapped = planner.problem.mapped  # then it is the headroom that leaves no room at all
    roomy = LayerPlanner(replace(problem, headroom_bytes=0, mapped=False)).best()
    less = fitting_headroom(problem.ram_bytes, roomy.ram_bytes) if roomy else ""
    if mapped and not less:
        less = fitting_headroom(problem.ram_bytes, problem.ram_bytes // 2)
    fits = [less, *([] if mapped else ["--host mmap"]), f"{gib(need)} of memory or more", "another quantization"]
    return (
        f"RAM: {gib(geometry.all_expert_bytes)} of experts less what the cards hold of them (at most "
        f"{gib(room)}) and {gib(problem.headroom_bytes)} of headroom are more than the {gib(problem.ram_bytes)} "
        f"of memory; what would fit: {', '.join(text for text in fits if text)}"
    )
