"""Look-ahead over tokens: unions, copies against brute force, break-even of drafting, prompt chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import SimError, TraceError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.studies.drafts import acceptance_for, emitted, window_costs
from expert_residency.sim.studies.window import hindsight_rank, lookahead_cost, token_keys, window_unions
from expert_residency.traces import Phase, TraceBuilder, load_model
from expert_residency.traces.synthetic import generate, load_style
from expert_residency.traces.windows import chunk_prefill
from tests.test_engine import geometry, random_trace, trace_of


def lru_copies(tokens, slots):
    """Least recently used of a whole token, by the book; ties by key do not matter for the count here."""
    last, resident, copies = {}, set(), 0
    for t, keys in enumerate(tokens):
        wanted = set(keys.tolist())
        missing = wanted - resident
        copies += len(missing)
        for key in wanted:
            last[key] = t
        leaving = sorted(resident - wanted, key=lambda key: last[key])[: max(0, len(resident | wanted) - slots)]
        resident = (resident | wanted) - set(leaving)
    return copies


@given(st.integers(0, 50), st.integers(6, 14))
def test_longer_sight_never_copies_more_than_none(seed, slots):
    trace = random_trace(seed, tokens=20)
    blind = lookahead_cost(trace, slots, 1).copies_per_token
    full = lookahead_cost(trace, slots, 20).copies_per_token
    compulsory = len(np.unique(trace.keys)) / 20
    assert compulsory <= full + 1e-9
    assert full <= blind + 1e-9


def test_without_sight_it_is_lru_over_tokens():
    tokens = [[[a]] for a in (0, 1, 2, 0, 3, 0, 1, 4)]
    trace = trace_of(tokens, geometry(1, top_k=1))
    assert lookahead_cost(trace, 3, 1).copies_per_token * 8 == lru_copies(token_keys(trace), 3)
    assert lookahead_cost(trace, 3, 8).copies_per_token * 8 == 5  # 0 1 2 3 4, each once: 1 is kept for its use


def test_a_profile_at_the_start_saves_its_copies():
    trace = random_trace(3, tokens=10)
    ranked = hindsight_rank(trace)
    cold = lookahead_cost(trace, 18, 4).copies_per_token
    assert lookahead_cost(trace, 18, 4, ranked).copies_per_token == 0 < cold
    assert lookahead_cost(trace, 18, 4).ms_per_token(1000) == pytest.approx(cold * 1.0)  # 1 MB at 1 GB/s: 1 ms


def test_impossible_questions_are_refused():
    trace = random_trace(1)
    with pytest.raises(SimError, match="fewer than"):
        lookahead_cost(trace, 5, 4)
    with pytest.raises(SimError, match="sees nothing"):
        lookahead_cost(trace, 9, 0)
    builder = TraceBuilder(geometry(1))
    builder.begin_pass(Phase.PREFILL)
    builder.row(0, [0, 1])
    with pytest.raises(SimError, match="prompts only"):
        window_unions(builder.build())


def test_kept_rows_are_the_first_of_each_window():
    builder = TraceBuilder(geometry(2))
    builder.begin_pass(Phase.VERIFY)
    for layer in (0, 1):
        builder.row(layer, [0, 1])
        builder.row(layer, [2, 3])
    trace = builder.build()
    assert [keys.tolist() for keys in token_keys(trace, kept_only=True)] == [[0, 1, 6, 7]]
    assert [keys.tolist() for keys in token_keys(trace)] == [[0, 1, 6, 7], [2, 3, 8, 9]]
    assert hindsight_rank(trace, kept_only=True) == [0, 1, 6, 7]


def test_unions_and_copies_at_the_engines_geometry_are_near_the_published_ones():
    """Strata PR #3265: 39 to 84 copies a token at 64 to 16 tokens ahead, 2 to 4 ms; unions 1.75 and 3.05."""
    trace = generate(
        load_model("qwen3.8-flash-next", "IQ2_XS"), load_style("qwen3.8-flash-next"), tokens=128, seed=1,
        weights=False,
    )  # fmt: skip
    unions = {u.tokens: u for u in window_unions(trace)}
    assert unions[2].of_single == pytest.approx(1.75, rel=0.03)
    assert unions[4].of_single == pytest.approx(3.05, rel=0.05)
    near, far = (lookahead_cost(trace, 4866, horizon, hindsight_rank(trace)) for horizon in (16, 64))
    assert 39 * 0.8 < far.copies_per_token < near.copies_per_token < 84 * 1.2
    assert 1.6 < far.ms_per_token(28_400) < near.ms_per_token(28_400) < 4.8


@given(st.integers(2, 8), st.floats(0, 1))
def test_acceptance_and_tokens_are_inverse(rows, acceptance):
    assert acceptance_for(rows, emitted(rows, acceptance)) == pytest.approx(acceptance, abs=1e-6)


def test_drafting_breaks_even_where_it_costs_what_it_brings():
    spec = RunSpec(("rtx-5070",), Capacity(slots_per_layer=2), engine="strata", admission="never")
    single, *windows = window_costs(random_trace(2, tokens=24), spec)
    assert single.break_even_tokens == 1.0
    for cost in windows:
        assert cost.distinct > single.distinct
        assert cost.break_even_tokens == pytest.approx(cost.ms / single.ms)
        if cost.break_even_acceptance is not None:
            assert cost.tokens_per_s(cost.break_even_acceptance) == pytest.approx(1000 / single.ms, rel=1e-6)
    assert acceptance_for(2, 2.5) is None


@given(st.integers(1, 40), st.integers(1, 40))
def test_chunks_keep_every_row_in_order(prompt, tokens):
    builder = TraceBuilder(geometry(2))
    builder.begin_pass(Phase.PREFILL)
    for layer in (0, 1):
        for position in range(prompt):
            builder.row(layer, [position % 6, (position + 1) % 6], position=position)
    builder.begin_pass(Phase.DECODE)
    for layer in (0, 1):
        builder.row(layer, [0, 1], position=prompt)
    trace = builder.build()
    cut = chunk_prefill(trace, tokens)
    assert cut.n_passes == -(-prompt // tokens) + 1
    assert cut.n_tokens_emitted == trace.n_tokens_emitted
    assert cut.event_rows.max() <= max(tokens, 1)
    for layer in (0, 1):
        rows = np.repeat(cut.event_layer, cut.event_rows) == layer
        assert cut.row_position[rows].tolist() == list(range(prompt + 1))
    with pytest.raises(TraceError, match="hold nothing"):
        chunk_prefill(trace, 0)
