"""All the placements that a question asks for: machines x quantizations x host modes, the best few simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from expert_residency.errors import MisfitError, SimError
from expert_residency.families import rate_notes
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.caveats import caveats, texts
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.trace import fit_geometry
from expert_residency.sim.runs.interval import Interval
from expert_residency.sim.split.cards import Card, HostSide
from expert_residency.sim.split.cost import LayerTimes
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.interval import plan_interval
from expert_residency.sim.split.limits import explain, few_slots
from expert_residency.sim.split.memory import HEADROOM_BYTES, HOST_MODES, HostMode, needs_of
from expert_residency.sim.split.placement import Placement, Problem, Shortfall
from expert_residency.sim.split.planner import MAX_CARDS, Planner
from expert_residency.sim.split.timed import Simulated, simulate_placement
from expert_residency.traces import ModelGeometry, RoutingTrace, load_model

if TYPE_CHECKING:
    import pandas as pd


REMEDIES = {
    "ram": "what would fit: --host mmap, more --ram, or a smaller --quant",
    "vram": "what would fit: a shorter --context, or a smaller --kv-type",
}
"""What helps here, by what is too small for a simulation."""
QUALITY = "quality: quality is not modelled: a smaller quantization is faster, not better"


@dataclass(frozen=True)
class Question:
    """What the user asks.

    Parameters
    ----------
    model, quants
        Name of a packaged model or a file, and its quantizations in question.
    cards
        Sets of cards, by profile name, each to be planned.
    host
        Profile name whose processor, memory and drive the cards share.
    ram_bytes
        Memory instead of the profile's.
    modes
        How the host may hold experts.
    headroom_bytes
        RAM kept free of experts.
    context, kv_type, kv_resident, session_bytes, draft, carve
        As in `sim.split.memory.needs_of`.
    engine, miss
        Engine preset, and who serves a miss.
    p2p, store
        Hand over peer to peer; profile of a card that only keeps experts.
    simulate
        How many of the fastest placements are run on the timed engine.
    """

    model: str
    quants: tuple[str | None, ...]
    cards: tuple[tuple[str, ...], ...]
    host: str
    ram_bytes: int | None = None
    modes: tuple[HostMode, ...] = HOST_MODES
    headroom_bytes: int = HEADROOM_BYTES
    context: int = 32_768
    kv_type: str = KV_TYPE
    kv_resident: int = 0
    session_bytes: int | None = None
    draft: bool = False
    carve: bool = False
    engine: str = "generic"
    miss: str = "cpu"
    p2p: bool = False
    store: str | None = None
    simulate: int = 3


@dataclass
class Answer:
    """One row: a set of cards, a quantization, a host mode.

    Parameters
    ----------
    cards
        As asked; `ordered` has them in the order of the stages.
    placement
        The fastest that fits, or None; then `limit` is the sentence that says why.
    simulated
        Its run, for the best few.
    notes
        What to know about it.
    roomiest
        The placement that keeps most experts in VRAM, which need not be the fastest: the processor works beside
        the cards, and may take a share of the experts off a slow one.
    """

    cards: tuple[str, ...]
    geometry: ModelGeometry
    mode: HostMode
    planner: Planner
    placement: Placement | None
    shortfall: Shortfall | None = None
    limit: str = ""
    simulated: Simulated | None = None
    notes: list[str] = field(default_factory=list)
    roomiest: Placement | None = None

    def in_order(self, placement: Placement | None) -> tuple[str, ...]:
        """Names of the cards in the order of a placement's stages, which need not be the order asked."""
        if placement is None:
            return self.cards
        left = list(zip(self.planner.problem.cards, self.cards, strict=True))
        return tuple(left.pop([card for card, _ in left].index(stage.card))[1] for stage in placement.stages)

    @property
    def ordered(self) -> tuple[str, ...]:
        """Names of the cards in the order of the fastest placement's stages; as asked if nothing fits."""
        return self.in_order(self.placement)

    @property
    def tokens_per_s(self) -> float:
        """Simulated if it was, else estimated; 0 if nothing fits."""
        if self.simulated is not None:
            return self.simulated.tokens_per_s
        return self.placement.tokens_per_s if self.placement else 0.0


@dataclass
class SplitStudy:
    """Answers in the order asked."""

    question: Question
    answers: list[Answer]
    curve: HitCurve
    profiles: dict[str, HardwareProfile]
    trace: RoutingTrace
    caveats: list[str] = field(default_factory=list)
    """What the answers stand on, as `sim.choices.caveats` finds it: `kind: text`."""
    _runs: dict[object, Simulated | None] = field(default_factory=dict, repr=False, compare=False)
    _intervals: dict[int, Interval | None] = field(default_factory=dict, repr=False, compare=False)

    def run(self, answer: Answer, placement: Placement) -> Simulated | None:
        """A placement on the machine of an answer, simulated; None if nothing is to be, or the engine refuses."""
        if not self.question.simulate:
            return None
        key = _key(answer, placement)
        if key not in self._runs:
            question, host, found = self.question, self.profiles[self.question.host], None
            if question.ram_bytes is not None:
                host = with_ram(host, question.ram_bytes)
            try:
                found = simulate_placement(
                    placement, fit_geometry(self.trace, answer.geometry), self.profiles, host,
                    engine=question.engine, miss=question.miss, p2p=question.p2p, kv_type=question.kv_type,
                )  # fmt: skip
            except MisfitError as error:
                answer.notes.append(f"not simulated: {error.told(REMEDIES)}")
            except SimError as error:
                answer.notes.append(f"not simulated: {error}")
            self._runs[key] = found
        return self._runs[key]

    def interval_90(self, answer: Answer) -> Interval | None:
        """Where the speed of one of the answers lies in nine of ten cases; None if it does not fit."""
        if id(answer) not in self._intervals:
            asked = self.question
            self._intervals[id(answer)] = plan_interval(answer, self.profiles, asked.host, asked.p2p)
        return self._intervals[id(answer)]

    @property
    def best_interval_90(self) -> Interval | None:
        """Of the fastest answer."""
        best = self.best
        return None if best is None else self.interval_90(best)

    def frame(self) -> pd.DataFrame:
        """One row an answer: cards, layers of each, bytes, tokens/s, or the limit.

        Simulated ones come first and then those that are estimated, each fastest first: the two are not compared.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for answer in self.answers:
            placement = answer.placement
            row: dict[str, Any] = {
                "cards": "+".join(answer.ordered),
                "quant": answer.geometry.quant,
                "host": answer.mode,
                "fits": placement is not None,
                "limit": answer.limit or None,
            }
            if placement is not None:
                row |= {
                    "layers_each": "+".join(map(str, placement.layers_each)),
                    "vram_expert_bytes": placement.vram_expert_bytes,
                    "ram_needed_bytes": placement.ram.needed_bytes,
                    "hit_rate": placement.hit_rate,
                    "estimated_tokens_per_s": placement.tokens_per_s,
                    "simulated_tokens_per_s": answer.simulated and answer.simulated.tokens_per_s,
                }
            rows.append(row | {"simulated": bool(answer.simulated), "tokens_per_s": answer.tokens_per_s})
        return pd.DataFrame(rows).sort_values(
            ["simulated", "tokens_per_s"], ascending=False, kind="stable", ignore_index=True
        )

    @property
    def best(self) -> Answer | None:
        """The fastest answer: among simulated ones if there are any."""
        fitting = [a for a in self.answers if a.placement]
        simulated = [a for a in fitting if a.simulated]
        return max(simulated or fitting, key=lambda a: a.tokens_per_s, default=None)

    def was_tried(self, answer: Answer) -> bool:
        """Whether the placement of an answer was simulated, or refused."""
        return answer.placement is not None and _key(answer, answer.placement) in self._runs

    @property
    def one_card_fewer(self) -> list[Answer]:
        """Of each set of one card fewer than the best answer has, in its quantization: the fastest that fits.

        Simulated ones come before others, and those that the engine refuses last.
        """
        best, found = self.best, dict[tuple[str, ...], Answer]()

        def rank(answer: Answer) -> tuple[bool, bool, float]:
            return bool(answer.simulated), not self.was_tried(answer), answer.tokens_per_s

        for answer in self.answers:
            alike = best is not None and answer.geometry == best.geometry
            if alike and best and answer.placement and len(answer.cards) == len(best.cards) - 1:
                found[answer.cards] = max(found.get(answer.cards, answer), answer, key=rank)
        return list(found.values())

    @property
    def best_of_quants(self) -> list[Answer]:
        """The fastest answer of each quantization that fits, in the order asked."""
        found: dict[str, Answer] = {}
        for answer in self.answers:
            label, old = answer.geometry.label, found.get(answer.geometry.label)
            rank = bool(answer.simulated), answer.tokens_per_s
            if answer.placement and (old is None or rank > (bool(old.simulated), old.tokens_per_s)):
                found[label] = answer
        return list(found.values())


def _key(answer: Answer, placement: Placement) -> object:
    """What tells the runs of one study apart."""
    stages = tuple((stage.card.name, stage.first, stage.end, tuple(stage.slots)) for stage in placement.stages)
    return answer.geometry.label, placement.ram.mode, placement.store, stages


def sets_of_cards(
    gpus: Sequence[str], low: int | None = None, high: int | None = None
) -> tuple[tuple[str, ...], ...]:
    """Which sets of cards to plan.

    Parameters
    ----------
    gpus
        Names as given. One name: so many copies of it; several: every selection of them, equal ones once.
    low, high
        Smallest and largest number of cards; by default 1 copy of a single name, any selection of several.

    Returns
    -------
    tuple[tuple[str, ...], ...]
        Names of each set.

    Raises
    ------
    SimError
        A range that cannot be.
    """
    one = len(gpus) == 1
    if high is None:
        high = low if low is not None else len(gpus)
    low = 1 if low is None else low
    if not 1 <= low <= high:
        raise SimError(f"{low} to {high} cards: expected at least 1, and the smaller number first")
    if high > MAX_CARDS or (high > len(gpus) and not one):
        most = f"{len(gpus)} are given" if high <= MAX_CARDS else f"at most {MAX_CARDS} can be planned"
        raise SimError(f"{high} cards: {most}")
    gpus = [gpus[0]] * high if one else gpus
    return tuple(dict.fromkeys(chosen for count in range(low, high + 1) for chosen in combinations(gpus, count)))


def study(
    question: Question,
    trace: RoutingTrace,
    profiles: dict[str, HardwareProfile],
    progress: Callable[[str], None] | None = None,
) -> SplitStudy:
    """Plan every combination, then simulate the fastest.

    Parameters
    ----------
    question
        What is asked.
    trace
        Whose routing gives the hit curve; of the model's shape, windows composed if wanted.
    profiles
        By the names that the question uses.
    progress
        Told what is done next.

    Returns
    -------
    SplitStudy
        Every placement that was planned, the best of them simulated.

    Raises
    ------
    SimError, TraceError, HardwareError
        Anything in the question that is not valid.
    """
    for name in dict.fromkeys(name for names in question.cards for name in names):
        if not profiles[name].has_card:
            raise SimError(
                f"engine {question.engine} keeps single experts on a card, and {name} has none: ask llama.cpp"
            )
    curve = HitCurve.measure(trace)
    preset = load_engine(question.engine)
    answers = []
    for quant in question.quants:
        geometry = load_model(question.model, quant)
        needs = needs_of(
            geometry,
            context=question.context,
            kv_type=question.kv_type,
            kv_resident=question.kv_resident,
            session_bytes=question.session_bytes,
            draft=question.draft,
            carve=question.carve,
        )
        family = geometry.quant_family
        host = HostSide.of(profiles[question.host], family, question.ram_bytes)
        store = Card.of(profiles[question.store], family) if question.store else None
        times: dict[HostMode, LayerTimes] = {}
        for names in question.cards:
            cards = tuple(Card.of(profiles[name], family) for name in names)
            for mode in question.modes:
                if progress:
                    progress(f"{'+'.join(names)}, {geometry.quant or geometry.name}, {mode}")
                problem = Problem(
                    needs,
                    cards,
                    host,
                    curve,
                    preset,
                    question.miss,
                    mode,
                    question.headroom_bytes,
                    question.p2p,
                    store,
                )
                planner = Planner(problem, times.get(mode))
                times[mode] = planner.times
                answers.append(_answer(names, planner))
    found = SplitStudy(question, answers, curve, profiles, trace, split_caveats(question, trace, profiles))
    _simulate(found, progress)
    return found


def split_caveats(
    question: Question, trace: RoutingTrace, profiles: dict[str, HardwareProfile]
) -> list[str]:  # fmt: skip
    """Caveats of all answers together.

    Parameters
    ----------
    question
        What is asked.
    trace
        Whose routing gives the hit curve.
    profiles
        By the names that the question uses.

    Returns
    -------
    list of str
        `kind: text`, each once.
    """
    cards = [profiles[name] for name in dict.fromkeys(name for names in question.cards for name in names)]
    found = [
        caveats(trace, load_model(question.model, quant), cards, context_counted=True) for quant in question.quants
    ]
    known = list(dict.fromkeys(text for one in found for text in texts(one)))
    return [*known, *([QUALITY] if len(question.quants) > 1 else [])]


def _answer(names: tuple[str, ...], planner: Planner) -> Answer:
    problem, geometry = planner.problem, planner.problem.needs.geometry
    placement = planner.best()
    answer = Answer(names, geometry, problem.mode, planner, placement, planner.shortfall)
    if placement is None:
        answer.limit = explain(problem, planner.shortfall)
    else:
        answer.notes = [*rate_notes(geometry.label, geometry.quant_family), *few_slots(problem, placement)]
        answer.roomiest = planner.roomiest() if len(placement.stages) > 1 else placement
    return answer


def _simulate(found: SplitStudy, progress: Callable[[str], None] | None) -> None:
    """Run the fastest placements, one of each machine and quantization, so that they differ, and what the best of
    them is compared with: the sets of one card fewer.
    """
    groups: dict[tuple[tuple[str, ...], str], list[Answer]] = {}
    for answer in sorted(found.answers, key=lambda a: -a.tokens_per_s):
        if answer.placement:
            groups.setdefault((answer.cards, answer.geometry.label), []).append(answer)
    first = {len(group[0].cards): group for group in reversed(groups.values())}  # the best of each number of cards
    chosen = [*sorted(first.values(), key=lambda group: -group[0].tokens_per_s), *groups.values()]
    left = found.question.simulate
    for group in {id(group): group for group in chosen}.values():
        # the fastest host mode that the engine takes; a group of which it takes none counts for nothing
        left -= left > 0 and any(_simulated(found, answer, progress) for answer in group)
    while found.question.simulate and (others := [a for a in found.one_card_fewer if not found.was_tried(a)]):
        for answer in others:  # one of them may then be the best, and have others to be compared with
            _simulated(found, answer, progress)


def _simulated(found: SplitStudy, answer: Answer, progress: Callable[[str], None] | None) -> bool:
    """Simulate an answer that fits, unless it was; whether the engine takes it."""
    assert answer.placement is not None
    if progress and answer.simulated is None:
        progress(f"simulating {'+'.join(answer.cards)}, {answer.geometry.label}, {answer.mode}")
    answer.simulated = found.run(answer, answer.placement)
    if answer.simulated is None:
        return False
    for other in (answer.roomiest, for_equal_cards(answer)):  # may be faster than what the estimate puts first
        if other is None or (ran := found.run(answer, other)) is None or ran.tokens_per_s <= answer.tokens_per_s:
            continue
        problem, before = answer.planner.problem, few_slots(answer.planner.problem, answer.placement)
        answer.notes = [note for note in answer.notes if note not in before] + few_slots(problem, other)
        answer.placement, answer.simulated = other, ran
    return True


def for_equal_cards(answer: Answer) -> Placement | None:
    """The split for cards that all have the first one's rates but their own memory, at the true rates; None where
    they are equal anyway, or it does not fit.
    """
    placement, planner = answer.placement, answer.planner
    if placement is None or len({replace(s.card, name="") for s in placement.stages}) < 2:
        return None
    order = tuple(s.card for s in placement.stages)
    alike = tuple(
        replace(order[0], name=c.name, usable_bytes=c.usable_bytes, reserve_bytes=c.reserve_bytes) for c in order
    )
    blind = Planner(replace(planner.problem, cards=alike)).best(order=alike)
    return None if blind is None else planner.evaluate(order, blind.layers_each)


def with_ram(profile: HardwareProfile, ram_bytes: int) -> HardwareProfile:
    """A profile with other memory; what it could not page-lock of its own it still cannot, and of a small one the
    system holds half at most.
    """
    ram = profile.ram
    locked = HostSide.of(profile, "q4", ram_bytes).pin_limit_bytes

    def value(nbytes: int) -> Quantity:
        return Quantity(value=nbytes / GIB, kind="assumed", source="as asked")

    update = {"total_gib": value(ram_bytes), "pin_limit_gib": value(locked)}
    if ram.os_reserve_bytes > ram_bytes // 2:
        update["os_reserve_gib"] = value(ram_bytes // 2)
    changed = ram.model_copy(update=update)
    return profile.model_copy(update={"ram": changed})
