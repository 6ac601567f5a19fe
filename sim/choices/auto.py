"""Capacity `auto`: what the VRAM of each card leaves beside dense weights, context and the engine's reserve.

On one card this is the budget that `residency vram` prints. Of several, each holds the dense weights of its own
layers and the whole context, the last one also output head and draft layer, as `residency split --carve` has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from expert_residency.errors import MisfitError, SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.units import format_bytes
from expert_residency.hwmodels.vram import STAGE_RESERVE_BYTES
from expert_residency.sim.choices.capacity import Auto, Capacity
from expert_residency.sim.choices.vram import card_budget
from expert_residency.traces import ModelGeometry


def left_on_cards(
    capacity: Capacity, geometry: ModelGeometry, profiles: Sequence[HardwareProfile], layers_each: Sequence[int]
) -> Capacity:
    """The same scope with bytes of each card, never more than the experts of its layers take.

    Parameters
    ----------
    capacity
        One that is `auto`.
    geometry
        The model; its dense weights must be known.
    profiles, layers_each
        Machine and MoE layers of each card.

    Raises
    ------
    SimError
        A model whose dense weights or context are not known.
    MisfitError
        A card that has not room for these alone.
    """
    asked = capacity.auto
    assert asked is not None
    if not any(geometry.dense_bytes):
        raise SimError(
            f"capacity auto: the sizes of {geometry.label} lack its dense weights; name the model "
            "(--model, residency list models)"
        )
    last = max(card for card, n in enumerate(layers_each) if n)
    first = next(card for card, n in enumerate(layers_each) if n)
    room, begin = [], 0
    for card, (profile, n) in enumerate(zip(profiles, layers_each, strict=True)):
        part = slice(begin, begin + n)
        begin += n
        if not n:
            room.append(0)
            continue
        own = replace(
            geometry,
            layer_ids=geometry.layer_ids[part],
            expert_bytes=geometry.expert_bytes[part],
            dense_bytes=geometry.dense_bytes[part],
            dense_only_bytes=geometry.dense_only_bytes if card == first else 0,
            head_bytes=geometry.head_bytes if card == last else 0,
        )
        left = _left(own, profile, replace(asked, draft=asked.draft and card == last))
        left -= 0 if card == first else STAGE_RESERVE_BYTES
        if left < 0:
            raise MisfitError(
                f"{profile.gpu.name}: nothing is left for experts; dense weights, context and reserve need "
                f"{format_bytes(-left)} more"
            )
        room.append(min(left, own.all_expert_bytes) * asked.percent // 100)
    return capacity.in_bytes(room, _assumption(asked, room))


def _left(geometry: ModelGeometry, profile: HardwareProfile, asked: Auto) -> int:
    try:
        return card_budget(
            geometry, profile, context=asked.context, kv_type=asked.kv, kv_resident=asked.kv_resident,
            draft=asked.draft, session_bytes=asked.session, reserve_bytes=asked.reserve,
        ).cache_bytes  # fmt: skip
    except SimError as error:
        raise SimError(f"capacity auto: {error} (auto:session=600MiB)") from None


def _assumption(asked: Auto, room: Sequence[int]) -> str:
    if asked.session is not None:
        context = f"a context of {format_bytes(asked.session)}"
    else:
        streamed = f", {asked.kv_resident:,} cells a layer resident" if asked.kv_resident else ""
        context = f"a context of {asked.context:,} tokens ({asked.kv} KV{streamed})"
        context += " with the draft layer where there is one" if asked.draft else " without a draft layer"
    reserve = (
        "the reserve of the profile" if asked.reserve is None else f"a reserve of {format_bytes(asked.reserve)}"
    )
    left = " + ".join(map(format_bytes, room))
    part = "" if asked.percent == 100 else f", {asked.percent} % of what is"
    return f"capacity auto: {left}{part} left beside dense weights, {context} and {reserve}"
