"""A timed run in plain arithmetic: no queue, no engine, and no function of the simulator.

It knows the runs in which every time is a sum or the larger of two: one LRU a layer that has room for each event,
misses fetched one after the other over a link that nothing else uses, or computed by the CPU beside the card or
after it. What the two engines share (costs, rules, results) is written here once more, from `docs/contracts.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any


def rate(quantity: Any) -> int:
    """Whole MB/s of GB/s."""
    return round(quantity.value * 1000)


def us(quantity: Any) -> int:
    """Whole ns of microseconds."""
    return round(quantity.value * 1000)


def over(nbytes: int, mb_per_s: int) -> int:
    """Ns of bytes at a rate, rounded up."""
    return ceil(Fraction(nbytes * 1000, mb_per_s))


@dataclass
class PlainRun:
    """What is added up."""

    pass_ns: list[int]
    decode_tokens: int
    decode_ns: int
    fetched_bytes: int = 0

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens of decode passes over their time."""
        return self.decode_tokens * 1e9 / self.decode_ns if self.decode_ns else None


def plain_run(
    trace: Any, cards: Any, layer_card: list[int], preset: Any, slots: int, miss: str, p2p: bool
) -> PlainRun:
    """The run: `slots` experts a layer, the first ones at the start; `miss` is fetch (admitted) or cpu (never)."""
    shape, found = trace.geometry, PlainRun([], 0, 0)
    # The hottest, which is the first, came in last.
    lru = [[layer * shape.experts + i for i in reversed(range(slots))] for layer in range(shape.n_layers)]
    bits = 8 * shape.expert_bytes[0] / shape.expert_params if shape.expert_params else 0
    for number in range(trace.n_passes):
        phase, took, at = int(trace.pass_phase[number]), 0, 0
        if shape.dense_only_bytes:
            took += over(shape.dense_only_bytes, rate(cards[0].gpu.dense_gb_per_s.default))
        first, end = trace.pass_event_offsets[number], trace.pass_event_offsets[number + 1]
        for event in range(first, end):
            layer = int(trace.event_layer[event])
            card = layer_card[layer]
            rows = int(trace.event_rows[event])
            if card != at:
                took += hand_off(cards[at : card + 1], rows * (shape.handoff_bytes or 4 * shape.hidden_size), p2p)
                at = card
            took += dense_part(shape, cards[card], preset, layer, rows, bits)
            took += us(cards[card].gpu.sync_us) + us(preset.plan_us)
            if phase != 0:
                took += (rows - 1) * us(preset.row_us)
            lo, hi = trace.event_offsets[event], trace.event_offsets[event + 1]
            members = list(zip(trace.keys[lo:hi].tolist(), trace.rows_wanting[lo:hi].tolist(), strict=True))
            resident = set(lru[layer])
            hits = [n for key, n in members if key in resident]
            missed = [n for key, n in members if key not in resident]
            size = shape.expert_bytes[layer]
            if miss == "fetch":
                took += fetch(cards[card], preset, shape, size, hits, missed)
                found.fetched_bytes += size * len(missed)
                lru[layer] = [key for key in lru[layer] if key not in dict(members)] + [key for key, _ in members]
                lru[layer] = lru[layer][-slots:]
            else:
                took += beside(cards, card, preset, shape, size, hits, missed)
            took += us(preset.combine_us)
        if shape.head_bytes:
            took += over(shape.head_bytes, rate(cards[layer_card[-1]].gpu.dense_gb_per_s.default))
        took += us(preset.pass_us)
        if phase == 2:
            took += (int(trace.event_rows[first]) - 1) * us(preset.draft_us)
        found.pass_ns.append(took)
        if phase != 0:
            found.decode_ns += took
            found.decode_tokens += int(trace.pass_emits[number])
    return found


def hand_off(cards: Any, nbytes: int, p2p: bool) -> int:
    """Rows go from the last card but one to the last: at the slower of their two links."""
    names = ("p2p_us", "p2p_gb_per_s") if p2p else ("handoff_us", "handoff_gb_per_s")
    times = []
    for card in cards[-2:]:
        fixed, speed = (getattr(card.link, name) for name in names)
        times.append(us(fixed) + over(nbytes, rate(speed)))
    return max(times)


def dense_part(shape: Any, card: Any, preset: Any, layer: int, rows: int, bits: float) -> int:
    """The bytes at the card's rate with their launches, or the arithmetic of many rows."""
    nbytes = shape.dense_bytes[layer]
    reading = over(nbytes, rate(card.gpu.dense_gb_per_s.default))
    graph = preset.kernels.value * us(card.gpu.kernel_us) if preset.kernels else 0
    reading += round(preset.dense_launches.value * us(card.gpu.launch_us) + graph)
    if rows == 1 or not bits:
        return reading
    return max(reading, rows * int(2 * 8 * nbytes / bits) // round(card.gpu.compute_tflops.value * 1000))


def group(card: Any, preset: Any, shape: Any, nbytes: int, rows: int) -> int:
    """Some experts that a card computes in one go."""
    launch = round(preset.expert_launches.value * us(card.gpu.launch_us))
    reading = over(nbytes, rate(card.gpu.expert_gb_per_s.default))
    arithmetic = rows * 2 * shape.expert_params // round(card.gpu.compute_tflops.value * 1000)
    return launch + max(reading, arithmetic)


def fetch(card: Any, preset: Any, shape: Any, size: int, hits: list[int], missed: list[int]) -> int:
    """The card computes residents, then what has landed: a FIFO link that was idle."""
    each = max(over(size, rate(card.link.h2d_gb_per_s)), us(card.link.submit_us))
    landed = [us(card.link.copy_t0_us) + (i + 1) * each for i in range(len(missed))]
    now = group(card, preset, shape, size * len(hits), sum(hits)) if hits else 0
    at = 0
    while at < len(missed):
        now = max(now, landed[at])
        upto = at
        while upto < len(missed) and landed[upto] <= now:
            upto += 1
        now += group(card, preset, shape, size * (upto - at), sum(missed[at:upto]))
        at = upto
    return now


def beside(cards: Any, card: int, preset: Any, shape: Any, size: int, hits: list[int], missed: list[int]) -> int:
    """The CPU computes the misses one by one, beside the card or after it."""
    on_card = group(cards[card], preset, shape, size * len(hits), sum(hits)) if hits else 0
    if not missed:
        return on_card
    cpu = cards[0].cpu
    flop = round(cpu.gflops.value)
    reading = over(size, rate(cpu.expert_gb_per_s.pinned.default))
    pool = us(cpu.dispatch_us) + sum(max(reading, n * 2 * shape.expert_params // flop) for n in missed)
    return max(on_card, pool) if preset.overlap else on_card + pool
