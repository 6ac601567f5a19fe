"""What a card has left for experts: model, machine and context put into the budget of `hwmodels.vram`."""

from __future__ import annotations

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.ram import HostBudget, host_budget
from expert_residency.hwmodels.vram import Line, VramBudget, Weights, vram_budget
from expert_residency.sim.choices.session import session_lines, session_shape, streamed_kv_bytes
from expert_residency.traces import ModelGeometry


def card_budget(
    geometry: ModelGeometry,
    profile: HardwareProfile,
    *,
    context: int = 4096,
    kv_type: str = "int8",
    kv_resident: int = 0,
    draft: bool = True,
    session_bytes: int | None = None,
    reserve_bytes: int | None = None,
) -> VramBudget:
    """Budget of a card that runs the whole model.

    Parameters
    ----------
    geometry, profile
        The model in one quantization, and the machine.
    context, kv_type, kv_resident
        Tokens, storage of a KV cell, cells a layer kept on the card (0: all).
    draft
        With the draft layer, its head and its KV, where the model has one.
    session_bytes
        Size of the context, for models whose context is not known line by line.
    reserve_bytes
        Kept free, instead of the profile's reserve.

    Raises
    ------
    SimError, TraceError
        A context that is not known, an unknown KV type, too few resident cells.
    """
    dense = sum(geometry.dense_bytes) + geometry.dense_only_bytes
    if session_bytes is not None:
        weights = Weights(dense, geometry.head_bytes)
        lines = [Line("session", session_bytes, "as asked")]
        return vram_budget(profile.gpu, weights, lines, reserve_bytes=reserve_bytes)
    shape = session_shape(geometry)
    layer = shape.draft if draft else None
    weights = Weights(
        dense, geometry.head_bytes, layer.head_bytes if layer else 0, layer.layer_bytes if layer else 0
    )
    lines = session_lines(shape, context, kv_type=kv_type, kv_resident=kv_resident, draft=draft)
    return vram_budget(profile.gpu, weights, lines, reserve_bytes=reserve_bytes)


def ram_budget(
    geometry: ModelGeometry,
    profile: HardwareProfile,
    *,
    held_bytes: int,
    pin: bool = True,
    context: int = 0,
    kv_type: str = "int8",
    kv_resident: int = 0,
) -> HostBudget:
    """Host memory with `held_bytes` of experts in RAM: page-locked KV first, then experts, then the page cache."""
    first = []
    if kv_resident and context:
        nbytes = streamed_kv_bytes(session_shape(geometry), context, kv_type=kv_type, kv_resident=kv_resident)
        first.append(Line("streamed KV, page-locked", nbytes, "context less the cells on the card"))
    return host_budget(profile.ram, held_bytes, pin=pin, pinned_first=first)
