"""What the run of a measured row chose: engine, where experts lie, share over the link, workers, context."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

from expert_residency.hwmodels.runs import MeasuredRun
from expert_residency.hwmodels.units import MIB

Where = Literal["card", "fit", "layers", "slots", "cpu", "link"]
ENGINES = {
    "llama.cpp": "llama.cpp", "ollama": "llama.cpp", "ToshLLM": "llama.cpp", "Strata": "strata",
    "PolyStrata": "strata", "ktransformers": "ktransformers", "krasis": "krasis", "moe-l2": "moe-l2",
    "BigMoeOnEdge": "bigmoe-edge",
}  # fmt: skip
"""Engines that something is known of, by the first word of a row's; ollama and ToshLLM run llama.cpp."""
_K = 1024
_WORKERS = r"(?:(?<=pool-workers )|(?<=workers ))(\d+)|(\d+) (?:CPU )?workers"
_FEWEST_TOKENS = 32
_FIRST = r"first answer|\bcold\b|run1|^short \d+ tok"
"""The last: a report that begins with a short prompt, goes on cold with a long one, then with its sequel."""
_BENCH_OUTPUT = (0, 128)
"""Tokens written where `context/depth` is a depth, as llama-bench takes it; elsewhere it is the room reserved."""


@dataclass(frozen=True)
class Knobs:
    """Choices of a run.

    Parameters
    ----------
    engine
        Name of the engine.
    where
        Experts: all on the card; on the card as far as they `fit`, the rest on the CPU by layers; of `layers` on
        the CPU; in `slots` of the card; all on the `cpu`; or sent over the `link` every time.
    layers_on_cpu
        `--n-cpu-moe`.
    slots
        Expert slots; 0 if unknown or none.
    cache_bytes
        Size of a cache that is given in bytes; 0: not.
    hit_pct
        Share of look-ups served by the card, as measured; None: not printed.
    pcie_share
        Share of misses that goes over the link; None: the engine's own.
    workers
        Threads of the pool; 0: not said.
    one_node
        Whether all threads stayed on one NUMA node.
    mapped
        Whether experts were read from a mapped file, not from a copy in memory.
    depth
        Tokens of context that decoding has behind it, about.
    floor
        Draft probability below which drafting stops.
    window
        Most rows of a verify window.
    tokens
        Tokens that a window gave, as measured; None: not printed.
    complement
        Whether memory holds only what no slot holds, in page-locked memory that experts are exchanged with.
    first
        Whether it is the first answer after a start.
    own_profile
        Whether residents were chosen by a profile of the very prompts that ran.
    budget_gib
        Memory that experts may have; 0: all that they want.
    dense
        Quantization of what is not experts, where an engine makes it itself; empty: as the row's file.
    """

    engine: str
    where: Where
    layers_on_cpu: int = 0
    slots: int = 0
    cache_bytes: int = 0
    hit_pct: float | None = None
    pcie_share: float | None = None
    workers: int = 0
    one_node: bool = False
    mapped: bool = False
    depth: int = 0
    floor: float = 0.0
    window: int = 1
    tokens: float | None = None
    complement: bool = False
    first: bool = False
    own_profile: bool = False
    budget_gib: int = 0
    dense: str = ""


def knobs_of(row: MeasuredRun) -> Knobs | str:
    """Choices of a row, or what is missing in words."""
    if row.kind == "lossy":
        return "the engine changes the routing: an upper bound only"
    if row.kind == "flagged":
        return "over-committed memory or an inert cache: to be refused, not predicted"
    engine = ENGINES.get(row.engine.split()[0])
    if engine is None or "pre-0.1" in row.engine:
        return f"no preset of the engine {row.engine}"
    if "early build" in row.mode:
        return "an early build, of whose figures the author has withdrawn a part"
    if "spec-corrupt" in row.mode:
        return "a diagnostic mode, whose processor rate is not that of serving"
    if 0 < _number(r"out (\d+)", row.workload) < _FEWEST_TOKENS:
        return "too few tokens written for a speed"
    if "power cap" in row.mode or "power cap" in row.workload:
        return "a power cap below the card's own, which no data sheet prices"
    made = Knobs(
        engine, "card", hit_pct=row.hit_rate_pct.middle if row.hit_rate_pct else None, depth=depth_of(row),
        workers=_number(_WORKERS, row.mode) or _number(_WORKERS, row.cpu),
        one_node="on one node" in row.workload, mapped="mmap" in row.mode,
    )  # fmt: skip
    return _PLACES[engine](row, made)


def depth_of(row: MeasuredRun) -> int:
    """Tokens behind a decoded one.

    `prompt P, out O, context/depth D` is a depth where llama-bench ran (O is 128, or nothing was written down) or
    the prompt is as long; elsewhere D is the room reserved, and the depth is the prompt and half of the answer.
    """
    text = row.workload
    if found := re.search(r"prompt (\d+), out (\d+), context/depth (\d+)", text):
        prompt, out, asked = (int(number) for number in found.groups())
        bench = out in _BENCH_OUTPUT and (prompt or out or asked <= 32 * _K)
        return asked if bench or prompt == asked else prompt + out // 2
    if found := re.search(r"\b(\d+(?:\.\d+)?)K\b", text):
        return round(float(found[1]) * _K)
    if found := re.search(r"\bcontext 1M\b", text):
        return 0
    if found := re.search(r"\b(\d+) (?:in|prompt|tok)\b", text):
        return int(found[1])
    return int(text) if text.isdecimal() else 0


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(next(group for group in found.groups() if group)) if found else 0


def _layers(row: MeasuredRun, knobs: Knobs) -> Knobs | str:
    if "pure CPU" in row.mode:
        return replace(knobs, where="cpu")
    if found := re.search(r"ncmoe (\d+)", row.mode):
        return replace(knobs, where="layers", layers_on_cpu=int(found[1]))
    return knobs if "all in VRAM" in row.mode else replace(knobs, where="fit")


def _strata(row: MeasuredRun, knobs: Knobs) -> Knobs | str:
    if "PolyStrata" in row.engine and "all resident" not in row.mode:
        return "a fork's release notes without the processor"
    said = f"{row.mode} {row.workload} {row.link}"
    asked = re.search(r"\bpcie(?:[-_]frac)?[ =](\d*\.\d+|[01]\b)|(pcie share not used)", said)
    floor = re.search(r"(?:draft floor|min-p) (\d*\.?\d+)", said)
    budget = re.search(r"budget(?:-gib)? (\d+)", row.mode)
    whole = "PolyStrata" in row.engine or "all experts in VRAM" in row.mode
    complement = budget or re.search(r"budget|resident-experts|complement", row.mode)
    return replace(
        knobs, where="slots", slots=_slots(row), own_profile="own prompts" in row.workload,
        hit_pct=100.0 if whole else knobs.hit_pct, pcie_share=float(asked[1] or 0) if asked else None,
        floor=float(floor[1]) if floor else 0.5, window=_number(r"\bspec (\d+)", said) or 4,
        budget_gib=int(budget[1]) if budget else 0,
        mapped=(knobs.mapped or "in place" in row.mode) and not complement,
        complement=bool(complement), first=bool(re.search(_FIRST, row.workload)),
    )  # fmt: skip


def _slots(row: MeasuredRun) -> int:
    """Of several for several contexts the one of this row: shorter contexts first."""
    found = re.match(r"([\d/]+)(?:-\d+)?(?: at [\dK/]+)? (?:slots|pairs)", row.cache)
    if found is None:
        return 0
    several = [int(number) for number in found[1].split("/")]
    return several[0] if len(several) < 3 or depth_of(row) < 32 * _K else several[1 + (depth_of(row) > 100 * _K)]


def _krasis(row: MeasuredRun, knobs: Knobs) -> Knobs | str:
    if "pure CPU" in row.mode:  # attention too (BENCHMARKS.md: bf16 since the NUMA work, INT8 before)
        return replace(knobs, where="cpu", dense="BF16")
    return (
        replace(knobs, where="layers", layers_on_cpu=1 << 15, dense="Q8_0")
        if "HCS off" in row.mode
        else ("how many experts its hot set held is not printed")
    )


def _all_on_cpu(row: MeasuredRun, knobs: Knobs) -> Knobs | str:
    return replace(knobs, where="layers", layers_on_cpu=1 << 15)


def _link(row: MeasuredRun, knobs: Knobs) -> Knobs | str:
    return replace(knobs, where="link")


def _phone(row: MeasuredRun, knobs: Knobs) -> Knobs | str:
    found = re.search(r"(\d+) MiB", row.cache)
    if found is None:
        return "the size of its cache is not printed"
    return replace(knobs, where="slots", cache_bytes=int(found[1]) * MIB)


_PLACES = {
    "llama.cpp": _layers, "strata": _strata, "ktransformers": _all_on_cpu, "krasis": _krasis, "moe-l2": _link,
    "bigmoe-edge": _phone,
}  # fmt: skip
