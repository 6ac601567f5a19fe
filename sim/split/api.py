"""`split`: the planner as a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.units import parse_size
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import read_names
from expert_residency.sim.split.layers.study import LayerStudy, study_layers
from expert_residency.sim.split.study import Question, SplitStudy, sets_of_cards, study
from expert_residency.traces import RoutingTrace


def split(
    trace: RoutingTrace,
    model: str,
    gpus: str | Sequence[str],
    *,
    count: int | tuple[int, int] | None = None,
    quants: Sequence[str] = (),
    engine: str = "llama.cpp",
    machine: str | None = None,
    ram: str | None = None,
    session: str | None = None,
    **choices: Any,
) -> SplitStudy | LayerStudy:
    """Place a model on one to four cards and host memory.

    Parameters
    ----------
    trace
        Whose routing gives the hit curve; of the model's shape.
    model, quants
        Packaged model or file; its default quantization unless others are named.
    gpus, count
        Profile names, `"a+b"` or a sequence; with `count` (or a range), copies of one card or selections of
        several.
    engine
        Preset. Engines that place whole layers (llama.cpp) give a `LayerStudy`, the others a `SplitStudy`.
    machine, ram
        Profile whose processor, memory and drive the cards share (the first card's by default), and other RAM.
    session
        What the context occupies on each card, as `1GiB`, for models it is not known of.
    choices
        Further fields of `sim.split.study.Question`.

    Returns
    -------
    SplitStudy or LayerStudy
        Every placement that was planned, the best of them simulated; of a `LayerStudy` all.

    Raises
    ------
    SimError, TraceError, HardwareError
        Anything that is not valid.
    """
    names = list(read_names("gpus", gpus))
    low, high = count if isinstance(count, tuple) else (count, count)
    preset = load_engine(engine)
    choices.setdefault("kv_type", preset.kv_type)
    if preset.places == "experts":
        choices.setdefault("miss", "cpu" if engine == "generic" else preset.miss)
    question = Question(
        model=model,
        quants=tuple(quants) or (None,),
        cards=sets_of_cards(names, low, high),
        host=machine or names[0],
        ram_bytes=None if ram is None else parse_size(ram),
        session_bytes=None if session is None else parse_size(session),
        engine=engine,
        **choices,
    )
    profiles = {name: load_profile(name) for name in {*names, question.host}}
    profiles |= {profile.name: profile for profile in list(profiles.values())}
    return (study_layers if preset.places == "layers" else study)(question, trace, profiles)
