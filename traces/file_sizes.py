"""Packaged sizes beside what others say of the same files: what each was compared with, and how far off it is.

`models/file_sizes.csv` has a row for each comparison of a model and a quantization, by

- `file`: a file that somebody published, or a program printed the size of. Where it `differs`, a publisher's mix
  of the same name chose other types (and another publisher's may not);
- `quantizer`: llama.cpp's own `llama-quantize`, told to quantize a file of the published shapes without doing it
  (`python -m tests.quantizer_sizes` makes these rows);
- `parameters`: the number of parameters that its authors print, at 16 bits each.

`here_bytes` is the packaged size, so that the table is read without every model (a test holds them equal).
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType

from expert_residency.traces.geometry import ModelGeometry, list_models, load_model

EXACT = 0.003
"""Share up to which a size is that of the published file: what printing it to 0.01 GiB leaves of the smallest."""
_GIB = 2**30
_ORDER = ("file", "quantizer", "parameters")


@dataclass(frozen=True)
class SizeCheck:
    """What a packaged size was compared with.

    Parameters
    ----------
    model, quant
        The pair.
    by
        `file`, `quantizer`, `parameters`, or `unchecked`.
    gib
        Size of all tensors there, in GiB; 0 if unchecked.
    off
        By what share the packaged size is larger.
    differs
        Why a published file is another one; empty if it is none.
    source
        Who says so.
    """

    model: str
    quant: str
    by: str
    gib: float = 0.0
    off: float = 0.0
    differs: str = ""
    source: str = ""

    @property
    def is_the_file(self) -> bool:
        """Whether a published file has this size."""
        return self.by == "file" and abs(self.off) <= EXACT

    def sentence(self) -> str:
        """What a reader of a result must know; empty if a published file has this size."""
        label = f"{self.model}/{self.quant}"
        if self.is_the_file:
            return ""
        if self.by == "file":
            return (
                f"a published file of the name {label} has {self.gib:,.2f} GiB, the sizes here are "
                f"{100 * self.off:+.1f} % ({self.differs}): give your own file with --model"
            )
        if self.by == "parameters":
            return (
                f"the sizes of {label} are its shapes at 16 bits; the number of parameters was compared "
                f"({100 * self.off:+.1f} %), no file"
            )
        files, equal, median, worst = published_files()
        rule = f"{label} were compared with no quantizer"
        if self.by == "quantizer":  # of all such quantizations of a model the same
            rule = f"{self.model} taken here are what llama.cpp's quantizer gives"
        return (
            f"the sizes of {rule}; no published file of them was compared: of {files} others {equal} are equal, "
            f"the rest (publishers' own mixes) off by {100 * median:.1f} % in the median, {100 * worst:.1f} % at "
            "worst: give your own file with --model"
        )

    @property
    def matters(self) -> bool:
        """Whether a result on these sizes must say so: not where a file or the number of parameters is equal."""
        return not self.is_the_file and self.by != "parameters"


@cache
def size_checks() -> Mapping[tuple[str, str], tuple[SizeCheck, ...]]:
    """By packaged model and quantization: every comparison, the best first; of an unchecked pair one saying so."""
    found: dict[tuple[str, str], list[SizeCheck]] = {}
    text = (resources.files("expert_residency.traces") / "models" / "file_sizes.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(text.splitlines()):
        model, quant, gib = row["model"], row["quant"], float(row["gib"])
        off = int(row["here_bytes"]) / _GIB / gib - 1
        check = SizeCheck(model, quant, row["by"], gib, off, row["differs"], row["source"])
        found.setdefault((model, quant), []).append(check)
    return MappingProxyType(
        {
            (model, quant): tuple(
                sorted(found.get((model, quant), [SizeCheck(model, quant, "unchecked")]), key=_rank)
            )
            for model, quants in list_models().items()
            for quant in quants
        }
    )


def _rank(check: SizeCheck) -> tuple[int, bool]:
    return _ORDER.index(check.by) if check.by in _ORDER else len(_ORDER), not check.is_the_file


@cache
def published_files() -> tuple[int, int, float, float]:
    """How many files were compared, how many are equal, and how far off the others: the median and the worst."""
    files = [check for checks in size_checks().values() for check in checks if check.by == "file"]
    off = [abs(check.off) for check in files if not check.is_the_file]
    return len(files), len(files) - len(off), statistics.median(off), max(off)


def check_of(geometry: ModelGeometry) -> SizeCheck | None:
    """The comparison of the packaged sizes that a model has; None if its sizes are a file's own or someone's."""
    name = re.sub(r" \(\d+ of \d+ MoE layers\)$", "", geometry.name)
    checks = size_checks().get((name, geometry.quant))
    if checks is None or not set(geometry.expert_bytes) <= set(
        load_model(f"{name}/{geometry.quant}").expert_bytes
    ):
        return None
    return checks[0]
