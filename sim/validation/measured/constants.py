"""The numbers that rows decide: rates as shares of data sheets and fixed times, each with a prior and its spread.

Few, shared by all machines of a group, and never of one row: `fit` takes them from the rows of *other* machines.
A group that no row speaks of keeps its prior.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expert_residency.sim.validation.measured.arrays import FloatArray

ARCHITECTURES = ("pascal", "turing", "ampere", "ada", "blackwell", "rdna", "gcn", "apple", "other")
FAMILIES = ("codebook", "low", "q4", "mxfp4", "wide")
SIMDS = ("avx2", "avx512", "amx", "neon")


@dataclass(frozen=True)
class Constant:
    """One number.

    Parameters
    ----------
    name
        In the order of `CONSTANTS`.
    prior, spread
        Before any row: the number, and one standard deviation of its logarithm.
    source
        What the prior rests on.
    """

    name: str
    prior: float
    spread: float
    source: str


_SLOWER = {"pascal": 2.5, "turing": 1.3, "rdna": 2.0, "gcn": 4.0, "apple": 2.0}
"""Launches and dependent kernels beside those of newer NVIDIA cards: older clocks, drivers without graphs."""
CONSTANTS = (
    Constant("card share", 0.77, 0.12, "0.77-0.79 of the data sheet on an RTX 5070 and an RTX 5060 Ti"),
    *(Constant(f"card share {name}", 1.0, 0.2, "as other cards") for name in ARCHITECTURES),
    *(Constant(f"card experts {name}", 1.0, 0.15, "as dense weights") for name in FAMILIES),
    Constant("attention share", 0.75, 0.2, "as weights; 0.56-0.74 on a DGX Spark"),
    Constant("block us", 40.0, 0.4, "about ten dependent kernels of 4 us (launch time of an RTX 5070 Ti)"),
    *(Constant(f"slower {name}", _SLOWER.get(name, 1.0), 0.35, "clocks and drivers") for name in ARCHITECTURES),
    Constant("several cards ms", 1.0, 0.5, "graphs are not captured over cards; hand-offs 0.03-0.12 ms"),
    Constant("pass ms", 0.3, 0.5, "sampling and commit 0.5 ms a window (Strata)"),
    Constant("memory share", 0.62, 0.2, "0.24 to 0.67 of theory in reports; 0.6-0.67 of three desktop processors"),
    *(Constant(f"memory {name}", 1.0, 0.15, "as others") for name in SIMDS),
    Constant("core GB/s", 5.0, 0.35, "3.4 to 4.1 with llama.cpp; 7.4 a core of a Ryzen 5 7600"),
    *(
        Constant(f"core {name}", 0.55 if name == "codebook" else 1.0, 0.25, "Q2_0 at 41, IQ2_XS at 22 GB/s")
        for name in FAMILIES
    ),
    Constant("core of strata", 1.3, 0.3, "its pool splits rows, not experts"),
    Constant("mapped", 0.75, 0.25, "arena to warm mapped file 1.3 to 1.8 on two processors"),
    Constant(
        "complement",
        0.65,
        0.25,
        "15.5 beside 27.4 GB/s out of the page cache, 33.7 out of an arena, on two processors",
    ),
    Constant("second socket", 0.6, 0.3, "35-40 of 110.8 GB/s without placement, 67 with it"),
    Constant("one node", 0.25, 0.4, "one of four nodes' channels"),
    Constant("split us", 118.0, 0.25, "ik_llama.cpp PR 232"),
    Constant("link share", 0.92, 0.1, "queued copies of 1-3 MB beside the probe's large ones"),
    Constant("copied block us", 50.0, 0.4, "as a block, graphs broken by copies"),
    Constant("window layer us", 130.0, 0.4, "14.6 ms a window of 48 layers on an RTX 5070, weights and rows off"),
    *(Constant(f"window slower {name}", 1.0, 0.25, "as launches of other engines") for name in ARCHITECTURES),
    Constant("window row us", 45.0, 0.3, "2.99 ms a row over 48 layers on an RTX 5070 Ti"),
    Constant("row by arithmetic", 0.6, 0.4, "exponent: rows are arithmetic in part"),
    Constant("window host us", 25.0, 0.4, "planning, quantizing, jobs 0.5-1.2 ms over 48 layers"),
    Constant("virtual us", 100.0, 0.7, "a doorbell through WSL2's paravirtual driver"),
    Constant("draft ms", 1.0, 0.3, "0.55 to 1.3 ms a draft on three cards"),
    Constant("drafts go on", 0.8, 0.06, "2.1 drafts a window of four rows at a floor of 0.5"),
    Constant("drafts accepted", 0.72, 0.06, "2.4 to 3.6 tokens a window"),
    Constant("hits odds", 1.3, 0.4, "generated routing beside engines' counts"),
    Constant("hits slope", 1.2, 0.2, "the same"),
    Constant("first odds", 0.4, 0.4, "19-42 % after a start, then 70 % (Strata)"),
    Constant("link share of misses", 0.55, 0.2, "read in the source: 0.55 on a fast link"),
)
"""All of them."""
NAMES = tuple(one.name for one in CONSTANTS)
INDEX = {name: number for number, name in enumerate(NAMES)}
PRIORS: FloatArray = np.array([one.prior for one in CONSTANTS])
SPREADS: FloatArray = np.array([one.spread for one in CONSTANTS])


def group(prefix: str, members: tuple[str, ...]) -> slice:
    """Where the constants of a group stand, one a member."""
    first = INDEX[f"{prefix} {members[0]}"]
    return slice(first, first + len(members))
