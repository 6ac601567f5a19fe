"""Traces in a form that every worker maps instead of reading: one uncompressed `.npy` an array.

A folder holds one trace, is named after its content, and appears whole. Workers keep the views that they used
last, so that a trace is opened once however many cells it has.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import SimError
from expert_residency.sim.choices.synthetic import synthetic_trace
from expert_residency.sim.choices.trace import NO_FILE, Reading, fit_geometry, open_trace
from expert_residency.sim.sweep.spec import TraceRef
from expert_residency.text import hash_of
from expert_residency.traces import ModelGeometry, RoutingTrace, load_model, read_trace
from expert_residency.traces.session import DraftShape, SessionShape

_ARRAYS = (
    "pass_request", "pass_phase", "pass_emits", "event_pass", "event_layer", "event_row_offsets", "row_position",
    "row_offsets", "row_experts",
)  # fmt: skip
_HEADER = "trace.json"
_OPTIONAL = ("row_weights", "row_residency")


@dataclass(frozen=True)
class View:
    """What a cell simulates of a stored trace.

    Parameters
    ----------
    folder
        Where the trace is stored.
    passes
        Its first passes only; None for all.
    model
        Another model's byte sizes; None for the trace's own.
    cold
        As `sim.runs.simulate.simulate` has it.
    """

    folder: str
    passes: int | None = None
    model: str | None = None
    cold: str = "trace"


def load_trace(ref: TraceRef | RoutingTrace, base: Path, seed: int | None = None) -> RoutingTrace:
    """Trace of a sweep: one in memory, of any format that a reader knows, `bundled:NAME`, or one that is drawn."""
    if isinstance(ref, RoutingTrace):
        return ref
    if ref.synthetic is not None:
        return synthetic_trace(ref.synthetic, ref.model, seed=seed)
    reading = Reading.of_table(ref.reading)
    if ref.path.startswith(NO_FILE):
        return open_trace(ref.path, ref.format, ref.model, reading)
    return reading.of(read_trace(base / ref.path, format=ref.format, model=ref.model, **reading.words()))


def store(trace: RoutingTrace, cache: Path) -> Path:
    """Write `trace` below `cache` unless it is there, whole and undamaged; returns its folder."""
    header = _header(trace)
    own = trace.geometry.session
    folder = cache / (trace.content_hash[:16] + (f"-{hash_of(asdict(own))}" if own else ""))
    if folder.exists() and _holds(folder, trace, header):
        return folder
    part = cache / f".{folder.name}.{os.getpid()}.part"
    try:
        shutil.rmtree(folder, ignore_errors=True)
        part.mkdir(parents=True)
        for name in _ARRAYS:
            np.save(part / f"{name}.npy", getattr(trace, name))
        for name in _OPTIONAL:
            if getattr(trace, name) is not None:
                np.save(part / f"{name}.npy", getattr(trace, name))
        for depth, (offsets, experts) in trace.predictions.items():
            np.save(part / f"predicted_{depth}_offsets.npy", offsets)
            np.save(part / f"predicted_{depth}_experts.npy", experts)
        for depth, scores in trace.prediction_scores.items():
            np.save(part / f"predicted_{depth}_scores.npy", scores)
        (part / _HEADER).write_text(header, encoding="utf-8")
        part.rename(folder)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        raise SimError(f"{cache}: the trace cannot be stored for the workers ({error.strerror})") from None
    return folder


def _header(trace: RoutingTrace) -> str:
    own = trace.geometry.session
    return json.dumps(
        {
            "geometry": trace.geometry.to_dict(),
            "session": asdict(own) if own else None,
            "predictions": sorted(trace.predictions),
            "scores": sorted(trace.prediction_scores),
            "meta": trace.meta,
        }
    )


def _holds(folder: Path, trace: RoutingTrace, header: str) -> bool:
    """Whether what is stored there is `trace`, bit for bit: a name says only what it was meant to be."""
    try:
        if (folder / _HEADER).read_text(encoding="utf-8") != header:
            return False
        return open_stored(folder).content_hash == trace.content_hash
    except (OSError, ValueError, LookupError, EOFError):
        return False


def open_stored(folder: Path) -> RoutingTrace:
    """The trace in `folder`, its arrays mapped read-only."""
    header = json.loads((folder / _HEADER).read_text(encoding="utf-8"))
    found: dict[str, Any] = {name: _map(folder / f"{name}.npy") for name in _ARRAYS}
    found |= {name: _map(p) for name in _OPTIONAL if (p := folder / f"{name}.npy").exists()}
    predictions = {
        depth: (_map(folder / f"predicted_{depth}_offsets.npy"), _map(folder / f"predicted_{depth}_experts.npy"))
        for depth in header["predictions"]
    }
    return RoutingTrace(
        geometry=replace(ModelGeometry.from_dict(header["geometry"]), session=_session(header["session"])),
        predictions=predictions,
        prediction_scores={depth: _map(folder / f"predicted_{depth}_scores.npy") for depth in header["scores"]},
        meta=header["meta"],
        **found,
    )


def _session(stored: dict[str, Any] | None) -> SessionShape | None:
    if stored is None:
        return None
    draft = stored["draft"]
    return SessionShape(**(stored | {"draft": DraftShape(**draft) if draft else None}))


@lru_cache(maxsize=4)
def open_view(view: View) -> RoutingTrace:
    """The trace that a cell simulates; the last few stay open in this process."""
    trace = open_stored(Path(view.folder))
    if view.passes is not None and view.passes < trace.n_passes:
        trace = trace.select_passes(np.arange(trace.n_passes) < view.passes)
    return fit_geometry(trace, load_model(view.model)) if view.model else trace


def _map(path: Path) -> npt.NDArray[Any]:
    # A plain array over the mapping: indexing np.memmap itself is slower.
    return np.asarray(np.load(path, mmap_mode="r"))
