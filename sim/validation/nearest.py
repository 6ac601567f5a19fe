"""The measured runs that an answer is nearest to, how far the model is off there, and what was never compared.

Runs alike in engine, cards, processor, model, quantization and knobs stand together. How far off is what
`validate` says of them with profiles and presets as they stand, nothing of the machine fitted; where a constant
was derived from their own report they are not held out, and that is said.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.runs import load_measured_runs, load_strata_runs
from expert_residency.sim.validation.llamacpp import predict_llamacpp
from expert_residency.sim.validation.published import predict_published
from expert_residency.sim.validation.rows import MODELS

ASPECTS = ("model", "card", "engine", "processor", "quantization")
"""In what two runs can be alike, the weightiest first."""
WEIGHTS = dict(zip(ASPECTS, (8, 6, 4, 3, 2), strict=True))
ENGINES = {
    "strata-0.1.31": "strata", "strata-reference": "strata", "bigmoe-edge": "bigmoeonedge",
    "ncmoe": "llama.cpp", "freetoken-hybrid": "freetoken",
}  # fmt: skip
"""Presets that are called otherwise than the engine in its reports."""
NOBODYS = ("generic", "fetch-lru")
"""Presets of no engine in particular."""
SHOWN = 3


@dataclass(frozen=True)
class Measured:
    """Runs of one engine, machine, model, quantization and way to run.

    Parameters
    ----------
    engine, card, cards, processor, model, quantization, knobs
        As published.
    tok_s
        Speeds measured.
    errors
        Predicted over measured speed less 1, of the runs that can be predicted.
    held_out
        Whether no constant was derived from the report of any of those.
    """

    engine: str
    card: str
    cards: int
    processor: str
    model: str
    quantization: str
    knobs: str
    tok_s: tuple[float, ...]
    errors: tuple[float, ...]
    held_out: bool

    @property
    def off(self) -> float | None:
        """Median absolute error; None if none of the runs could be predicted."""
        return statistics.median(map(abs, self.errors)) if self.errors else None

    def to_dict(self) -> dict[str, Any]:
        """Plain form with `median_error`."""
        return asdict(self) | {"median_error": self.off}


@dataclass(frozen=True)
class Trust:
    """What stands behind an answer.

    Parameters
    ----------
    nearest
        Measured runs, the nearest first, with in what they are alike.
    never
        Aspects of the answer of which no measured run was ever predicted, in words, and whether one was measured.
    """

    nearest: list[tuple[Measured, tuple[str, ...]]] = field(default_factory=list)
    never: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain form."""
        rows = [run.to_dict() | {"alike": list(alike)} for run, alike in self.nearest]
        return {"nearest": rows, "never_compared": self.never}


def _plain_card(name: str) -> str:
    """`RTX 4090 Laptop 16GB 175 W` and `NVIDIA GeForce RTX 4090 Laptop` are one card."""
    text = re.sub(r"nvidia|geforce|amd|pcie|\(.*|\b\d+ ?gb\b.*", " ", name.lower())
    return " ".join(text.split())


def _plain_cpu(name: str) -> str:
    """What names a processor: `Ryzen 5 7600 (6c AVX-512)` is a Ryzen 5 7600."""
    text = re.sub(r"\(.*|\bamd\b|\bintel\b|\bcore\b|\d+-core.*|\b\d+c\b.*", " ", name.lower())
    return " ".join(text.split())


def _plain_model(name: str) -> str:
    """Fine-tunes are their base."""
    name = MODELS.get(name, name)
    return re.sub(r"[\s_]+", "-", re.sub(r"\s*\(.*|-gguf$", "", name.lower()).strip())


def _plain_quant(name: str) -> str:
    words = name.upper().removeprefix("CODER ").split()
    return words[0] if words else ""


@cache
def measured() -> tuple[Measured, ...]:
    """All shipped runs with a speed, alike ones together."""
    found: dict[tuple[str, str, int, str, str, str, str], tuple[list[float], list[float], list[bool]]] = {}

    def add(
        key: tuple[str, str, int, str, str, str, str], tok_s: float, error: float | None = None, held: bool = True
    ) -> None:
        speeds, errors, free = found.setdefault(key, ([], [], []))
        speeds.append(tok_s)
        if error is not None:
            errors.append(error)
            free.append(held)

    predicted = {
        id(row.window.run): row for machine in predict_published(load_strata_runs())[0] for row in machine.rows
    }
    for made in predicted.values():
        run = made.window.run
        key = ("Strata", run.gpu, run.n_gpus, run.cpu, run.model, run.quant, run.mode)
        add(key, run.tok_s or 0.0, made.error, not made.seen_by)
    for run in load_strata_runs():
        key = ("Strata", run.gpu, run.n_gpus, run.cpu, run.model, run.quant, run.mode)
        if run.tok_s is not None and key not in found:
            add(key, run.tok_s)
    for one in predict_llamacpp():
        llama = one.run
        where = "all experts on the card" if llama.n_cpu_moe == "0" else f"--n-cpu-moe {llama.n_cpu_moe}"
        where = "no card" if llama.n_cpu_moe == "cpu" else where
        add(("llama.cpp", llama.gpu, 1, llama.cpu, llama.model, llama.quant, where), llama.tok_s, one.error)
    for row in load_measured_runs():
        if row.kind in ("run", "resident"):
            add((row.engine, row.gpu, row.n_gpus, row.cpu, row.model, row.quant, row.mode), row.tok_s)
    return tuple(
        Measured(*key, tuple(speeds), tuple(errors), all(free)) for key, (speeds, errors, free) in found.items()
    )


def _alike(run: Measured, model: str, quant: str, profiles: Sequence[HardwareProfile], engine: str) -> set[str]:
    cards, cpu = {_plain_card(profile.gpu.name) for profile in profiles}, _plain_cpu(profiles[0].cpu.name)
    same = {
        "model": _plain_model(run.model) == _plain_model(model),
        "card": {_plain_card(card) for card in run.card.split(" + ")} == cards,
        "engine": run.engine.lower().split()[0] == ENGINES.get(engine, engine),
        "processor": bool(cpu) and _plain_cpu(run.processor) == cpu,
        "quantization": bool(quant) and _plain_quant(run.quantization) == _plain_quant(quant),
    }
    return {aspect for aspect, equal in same.items() if equal}


def trust(label: str, profiles: Sequence[HardwareProfile], engine: str, n: int = SHOWN) -> Trust:
    """The measured runs nearest to an answer.

    Parameters
    ----------
    label
        Model and quantization, `NAME/QUANT`.
    profiles
        One a card; the first one's processor is the machine's.
    engine
        Preset.
    n
        How many groups of runs.

    Returns
    -------
    Trust
        Groups that are alike in model or card at least; those that can be predicted come before equally near ones.
    """
    model, _, quant = label.partition("/")
    ranked: list[tuple[tuple[int, int], Measured, tuple[str, ...]]] = []
    compared: set[str] = set()
    known: set[str] = set()
    for run in measured():
        alike = _alike(run, model, quant, profiles, engine)
        known |= alike
        if run.errors:
            compared |= alike
        if alike & {"model", "card"}:
            weight = sum(WEIGHTS[aspect] for aspect in alike) + (run.cards == len(profiles)) + 2 * bool(run.errors)
            order = tuple(aspect for aspect in ASPECTS if aspect in alike)
            ranked.append(((weight, len(run.tok_s)), run, order))
    ranked.sort(key=lambda item: item[0], reverse=True)
    words = {
        "model": model,
        "card": " + ".join(dict.fromkeys(profile.gpu.name for profile in profiles)),
        "engine": engine,
        "processor": profiles[0].cpu.name,
        "quantization": quant or "that is not named",
    }
    none = {"engine"} if engine in NOBODYS else set()
    never = [
        f"{aspect} {words[aspect]} ({'measured, not predicted' if aspect in known else 'not measured'})"
        for aspect in ASPECTS
        if aspect not in compared | none
    ]
    return Trust([(run, alike) for _, run, alike in ranked[:n]], never)
