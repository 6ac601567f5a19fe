"""What a timed run found: times, causes, shares, bytes. Plain data, no engine in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

CAUSES = (
    "gpu_dense", "gpu_experts", "cpu_wait", "pcie_wait", "disk_wait", "sync", "handoff", "overhead", "draft",
    "adapt",
)  # fmt: skip
"""Where a pass's time goes. Every nanosecond of it has exactly one cause."""
DENSE, EXPERTS, CPU_WAIT, PCIE_WAIT, DISK_WAIT, SYNC, HANDOFF, OVERHEAD, DRAFT, ADAPT_WAIT = range(len(CAUSES))

TIERS = ("vram", "in_flight", "pcie", "cpu_pinned", "cpu_pageable", "cpu_page_cache", "disk")
"""From where an expert was served. `in_flight`: its copy was under way and was waited for; `disk`: it had to be
read from the drive, whoever then computed it."""
T_VRAM, T_IN_FLIGHT, T_PCIE, T_CPU_PINNED, T_CPU_PAGEABLE, T_CPU_PAGE_CACHE, T_DISK = range(len(TIERS))

PHASES = ("prefill", "decode", "verify")


FATES = ("useful", "late", "wasted", "cancelled")
"""What becomes of a copy that a prefetcher asked for; each has exactly one of them."""


@dataclass
class PrefetchStats:
    """What became of the copies that a prefetcher asked for, by one definition for every command.

    Of all copies asked for, `issued = useful + late + wasted + cancelled`, in copies and in bytes; and so for the
    reads of the drive that they caused (`drive_...`), in whole pages. Under the insertion rule `pages` what is
    asked for is the read itself, and nothing passes the link.
    """

    proposed: int = 0
    """Wanted experts, resident ones included."""
    issued: int = 0
    """Copies asked for."""
    issued_bytes: int = 0
    useful: int = 0
    """Landed before they were wanted."""
    useful_bytes: int = 0
    late: int = 0
    """Wanted before they had landed."""
    late_bytes: int = 0
    wasted: int = 0
    """Moved, then evicted or left unused."""
    unused_bytes: int = 0
    """Of the wasted copies."""
    cancelled: int = 0
    """Dropped before they had begun on the link."""
    cancelled_bytes: int = 0
    drive_issued: int = 0
    drive_issued_bytes: int = 0
    drive_useful: int = 0
    drive_useful_bytes: int = 0
    drive_late: int = 0
    drive_late_bytes: int = 0
    drive_wasted: int = 0
    """Reads of which something was read for nothing; of a read that was stopped, the rest is cancelled bytes."""
    drive_wasted_bytes: int = 0
    drive_cancelled: int = 0
    drive_cancelled_bytes: int = 0
    refused: int = 0
    """No room that might be taken."""
    over_budget: int = 0
    """Refused because the pass had asked for its bytes."""
    polluted: int = 0
    """Misses on experts that had left for a prefetched one; one miss at most for each such eviction."""
    polluted_bytes: int = 0
    blocking_bytes: int = 0
    """Of prefetches in service, on a link or the drive, that nobody waited for while demands stood behind them."""
    blocked_ns: int = 0
    """How long demands stood so: copies and reads are not preemptive."""
    wanted: int = 0
    """Look-ups that were not resident on their own account: prefetched ones and misses."""
    pages: bool = False
    """Whether what is asked for are pages of the file (insertion rule `pages`), no copies."""

    def ask(self, nbytes: int) -> None:
        """A copy is asked for."""
        self.issued += 1
        self.issued_bytes += nbytes

    def ask_drive(self, nbytes: int) -> None:
        """It makes the drive read."""
        self.drive_issued += 1
        self.drive_issued_bytes += nbytes

    def useful_copy(self, nbytes: int, read_bytes: int) -> None:
        """It had landed when it was wanted."""
        self.useful += 1
        self.useful_bytes += nbytes
        if read_bytes:
            self.drive_useful += 1
            self.drive_useful_bytes += read_bytes

    def late_copy(self, nbytes: int, read_bytes: int) -> None:
        """It was wanted before it had landed."""
        self.late += 1
        self.late_bytes += nbytes
        self.late_read(read_bytes)

    def late_read(self, read_bytes: int) -> None:
        """Somebody wanted what the drive is reading for it."""
        if read_bytes:
            self.drive_late += 1
            self.drive_late_bytes += read_bytes

    def wasted_copy(self, nbytes: int, read_bytes: int) -> None:
        """It was moved for nothing."""
        self.wasted += 1
        self.unused_bytes += nbytes
        self.wasted_read(read_bytes, read_bytes)

    def cancelled_copy(self, nbytes: int, read_bytes: int, begun_bytes: int) -> None:
        """It was dropped before it had begun on the link.

        Parameters
        ----------
        nbytes
            Of the copy.
        read_bytes, begun_bytes
            That it asked of the drive, and what of that had been begun.
        """
        self.cancelled += 1
        self.cancelled_bytes += nbytes
        self.wasted_read(read_bytes, begun_bytes)

    def wasted_read(self, read_bytes: int, begun_bytes: int) -> None:
        """What the drive read for a copy that nobody had; the rest of the read was stopped.

        Without `read_bytes` nothing counts: there was no read, or a demand had joined it, which made it late.
        """
        if not read_bytes:
            return
        if begun_bytes:
            self.drive_wasted += 1
            self.drive_wasted_bytes += begun_bytes
        else:
            self.drive_cancelled += 1
        self.drive_cancelled_bytes += read_bytes - begun_bytes

    @property
    def wasted_bytes(self) -> int:
        """Bytes moved or read for nothing, over all channels: of wasted copies, and of cancelled ones' reads."""
        return self.drive_wasted_bytes + (0 if self.pages else self.unused_bytes)

    @property
    def harmful_bytes(self) -> int:
        """Bytes that made demands wait, on a link, the drive or because of whom they displaced.

        What prefetching takes from others' share of a rate is not in it: compare times for that.
        """
        return self.polluted_bytes + self.blocking_bytes

    @property
    def recall(self) -> float | None:
        """Share of what would have been missed that was prefetched (in time or late)."""
        return (self.useful + self.late) / self.wanted if self.wanted else None

    @property
    def precision(self) -> float | None:
        """Share of the copies asked for that were wanted (in time or late); cancelled ones count."""
        return (self.useful + self.late) / self.issued if self.issued else None

    @property
    def timeliness(self) -> float | None:
        """Share of used copies that had landed in time."""
        used = self.useful + self.late
        return self.useful / used if used else None

    def channels(self) -> dict[str, dict[str, int]]:
        """Of link and drive, copies or reads and their bytes: issued, and by what became of them."""
        drive = {}
        for name in ("issued", *FATES):
            drive[name] = int(getattr(self, f"drive_{name}"))
            drive[f"{name}_bytes"] = int(getattr(self, f"drive_{name}_bytes"))
        link = {name: 0 if self.pages else int(getattr(self, name)) for name in ("issued", *FATES)}
        for name in link.copy():
            nbytes = self.unused_bytes if name == "wasted" else int(getattr(self, f"{name}_bytes"))
            link[f"{name}_bytes"] = 0 if self.pages else nbytes
        return {"link": link, "drive": drive}

    def to_dict(self) -> dict[str, Any]:
        """Plain form with the three ratios (None where undefined), and the accounts of each channel."""
        plain = {
            name: value for name, value in vars(self).items() if name != "pages" and not name.startswith("drive_")
        }
        return plain | {
            "wasted_bytes": self.wasted_bytes,
            "recall": self.recall,
            "precision": self.precision,
            "timeliness": self.timeliness,
            "harmful_bytes": self.harmful_bytes,
            "channels": self.channels(),
        }


@dataclass
class RunResult:
    """One timed run.

    Parameters
    ----------
    pass_ns : (P,)
        Time of each pass.
    pass_causes : (P, causes)
        The same, by cause; rows add up to `pass_ns` exactly.
    pass_phase, pass_emits, pass_request : (P,)
        As in the trace.
    served_distinct, served_routed : (phases, tiers)
        Look-ups by tier, once an event and once a row.
    link_bytes
        Bytes moved: `h2d_demand`, `h2d_adapt`, `h2d_prefetch`, `d2h`, `disk`, `cpu`.
    prefetch
        What became of prefetched copies.
    start_bytes
        Copied before the clock starts, to make the placement true.
    load_ns
        Reading the experts into RAM before the clock starts, for hosts that hold them there.
    """

    manifest: dict[str, Any]
    pass_ns: npt.NDArray[np.int64]
    pass_causes: npt.NDArray[np.int64]
    pass_phase: npt.NDArray[np.int8]
    pass_emits: npt.NDArray[np.int32]
    pass_request: npt.NDArray[np.int64]
    served_distinct: npt.NDArray[np.int64]
    served_routed: npt.NDArray[np.int64]
    link_bytes: dict[str, int]
    prefetch: PrefetchStats
    evictions: int
    admitted_bytes: int
    waves: int
    start_bytes: int
    gpu_bytes: int
    resident_end: npt.NDArray[np.uint8]
    load_ns: int = 0
    simulator: str = "reference"
    """Who computed it, `reference` or `kernel`; in no file, since both give the same."""
    warnings: list[str] = field(default_factory=list)
    caveats: list[str] = field(default_factory=list)
    """What the run stands on, as `sim.choices.caveats` finds it: `kind: text`."""

    @property
    def total_ns(self) -> int:
        """Time of all passes."""
        return int(self.pass_ns.sum())

    def _decode(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.pass_phase != 0)

    @property
    def decode_ns(self) -> int:
        """Time of all passes but prefills."""
        return int(self.pass_ns[self._decode()].sum())

    @property
    def decode_tokens(self) -> int:
        """Tokens emitted by all passes but prefills."""
        return int(self.pass_emits[self._decode()].sum())

    @property
    def tokens_per_s(self) -> float | None:
        """Decoded tokens over decoding time; None without a decode pass."""
        return self.decode_tokens * 1e9 / self.decode_ns if self.decode_ns else None

    @property
    def ms_per_token(self) -> float | None:
        """Decoding time over decoded tokens; None without any."""
        return self.decode_ns / self.decode_tokens / 1e6 if self.decode_tokens else None

    def requests(self) -> list[dict[str, Any]]:
        """Passes, tokens and time of each request, in the order in which they begin; what is undefined is None."""
        numbers, first, at = np.unique(self.pass_request, return_index=True, return_inverse=True)
        decode = self._decode()
        columns: dict[str, Any] = {
            "passes": np.ones_like(at), "tokens": self.pass_emits, "decode_tokens": self.pass_emits * decode,
            "prefill_ns": self.pass_ns * ~decode, "decode_ns": self.pass_ns * decode,
        }  # fmt: skip
        sums = {name: np.zeros(len(numbers), dtype=np.int64) for name in columns}
        for name, values in columns.items():
            np.add.at(sums[name], at, values)
        found = []
        for i in np.argsort(first):
            row = {"request": int(numbers[i])} | {name: int(column[i]) for name, column in sums.items()}
            ns = row["decode_ns"]
            found.append(row | {"tokens_per_s": row["decode_tokens"] * 1e9 / ns if ns else None})
        return found

    def percentile_ms(self, q: float) -> float | None:
        """Percentile of the time of a decode pass, in ms."""
        chosen = self.pass_ns[self._decode()]
        return float(np.percentile(chosen, q)) / 1e6 if len(chosen) else None

    def shares(self, phase: str | None = None, *, routed: bool = False) -> dict[str, float | None]:
        """Share of look-ups by tier over one phase (all by default); they add up to 1."""
        table = self.served_routed if routed else self.served_distinct
        counts = table.sum(axis=0) if phase is None else table[PHASES.index(phase)]
        total = int(counts.sum())
        return {tier: (int(n) / total if total else None) for tier, n in zip(TIERS, counts, strict=True)}

    def decode_hit_rate(self) -> float | None:
        """Share of distinct look-ups outside prefill that were ready in VRAM."""
        counts = self.served_distinct[1:].sum(axis=0)
        return int(counts[T_VRAM]) / int(counts.sum()) if counts.sum() else None

    def causes_ms_per_token(self) -> dict[str, float | None]:
        """Decoding time a token by cause, in ms; they add up to `ms_per_token`."""
        sums = self.pass_causes[self._decode()].sum(axis=0)
        tokens = self.decode_tokens
        return {
            cause: (int(ns) / tokens / 1e6 if tokens else None) for cause, ns in zip(CAUSES, sums, strict=True)
        }

    def frame(self) -> pd.DataFrame:
        """One row a pass: `request`, `pass_of_request` (from 0), `phase`, `emits` (tokens), `ms`, and its causes
        as `CAUSE_ms`, which add up to `ms`.
        """
        import pandas as pd

        frame = pd.DataFrame({"request": self.pass_request})
        frame["pass_of_request"] = frame.groupby("request").cumcount()
        frame["phase"] = [PHASES[phase] for phase in self.pass_phase.tolist()]
        frame["emits"] = self.pass_emits
        frame["ms"] = self.pass_ns / 1e6
        for i, cause in enumerate(CAUSES):
            frame[f"{cause}_ms"] = self.pass_causes[:, i] / 1e6
        frame.index.name = "pass"
        return frame

    def to_dict(self, *, passes: bool = False) -> dict[str, Any]:
        """JSON-able form: no NaN, no Infinity; undefined figures are None. `passes` adds the per-pass tables."""
        found: dict[str, Any] = {
            "manifest": self.manifest,
            "tokens": int(self.pass_emits.sum()),
            "decode_tokens": self.decode_tokens,
            "total_ns": self.total_ns,
            "decode_ns": self.decode_ns,
            "tokens_per_s": self.tokens_per_s,
            "ms_per_token": self.ms_per_token,
            "ms_per_pass_p50": self.percentile_ms(50),
            "ms_per_pass_p95": self.percentile_ms(95),
            "ms_per_pass_p99": self.percentile_ms(99),
            "requests": self.requests(),
            "causes_ms_per_token": self.causes_ms_per_token(),
            "causes_ns": dict(zip(CAUSES, self.pass_causes.sum(axis=0).tolist(), strict=True)),
            "served_distinct": _table(self.served_distinct),
            "served_routed": _table(self.served_routed),
            "shares_distinct": self.shares(),
            "shares_routed": self.shares(routed=True),
            "decode_hit_rate": self.decode_hit_rate(),
            "link_bytes": self.link_bytes,
            "prefetch": self.prefetch.to_dict(),
            "evictions": self.evictions,
            "admitted_bytes": self.admitted_bytes,
            "waves": self.waves,
            "start_bytes": self.start_bytes,
            "load_ns": self.load_ns,
            "warnings": self.warnings,
            "caveats": self.caveats,
        }
        if passes:
            found["pass_ns"] = self.pass_ns.tolist()
            found["pass_causes_ns"] = self.pass_causes.tolist()
        return found


def compared(requests: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of `RunResult.requests`, those whose decoding is compared: with `tokens` and `ns` of it; if none decodes, of
    all their passes.
    """
    rows = list(requests)
    decoding = [row for row in rows if row["decode_ns"]]
    return [{"tokens": row["decode_tokens"], "ns": row["decode_ns"]} for row in decoding] or [
        {"tokens": row["tokens"], "ns": row["prefill_ns"]} for row in rows
    ]


def _table(counts: npt.NDArray[np.int64]) -> dict[str, dict[str, int]]:
    return {
        phase: dict(zip(TIERS, row.tolist(), strict=True))
        for phase, row in zip(PHASES, counts, strict=True)
        if row.any()
    }
