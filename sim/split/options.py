"""What a user sets for a placement of single experts, in the words of the engine's knobs."""

from __future__ import annotations

import math

from expert_residency.hwmodels.units import GIB, MIB
from expert_residency.sim.choices.knob import flag_of
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.split.placement import Placement


def placement_text(placement: Placement, preset: EnginePreset, miss: str) -> str:
    """The engine's options that make a placement; plain words for what it has no option for.

    Parameters
    ----------
    placement
        Layers, slots and host mode.
    preset
        The engine, with its knobs.
    miss
        Who serves a miss.

    Returns
    -------
    str
        At least the size of the expert cache.
    """
    nbytes, slots, mode = placement.vram_expert_bytes, placement.slots, placement.ram.mode
    gib = placement.ram.experts_bytes / GIB
    cache = f"expert cache {math.ceil(nbytes / MIB)} MiB ({slots} experts)"
    split = f"layers {'+'.join(map(str, placement.layers_each))}" if len(placement.stages) > 1 else ""
    texts = {"capacity": cache, "first_card": split}
    for knob in preset.knobs.values():
        if knob.sets == "capacity":
            sizes = {"mib": math.ceil(nbytes / MIB), "gib": nbytes / GIB, "slots": slots}
            texts["capacity"] = flag_of(knob, 1.0, **sizes)
        elif knob.sets == "first_card" and len(placement.stages) == 2:
            texts["first_card"] = flag_of(knob, placement.layers_each[0])
        elif knob.sets == "host" and mode != knob.default:
            texts["host"] = flag_of(knob, mode, gib=gib)
        elif knob.sets == "miss" and miss != knob.default:
            texts["miss"] = flag_of(knob, miss)
    joined = list(filter(None, texts.values()))
    return (" " if all(text.startswith("-") for text in joined) else ", ").join(joined)
