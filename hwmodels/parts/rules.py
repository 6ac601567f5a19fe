"""From data sheet to figure: the shares and times that machines put together from parts are given.

Each rule is a number of `priors.csv`: what it was before any run (`prior`, with one standard deviation of its
logarithm), and its value by the measured rows that ship (`residency validate --group machine` tells what the rows
of *other* machines make of it, machine by machine). A number that no row speaks of keeps its prior.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

CODEBOOKS = ("iq1", "iq2", "iq3")
"""Families of which a processor looks weights up, which costs its cores time."""
OLD_CORES = ("zen1", "haswell", "broadwell", "skylake")
"""Designs of which a core gets through less."""
ARCHITECTURES = (
    ("sm_6", "pascal"), ("sm_7", "turing"), ("sm_89", "ada"), ("sm_8", "ampere"), ("sm_", "blackwell"),
    ("gfx9", "gcn"), ("gfx", "rdna"), ("apple", "apple"),
)  # fmt: skip
_HALF = 3.0
"""Exponent with which memory and cores limit a pool together: at equal limits 0.79 of either."""


@dataclass(frozen=True)
class Prior:
    """One number.

    Parameters
    ----------
    name
        Unit last, where it has one.
    value
        By all shipped rows.
    prior, spread
        Before any row, and one standard deviation of its logarithm.
    source
        What the prior rests on.
    """

    name: str
    value: float
    prior: float
    spread: float
    source: str


@cache
def priors() -> dict[str, Prior]:
    """All of them by name."""
    text = resources.files("expert_residency.hwmodels").joinpath("parts", "priors.csv").read_text("utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        r["name"]: Prior(r["name"], float(r["value"]), float(r["prior"]), float(r["spread"]), r["source"])
        for r in rows
    }


def architecture_of(name: str) -> str:
    """The group of a card's architecture: kernels and clocks of one are alike."""
    return next((group for start, group in ARCHITECTURES if name.startswith(start)), "other")


@dataclass(frozen=True)
class Rules:
    """The rules, as they ship or with some numbers replaced.

    Parameters
    ----------
    values
        Numbers by name instead of those that ship.
    """

    values: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        found = self.values.get(name)
        return priors()[name].value if found is None else found

    def card_share(self, arch: str) -> float:
        """Of a card's bandwidth that kernels read dense weights at, launches apart."""
        return self["card share"] * self[f"card share {architecture_of(arch)}"]

    def launch_us(self, arch: str) -> float:
        """What a dependent launch takes on a card of this architecture."""
        return self["launch us"] * self[f"launch {architecture_of(arch)}"]

    def pool_gb_per_s(
        self, theory: float, workers: float, simd: str, sockets: int, *, codebook: bool = False, old: bool = False
    ) -> float:
        """Rate at which a pool reads experts: memory and cores limit it together.

        Parameters
        ----------
        theory
            Of the memory, GB/s, all channels of all processors.
        workers
            Cores that work, all processors; a half is half a core's time.
        simd, sockets
            Of the processor, and how many.
        codebook
            Whether weights are looked up.
        old
            Whether its cores are of a design before Zen 2 and Golden Cove.

        Returns
        -------
        float
            GB/s.
        """
        memory = theory * self["memory share"] * self[f"memory {simd}"]
        if sockets > 1:
            memory *= self["second socket"]
        cores = workers * self["core GB/s"] * (self["core codebook"] if codebook else 1.0)
        cores *= self["core old"] if old else 1.0
        return float((memory**-_HALF + cores**-_HALF) ** (-1 / _HALF))

    def busy(self, workers: int, cores: int) -> float:
        """Cores' worth of a pool: threads beyond the cores share them."""
        return min(workers, cores) + self["sibling"] * max(0, min(workers, 3 * cores) - cores)

    def spread_of(self, *names: str) -> float:
        """Standard deviation of the logarithm of what is made of several numbers, before any row."""
        return math.sqrt(sum(priors()[name].spread ** 2 for name in names))
