"""What binds a run: the largest cause of its time, in words."""

from __future__ import annotations

from collections.abc import Mapping

from expert_residency.sim.timed.result import CAUSES, RunResult

BINDS = {
    "gpu_dense": "the card's dense part (attention, shared weights, head)",
    "gpu_experts": "the card computing experts",
    "cpu_wait": "the CPU computing experts that are not on the card",
    "pcie_wait": "the link: waiting for experts to be copied to the card",
    "disk_wait": "the disk: waiting for experts to be read",
    "sync": "synchronisation and planning between host and card",
    "handoff": "hand-offs between cards",
    "overhead": "fixed work of every pass (sampling, commit)",
    "draft": "drafting tokens for the next window",
    "adapt": "the exchange of residents between passes",
}
"""What each cause of time means in words."""


def binding_sentence(result: RunResult) -> str:
    """The largest cause of a run's time, in one sentence.

    Time is that of all passes but prefills; of all passes where there is nothing else.
    """
    decode = result.pass_phase != 0
    chosen = decode if decode.any() else decode | True
    sums = result.pass_causes[chosen].sum(axis=0).tolist()
    return binding_of(dict(zip(CAUSES, sums, strict=True)))


def binding_of(causes: Mapping[str, float]) -> str:
    """The largest of these causes, and the next if it counts, in one sentence."""
    total = sum(causes.values())
    if total <= 0:
        return "Nothing binds: no time has passed."
    ranked = sorted(causes, key=lambda cause: (-causes[cause], CAUSES.index(cause)))
    first, second = ranked[0], ranked[1]
    sentence = f"What binds is {BINDS[first]}: {100 * causes[first] / total:.0f} % of the time"
    if causes[second] * 10 >= total:
        sentence += f"; next is {BINDS[second]}, {100 * causes[second] / total:.0f} %"
    return sentence + "."
