"""Windows composed of single tokens: nothing is lost, unions are those of neighbours, averages hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder, TraceError
from expert_residency.traces.windows import compose_windows

SHAPE = ModelGeometry("tiny", (0, 1), 8, 2, (100, 100), (10, 10))


def decode(passes: list[tuple[int, int]], prompt: int = 0) -> RoutingTrace:
    """One decode pass for each (request, seed), after a prompt of each request."""
    build = TraceBuilder(SHAPE)
    seen: set[int] = set()
    for request, seed in passes:
        if prompt and request not in seen:
            build.begin_pass(Phase.PREFILL, request=request)
            for row in range(prompt):
                for layer in (0, 1):
                    build.row(layer, [row % 8, (row + 1) % 8])
        seen.add(request)
        build.begin_pass(Phase.DECODE, request=request)
        for layer in (0, 1):
            build.row(layer, [(seed + layer) % 8, (seed + layer + 3) % 8], weights=None)
    return build.build()


def test_a_window_holds_the_union_of_its_tokens():
    trace = compose_windows(decode([(0, 0), (0, 0), (0, 1)]), 3, 2)
    assert (trace.n_passes, trace.pass_emits.tolist(), trace.event_rows.tolist()) == (1, [2], [3, 3])
    first = trace.event_offsets[1]
    assert sorted(trace.keys[:first].tolist()) == [0, 1, 3, 4]
    assert dict(zip(trace.keys[:first].tolist(), trace.rows_wanting[:first].tolist(), strict=True)) == {
        0: 2, 3: 2, 1: 1, 4: 1,
    }  # fmt: skip


@given(
    st.lists(st.integers(4, 20), min_size=1, max_size=3),
    st.floats(1.0, 4.0).map(lambda x: round(x, 2)),
    st.floats(0.0, 1.0),
)
def test_rows_are_kept_in_order_and_averages_hold(lengths, rows, share):
    emitted = 1 + share * (np.floor(rows) - 1)
    trace = decode([(r, r + i) for r, n in enumerate(lengths) for i in range(n)], prompt=3)
    made = compose_windows(trace, rows, emitted)
    for request, n in enumerate(lengths):
        own = (made.pass_request == request) & (made.pass_phase != Phase.PREFILL)
        windows = int(n / rows + 1e-9)
        assert own.sum() == windows
        if rows > 1:
            assert int(made.event_rows[np.isin(made.event_pass, np.flatnonzero(own))].sum()) // 2 == int(
                windows * rows + 1e-9
            )
            assert int(made.pass_emits[own].sum()) == int(windows * emitted + 1e-9)
        assert (made.pass_emits[own] >= 1).all()
    prompts = made.select_passes(made.pass_phase == Phase.PREFILL)
    assert prompts.content_hash == trace.select_passes(trace.pass_phase == Phase.PREFILL).content_hash


def test_one_row_a_window_is_the_trace_itself():
    trace = decode([(0, 0), (0, 1)])
    assert compose_windows(trace, 1, 1) is trace


@pytest.mark.parametrize(("rows", "emitted"), [(3, 3.5), (3, 0.5), (0.5, 1), (2.5, 2.6)])
def test_impossible_windows_are_refused(rows, emitted):
    with pytest.raises(TraceError, match=r"cannot emit|is not possible"):
        compose_windows(decode([(0, 0)] * 9), rows, emitted)


@given(st.floats(1, 6), st.floats(0, 1))
def test_a_mean_window_may_emit_up_to_its_mean_rows(rows, share):
    """As published: 3.97 rows emit 3.23. No window emits more than it has rows, and nothing is lost on the way."""
    emitted = 1 + share * (rows - 1)
    made = compose_windows(decode([(0, n) for n in range(80)]), rows, emitted)
    held = made.event_rows[made.event_offsets[:-1] >= 0].reshape(made.n_passes, -1)[:, 0]
    if rows == 1:
        return
    assert (made.pass_emits >= 1).all()
    assert (made.pass_emits <= held).all()
    assert abs(made.pass_emits.sum() - made.n_passes * emitted) <= 2
    assert abs(held.sum() - made.n_passes * rows) <= 1


def test_windows_of_windows_are_refused():
    windows = compose_windows(decode([(0, 0)] * 9), 3, 2)
    with pytest.raises(TraceError, match="already"):
        compose_windows(windows, 2, 1)


def test_too_short_a_trace_is_refused():
    with pytest.raises(TraceError, match="do not fill one window of 5 rows"):
        compose_windows(decode([(0, 0)] * 3), 5, 2)
