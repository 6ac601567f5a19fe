"""A new eviction policy, reader, machine, model and engine preset are one new file each."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from expert_residency.errors import HardwareError
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.registry import load_profile
from expert_residency.hwmodels.template import HINTS, template

SAMPLE = Path(__file__).parent / "sample_plugin/coldest_layer"
POINTS = """\
[expert_residency.eviction]
deepest-first = deepest:DeepestFirst
[expert_residency.readers]
moe-words = words
"""
MACHINE = """\
base = "rtx-5070"
name = "mine"
summary = "the same card in a slow slot"
[link]
h2d_gb_per_s = { value = 3.0, kind = "assumed", source = "one lane" }
"""
MODEL = """\
name = "mine"
total_layers = 3
experts = 8
top_k = 2
hidden_size = 64
source = "me"
default_quant = "Q4"
[session]
kv_layers = 3
key_values = 64
value_values = 64
kind = "derived"
source = "me"
[quants.Q4]
family = "q4"
expert_bytes = 2_000_000
dense_layer_bytes = 1_000_000
head_bytes = 500_000
kind = "assumed"
source = "me"
"""
ENGINE = """\
base = "generic"
summary = "fetches, and sends slowly"
miss = "fetch"
send_us = { value = 40.0, kind = "assumed", source = "a test" }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file each, and the entry points of a package that brings two of them."""
    made = tmp_path_factory.mktemp("mine")
    for name in ("deepest.py", "words.py"):
        shutil.copyfile(SAMPLE / name, made / name)
    points = made / "mine-1.0.dist-info"
    points.mkdir()
    (points / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n", encoding="utf-8")
    (points / "entry_points.txt").write_text(POINTS, encoding="utf-8")
    for name, text in {"machine": MACHINE, "model": MODEL, "engine": ENGINE}.items():
        (made / f"{name}.toml").write_text(text, encoding="utf-8")
    rows = [f"{t} {layer} {(t + layer) % 8} {(t + layer + 3) % 8}" for t in range(12) for layer in range(3)]
    (made / "trace.txt").write_text("\n".join(["MOE1", *rows]) + "\n", encoding="utf-8")
    return made


def residency(folder: Path, *arguments: str) -> str:
    """What a new process prints that stands in the folder."""
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-m", "expert_residency", *arguments], env=os.environ | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_of_each_is_used_together(folder: Path) -> None:
    common = ("run", "--trace", "trace.txt", "--model", "model.toml", "--slots-per-layer", "3", "--json", "-")
    mine = residency(
        folder, *common, "--hardware", "./machine.toml", "--engine", "./engine.toml", "--eviction", "deepest-first"
    )
    result = json.loads(mine)
    spec = result["manifest"]["spec"]
    assert spec["eviction"] == "deepest-first"
    assert result["decode_tokens"] == 12
    usual = json.loads(residency(folder, *common, "--hardware", "rtx-5070", "--engine", "generic"))
    assert result["ms_per_token"] > usual["ms_per_token"], "a slower link and a slower engine"


def test_a_model_of_one_file_has_a_budget(folder: Path) -> None:
    found = json.loads(
        residency(folder, "vram", "--model", "model.toml", "--hardware", "./machine.toml", "--json", "-")
    )
    lines = {line["line"]: line["bytes"] for line in found["lines"]}
    assert lines["KV, fp16, 4,096 cells"] == 4096 * 3 * 2 * 64 * 2
    assert found["slots"] == 24


def test_the_template_says_what_every_field_means() -> None:
    text = template()
    assert all(hint in text for hint in HINTS.values())
    for section in HardwareProfile.model_fields:
        if section in HINTS:
            assert f"[{section}]" in text


def test_a_template_loads_once_it_is_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(residency(tmp_path, "list", "hardware", "--template"), encoding="utf-8")
    asked = tomllib.loads(path.read_text(encoding="utf-8"))
    with pytest.raises(HardwareError) as error:
        load_profile(path)
    assert all(name in str(error.value) for name in ("gpu.vram_total_gib", "ram.pin_limit_gib", "summary"))
    filled = re.sub(r'value = "\?", kind = "\?", source = "\?"', 'value = 8, kind = "assumed", source = "a test"',
                    path.read_text(encoding="utf-8")).replace('"?"', '"named"')  # fmt: skip
    path.write_text(filled, encoding="utf-8")
    profile = load_profile(path)
    assert profile.gpu.vram_usable_gib.value == 8
    assert profile.disk.name == "NVMe, not named", "what is commented out is the base's"
    assert asked["base"] == "_generic"
    run = residency(
        tmp_path, "run", "--trace", "bundled:tinymoe-prose", "--passes", "3", "--hardware", str(path),
        "--slots-per-layer", "16", "--json", "-",
    )  # fmt: skip
    assert json.loads(run)["decode_tokens"] > 0


@pytest.mark.shared
def test_what_is_missing_is_said_at_once(shared: Path) -> None:
    """A profile of three lines lacks nineteen fields; one from data sheets is whole."""
    with pytest.raises(HardwareError) as error:
        load_profile(shared / "cases/machines/min.toml")
    assert str(error.value).count(",") == 18
    assert "--template" in str(error.value)
    for path in sorted((shared / "cases/machines").glob("*.toml")):
        if path.stem != "min":
            assert load_profile(path).gpu.vram_usable_gib.value > 0
