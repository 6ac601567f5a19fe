"""A package of somebody else's brings policies of every kind, and they are used like built-ins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.residency.pool import make_pool
from expert_residency.sim.testing import check_admission, check_eviction, check_prefetch
from expert_residency.sim.testing.cases import random_trace
from expert_residency.traces import ModelGeometry, Phase, TraceBuilder, write_parquet

SAMPLE = Path(__file__).parent / "sample_plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The sample as pip installs it into a folder, without network and without touching this environment."""
    work = tmp_path_factory.mktemp("plugin")
    source, target = work / "source", work / "site"
    for path in SAMPLE.rglob("*"):
        if path.suffix in (".py", ".toml"):
            (source / path.relative_to(SAMPLE)).parent.mkdir(parents=True, exist_ok=True)
            (source / path.relative_to(SAMPLE)).write_bytes(path.read_bytes())
    pytest.importorskip("setuptools")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation",
         "--disable-pip-version-check", "--target", str(target), str(source)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    geometry = ModelGeometry(
        "tiny", (0, 1, 2), 8, 2, (2_000_000,) * 3, (1_000_000,) * 3, hidden_size=64, quant_family="q4"
    )
    draw = np.random.default_rng(1)
    builder = TraceBuilder(geometry)
    for _ in range(20):
        builder.begin_pass(Phase.DECODE)
        for layer in range(3):
            builder.row(layer, draw.permutation(8)[:2].tolist())
    path = tmp_path_factory.mktemp("trace") / "tiny.parquet"
    write_parquet(replace(builder.build()), path)
    return path


def python(installed, *arguments):
    """A new interpreter that sees the plug-in."""
    root = str(Path(__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(installed), root])}
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, check=False, cwd=installed
    )


def residency(installed, *arguments):
    return python(installed, "-c", "from expert_residency.sim.cli import main; main()", *arguments)


@pytest.mark.slow
def test_policies_of_all_kinds_run_from_the_command_line(installed, trace_file):
    done = residency(
        installed, "run", "--trace", str(trace_file), "--hardware", "tesla-p40", "--slots-per-layer", "3",
        "--eviction", "deepest-first", "--admission", "first-touch-never:uses=3", "--prefetch", "same-ids",
        "--placement", "front-loading", "--json", "-",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["manifest"]["spec"]["eviction"] == "deepest-first"
    assert result["decode_tokens"] == 20
    assert result["prefetch"]["issued"] > 0
    assert result["start_bytes"] == 9 * 2_000_000


def test_a_reader_is_sniffed_and_its_errors_name_the_line(installed, tmp_path):
    ids = "0 1 2 3 4 5 6 7"
    rows = [f"{token} {layer} {ids}" for token in (0, 1) for layer in range(24)]
    (tmp_path / "good.txt").write_text("\n".join(["MOE1", *rows, ""]))
    (tmp_path / "some.txt").write_text(f"MOE1\n0 0 {ids}\n0 1 {ids}\n1 0 {ids}\n1 1 {ids}\n")
    (tmp_path / "bad.txt").write_text(f"MOE1\n0 0 {ids}\n0 x {ids}\n")
    model = ("--model", "granite-3.0-1b-a400m")
    done = residency(installed, "inspect", str(tmp_path / "good.txt"), *model, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passes"]["decode"] == 2
    done = residency(installed, "inspect", str(tmp_path / "bad.txt"), *model)
    assert done.returncode == 2
    assert "line 3" in done.stderr
    done = residency(installed, "inspect", str(tmp_path / "some.txt"), *model)  # as complete as a built-in one's
    assert done.returncode == 2
    assert "2 of the 24 MoE layers" in done.stderr


def test_they_are_listed_beside_the_built_in_ones(installed):
    done = residency(installed, "list", "policies", "--json", "-")
    assert done.returncode == 0, done.stderr
    for name in ("deepest-first", "first-touch-never", "same-ids", "front-loading", "lru"):
        assert name in done.stdout


def test_a_misspelt_name_or_parameter_lists_theirs_too(installed, trace_file):
    common = ("run", "--trace", str(trace_file), "--hardware", "tesla-p40", "--slots-per-layer", "3")
    done = residency(installed, *common, "--eviction", "deepest-furst")
    assert done.returncode == 2
    assert "did you mean deepest-first?" in done.stderr
    done = residency(installed, *common, "--admission", "first-touch-never:times=3")
    assert done.returncode == 2
    assert "(known: uses)" in done.stderr


def test_they_pass_the_published_conformance_suite(installed):
    code = (
        "from expert_residency.policies import create\n"
        "from expert_residency.sim.testing import check_admission, check_eviction, check_prefetch\n"
        "check_eviction(create('eviction', 'deepest-first'))\n"
        "check_admission(create('admission', 'first-touch-never'))\n"
        "check_prefetch(create('prefetch', 'same-ids'))\n"
    )
    done = python(installed, "-c", code)
    assert done.returncode == 0, done.stderr


def test_a_plug_in_that_cannot_be_imported_harms_nobody_else(installed, trace_file, tmp_path):
    broken = tmp_path / "broken-1.0.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (broken / "entry_points.txt").write_text("[expert_residency.eviction]\nbroken = not_there:Policy\n")
    root = str(Path(__file__).parents[1])
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), root])}

    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-c", "from expert_residency.sim.cli import main; main()", *arguments],
            env=env, capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip

    common = ("run", "--trace", str(trace_file), "--hardware", "tesla-p40", "--slots-per-layer", "3")
    assert run(*common, "--eviction", "lru").returncode == 0
    done = run(*common, "--eviction", "broken")
    assert done.returncode == 2
    assert "cannot be imported" in done.stderr


def test_the_templates_of_the_documentation_keep_every_law():
    page = (Path(__file__).parents[1] / "docs/plugins.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:5]
    scope = {"__name__": "templates"}
    exec(compile("\n".join(blocks), "plugins.md", "exec", dont_inherit=True), scope)
    check_eviction(scope["MyLru"]())
    check_eviction(scope["FastLru"]())
    check_admission(scope["SecondTime"]())
    check_prefetch(scope["SameIds"]())
    assert scope["FrontLoading"]().rank(make_pool(random_trace(1).geometry, Capacity(slots_per_layer=1)), None)
