"""Passes of other sizes: single tokens merged into verify windows, prompts cut into chunks.

Verify windows: consecutive decode passes merged, as speculative decoding runs them.

A recorded or generated decode trace has one row a pass. An engine that drafts runs the last accepted token and
its drafts as one pass of several rows, of which it keeps some. Merging neighbours gives such a pass the union of
experts that real neighbours have. Rows of rejected drafts are thereby taken from tokens that were accepted, and
each token is used once.
"""

from __future__ import annotations

import numpy as np

from expert_residency.errors import TraceError
from expert_residency.traces.trace import Phase, RoutingTrace, assemble, ragged_take

MOST_ROWS = 1 << 16
"""Of a window."""


def compose_windows(trace: RoutingTrace, rows: float, emitted: float) -> RoutingTrace:
    """Trace whose decode passes are merged into verify windows.

    Parameters
    ----------
    trace
        Decode passes of one row, perhaps prefill passes, which stay as they are.
    rows
        Rows of a window, on average: with 3.25, every fourth window has 4 and the others 3.
    emitted
        Tokens that a window emits, on average: 1 to `rows`, and none more than its rows.

    Returns
    -------
    RoutingTrace
        Windows do not cross requests; a request's last decode passes that fill no window are left out.
        Predictions recorded with the trace are left out too, since they belong to single passes.

    Raises
    ------
    TraceError
        Sizes out of range, a trace that has windows already, or too few decode passes for one.
    """
    if not 1 <= rows <= MOST_ROWS:
        raise TraceError(f"a window of {rows:g} rows is not possible; 1 to {MOST_ROWS:,} are")
    if not 1 <= emitted <= rows:
        raise TraceError(f"a window of {rows:g} rows cannot emit {emitted:g} tokens; 1 to {rows:g} are possible")
    if (trace.pass_phase == Phase.VERIFY).any() or (trace.event_rows[trace.event_phase == Phase.DECODE] > 1).any():
        raise TraceError("the trace has verify windows already, so none can be composed of it")
    if rows == 1:
        return trace
    target = np.full(trace.n_passes, -1, dtype=np.int64)
    request: list[int] = []
    phase: list[int] = []
    emits: list[int] = []
    decode = trace.pass_phase == Phase.DECODE
    for number in np.unique(trace.pass_request).tolist():
        own = trace.pass_request == number
        for prefill in np.flatnonzero(own & ~decode).tolist():
            target[prefill] = len(emits)
            request.append(number)
            phase.append(int(Phase.PREFILL))
            emits.append(int(trace.pass_emits[prefill]))
        passes = np.flatnonzero(own & decode)
        windows = int(len(passes) / rows + 1e-9)
        edges = np.floor(np.arange(windows + 1) * rows + 1e-9).astype(np.int64)
        tokens = _tokens(np.diff(edges), emitted)
        target[passes[: edges[-1]]] = len(emits) + np.repeat(np.arange(windows), np.diff(edges))
        request += [number] * windows
        phase += [int(Phase.VERIFY)] * windows
        emits += tokens
    if int(Phase.VERIFY) not in phase:
        raise TraceError(f"{int(decode.sum())} decode passes do not fill one window of {rows:g} rows")
    return _merge(trace, target, request, phase, emits, {"rows": rows, "emitted": emitted})


def _tokens(rows: np.ndarray[tuple[int], np.dtype[np.int64]], emitted: float) -> list[int]:
    """Tokens of each window: `emitted` on average; what a window has no row for is emitted by the next."""
    found: list[int] = []
    total = 0
    for number, room in enumerate(rows.tolist(), 1):
        found.append(min(room, int(number * emitted + 1e-9) - total))
        total += found[-1]
    return found


def chunk_prefill(trace: RoutingTrace, tokens: int) -> RoutingTrace:
    """Trace whose prompts are read in passes of `tokens` rows at most.

    Parameters
    ----------
    trace
        Prefill passes of any size; other passes stay as they are.
    tokens
        Rows of a chunk, 1 or more; the last one of a prompt holds what is left.

    Returns
    -------
    RoutingTrace
        The last chunk of a prompt emits what the prompt emitted, the others nothing. Predictions recorded with the
        trace are left out, since they belong to whole passes.

    Raises
    ------
    TraceError
        A size below 1, or a prefill whose layers have different numbers of rows.
    """
    if tokens < 1:
        raise TraceError(f"chunks of {tokens} tokens hold nothing")
    prefill = trace.pass_phase == Phase.PREFILL
    rows = np.zeros(trace.n_passes, dtype=np.int64)
    np.maximum.at(rows, trace.event_pass, trace.event_rows)
    uneven = np.flatnonzero(prefill[trace.event_pass] & (trace.event_rows != rows[trace.event_pass]))
    if len(uneven):
        raise TraceError(f"pass {int(trace.event_pass[uneven[0]])}: its layers have different numbers of rows")
    chunks = np.where(prefill, -(-rows // tokens), 1)
    first = np.cumsum(chunks) - chunks
    row_event = np.repeat(np.arange(trace.n_events), trace.event_rows)
    within = np.arange(trace.n_rows) - trace.event_row_offsets[row_event]
    row_pass = trace.event_pass[row_event]
    emits = np.zeros(int(chunks.sum()), dtype=np.int64)
    emits[first + chunks - 1] = trace.pass_emits
    return assemble(
        trace.geometry,
        pass_request=np.repeat(trace.pass_request, chunks),
        pass_phase=np.repeat(trace.pass_phase, chunks),
        pass_emits=emits,
        row_pass=first[row_pass] + np.where(prefill[row_pass], within // tokens, 0),
        row_layer=trace.event_layer[row_event],
        row_position=trace.row_position,
        row_counts=np.diff(trace.row_offsets),
        row_experts=trace.row_experts,
        row_weights=trace.row_weights,
        row_residency=trace.row_residency,
        meta=trace.meta | {"chunk": tokens},
    )


def _merge(
    trace: RoutingTrace,
    target: np.ndarray[tuple[int], np.dtype[np.int64]],
    request: list[int],
    phase: list[int],
    emits: list[int],
    meta: dict[str, float],
) -> RoutingTrace:
    row_event = np.repeat(np.arange(trace.n_events), trace.event_rows)
    row_pass = target[trace.event_pass[row_event]]
    kept = np.flatnonzero(row_pass >= 0)
    entries = ragged_take(trace.row_offsets, kept)
    return assemble(
        trace.geometry,
        pass_request=np.asarray(request),
        pass_phase=np.asarray(phase),
        pass_emits=np.asarray(emits),
        row_pass=row_pass[kept],
        row_layer=trace.event_layer[row_event[kept]],
        row_position=trace.row_position[kept],
        row_counts=np.diff(trace.row_offsets)[kept],
        row_experts=trace.row_experts[entries],
        row_weights=None if trace.row_weights is None else trace.row_weights[entries],
        row_residency=None if trace.row_residency is None else trace.row_residency[entries],
        meta=trace.meta | {"windows": meta},
    )
