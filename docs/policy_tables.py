"""Tables of policies.md; `build.py` puts them there.

Only the list of policies needs no recorded traces (`bigmoe-edge/`, `granite3/`, `gptoss20b/`); the rest replays
and times all policies, which takes some minutes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from pathlib import Path

import numpy as np

from expert_residency.policies import available, create, describe
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.counts import ReplayResult
from expert_residency.sim.runs.replay import compulsory_bound, replay
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.stability import stability
from expert_residency.sim.timed.result import RunResult
from expert_residency.text import markdown
from expert_residency.traces import RoutingTrace, read_trace

MIB = 1 << 20
MACHINES = ("rtx-5070-7900x", "rtx-5060ti-5700x3d", "tesla-p40")
FIRST_REQUESTS = 6


@dataclass(frozen=True)
class Row:
    """One combination of policies."""

    eviction: str
    admission: str = "always"
    placement: str | None = None
    scope: str = "global"
    quotas: str = "equal"

    @property
    def label(self) -> str:
        """As the tables name it."""
        parts = [f"`{self.eviction}`"]
        if self.admission != "always":
            parts.append(f"admission `{self.admission}`")
        if self.placement:
            parts.append(f"start `{self.placement}`")
        if self.scope == "layer":
            parts.append("layer quotas" + (f" by `{self.quotas}`" if self.quotas != "equal" else ""))
        return ", ".join(parts)


LRU = Row("lru")
ROWS = [
    *(Row(name) for name in available("eviction")),
    Row("lfu:counts=in-cache"),
    Row("lfu:counts=decayed"),
    Row("static", placement="prompt"),
    Row("lru", scope="layer"),
    Row("lru", scope="layer", quotas="hindsight"),
    Row("lfru", scope="layer"),
    Row("lru", "cap"),
    Row("lru", "fraction"),
    Row("lru", "frequency-gate"),
    Row("lru", "hysteresis"),
    Row("lru", "two-hit"),
    Row("lru", "strata-adaptive", "prompt"),
]


@dataclass(frozen=True)
class Case:
    """A recorded trace and four capacities."""

    name: str
    file: str
    model: str | None
    mib: tuple[int, ...] | None

    def capacities(self) -> list[tuple[str, int]]:
        """Label and bytes: MiB, or eighths of all experts."""
        if self.mib:
            return [(f"{mib} MiB", mib * MIB) for mib in self.mib]
        whole = read(self).geometry.all_expert_bytes
        return [(f"{n}/8 of all experts", whole * n // 8) for n in (1, 2, 3, 4)]


CASES = (
    Case("Qwen3-30B-A3B", "bigmoe-edge/qwen.route.csv", None, (1000, 2000, 3000, 4000)),
    Case("gpt-oss-120b", "bigmoe-edge/gptoss.route.csv", None, (1000, 2000, 3000, 4000)),
    Case("granite-3.0-1b-a400m", "granite3/moe_expert_trace.json", "granite-3.0-1b-a400m", None),
    Case("gpt-oss-20b", "gptoss20b/gptoss20b_decode.npz", "gpt-oss-20b", None),
)
TIMED = CASES[:2]


@cache
def read(case: Case) -> RoutingTrace:
    """The trace; of a long one its first requests."""
    trace = read_trace(Path(os.environ["EXPERT_RESIDENCY_SHARED"], "traces", case.file), model=case.model)
    return trace.select_passes(np.asarray(trace.pass_request < FIRST_REQUESTS))


@cache
def replayed(case: Case, row: Row, nbytes: int) -> ReplayResult:
    """Counters of one cell."""
    print(f"replay {case.name} {row.label} {nbytes // MIB} MiB", file=sys.stderr)  # noqa: T201
    room = Capacity(total_bytes=nbytes, scope=row.scope, quotas=row.quotas)
    return replay(read(case), row.eviction, room, admission=row.admission, placement=row.placement)


@cache
def timed(case: Case, row: Row, nbytes: int, machine: str, miss: str = "fetch") -> RunResult:
    """Time of one cell under the generic engine."""
    print(f"run {case.name} {row.label} {nbytes // MIB} MiB {machine} {miss}", file=sys.stderr)  # noqa: T201
    room = Capacity(total_bytes=nbytes, scope=row.scope, quotas=row.quotas)
    names = {"eviction": row.eviction, "admission": row.admission, "placement": row.placement}
    return simulate(read(case), RunSpec((machine,), room, miss=miss, **names))


def hit_rate(case: Case, row: Row, nbytes: int) -> float:
    """Decode hit rate, distinct, in %."""
    return 100 * (replayed(case, row, nbytes).phases["decode"].hit_rate or 0.0)


def misses(case: Case, row: Row, nbytes: int) -> int:
    """Distinct misses in decode."""
    counts = replayed(case, row, nbytes).phases["decode"]
    return counts.distinct - counts.distinct_hits


def available_in(case: Case, row: Row) -> bool:
    """A start from the prompt needs a prompt in the trace."""
    return row.placement != "prompt" or bool((read(case).pass_phase == 0).any())


# ---- tables ----------------------------------------------------------------------------------------


def listing() -> str:
    """Every registered policy."""
    parts = []
    for kind in ("eviction", "admission", "prefetch", "placement"):
        rows = []
        for row in describe(kind):
            can = [word for word, has in (("oracle", row["needs_future"]), ("compiled", row["compiled"])) if has]
            parameters = ", ".join(f"`{name}={value}`" for name, value in row["parameters"].items())
            rows.append((f"`{row['name']}`", row["summary"], parameters, ", ".join(can), row["source"]))
        parts.append(f"### {kind.capitalize()}\n\n")
        parts.append(markdown(("name", "what it does", "parameters", "can", "source"), rows) + "\n\n")
    return "".join(parts).rstrip()


def hits() -> str:
    """Decode hit rates of all rows on all traces, and misses relative to LRU."""
    parts = []
    for case in CASES:
        trace, rooms = read(case), case.capacities()
        note = f" (first {FIRST_REQUESTS} requests)" if case.name == "gpt-oss-20b" else ""
        cycle = trace.geometry.token_cycle_bytes / MIB
        parts.append(
            f"### {case.name}{note}\n\n{trace.n_passes} passes; one token's experts {cycle:.0f} MiB of "
            f"{trace.geometry.all_expert_bytes / MIB:.0f} MiB; an endless cache hits "
            f"{100 * compulsory_bound(trace):.1f} % (prefill included).\n\n"
        )
        table = []
        for row in ROWS:
            if available_in(case, row):
                ratios = [misses(case, row, n) / misses(case, LRU, n) for _, n in rooms]
                rates = [hit_rate(case, row, n) for _, n in rooms]
                cells = (f"{rate:.1f} ({ratio:.2f})" for rate, ratio in zip(rates, ratios, strict=True))
                table.append((row.label, *cells))
        parts.append(markdown(("policy", *(label for label, _ in rooms)), table) + "\n\n")
    return "".join(parts).rstrip()


def speeds() -> str:
    """Decoded tokens a second of all rows on three machines."""
    parts = []
    for case in TIMED:
        for machine in MACHINES:
            rooms = case.capacities()
            table = []
            for row in ROWS:
                results = [timed(case, row, n, machine) for _, n in rooms]
                cells = (f"{r.tokens_per_s or 0:.1f} ({100 * (r.decode_hit_rate() or 0):.1f})" for r in results)
                table.append((row.label, *cells))
            parts.append(f"### {case.name} on {machine}\n\n")
            parts.append(markdown(("policy", *(label for label, _ in rooms)), table) + "\n\n")
    return "".join(parts).rstrip()


def inversion() -> str:
    """Pairs of causal policies of which the one with more hits is slower; the slowest such pair, and why."""
    machine, worst, most = MACHINES[0], None, 1.0
    count = total = 0
    causal = [
        row for row in ROWS if not create("eviction", row.eviction).needs_future and row.eviction != "static"
    ]
    for case in TIMED:
        for label, n in case.capacities():
            runs = [(row, timed(case, row, n, machine, "cpu")) for row in causal]
            for (one, a), (other, b) in permutations(runs, 2):
                if (a.decode_hit_rate() or 0) <= (b.decode_hit_rate() or 0):
                    continue
                total += 1
                faster = (b.tokens_per_s or 0) / (a.tokens_per_s or 1)
                count += faster > 1
                clear = 100 * ((a.decode_hit_rate() or 0) - (b.decode_hit_rate() or 0)) >= 1
                if clear and faster > most:
                    most, worst = faster, (case, label, [(one, a), (other, b)])
    if worst is None:
        return "Nowhere: in all cells the policy with more hits was the faster one."
    case, label, pair = worst
    causes = [cause for cause, ms in pair[0][1].causes_ms_per_token().items() if ms]
    table = []
    for row, result in pair:
        spent = result.causes_ms_per_token()
        filled = result.link_bytes["h2d_adapt"] / result.decode_tokens / MIB
        cells = [f"{spent[cause] or 0:.2f}" for cause in causes]
        rate = f"{100 * (result.decode_hit_rate() or 0):.1f}"
        table.append((row.label, rate, f"{result.tokens_per_s:.1f}", *cells, f"{filled:.0f}"))
    head = ("policy", "hit %", "tokens/s", *(f"{cause} ms" for cause in causes), "filled MiB a token")
    return (
        f"Of {total} pairs of causal policies on {machine}, in {count} the one with more hits is slower. "
        f"The slowest of those with at least a point more: {case.name}, {label}.\n\n" + markdown(head, table)
    )


@dataclass(frozen=True)
class Claim:
    """A published order of two policies."""

    text: str
    source: str
    fewer: Row
    more: Row


BY_LAYER = Row("lru", scope="layer")
DECAYED, PERFECT = Row("lfu:counts=decayed"), Row("lfu")
HYSTERESIS, TIER = Row("lru", "hysteresis"), Row("lru", "strata-adaptive", "prompt")
HINDSIGHT, PROMPT = Row("static"), Row("static", placement="prompt")
CLAIMS = (
    Claim("LFRU, less than LRU", "Infernix (0.78 to 0.85); arXiv 2608.07911 (12 of 13)", Row("lfru"), LRU),
    Claim("ARC, less than LRU", "Infernix (0.78 to 0.95)", Row("arc"), LRU),
    Claim("S3-FIFO, less than LRU", "Infernix (0.85 to 0.92); moe-speed-of-light", Row("s3fifo"), LRU),
    Claim("SLRU, less than LRU", "Infernix (0.72 to 0.94)", Row("slru"), LRU),
    Claim("decayed frequency, less than LRU", "moe-speed-of-light", DECAYED, LRU),
    Claim("LRU, less than perfect LFU", "moe-speed-of-light, from E/4 on", LRU, PERFECT),
    Claim("LRU, less than SIEVE", "Infernix (SIEVE 1.65 to 2.17)", LRU, Row("sieve")),
    Claim("LRU, less than CLOCK", "JustVugg/colibri #1092 (1.5 points of hits)", LRU, Row("clock")),
    Claim("LRU, less than W-TinyLFU", "Infernix, window 1 %, 16 to 33 % residency", LRU, Row("wtinylfu")),
    Claim("LRU, less than a hindsight set", "moe-speed-of-light", LRU, HINDSIGHT),
    Claim("LRU, less than the prompt's set", "no published figure", LRU, PROMPT),
    Claim("LRU, less than the adaptive tier", "Infernix (tier 1.01 to 1.25)", LRU, TIER),
    Claim("a global LRU, less than layer quotas", "Infernix (quotas 1.03 to 1.34)", LRU, BY_LAYER),
    Claim("every miss copied by decayed score, less than a hysteresis gate", "moe-speed-of-light notes (19 of 27)",
          DECAYED, HYSTERESIS),
    Claim("HOBBIT, less than LRU", "HOBBIT (4.7 to 8.7 % less penalty)", Row("hobbit"), LRU),
    Claim("HOBBIT, less than LFU", "HOBBIT (2.1 to 4.2 % less penalty)", Row("hobbit"), PERFECT),
    Claim("MoE-Infinity's value, less than LRU", "MoE-Infinity", Row("moe-infinity"), LRU),
)  # fmt: skip


def claims() -> str:
    """Published orders against ours."""
    rows = []
    for claim in CLAIMS:
        cells = []
        for case in CASES:
            if not (available_in(case, claim.fewer) and available_in(case, claim.more)):
                cells.append(["-"])
                continue
            cells.append(
                [f"{misses(case, claim.fewer, n) / misses(case, claim.more, n):.2f}" for _, n in case.capacities()]
            )
        known = [float(cell) for row in cells for cell in row if cell != "-"]
        agree = sum(ratio < 1 for ratio in known)
        verdict = "yes" if agree == len(known) else "no" if agree == 0 else f"in {agree} of {len(known)}"
        rows.append((claim.text, claim.source, *(" ".join(row) for row in cells), verdict))
    return markdown(("fewer misses", "published by", *(case.name for case in CASES), "ours agree"), rows)


SIZES = (
    (1, 100),
    (1, None),
    (2, None),
    (5, None),
    (10, 50),
    (10, 150),
    (10, None),
    (20, 150),
    (20, None),
    (50, None),
)
RANKED = ("lru", "fifo", "lfu", "lfru", "clock", "s3fifo", "arc", "slru", "random")


def length() -> str:
    """How many requests and tokens a ranking needs."""
    case = next(case for case in CASES if case.name == "gpt-oss-20b")
    file = Path(os.environ["EXPERT_RESIDENCY_SHARED"], "traces", case.file)
    parts = stability(read_trace(file, model=case.model), RANKED, (0.125, 0.25, 0.5), SIZES, simulator="kernel")
    heads = ("requests", "tokens of each", "tokens", "pairs in order %", "worst part %", "best one loses, points")
    return markdown(
        heads,
        (
            (
                str(part.requests), "all" if part.tokens_each is None else f"first {part.tokens_each}",
                f"{part.tokens:,.0f}", f"{100 * part.in_order:.1f}", f"{100 * part.worst:.1f}",
                f"{100 * part.lost:.2f}",
            )
            for part in parts
        ),
    )  # fmt: skip
