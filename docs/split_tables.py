"""Write the tables and the figure of docs/split.md: `python docs/split_tables.py`.

Tables stand between ``<!-- table: NAME -->`` and ``<!-- end -->``, as in the other pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import GB, GIB
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.split.cards import Card, HostSide
from expert_residency.sim.split.compare import forced, speed_matters
from expert_residency.sim.split.curve import HitCurve
from expert_residency.sim.split.memory import needs_of, ram_need
from expert_residency.sim.split.placement import Problem
from expert_residency.sim.split.planner import Planner
from expert_residency.sim.split.report import plot
from expert_residency.sim.split.study import Answer
from expert_residency.text import markdown
from expert_residency.traces import load_model
from expert_residency.traces.bundled import load
from expert_residency.traces.synthetic import generate, load_style
from expert_residency.traces.windows import compose_windows

MODEL = "qwen3.8-flash-next"


@cache
def curve(model: str, rows: float, emitted: float) -> HitCurve:
    """Hit curve of the synthetic trace in windows; its tokens a window do not matter for times a window."""
    if model == MODEL:
        trace = load("flash-next-synthetic")
    else:
        trace = generate(load_model(model), load_style(MODEL), tokens=448, seed=1, weights=False)
    return HitCurve.measure(compose_windows(trace, rows, emitted))


def planner(
    cards: Sequence[str], quant: str, *, model: str = MODEL, rows: float = 1, emitted: float = 1,
    mode: str = "arena", ram: int = 10**12, host: str = "", cpu_mb_per_s: int = 0, engine: str = "generic",
    **options: object,
) -> Planner:  # fmt: skip
    """Planner of a machine of the shipped profiles."""
    geometry = load_model(model, quant)
    side = HostSide.of(load_profile(host or cards[0]), geometry.quant_family, ram)
    if cpu_mb_per_s:
        side = replace(side, arena_mb_per_s=cpu_mb_per_s, pageable_mb_per_s=cpu_mb_per_s)
    preset = load_engine(engine)
    return Planner(
        Problem(
            needs_of(geometry, **({"kv_type": "int8"} | options)),  # type: ignore[arg-type]
            tuple(Card.of(load_profile(name), geometry.quant_family) for name in cards),
            side, curve(model, rows, emitted), preset, "cpu" if engine == "generic" else preset.miss,
            mode,  # type: ignore[arg-type]
        )
    )  # fmt: skip


def seed() -> str:
    """UD-Q4_K_XL and IQ3_S on one to three P40s."""
    rows = []
    for quant in ("UD-Q4_K_XL", "IQ3_S"):
        for carve in (False, True):
            for count in (1, 2, 3):
                most = planner(["tesla-p40"] * count, quant, mode="resident", carve=carve).roomiest()
                assert most is not None
                back = planner(["tesla-p40"] * count, quant, mode="resident").roomiest()
                assert back is not None
                gain = (most.vram_expert_bytes - back.vram_expert_bytes) / GIB / count
                rows.append(
                    (
                        quant, "carved" if carve else "whole", str(count), "+".join(map(str, most.layers_each)),
                        f"{most.vram_expert_bytes / GB:.1f}", f"{most.ram.experts_bytes / GB:.1f}",
                        f"{most.ram.needed_bytes / GB:.1f}", f"{gain:.1f}" if carve else "",
                    )
                )  # fmt: skip
    heads = ("quantization", "dense weights", "cards", "layers", "VRAM", "RAM", "RAM needed", "GiB a card gained")
    return markdown(heads, rows)


@dataclass(frozen=True)
class Case:
    """A published run: ms a window, or tokens/s."""

    what: str
    cards: tuple[str, ...]
    layers: tuple[int, ...]
    quant: str
    rows: float
    measured: tuple[float, float]
    hit: float | None
    fitted: str
    model: str = MODEL
    cpu_mb_per_s: int = 0


P40, TI, TURING = "tesla-p40", "rtx-4060ti", "rtx-2080ti"
CASES = (
    Case("2x P40, all experts in VRAM", (P40, P40), (24, 24), "IQ2_XS", 3.0, (58.4, 63.7), 1.0,
         "the P40's rate of this quantization comes from these runs, as 92 GB/s with launches and waits in it"),
    Case("1x P40, half of the experts, own hits", (P40,), (48,), "IQ2_XS", 3.12, (97.2, 113.9), None, "nothing"),
    Case("the same, 77 % hits, CPU 6 GB/s", (P40,), (48,), "IQ2_XS", 3.12, (97.2, 113.9), 0.77,
         "the CPU rate, on the first request after start (194 ms)", cpu_mb_per_s=6_000),
    Case("2x 4060 Ti, hits 81 %", (TI, TI), (23, 25), "UD-IQ4_XS", 3.18, (44.6, 44.6), 0.807, "nothing"),
    Case("2x 4060 Ti, hits 87 %", (TI, TI), (23, 25), "UD-IQ4_XS", 3.18, (46.9, 46.9), 0.873, "nothing"),
    Case("2x 4060 Ti, hits 90 %", (TI, TI), (23, 25), "UD-IQ4_XS", 3.18, (42.9, 43.2), 0.90, "nothing"),
    Case("1x 2080 Ti, hits 63.7 %", (TURING,), (48,), "IQ2_XS", 3.0, (72.4, 72.4), 0.637,
         "the CPU rate of this profile comes from this run"),
    Case("2x 2080 Ti, hits 68.8 %", (TURING, TURING), (31, 17), "IQ2_XS", 3.0, (67.6, 67.6), 0.688,
         "nothing but the row above"),
)  # fmt: skip


def predicted_ms(case: Case) -> tuple[float, float]:
    """(ms a window, hit rate) of a case; where hits are published, at the number of slots that gives them."""
    made = planner(
        case.cards, case.quant, model=case.model, rows=case.rows, emitted=2.0, engine="strata", draft=True,
        cpu_mb_per_s=case.cpu_mb_per_s, carve=len(case.cards) > 1,
    )  # fmt: skip
    cards = made.problem.cards
    if case.hit is None:
        placement = made.evaluate(cards, case.layers)
        assert placement is not None
        return placement.pass_ns / 1e6, placement.hit_rate
    slots = slots_for(made.problem.curve, case.hit)
    return at_slots(made, case.layers, slots) / 1e6, case.hit


def slots_for(hits: HitCurve, rate: float) -> int:
    """Slots a layer at which the curve has this mean hit rate."""
    layers = range(len(hits.distances))
    rates = [np.mean([hits.hit_rate(layer, n) for layer in layers]) for n in range(hits.experts + 1)]
    return int(np.argmin(np.abs(np.asarray(rates) - rate)))


def at_slots(made: Planner, layers_each: Sequence[int], slots: int) -> int:
    """Time of a pass, in ns, with so many slots of every layer."""
    cards, times, first, ns = made.problem.cards, made.times, 0, made.times.overhead_ns
    for number, (card, n) in enumerate(zip(cards, layers_each, strict=True)):
        ns += sum(times.layer_ns(card, layer, slots, made.geometry.experts) for layer in range(first, first + n))
        ns += made.handoff_between(cards, number) if number else 0
        first += n
    return ns + times.head_ns(cards[-1])


def measured() -> str:
    """Predicted beside measured."""
    rows = []
    for case in CASES:
        ms, hit = predicted_ms(case)
        low, high = case.measured
        seen = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        error = f"{100 * (ms / ((low + high) / 2) - 1):+.0f} %"
        rows.append((case.what, f"{case.rows:g}", f"{100 * hit:.0f} %", seen, f"{ms:.1f}", error, case.fitted))
    heads = ("run", "rows", "hits", "measured ms a window", "predicted", "error to the middle", "fitted")
    return markdown(heads, rows)


def third() -> str:
    """5080 + 3090 and a slow third card: only the ratio can be judged, tokens a window are not published."""
    coder, quant = "qwen3.8-flash-next-coder", "IQ1_M"
    options = {"model": coder, "rows": 3.0, "emitted": 2.0, "engine": "strata"}
    pair = planner(["rtx-5080", "rtx-3090"], quant, **options)  # type: ignore[arg-type]
    slots = slots_for(pair.problem.curve, 0.994)
    two = at_slots(pair, (26, 22), slots)
    rows = [("5080 + 3090, 26 + 22 layers", "99.4 %", f"{two / 1e6:.1f}", "1", "1 (84 and 110 tok/s)")]
    three = planner(["rtx-5080", "rtx-3090", "rtx-4060ti"], quant, **options)  # type: ignore[arg-type]
    for layers in ((26, 21, 1), (22, 18, 8), (16, 16, 16)):
        ns = at_slots(three, layers, slots)
        label = "+".join(map(str, layers))
        rows.append(
            (
                f"with a 4060 Ti, {label} layers",
                "99.4 %",
                f"{ns / 1e6:.1f}",
                f"{two / ns:.2f}",
                "0.81 (68), 0.82 (90)",
            )
        )
    return markdown(("machine", "hits", "predicted ms a window", "speed, of the pair's", "measured"), rows)


def formula() -> str:
    """The engine's own split formula and this cost model beside what was measured, ms a layer of a window."""
    cases = (
        ("RTX 5070", "rtx-5070-7600", "IQ2_XS", "0.30", "card alone, 14.6 ms a window (paper, Table 5)"),
        ("Tesla P40", "tesla-p40", "IQ2_XS", "1.25", "2x P40, all experts in VRAM, 59.9 ms a window"),
        ("RTX 4060 Ti", "rtx-4060ti", "UD-IQ4_XS", "0.95", "2x 4060 Ti, 45.4 ms a window at 81 to 90 % hits"),
        ("RTX 2080 Ti", "rtx-2080ti", "IQ2_XS", "0.40", "waits for the card, 19.3 ms a window, hits hidden"),
    )  # fmt: skip
    rows = []
    for name, profile, quant, measured, how in cases:
        made = planner([profile], quant, rows=3.0, emitted=2.0, engine="strata")
        card = made.problem.cards[0]
        fixed = np.mean([made.times.fixed_ns(card, layer) for layer in range(48)]) / 1e6
        full = np.mean([made.times.layer_ns(card, layer, 512, 512) for layer in range(48)]) / 1e6
        clock = load_profile(FORMULA.get(profile, profile)).gpu.sm_x_ghz
        formula = f"{0.33 * 219.8 / clock.value:.2f}" if clock else "-"
        rows.append((name, formula, f"{fixed:.2f} to {full:.2f}", measured, how))
    heads = ("card", "SMs x clock", "this model, hits hidden to all on the card", "measured", "what was measured")
    return markdown(heads, rows)


FORMULA = {"rtx-5070-7600": "rtx-5070-7900x"}


def ram() -> str:
    """Both rules of the engine's docs, and the planner's number, GB."""
    shards = {"IQ2_XS": 39_225_954_592, "IQ3_S": 54_817_524_224}
    rows = []
    for quant, shard in shards.items():
        needs = needs_of(load_model(MODEL, quant), kv_type="int8")
        experts = needs.geometry.all_expert_bytes
        on_card = planner(["tesla-p40"], quant, mode="resident").best()
        assert on_card is not None
        arena = ram_need(needs, "arena", 10**12, 0).needed_bytes
        rows.append(
            (
                quant, f"{shard / GB:.1f}", f"{experts / GB:.1f}", f"{shard / GB + 10:.1f}",
                f"{experts / GB + 10:.1f}", f"{arena / GB:.1f}", f"{on_card.ram.needed_bytes / GB:.1f}",
            )
        )  # fmt: skip
    heads = (
        "quantization",
        "shard 1",
        "experts",
        "shard 1 + 10",
        "experts + 10",
        "planner, arena",
        "planner, resident on one P40",
    )
    return markdown(heads, rows)


PAIR = (("UD-Q4_K_XL", "budget"), ("IQ3_S", "resident"))


@cache
def pair_answer(quant: str, mode: str) -> Answer:
    """P40 + 3070 in a Ryzen 9 3900X, carved."""
    made = planner(["tesla-p40", "rtx-3070"], quant, host="tesla-p40-3900x", ram=64 * GB, mode=mode, carve=True)
    return Answer(("tesla-p40", "rtx-3070"), made.geometry, made.problem.mode, made, made.best())


def draw(path: Path) -> None:
    """Every forced split of the pair."""
    quant, mode = PAIR[0]
    plot(path, forced(pair_answer(quant, mode)), f"{quant}, P40 + RTX 3070, {mode}, carved")


def pair() -> str:
    """The pair's auto split against every forced one, and whether speed matters."""
    lines = []
    for quant, mode in PAIR:
        answer = pair_answer(quant, mode)
        best, points = answer.placement, forced(answer)
        assert best is not None
        worst = min((p for _, p in points if p), key=lambda p: p.tokens_per_s)
        order = " + ".join(s.card.name for s in best.stages)
        ours, theirs = ("+".join(map(str, p.layers_each)) for p in (best, worst))
        lines.append(
            f"{quant}, {mode}: {order} with {ours} layers, {best.tokens_per_s:.1f} tok/s; the worst forced split "
            f"({theirs}) {worst.tokens_per_s:.1f}. {speed_matters(answer)}"
        )
    return "\n\n".join(lines)
