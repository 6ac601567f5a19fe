"""How good must a predictor be: the study, its break-even line, plot and command."""

from __future__ import annotations

import json

import numpy as np
import pytest

from expert_residency.errors import SimError
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.simulate import simulate
from expert_residency.sim.studies.predictor import KNOWN, Cell, break_even, study
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, write_parquet

SPEC = RunSpec(("tesla-p40",), Capacity(slots_per_layer=4), miss="fetch")


@pytest.fixture(scope="module")
def trace():
    made = ModelGeometry(
        "tiny", (0, 1, 2, 3), 12, 2, (2_000_000,) * 4, (1_000_000,) * 4, hidden_size=64, quant_family="q4"
    )
    draw = np.random.default_rng(1)
    builder = TraceBuilder(made)
    for _ in range(40):
        builder.begin_pass(Phase.DECODE)
        for layer in range(4):
            builder.row(layer, draw.permutation(12)[:2].tolist())
    return builder.build()


@pytest.fixture(scope="module")
def found(trace):
    return study(trace, SPEC, recalls=(0.2, 0.9), precisions=(0.2, 0.6, 1.0), windows=(1, 3), passes=16)


def cell(precision, speedup, recall=0.5, window=1):
    return Cell("x", recall, precision, window, speedup, 1, 1, 1, 1)


def test_the_break_even_line_is_linear_between_grid_points():
    assert break_even([cell(0.2, 0.9), cell(0.6, 1.1), cell(1.0, 1.3)]) == {(1, 0.5): pytest.approx(0.4)}
    assert break_even([cell(0.2, 1.0), cell(1.0, 1.3)]) == {(1, 0.5): 0.2}
    assert break_even([cell(0.2, 0.8), cell(1.0, 0.9)]) == {(1, 0.5): None}
    # from the highest precision down: a lucky point below the line does not count
    dip = [cell(0.1, 1.05), cell(0.5, 0.9), cell(1.0, 1.1)]
    assert break_even(dip) == {(1, 0.5): pytest.approx(0.75)}


def test_the_grid_is_whole_and_measured_against_the_run_without_prefetching(trace, found):
    assert [(c.window, c.recall, c.precision) for c in found.grid] == [
        (w, r, p) for w in (1, 3) for r in (0.2, 0.9) for p in (0.2, 0.6, 1.0)
    ]
    assert [known.prefetch for known in found.known] == list(KNOWN)
    assert (found.passes, found.of_passes) == (16, 40)
    assert found.baseline.decode_tokens == 16
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()


def test_better_predictors_are_faster_and_wrong_ones_do_harm(found):
    speed = {(c.window, c.recall, c.precision): c for c in found.grid}
    assert speed[1, 0.9, 1.0].speedup > speed[1, 0.2, 1.0].speedup > 1.0
    assert speed[3, 0.9, 1.0].speedup > speed[3, 0.9, 0.2].speedup
    assert speed[1, 0.9, 0.2].harmful_bytes > 0
    assert speed[1, 0.9, 0.2].h2d_bytes > speed[1, 0.9, 1.0].h2d_bytes


def test_the_cache_starts_as_lru_leaves_it(trace):
    """The last passes of a whole run take exactly as long as the same passes measured alone."""
    roomy = RunSpec(("tesla-p40",), Capacity(slots_per_layer=9), miss="fetch")
    warm = study(trace, roomy, recalls=(1.0,), precisions=(1.0,), windows=(1,), passes=16).baseline
    whole = simulate(trace, roomy)
    assert warm.start_bytes == 4 * 9 * 2_000_000
    assert warm.pass_ns.tolist() == whole.pass_ns[24:].tolist()


def test_processes_change_nothing(trace, found):
    again = study(
        trace, SPEC, recalls=(0.2, 0.9), precisions=(0.2, 0.6, 1.0), windows=(1, 3), passes=16, workers=2
    )
    assert again.grid == found.grid
    assert again.known == found.known


def test_a_single_pass_is_refused(trace):
    with pytest.raises(SimError, match="single pass"):
        study(trace.select_passes(np.arange(40) == 0), SPEC)


def test_command_writes_table_json_and_plot(trace, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    source, plot, data = tmp_path / "t.parquet", tmp_path / "line.png", tmp_path / "out.json"
    write_parquet(trace, source)
    with pytest.raises(SystemExit) as end:
        main([
            "predictor", str(source), "--hardware", "tesla-p40", "--slots-per-layer", "4", "--recalls", "0.3,0.9",
            "--precisions", "0.2,1", "--windows", "1,2", "--passes", "8", "--workers", "1",
            "--plot", str(plot), "--json", str(data),
        ])  # fmt: skip
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "pays from precision" in out
    assert "only the last 8 of 40 passes" in out
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(json.loads(data.read_text())["grid"]) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--recalls", "x"], "numbers separated by commas"), (["--recalls", "2"], "expected 0 to 1"),
     (["--insertion", "stage"], "unknown insertion rule"), (["--windows", "0"], "expected 1 to")],
)  # fmt: skip
def test_command_refuses_bad_choices_in_one_sentence(trace, tmp_path, capsys, options, message):
    source = tmp_path / "t.parquet"
    write_parquet(trace, source)
    with pytest.raises(SystemExit) as end:
        main([
            "predictor", str(source), "--hardware", "tesla-p40", "--slots-per-layer", "4", "--passes", "2",
            "--workers", "1", *options,
        ])  # fmt: skip
    assert end.value.code == 2
    assert message in capsys.readouterr().err
