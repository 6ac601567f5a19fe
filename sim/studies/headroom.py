"""How fast could this machine be? One limit at a time is lifted, and the one that gives most binds.

`perfect prefetch`: the fastest oracle run on the same link and slots, which is no bound (see `time_bound`).
`endless cache`: every expert resident from the start. `no fixed costs`: kernel launches, host syncs, copy set-up,
dispatch, planning and per-pass work cost nothing. `all three` is the floor: dense weights and experts at the
card's rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.bounds import baseline_spec, perfect_prefetch, time_ns
from expert_residency.sim.timed.binding import binding_sentence
from expert_residency.sim.timed.result import RunResult
from expert_residency.traces import RoutingTrace

NOTHING = Quantity(value=0.0, kind="assumed", source="ceiling: fixed costs lifted")
ENDLESS = Quantity(value=1e6, kind="assumed", source="ceiling: room for every expert")


@dataclass(frozen=True)
class Ceiling:
    """One run with a limit lifted (`limit` is empty for the run as it is)."""

    limit: str
    result: RunResult

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        return {
            "lifted": self.limit or None,
            "tokens_per_s": self.result.tokens_per_s,
            "ms_per_token": self.result.ms_per_token,
            "total_ns": self.result.total_ns,
            "binds": binding_sentence(self.result),
        }


def ceilings(trace: RoutingTrace, spec: RunSpec) -> list[Ceiling]:
    """The run as it is, then with each limit lifted, then with all."""
    profiles = [load_profile(name) for name in spec.hardware]
    preset = load_engine(spec.engine)
    roomy = [_roomy(profile) for profile in profiles]
    lean = [_lean(profile) for profile in profiles]
    everything = replace(
        baseline_spec(spec), placement="hindsight",
        capacity=Capacity(slots_per_layer=trace.geometry.experts, scope=spec.capacity.scope),
    )  # fmt: skip
    return [
        Ceiling("", simulate(trace, spec)),
        Ceiling("perfect prefetch", perfect_prefetch(trace, spec)),
        Ceiling("endless cache", simulate(trace, everything, profiles=roomy)),
        Ceiling("no fixed costs", simulate(trace, spec, profiles=lean, preset=_lean_preset(preset))),
        Ceiling(
            "all three",
            simulate(trace, everything, profiles=[_roomy(p) for p in lean], preset=_lean_preset(preset)),
        ),
    ]


def binding_limit(found: Sequence[Ceiling]) -> str:
    """Which single limit costs most, in one sentence."""
    now = time_ns(found[0].result)
    best = min(found[1:-1], key=lambda ceiling: time_ns(ceiling.result))
    gain = now / time_ns(best.result)
    if gain < 1.02:
        floor = now / time_ns(found[-1].result)
        return (
            f"No single limit binds: lifting any of them gains less than 2 % (all together {floor:.2f}x). "
            f"{binding_sentence(found[0].result)}"
        )
    return f"The binding limit is what {best.limit!r} lifts: without it the run is {gain:.2f}x as fast."


def _roomy(profile: HardwareProfile) -> HardwareProfile:
    return profile.model_copy(
        update={"gpu": profile.gpu.model_copy(update={"vram_total_gib": ENDLESS, "vram_usable_gib": ENDLESS})}
    )


def _lean(profile: HardwareProfile) -> HardwareProfile:
    return profile.model_copy(
        update={
            "gpu": profile.gpu.model_copy(update={"launch_us": NOTHING, "sync_us": NOTHING}),
            "link": profile.link.model_copy(update={"copy_t0_us": NOTHING, "submit_us": NOTHING}),
            "cpu": profile.cpu.model_copy(update={"dispatch_us": NOTHING}),
        }
    )


def _lean_preset(preset: EnginePreset) -> EnginePreset:
    return preset.model_copy(
        update=dict.fromkeys(
            ("plan_us", "combine_us", "dense_launches", "expert_launches", "kernels", "pass_us"), NOTHING
        )
    )
