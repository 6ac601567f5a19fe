"""Commands about memory, windows and variants: outputs that can be read back, one sentence for faults."""

import json

import pytest

from expert_residency.policies.placement.strp import read_strp
from expert_residency.traces import load_model
from tests.test_cli import residency
from tests.test_variants import SMALL


def vram(*more):
    done = residency("vram", "--model", "qwen3-30b-a3b", "--hardware", "rtx-3090", "--json", "-", *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_gib_more_of_kv_takes_its_slots():
    """KV grows by 1 GiB: slots fall by 1 GiB over the bytes of an expert."""
    small, large = vram("--session", "8GiB"), vram("--session", "9GiB")
    assert small["usable_bytes"] - sum(line["bytes"] for line in small["lines"]) == small["cache_bytes"]
    sizes = load_model("qwen3-30b-a3b").expert_bytes
    lost = small["slots"] - large["slots"]
    assert (1 << 30) // max(sizes) - 1 <= lost <= (1 << 30) // min(sizes) + 1


@pytest.mark.slow
def test_host_memory_adds_up_and_what_does_not_fit_is_said():
    fits = residency(
        "vram", "--model", "qwen3.8-flash-next/IQ4_XS", "--hardware", "rtx-5060ti", "--context", 65536,
        "--kv-resident", 20480, "--host", "budget:gib=40", "--json", "-",
    )  # fmt: skip
    found = json.loads(fits.stdout)
    assert sum(found["host_bytes"].values()) == 64 << 30
    assert found["host_bytes"]["experts, page-locked"] == pytest.approx(40 * 2**30, rel=1e-3)
    too_large = residency(
        "vram", "--model", "qwen3.8-flash-next/UD-Q4_K_XL", "--hardware", "rtx-5070", "--kv-resident", 20480
    )
    assert "an arena of" in too_large.stdout


@pytest.mark.slow
def test_windows_and_a_profile_that_starts_a_run(tmp_path):
    trace = "bundled:tinymoe-code"
    done = residency("window", trace, "--slots", 120, "--horizon", 4, "--link", "rtx-5070", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    means = [one["mean"] for one in found["windows"]]
    assert means == sorted(means)
    assert found["lookahead"][0]["ms_per_token"] > 0
    out = tmp_path / "p.strp"
    made = residency("placement", trace, "--slots", 20, "--out", out, "--tokens", 16)
    assert made.returncode == 0, made.stderr
    profile = read_strp(out)
    assert len(profile.ranked) == profile.layers * profile.experts
    run = residency(
        "run", "--trace", trace, "--hardware", "rtx-5070", "--slots-per-layer", 4, "--engine", "strata",
        "--placement", f"strp:file={out}", "--passes", 8, "--json", "-",
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["manifest"]["spec"]["admission"] == "strata-adaptive"


def test_variants_are_listed_in_order(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text(SMALL)
    done = residency("run", file, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert [one["variant"] for one in json.loads(done.stdout)] == ["cold", "again"]
    shown = residency("run", file)
    assert shown.stdout.index("cold") < shown.stdout.index("again")
    wrong = residency("run", "case:nothing")
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (2, False)
