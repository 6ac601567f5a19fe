"""What a user installs: the wheel holds every file, and two distributions called like our folders harm nothing."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from itertools import permutations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("expert_residency", "hwmodels", "policies", "sim", "traces")
STRANGERS = ("traces==0.7.0", "policies==0.4.2")
"""Distributions whose packages have the names of our folders."""

pytestmark = pytest.mark.slow


def run(*words: str | Path, cwd: Path | None = None) -> str:
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    return [name for name in run("git", "ls-files", cwd=ROOT).split() if (ROOT / name).is_file()]


@pytest.fixture(scope="module")
def wheel(tracked, tmp_path_factory) -> Path:
    """Built from the sdist of a clean copy, as an index would hold it."""
    folder = tmp_path_factory.mktemp("dist")
    for name in tracked:
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / "tree" / name)
    build = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"
    name = run(sys.executable, "-c", build, "build_sdist", folder, cwd=folder / "tree").split()[-1]
    shutil.unpack_archive(folder / name, folder / "unpacked")
    name = run(
        sys.executable, "-c", build, "build_wheel", folder, cwd=next((folder / "unpacked").iterdir())
    ).split()[-1]
    return folder / name


def test_the_wheel_holds_every_file_of_the_packages(wheel, tracked) -> None:
    ours = [name for name in tracked if name.split("/")[0] in FOLDERS]
    wanted = {name for name in ours if not name.endswith(".md")}
    inside = {n if n.startswith("expert_residency/") else f"expert_residency/{n}" for n in wanted}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == inside


@pytest.mark.parametrize("order", list(permutations(("ours", "theirs"))), ids=" then ".join)
def test_two_distributions_of_our_folders_names_harm_nothing(order, wheel, tmp_path) -> None:
    """Dependencies come from the environment of the tests; whoever is installed first, the demo runs."""
    run(sys.executable, "-m", "venv", "--system-site-packages", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    there = [path for path in sys.path if path.endswith("site-packages")]
    (Path(site) / "dependencies.pth").write_text("\n".join(there) + "\n")
    for who in order:
        names = [str(wheel)] if who == "ours" else list(STRANGERS)
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-installed", *names],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0 and who == "theirs":
            pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
        assert done.returncode == 0, done.stderr
    where = "import expert_residency.traces as t, traces; print(t.__file__, traces.__file__)"
    ours, theirs = run(python, "-c", where, cwd=tmp_path).split()
    assert ours == f"{site}/expert_residency/traces/__init__.py"
    assert theirs == f"{site}/traces/__init__.py"
    assert "perfect look-ahead" in run(python, "-m", "expert_residency", "demo", cwd=tmp_path)
