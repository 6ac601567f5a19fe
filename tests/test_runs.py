"""Published runs: columns are checked, shipped tables keep their own rules."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.registry import list_profiles
from expert_residency.hwmodels.runs import Span, load_engine_runs, load_slot_counts, load_strata_runs

STRATA = load_strata_runs()


def test_all_rows_load():
    assert (len(STRATA), len(load_engine_runs()), len(load_slot_counts())) == (250, 134, 46)


def test_halves_alternate_within_a_machine():
    by_machine = defaultdict(list)
    for run in STRATA:
        if run.tok_s is not None:
            by_machine[run.group].append(run.use)
        else:
            assert run.use == ""
    for uses in by_machine.values():
        assert uses == ["fit" if n % 2 == 0 else "unseen" for n in range(len(uses))]


def test_profiles_exist_and_belong_to_one_machine_each():
    named = {run.profile for run in STRATA if run.profile}
    assert named <= set(list_profiles())
    cards_and_cpu = defaultdict(set)
    for run in STRATA:
        if run.profile:
            cards_and_cpu[run.profile].add(run.group.split("x-", 1)[1])
    assert all(len(machines) == 1 for machines in cards_and_cpu.values())


def test_counts_keep_the_engines_identities():
    # routed = lookups + PCIe-served = 48 layers x top-10 x rows, and rows = windows + offered drafts.
    exact = [run for run in STRATA if run.routed and run.windows and run.drafts_offered is not None]
    assert len(exact) == 25
    for run in exact:
        assert run.routed == 480 * (run.windows + run.drafts_offered)
        assert run.routed == run.lookups + run.pcie_served
        assert run.lookups == run.vram_hits + run.cpu_served
        assert 100 * run.vram_hits / run.lookups == pytest.approx(run.hit_rate_pct.middle, abs=0.06)


def test_speed_and_time_of_a_token_agree():
    for run in STRATA:
        if run.tok_s and run.ms_token:
            assert run.tok_s * run.ms_token == pytest.approx(1000, rel=0.005), run.source


def test_window_times_agree_with_tokens_a_window():
    for run in STRATA:
        if run.ms_window and run.tokens_window and run.tok_s:
            assert run.tokens_window / run.ms_window * 1000 == pytest.approx(run.tok_s, rel=0.02), run.source


def test_ranges_are_kept_as_ranges():
    spans = Counter(run.hit_rate_pct for run in STRATA)
    assert spans[Span(81.0, 96.0)] == 8
    assert Span(81.0, 96.0).middle == 88.5
    decode = [run.decode_tok_s for run in load_engine_runs()]
    assert Span(37.5, 39.0) in decode
    assert None in decode  # a before and an after are no range


HEAD = "source,gpu,n_gpus,model,tok_s\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("source,gpu,n_gpus,model,toks\n", "line 1: unknown column 'toks'; did you mean tok_s"),
        ("source,gpu,model\n", "line 1: column 'n_gpus' is missing"),
        ("source,gpu,gpu,n_gpus,model\n", "line 1: column 'gpu' appears twice"),
        ("", "line 1: column 'source' is missing"),
        (HEAD + "own,card,1,m\n", "line 2: 4 cells under 5 columns"),
        (HEAD + "own,card,1,m,12\nown,card,1,m,fast\n", "line 3: tok_s 'fast'"),
        (HEAD + "own,card,1,m,-3\n", "line 2: tok_s '-3'"),
        (HEAD + "own,card,1,m,nan\n", "line 2: tok_s 'nan'"),
        (HEAD + "own,,1,m,12\n", "line 2: gpu is empty"),
        (HEAD + 'own,"card,1,m,12\n', "not valid CSV"),
        (HEAD.replace("tok_s", "hit_rate_pct") + "own,card,1,m,most\n", "hit_rate_pct 'most'"),
    ],
)
def test_bad_file_is_one_sentence(tmp_path, text, says):
    path = tmp_path / "mine.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(HardwareError) as error:
        load_strata_runs(path)
    assert str(error.value).startswith(str(path))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path):
    with pytest.raises(HardwareError, match="No such file"):
        load_strata_runs(tmp_path / "none.csv")


def test_a_users_file_needs_only_the_required_columns(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(HEAD + "own run,RTX 5070,1,qwen,12.5\n", "utf-8")
    (run,) = load_strata_runs(path)
    assert (run.tok_s, run.slots, run.flags) == (12.5, None, "")
