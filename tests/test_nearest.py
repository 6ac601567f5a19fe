"""The trust line: nearest measured runs with the real predictions of `validate`, and what was never compared."""

import json

import pytest

from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.runs import load_measured_runs
from expert_residency.sim.validation.llamacpp import predict_llamacpp
from expert_residency.sim.validation.nearest import ASPECTS, measured, trust
from expert_residency.sim.validation.published import predict_published
from tests.golden_runs import fill, said


def test_measured_runs_are_facts_with_sources():
    """One file a machine; each row says where it was read and what kind of run it is."""
    rows = load_measured_runs()
    assert len(rows) > 400
    assert len({(row.gpu, row.cpu) for row in rows}) >= 50
    assert all(row.source and row.tok_s > 0 for row in rows)
    assert {row.kind for row in rows} == {"run", "resident", "lossy", "flagged"}


def test_errors_are_those_of_validate_and_say_whether_they_are_held_out():
    rows = {row.window.run: row for machine in predict_published()[0] for row in machine.rows}
    found = [run for run in measured() if run.errors and run.engine == "Strata"]
    llama = [run for run in measured() if run.errors and run.engine == "llama.cpp"]
    assert sorted(e for run in llama for e in run.errors) == sorted(one.error for one in predict_llamacpp())
    assert all(run.held_out for run in llama)
    assert sum(len(run.errors) for run in found) == len(rows)
    assert sorted(e for run in found for e in run.errors) == sorted(row.error for row in rows.values())
    seen = {(r.gpu, r.cpu) for r, row in rows.items() if row.seen_by}
    for run in found:
        assert run.held_out == ((run.card, run.processor) not in seen)


def test_the_machines_own_runs_come_first():
    found = trust("qwen3.8-flash-next/IQ3_S", [load_profile("rtx-4090-laptop")], "strata")
    run, alike = found.nearest[0]
    assert run.card.startswith("RTX 4090 Laptop")
    assert set(alike) >= {"model", "card", "engine", "quantization"}
    assert run.errors
    assert run.held_out, "its CPU rate is a data sheet's, for these runs do not determine one"
    assert found.never == ["processor laptop processor, not named (not measured)"]


def test_runs_that_gave_a_profile_a_rate_are_not_held_out():
    found = trust("qwen3.8-flash-next/IQ2_XS", [load_profile("rtx-2080ti")], "strata")
    run, _ = found.nearest[0]
    assert run.card.startswith("RTX 2080 Ti")
    assert not run.held_out


def test_what_was_never_compared_is_named():
    found = trust("granite-3.0-1b-a400m/FP16", [load_profile("tesla-p100")] * 2, "llama.cpp-expert-cache")
    assert [words.split()[0] for words in found.never] == list(ASPECTS)
    assert all("card" in alike or "model" in alike for _, alike in found.nearest)
    assert found.nearest[0][0].cards == 2
    measured_only = [words for words in found.never if words.endswith("(measured, not predicted)")]
    alike_in = {aspect for run, alike in found.nearest for aspect in alike}
    assert {words.split()[0] for words in measured_only} >= alike_in & {w.split()[0] for w in found.never}
    assert "engine" not in " ".join(trust("mixtral-8x7b/Q8_0", [load_profile("tesla-p100")], "generic").never)


def test_a_fine_tune_is_its_base_and_spellings_are_one():
    found = trust("qwen3.8-flash-next/IQ2_XS", [load_profile("rtx-5070-7900x")], "strata-reference")
    run, alike = found.nearest[0]
    assert run.processor == "Ryzen 9 7900X"
    assert "Swift" in run.model
    assert alike == ASPECTS


def test_a_model_that_was_measured_but_never_predicted_is_not_called_unmeasured():
    found = trust("qwen3-235b-a22b/Q2_K", [load_profile("tesla-p40")], "generic")
    assert "model qwen3-235b-a22b (measured, not predicted)" in found.never


@pytest.mark.parametrize(
    "command",
    [
        "run --trace <folder>/small.parquet --hardware tesla-p40 --slots-per-layer 16 --passes 3",
        "vram --model qwen3.8-flash-next/IQ3_S --hardware rtx-3090",
        "split --model granite-3.0-1b-a400m --quant FP16 --gpu tesla-p40 --ram 32GB --simulate 0 --engine strata",
        "split --model granite-3.0-1b-a400m --quant FP16 --gpu tesla-p40 --ram 32GB",
    ],
)
def test_answers_carry_it(command, tmp_path):
    fill(tmp_path)
    words = [word.replace("<folder>", str(tmp_path)) for word in command.split()]
    text = said(words)
    assert "nearest measured runs" in text
    data = json.loads(said([*words, "--json", "-"]))["trust"]
    assert 1 <= len(data["nearest"]) <= 3
    for row in data["nearest"]:
        assert row["engine"] in text
        assert (row["median_error"] is None) == (not row["errors"])
    for words_never in data["never_compared"]:
        assert words_never in " ".join(text.split())


def test_runs_of_the_engine_asked_for_are_known_as_such():
    """llama.cpp's own rows were never alike in engine with an answer about llama.cpp."""
    found = trust("qwen3.5-35b-a3b/Q4_K_M", [load_profile("rtx-5080:cpu=ryzen-9-9950x")], "llama.cpp")
    run, alike = found.nearest[0]
    assert run.engine == "llama.cpp"
    assert set(alike) >= {"model", "card", "engine", "processor"}
    assert run.off is not None
    assert run.held_out
    assert not [text for text in found.never if text.startswith("engine")]
