"""What the words of a report mean, one sentence each: tooltips of headings, filters and marks."""

from __future__ import annotations

from expert_residency.sim.choices.spec import FIELDS

CAUSE_WORDS = {
    "gpu_dense": "GPU, dense part",
    "gpu_experts": "GPU, experts",
    "cpu_wait": "waiting for the CPU",
    "pcie_wait": "waiting for PCIe",
    "disk_wait": "waiting for the disk",
    "sync": "sync, planning",
    "handoff": "hand-off",
    "overhead": "fixed, every pass",
    "draft": "drafting",
    "adapt": "exchanging residents",
}
CAUSE_MEANINGS = {
    "gpu_dense": "the card computes attention, shared weights and the output head",
    "gpu_experts": "the card computes routed experts",
    "cpu_wait": "the card waits for experts that the processor computes",
    "pcie_wait": "the card waits for experts on their way over the link",
    "disk_wait": "the card waits for experts that are read from the drive",
    "sync": "the engine finds out what is missing and plans the copies",
    "handoff": "activations move from one card to the next",
    "overhead": "what the engine spends on every pass, whatever is resident",
    "draft": "the draft model proposes tokens",
    "adapt": "residents are exchanged while nothing else runs",
}
BOUND = "no schedule, whatever it knows of the future, is faster on this machine with this cache"
FORESIGHT = "the best of the policies that see the future; a schedule may still beat it"
MEANINGS = {
    "rank": "place by time among the cells of the same trace; policies that see the future have none",
    "tokens_per_s": "tokens decoded a second; prompts are left out",
    "seeds_interval": "95 % interval (Student's t) of the mean over seeds, each another drawn workload",
    "ms_per_token": "decoding time over decoded tokens",
    "ms_per_pass_p95": "95 of 100 decode passes take no longer",
    "of_bound": f"least time over its own. The bound: {BOUND}",
    "headroom": "share of what can be gained over the baseline that this takes: 0 is the baseline, 100 % the "
    "bound on time; empty where less than 2 % can be gained",
    "of_best": f"speed over that of foresight at the same cache: {FORESIGHT}",
    "hit_rate": "share of wanted experts that were in VRAM when their layer was decided; not a measure of speed",
    "capacity_gib": "VRAM for experts on all cards together",
    "room": "VRAM for experts on all cards together",
    "vram_gib": "cache, staging ring and all other weights on all cards",
    "cycles": "cache over the bytes of the experts that one token touches: below 1 a token evicts itself",
    "of_base": "speed over that of the baseline with all else equal",
    "trace": "recorded or drawn routing that is replayed",
    "scenario": "named bundle of choices of the sweep file",
    "model": "whose byte sizes are used",
    "hardware": "machine profiles, one a card",
    "layers_each": "MoE layers of each card",
    "passes": "forward passes simulated",
    "scope": "one pool a card (global), or a quota for every layer",
    "oracle": "an upper bound for what a policy can learn, not a candidate",
    "ratio": "geometric mean over traces of the speed over that of the baseline with all else equal; a trace "
    "counts once, however many cells it has",
    "interval": "95 % of 400 draws of whole requests with replacement, from each trace apart: what other requests "
    "of these traces would say, not other traces; none below 5 requests in a trace",
    "wins": "traces on which no policy has a higher ratio",
    "over_bound": "geometric mean over traces of the least time over its own",
    "policy": "eviction, admission and prefetch",
} | {name: field.help for name, field in FIELDS.items() if name not in ("hardware", "layers_each")}
"""By column of the page, or mark."""
