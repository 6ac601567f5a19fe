"""Several traces of one model as one: their requests one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.trace import RoutingTrace, csr_offsets

JOINS = ("recorded", "file")


def joined(traces: Sequence[RoutingTrace], files: Sequence[Path], join: str = "recorded") -> RoutingTrace:
    """One trace of several.

    Parameters
    ----------
    traces
        Of one model; a column that not all have is left out, and said.
    files
        Where each comes from.
    join
        `recorded`: each trace's own requests, renumbered; `file`: each trace is one request.

    Returns
    -------
    RoutingTrace
        Passes in the order of the files; `meta` has the files with their requests.

    Raises
    ------
    TraceError
        Models that differ, by the first file that does.
    """
    first = traces[0]
    top_k = max(trace.geometry.top_k for trace in traces)
    for trace, file in zip(traces, files, strict=True):
        if trace.geometry.with_top_k(top_k) != first.geometry.with_top_k(top_k):
            raise TraceError(
                f"is of {trace.geometry.label}, {files[0]} of {first.geometry.label}, or their sizes differ; "
                "give --model for both",
                path=file,
            )
    requests, parts, n = [], [], 0
    for trace, file in zip(traces, files, strict=True):
        own = trace.pass_request if join == "recorded" else np.zeros(trace.n_passes, dtype=np.int32)
        numbers = np.unique(own, return_inverse=True)[1].reshape(-1)
        requests.append(n + numbers)
        parts.append({"file": file.name, "requests": [n, n + int(numbers.max())]})
        n += int(numbers.max()) + 1
    notes = list(dict.fromkeys(note for trace in traces for note in trace.meta.get("notes", [])))
    depths = set(first.predictions).intersection(*(trace.predictions for trace in traces))
    columns: dict[str, Any] = {}
    for name in ("row_weights", "row_residency"):
        values = [getattr(trace, name) for trace in traces]
        columns[name] = np.concatenate(values) if all(v is not None for v in values) else None
        if columns[name] is None and any(v is not None for v in values):
            notes.append(f"{name.removeprefix('row_')} are left out, which not all files have")
    scored = depths.intersection(*(trace.prediction_scores for trace in traces))
    scores = {
        depth: np.concatenate([trace.prediction_scores[depth] for trace in traces]) for depth in sorted(scored)
    }
    some = set[int]().union(*(trace.predictions for trace in traces)) - depths
    some_scored = set[int]().union(*(trace.prediction_scores for trace in traces)) & depths - scored
    for what, lost in (("predictions", some), ("scores of predictions", some_scored)):
        if lost:
            ahead = ", ".join(map(str, sorted(lost)))
            notes.append(f"{what} {ahead} layer(s) ahead are left out, which not all files have")
    shift = csr_offsets(np.asarray([trace.n_passes for trace in traces]))
    return RoutingTrace(
        geometry=first.geometry.with_top_k(top_k),
        pass_request=np.concatenate(requests).astype(np.int32),
        pass_phase=np.concatenate([trace.pass_phase for trace in traces]),
        pass_emits=np.concatenate([trace.pass_emits for trace in traces]),
        event_pass=np.concatenate([trace.event_pass + shift[i] for i, trace in enumerate(traces)]).astype(
            np.int32
        ),
        event_layer=np.concatenate([trace.event_layer for trace in traces]),
        event_row_offsets=csr_offsets(np.concatenate([trace.event_rows for trace in traces])),
        row_position=np.concatenate([trace.row_position for trace in traces]),
        row_offsets=csr_offsets(np.concatenate([np.diff(trace.row_offsets) for trace in traces])),
        row_experts=np.concatenate([trace.row_experts for trace in traces]),
        **columns,
        predictions={
            depth: (
                csr_offsets(np.concatenate([np.diff(trace.predictions[depth][0]) for trace in traces])),
                np.concatenate([trace.predictions[depth][1] for trace in traces]),
            )
            for depth in sorted(depths)
        },
        prediction_scores=scores,
        meta=first.meta
        | {
            "source_file": ", ".join(file.name for file in files) if len(files) < 4 else f"{len(files)} files",
            "source_sha256": [trace.meta.get("source_sha256") for trace in traces],
            "synthetic": any(trace.synthetic for trace in traces),
            "notes": notes,
            "joined": parts,
        },
    )


def renumbered(trace: RoutingTrace, requests: np.ndarray[Any, Any]) -> RoutingTrace:
    """The same passes with other request numbers."""
    return replace(trace, pass_request=np.asarray(requests, dtype=np.int32))
