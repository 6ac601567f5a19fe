"""What a run is worth: which cause binds it, how it ranks, how much of the possible gain it takes.

Everything ranks by time. Hit rates stand beside it, never in its place.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.result import CAUSES, RunResult

BINDS = {
    "gpu_dense": "the card's dense part (attention, shared weights, head)",
    "gpu_experts": "the card computing experts",
    "cpu_wait": "the CPU computing experts that are not on the card",
    "pcie_wait": "the link: waiting for experts to be copied to the card",
    "disk_wait": "the disk: waiting for experts to be read",
    "sync": "synchronisation and planning between host and card",
    "handoff": "hand-offs between cards",
    "overhead": "fixed work of every pass (sampling, commit)",
}
"""What each cause of time means in words."""


def binding_sentence(result: RunResult) -> str:
    """The largest cause of a run's time, in one sentence.

    Time is that of all passes but prefills; of all passes where there is nothing else.
    """
    decode = result.pass_phase != 0
    chosen = decode if decode.any() else decode | True
    sums = result.pass_causes[chosen].sum(axis=0).tolist()
    return _binding(dict(zip(CAUSES, sums, strict=True)))


def _binding(causes_ns: Mapping[str, float]) -> str:
    total = sum(causes_ns.values())
    if total <= 0:
        return "Nothing binds: no time has passed."
    ranked = sorted(causes_ns, key=lambda cause: (-causes_ns[cause], CAUSES.index(cause)))
    first, second = ranked[0], ranked[1]
    sentence = f"What binds is {BINDS[first]}: {100 * causes_ns[first] / total:.0f} % of the time"
    if causes_ns[second] * 10 >= total:
        sentence += f"; next is {BINDS[second]}, {100 * causes_ns[second] / total:.0f} %"
    return sentence + "."
