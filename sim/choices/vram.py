"""What a card has left for experts: model, machine and context put into the budget of `hwmodels.vram`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.ram import HostBudget, host_budget
from expert_residency.hwmodels.vram import STAGE_RESERVE_BYTES, Line, VramBudget, Weights, vram_budget
from expert_residency.sim.choices.kv_type import KV_TYPE
from expert_residency.sim.choices.session import session_lines, session_shape, streamed_kv_bytes
from expert_residency.traces import ModelGeometry


def card_budget(
    geometry: ModelGeometry,
    profile: HardwareProfile,
    *,
    context: int = 4096,
    kv_type: str = KV_TYPE,
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


UNDIVIDED = ("buffers", "session")
"""Lines of a context that every card has whole."""


def stage_budget(
    geometry: ModelGeometry,
    profile: HardwareProfile,
    first: int,
    end: int,
    session: Sequence[Line],
    *,
    by_layer: bool = False,
    later: bool = False,
) -> VramBudget:
    """Budget of a card that runs MoE layers `first` to `end - 1`.

    Parameters
    ----------
    geometry, profile
        The model in one quantization, and the machine.
    first, end
        MoE layers, from 0; none if equal.
    session
        Lines of the context.
    by_layer
        The context lies with its layers, as in llama.cpp, and the card takes its share of it, rounded up; else
        every card has a place for the whole of it. Buffers, and what was given for each card, are never divided.
    later
        Whether the card is not the first, and keeps the reserve of a later stage where contexts are not divided.

    Returns
    -------
    VramBudget
        Lines in bytes, and what they leave for experts.
    """
    last = end == geometry.n_layers and end > first
    dense = sum(geometry.dense_bytes[first:end])
    dense += geometry.dense_only_bytes if first == 0 and end > first else 0
    lines = list(session)
    if by_layer:
        share, total = layer_span(geometry, first, end), layer_span(geometry, 0, geometry.n_layers)
        lines = [
            line if line.name in UNDIVIDED else replace(line, nbytes=-(-line.nbytes * share // total))
            for line in session
        ]
    elif later:
        lines.append(Line("stage reserve", STAGE_RESERVE_BYTES, "Strata's split, later stages"))
    return vram_budget(profile.gpu, Weights(dense, geometry.head_bytes if last else 0), lines)


def run_budgets(
    geometry: ModelGeometry,
    profiles: Sequence[HardwareProfile],
    layer_card: Sequence[int],
    *,
    tokens: int,
    kv_type: str,
    divided: bool,
    worked_out: bool = False,
) -> dict[int, VramBudget]:
    """Budget of each card that has layers, beside a run's experts.

    Parameters
    ----------
    geometry, profiles
        The model, and one profile a card.
    layer_card : (layers,)
        Card of each MoE layer.
    tokens, kv_type
        Longest context of the run, and how it is stored; a context that is not known takes nothing.
    divided
        The context lies with its layers, as in llama.cpp.
    worked_out
        The capacity was worked out from what a context leaves: it has its own, which is counted in it.

    Returns
    -------
    dict of card to VramBudget
        Bytes beside experts.
    """
    shape = None if worked_out else geometry.session_shape
    session = [] if shape is None else session_lines(shape, max(tokens, 1), kv_type=kv_type)
    found = {}
    for card in dict.fromkeys(layer_card):
        layers = [i for i, c in enumerate(layer_card) if c == card]
        found[card] = stage_budget(
            geometry, profiles[card], layers[0], layers[-1] + 1, session, by_layer=divided,
            later=card > layer_card[0] and not worked_out,
        )  # fmt: skip
    return found


def layer_span(geometry: ModelGeometry, first: int, end: int) -> int:
    """Layers of the model from MoE layer `first` up to `end`; layers without experts go with the next one."""
    ids, total = geometry.layer_ids, max(geometry.total_layers, geometry.layer_ids[-1] + 1)
    return (ids[end] if end < geometry.n_layers else total) - (ids[first] if first else 0)


def ram_budget(
    geometry: ModelGeometry,
    profile: HardwareProfile,
    *,
    held_bytes: int,
    pin: bool = True,
    context: int = 0,
    kv_type: str = KV_TYPE,
    kv_resident: int = 0,
) -> HostBudget:
    """Host memory with `held_bytes` of experts in RAM: page-locked KV first, then experts, then the page cache."""
    first = []
    if kv_resident and context:
        nbytes = streamed_kv_bytes(session_shape(geometry), context, kv_type=kv_type, kv_resident=kv_resident)
        first.append(Line("streamed KV, page-locked", nbytes, "context less the cells on the card"))
    return host_budget(profile.ram, held_bytes, pin=pin, pinned_first=first)
