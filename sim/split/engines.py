"""The same machines under one engine after another: of each set of cards the fastest simulated answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from expert_residency.errors import SimError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.sim.choices.preset import EnginePreset
from expert_residency.sim.split.layers.study import LayerAnswer, study_layers
from expert_residency.sim.split.options import placement_text
from expert_residency.sim.split.study import Answer, Question, study
from expert_residency.traces import RoutingTrace


def _layer_options(answer: LayerAnswer, preset: EnginePreset) -> str:
    """Options of whole layers; they are llama.cpp's, which other engines do not take as they stand."""
    if not answer.has_card:
        return "nothing to set: without a card there is nothing to place"
    text = answer.lines[0].text
    return text if "llama.cpp" in preset.name else f"the placement in llama.cpp's words, {text}"


def simulated_study(
    question: Question,
    preset: EnginePreset,
    trace: RoutingTrace,
    profiles: dict[str, HardwareProfile],
    progress: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """One row for each set of cards.

    Parameters
    ----------
    question, preset
        What is asked of which engine.
    trace, profiles
        As `sim.split.study.study` takes them.
    progress
        Told what is done next.

    Returns
    -------
    list of dict
        Engine, cards in order, quantization, layers of each, host mode, tokens/s, and the options that make it;
        where nothing was simulated both are None and `why` says why, `limit` what lacks and what would fit.

    Raises
    ------
    SimError, TraceError, HardwareError
        Anything in the question that is not valid.
    """
    rows = []
    for cards in question.cards:
        asked = replace(question, cards=(cards,), simulate=1)
        found = study_layers(asked, trace, profiles, progress) if preset.places == "layers" else None
        made = found or study(asked, trace, profiles, progress)
        answer = made.best
        row: dict[str, Any] = {"engine": preset.name, "cards": list(cards), "quant": None, "layers": None}
        row |= {"host": None, "tokens_per_s": None, "interval_90": None, "why": "does not fit", "options": None}
        row["limit"] = made.answers[-1].limit if answer is None else None  # of the last, the most sparing way
        if answer is not None and answer.placement is not None:
            row |= {
                "cards": list(answer.ordered), "quant": answer.geometry.quant, "host": answer.mode,
                "layers": "+".join(map(str, answer.placement.layers_each)), "why": "not simulated",
            }  # fmt: skip
            if found is not None and found.best is not None:
                if not found.best.estimated:
                    options = _layer_options(found.best, preset)
                    row |= {"tokens_per_s": answer.tokens_per_s, "why": None, "options": options}
            elif isinstance(answer, Answer) and answer.placement and answer.simulated is not None:
                options = placement_text(answer.placement, preset, question.miss)
                row |= {"tokens_per_s": answer.tokens_per_s, "why": None, "options": options}
            if row["tokens_per_s"] is not None:
                around = made.best_interval_90
                row["interval_90"] = around and around.to_dict()
        rows.append(row)
    if not rows:
        raise SimError("no set of cards to plan")
    return rows
