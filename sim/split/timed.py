"""The best placements on the timed engine: the same split, slots, host mode and RAM, simulated on the trace.

The engine's caches start by a profile of other texts where the engine does so, else as the hit curve's do (full,
by expert number), and the same share of the passes only warms up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import GIB
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.split.curve import WARM_SHARE
from expert_residency.sim.split.placement import Placement
from expert_residency.traces import Phase, RoutingTrace


@dataclass(frozen=True)
class Simulated:
    """What the engine found.

    Parameters
    ----------
    tokens_per_s, ms_a_pass
        After the warm-up.
    hit_rate
        Distinct look-ups ready in VRAM, over the whole run; None without decode look-ups.
    admission
        Policy that let misses in.
    """

    tokens_per_s: float
    ms_a_pass: float
    hit_rate: float | None
    admission: str


def simulate_placement(
    placement: Placement,
    trace: RoutingTrace,
    profiles: dict[str, HardwareProfile],
    host: HardwareProfile,
    *,
    engine: str = "generic",
    miss: str = "cpu",
    p2p: bool = False,
    kv_type: str | None = None,
    preset: EnginePreset | None = None,
    depth: int = 0,
) -> Simulated:
    """Run `trace` on a placement.

    Parameters
    ----------
    placement
        Cards, layers and slots.
    trace
        The trace from which the hit curve was measured, with the placement's byte sizes.
    profiles
        Of the cards, by name; processor, memory and drive are taken from `host`.
    host
        Profile of processor, memory and drive.
    engine
        Preset.
    miss
        Miss mode.
    p2p
        Whether cards hand over peer to peer.
    kv_type
        Storage of a KV cell, which attention reads.
    preset
        In the place of the one that `engine` names.
    depth
        Tokens behind each request before the trace begins.

    Returns
    -------
    Simulated
        Its speed, hit rate and admission policy.

    Raises
    ------
    SimError
        A placement with a store card, which the engine does not have; or what the engine refuses.
    """
    if placement.store is not None:
        raise SimError("the engine has no store cards, so the placement is estimated only")
    shared = {"cpu": host.cpu, "dram": host.dram, "ram": host.ram, "disk": host.disk}
    cards = [profiles[stage.card.name].model_copy(update=shared) for stage in placement.stages]
    mode: str = placement.ram.mode
    if mode == "budget":
        mode = f"budget:gib={min(placement.ram.experts_bytes, host.ram.pin_limit_bytes) / GIB:.6f}"
    # What no card holds lies once: such a host allows exchanges only, which the engine Strata makes.
    exchanges = placement.ram.mode in ("resident", "budget")
    admission = load_engine(engine).policy.get("admission", "strata-adaptive" if exchanges else "always")
    slots = [n for stage in placement.stages for n in stage.slots]
    layer_bytes = tuple(n * size for n, size in zip(slots, trace.geometry.expert_bytes, strict=True))
    spec = RunSpec(
        hardware=tuple(card.name for card in cards),
        capacity=Capacity(scope="layer", layer_bytes=layer_bytes),
        layers_each=placement.layers_each,
        admission=admission,
        placement=load_engine(engine).policy.get("placement", "full"),
        engine=engine,
        miss=miss,
        host=mode,
        p2p=p2p,
        kv_type=kv_type,
        depth=depth,
    )
    result = simulate(trace, spec, profiles=cards, preset=preset)
    decode = np.flatnonzero(trace.pass_phase != Phase.PREFILL)
    counted = decode[int(len(decode) * WARM_SHARE) :]
    ns, tokens = int(result.pass_ns[counted].sum()), int(result.pass_emits[counted].sum())
    return Simulated(tokens * 1e9 / ns, ns / len(counted) / 1e6, result.decode_hit_rate(), admission)
