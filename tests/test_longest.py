"""The largest context beside a setting fits, the next one does not, and its speed is that of a run at that depth;
advice and plans give one number for one setting."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from dataclasses import replace

import pytest

from expert_residency.errors import MisfitError
from expert_residency.sim.choices.longest import MOST, STEP, largest_context
from expert_residency.sim.choices.spec import make_spec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.longest import longest
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.timed.attention import lengths
from expert_residency.traces import load_model
from expert_residency.traces.synthetic import generate, load_style

MODEL = "qwen3-30b-a3b/Q4_K_M"


def answered(*arguments):
    out = io.StringIO()
    with redirect_stdout(out), pytest.raises(SystemExit) as ended:
        main([*map(str, arguments), "--json", "-"])
    assert not ended.value.code
    return json.loads(out.getvalue())


def test_steps_are_searched():
    assert largest_context(lambda tokens: tokens <= 10_000, 300) == 9 * STEP
    assert largest_context(lambda tokens: tokens <= 10_000, 9_900) == 9_900
    assert largest_context(lambda tokens: False, 77) == 77
    assert largest_context(lambda tokens: True, 77) == MOST


def test_a_run_names_the_largest_context_beside_its_cache():
    trace = generate(load_model(MODEL), load_style("qwen3-30b-a3b"), tokens=6, seed=1, weights=False)
    spec = make_spec({"hardware": "rtx-3070", "engine": "generic", "capacity": "3GiB"})
    found = longest(trace, spec)
    own = int(lengths(trace, 0).max())
    assert found.asked == own < found.tokens
    full = replace(spec, depth=found.tokens - own)
    assert simulate(trace, full).tokens_per_s == found.tokens_per_s < simulate(trace, spec).tokens_per_s
    with pytest.raises(MisfitError):
        simulate(trace, replace(spec, depth=found.tokens - own + STEP))
    auto = longest(
        trace, replace(spec, capacity=make_spec({"hardware": "x", "capacity": "auto:context=5000"}).capacity)
    )
    assert auto.tokens == auto.asked == 5000, "the cache takes the rest"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "cards", "more"),
    [
        (MODEL, "rtx-3070", ()),
        (MODEL, "rtx-4060-ti-16gb+rtx-3070", ("--ram", "64GB")),
        ("gpt-oss-20b", "rtx-3070+tesla-p40", ("--context", "8192")),
    ],
)
def test_advice_and_split_give_one_number_for_one_setting(model, cards, more):
    """Engine, model, machine and context alike: the same options, speed and largest context."""
    count = ("--count", len(cards.split("+")))
    words = ("--model", model, "--gpu", cards, *more, "--engine", "llama.cpp")
    advised = answered("advise", *words, "--draws", "2")
    planned = answered("split", *words, *count)
    best = planned["answers"][planned["best"]]
    theirs = {" ".join(line["words"]): line["tokens_per_s"] for line in best["options"]}
    assert advised["setting"]["threads"] == advised["knobs"][-1]["default"], "split plans with the default"
    ours = {line["text"].replace("'", ""): line["tokens_per_s"] for line in advised["options"]}
    assert ours == theirs
    assert advised["tokens_per_s"] == best["tokens_per_s"]
    assert advised["largest_context"] == planned["largest_context"]
    most = planned["largest_context"]
    assert most["tokens"] >= most["asked"]
    assert most["tokens_per_s"] < best["tokens_per_s"]
    if most["tokens"] < 100_000:  # planned for it, the same plan comes out
        longer = answered("split", *words[:4], "--engine", "llama.cpp", *count,
                          *(more if "--context" not in more else ()), "--context", most["tokens"])  # fmt: skip
        assert longer["answers"][longer["best"]]["tokens_per_s"] == pytest.approx(best["tokens_per_s"], rel=1e-9)


def test_an_engine_of_single_experts_says_that_split_gives_another_number():
    cards = ("--gpu", "rtx-3070", "--gpu", "tesla-p40")
    words = ("--model", "granite-3.0-1b-a400m/FP16", *cards, "--session", "1GiB")
    quick = ("--engine", "fetch-lru", "--passes", "6", "--draws", "2")
    one = answered("advise", *words, *quick)
    assert "residency split gives this engine other speeds" in one["beside_split"]
    other = answered("advise", *words[:2], *cards[2:], *cards[:2], *words[6:], *quick)
    assert one["hardware"] == other["hardware"], "the faster order, however they are named"
