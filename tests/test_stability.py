"""What rankings stand on: requests and tokens are said everywhere, and too few are warned of."""

import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from expert_residency.errors import SimError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.caveats import FEW_REQUESTS, FEW_TOKENS, caveats
from expert_residency.sim.report.data import bases
from expert_residency.sim.runs.basis import Basis
from expert_residency.sim.runs.replay import replay
from expert_residency.sim.studies.score import ScoredRun
from expert_residency.sim.studies.stability import part_of, stability
from expert_residency.sim.timed.result import compared
from expert_residency.traces import Phase, write_parquet
from expert_residency.traces.bundled import load
from expert_residency.traces.geometry import load_model
from expert_residency.traces.synthetic import generate, load_style
from tests.golden_runs import said, written_trace


@pytest.fixture(scope="module")
def many():
    """Twelve short requests that share little."""
    style = load_style("qwen3.8-flash-next")
    return generate(load_model("granite-3.0-1b-a400m"), style, tokens=12, prompt_tokens=2, requests=12, seed=5)


def test_prompts_are_no_basis():
    trace = written_trace()  # three requests: four decode passes and three verify windows of 2, 1 and 1 tokens
    basis = Basis.of(trace)
    decoding = trace.pass_phase != Phase.PREFILL
    assert basis == Basis(3, int(trace.pass_emits[decoding].sum()))
    assert Basis.of(trace.select_passes(~decoding)) == Basis(0, 0)


def test_ten_requests_are_not_short_and_nine_are(many):
    """The caveat asks for both numbers; the bundled trace for rankings has them."""
    whole = load("flash-next-requests")
    kinds = [caveat.kind for caveat in caveats(whole)]
    assert "short" not in kinds
    assert Basis.of(whole) == Basis(10, 3200)
    assert (FEW_REQUESTS, FEW_TOKENS) == (10, 1300)
    assert "short" in [caveat.kind for caveat in caveats(whole.select_passes(whole.pass_request < 9))]
    assert "short" in [caveat.kind for caveat in caveats(many)], "twelve requests of 12 tokens"


def test_parts_are_first_tokens_of_whole_requests(many):
    part = part_of(many, [3, 7], 5)
    assert sorted(set(part.pass_request.tolist())) == [3, 7]
    assert part.n_passes == 10
    assert part_of(many, [3], None).n_passes == 13


def test_the_whole_trace_is_in_its_own_order(many):
    (part,) = stability(many, ("lru", "fifo", "lfu"), (0.3,), [(12, None)], draws=1, simulator="reference")
    assert (part.in_order, part.worst, part.lost, part.tokens) == (1.0, 1.0, 0.0, 144)


def test_one_request_orders_policies_worse_than_many(many):
    found = stability(
        many, ("lru", "fifo", "lfu", "lfru", "random"), (0.25,), [(1, None), (10, None)], draws=3,
        simulator="reference",
    )  # fmt: skip
    assert found[0].in_order < found[1].in_order
    assert found[0].lost >= found[1].lost
    with pytest.raises(SimError, match="13 requests cannot be drawn from 12"):
        stability(many, ("lru", "fifo"), (0.25,), [(13, None)], simulator="reference")


@pytest.mark.slow
def test_lfu_is_first_on_one_request_and_last_on_ten():
    """Why the bundled trace for rankings has ten requests: counts of texts that are over stay in the cache."""
    pytest.importorskip("numba")
    order = {}
    for name in ("flash-next-synthetic", "flash-next-requests"):
        trace = load(name)
        room = Capacity(total_bytes=trace.geometry.all_expert_bytes // 8)
        rates = {
            p: replay(trace, p, room, simulator="kernel").phases["decode"].hit_rate for p in ("lru", "lfu", "fifo")
        }
        order[name] = sorted(rates, key=rates.get, reverse=True)
    assert order == {"flash-next-synthetic": ["lfu", "lru", "fifo"], "flash-next-requests": ["lru", "fifo", "lfu"]}


def test_every_ranking_says_what_it_stands_on(tmp_path):
    trace = tmp_path / "small.parquet"
    write_parquet(written_trace(), trace)
    warned = "caveat: it stands on 3 requests and 24 decoded tokens"
    replayed = ["replay", str(trace), "--slots-per-layer", "3", "--eviction", "lru"]
    assert "over 3 requests, 24 tokens" in said(replayed)
    assert warned in " ".join(said(replayed).split())
    assert json.loads(said([*replayed, "--json", "-"]))["basis"] == {"requests": 3, "tokens": 24}
    swept = ["sweep", "--trace", str(trace), "--hardware", "tesla-p40", "--eviction", "lru", "--prefetch", "none"]
    swept += ["--slots-per-layer", "3", "--workers", "1", "--out"]
    text = said([*swept, str(tmp_path / "a")])
    assert "ranking of trace: over 3 requests, 24 tokens" in text
    assert warned in text
    data = json.loads(said([*swept, str(tmp_path / "b"), "--json"]))
    assert data["basis"] == {"trace": {"requests": 3, "tokens": 24}}
    pytest.importorskip("altair")
    said(["report", str(tmp_path / "a"), "--out", str(tmp_path / "r.html")])
    page = (tmp_path / "r.html").read_text()
    assert "over 3 requests, 24 tokens" in page
    assert "over 1 request, 2 tokens" in said(["demo", "--passes", "3", "--workers", "1"])


def test_a_sweep_shows_the_warnings_of_its_cells(tmp_path):
    """Sizes without an output head: 120 of 192 cells carried that, and nobody saw it."""
    trace = tmp_path / "headless.parquet"
    made = written_trace()
    write_parquet(made, trace)
    toml = tmp_path / "sweep.toml"
    toml.write_text(
        f'[traces]\nt = "{trace}"\n[constants]\nhardware = "tesla-p40"\nslots_per_layer = 0\nmiss = "cpu"\n'
        '[axes]\neviction = ["lru", "lfu"]\n'
    )
    text = said(["sweep", str(toml), "--out", str(tmp_path / "s"), "--workers", "1"])
    frame = pd.read_parquet(tmp_path / "s" / "cells")
    assert {line for lines in frame["warnings"] for line in lines}
    for lines in frame["warnings"]:
        for line in lines:
            assert f"warning: {line} (2 of 2 cells)" in text
    again = ["sweep", str(toml), "--out", str(tmp_path / "t"), "--workers", "1", "--json"]
    assert json.loads(said(again))["warnings"]


def test_sweeps_of_older_versions_say_nothing_of_requests():
    old = {"status": ["ok"], "requests": [np.nan], "decode_tokens": [4], "trace": ["a"], "cell": [0]}
    frame = pd.DataFrame(old | {"cell_id": ["a"], "warnings": [[]]})
    assert bases(frame) == {}


def test_results_by_request_add_up(tmp_path):
    trace = tmp_path / "small.parquet"
    write_parquet(written_trace(), trace)
    command = ["run", "--trace", str(trace), "--hardware", "tesla-p40", "--slots-per-layer", "3", "--json", "-"]
    data = json.loads(said(command))
    assert "by_request" not in data
    assert [one["request"] for one in data["requests"]] == [0, 1, 2]
    for name in ("tokens", "decode_ns", "decode_tokens"):
        assert sum(one[name] for one in data["requests"]) == data[name]
    assert sum(one["prefill_ns"] + one["decode_ns"] for one in data["requests"]) == data["total_ns"]
    run = ScoredRun.of_json(data, "run")
    assert run.request_ns == [one["decode_ns"] for one in data["requests"]]


def test_where_nothing_decodes_all_passes_of_a_request_are_compared():
    rows = [{"tokens": 1, "decode_tokens": 0, "prefill_ns": 7, "decode_ns": 0}]
    assert compared(rows) == [{"tokens": 1, "ns": 7}]
    rows.append({"tokens": 3, "decode_tokens": 2, "prefill_ns": 7, "decode_ns": 9})
    assert compared(rows) == [{"tokens": 2, "ns": 9}]


def test_the_face_stays_light():
    code = "import sys, expert_residency.sim.cli.tables; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
