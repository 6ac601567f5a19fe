"""Every option that names a file to write: links, pipes and devices, full and read-only disks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from expert_residency.errors import FileError
from expert_residency.files import atomic, check_output
from expert_residency.sim.cli import _register, app, main
from expert_residency.sim.cli.common import picture, writable
from expert_residency.sim.cli.import_ import parquet
from expert_residency.sim.timed.timeline import Timeline
from expert_residency.traces import write_parquet
from tests.test_engine import random_trace

LEARN = "learn synthetic:gpt-oss-20b:tokens=2,requests=2 --predictor transitions"
RUN = "--hardware tesla-p40 --slots-per-layer 2"
SPLIT = (
    "split --model qwen3.8-flash-next --quant UD-Q4_K_XL --gpu tesla-p40+rtx-3090 --host arena --simulate 0 "
    "--engine strata"
)
FIT = "fit runs.csv --trace bundled:tinymoe-code --hardware rtx-5070 --engine generic --passes 12"
BOARD = (
    "leaderboard tiny.parquet --only --policy lfru --hardware tesla-p40 --capacity 40% --miss fetch --workers 1"
)
COMMANDS = {
    "advise --json": "advise --model gpt-oss-20b --gpu tesla-p40 --passes 4 --draws 2 --json {}",
    "calibrate --out": "calibrate --like tesla-p40 --trace tiny.parquet --out {}.toml",
    "curve --json": "curve tiny.parquet --points 2 --eviction lru --json {}",
    "curve --plot": "curve tiny.parquet --points 2 --eviction lru --plot {}.png",
    "demo --json": "demo --json {}",
    "drafts --json": f"drafts tiny.parquet {RUN} --json {{}}",
    "fit --json": f"{FIT} --json {{}}",
    "fit --out": f"{FIT} --out {{}}.toml",
    "import OUT": "import tiny.parquet {}.parquet",
    "inspect --json": "inspect tiny.parquet --json {}",
    "leaderboard --json": f"{BOARD} --json {{}}",
    "leaderboard --out": f"{BOARD} --out {{}}.md",
    "leaderboard --plot": f"{BOARD} --plot {{}}.svg",
    "learn --json": f"{LEARN} --json {{}}",
    "learn --out": f"{LEARN} --out {{}}.parquet",
    "list --json": "list policies --json {}",
    "machine --json": "machine tesla-p40 --json {}",
    "machine --out": "machine tesla-p40 --out {}.toml",
    "model --json": "model granite-3.0-1b-a400m --json {}",
    "model --out": "model granite-3.0-1b-a400m --out {}.toml",
    "placement --out": "placement tiny.parquet --slots 4 --out {}",
    "predictor --json": f"predictor tiny.parquet {RUN} --json {{}}",
    "predictor --plot": f"predictor tiny.parquet {RUN} --plot {{}}.png",
    "record --out": "record --model . --prompt-file prompt.txt --out {}",
    "replay --json": "replay tiny.parquet --slots-per-layer 2 --json {}",
    "report --out": "report results --out {}",
    "run --json": f"run --trace tiny.parquet {RUN} --json {{}}",
    "run --timeline": f"run --trace tiny.parquet {RUN} --timeline {{}}",
    "score --json": "score result.json --json {}",
    "split --json": f"{SPLIT} --json {{}}",
    "split --plot": f"{SPLIT} --plot {{}}.png",
    "validate --json": "validate --group published --json {}",
    "validate --plot": "validate --group published --plot {}.png",
    "vram --json": "vram --model qwen3.8-flash-next --hardware rtx-5070 --json {}",
    "why --json": f"why tiny.parquet {RUN} --json {{}}",
    "window --json": "window tiny.parquet --json {}",
}
SLOW = (
    "demo --json", "fit --json", "fit --out", "validate --json", "validate --plot", "predictor --json",
    "predictor --plot",
)  # fmt: skip
NEEDS = {"report --out": "altair", "curve --plot": "matplotlib", "leaderboard --plot": "matplotlib",
         "predictor --plot": "matplotlib",
         "split --plot": "matplotlib", "validate --plot": "matplotlib", "record --out": "transformers",
         "calibrate --out": "numba"}  # fmt: skip


def options() -> Iterator[str]:
    """Every parameter of a command that names a file to write."""
    _register()
    for command in app.registered_commands:
        function: Callable[..., Any] = command.callback  # type: ignore[assignment]
        name = command.name or function.__name__.removesuffix("_command")
        for parameter, hint in get_type_hints(function, include_extras=True).items():
            for info in getattr(hint, "__metadata__", ()):
                if getattr(info, "callback", None) in (writable, picture, parquet):
                    declared = [one for one in getattr(info, "param_decls", ()) or () if one.startswith("--")]
                    option = (
                        "OUT" if type(info).__name__ == "ArgumentInfo" else (declared or [f"--{parameter}"])[0]
                    )
                    yield f"{name} {option}"


def test_every_output_of_every_command_is_tried() -> None:
    assert sorted(options()) == sorted(COMMANDS)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scratch folder with what the commands read; what takes minutes or a model is replaced by its result."""
    trace = random_trace(3)
    write_parquet(trace, tmp_path / "tiny.parquet")
    (tmp_path / "prompt.txt").write_text("text")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command reads, and stand-ins for what takes minutes, a card or a model."""
    if module := NEEDS.get(name):
        pytest.importorskip(module)
    if name == "report --out":
        choices = ["--hardware", "tesla-p40", "--capacity", "40%", "--eviction", "lru", "--prefetch", "none"]
        finished("sweep", "--trace", "tiny.parquet", *choices, "--workers", "1", "--out", "results")
    elif name.startswith("fit "):
        Path("runs.csv").write_text("capacity,miss,tokens_per_s\n0B,cpu,300\n25%,fetch,420\n60%,fetch,600\n")
    elif name == "score --json":
        finished("run", "--trace", "tiny.parquet", *RUN.split(), "--json", "result.json")
    elif name == "calibrate --out":
        readings = SimpleNamespace(table=dict)
        made = SimpleNamespace(profile_toml="a = 1\n", engine_toml="", readings=readings, noisy=[])
        monkeypatch.setattr("expert_residency.hwmodels.calibrate.calibrate", lambda *_, **__: made)
    elif name == "record --out":
        model = SimpleNamespace(to=lambda _: None)
        tokenizer = SimpleNamespace(from_pretrained=lambda *_, **__: lambda _: {"input_ids": []})
        import transformers

        monkeypatch.setattr(transformers, "AutoTokenizer", tokenizer)
        loader = SimpleNamespace(from_pretrained=lambda *_, **__: model)
        monkeypatch.setattr(transformers, "AutoModelForCausalLM", loader)
        monkeypatch.setattr("expert_residency.traces.record.record", lambda *_, **__: random_trace(3))


def finished(*args: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(list(args))
    assert stopped.value.code in (0, None)


def drain(path: Path) -> tuple[threading.Thread, list[bytes]]:
    """Read a pipe to its end beside the command that writes it."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    reader.start()
    return reader, found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in COMMANDS]
)
def test_links_are_followed_and_pipes_written_to(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(name, monkeypatch)
    command = COMMANDS[name]
    file = Path(next(word for word in command.split() if "{}" in word).format("out"))
    Path("real").write_text("old")
    file.symlink_to("real")
    finished(*command.format("out").split())
    assert file.is_symlink()
    written = Path("real").read_bytes()
    assert len(written) > 5
    assert written != b"old"
    file.unlink()
    os.mkfifo("pipe")
    file.symlink_to("pipe")
    reader, found = drain(here / "pipe")
    finished(*command.format("out").split())
    reader.join(60)
    assert file.is_symlink()
    assert Path("pipe").is_fifo()
    assert len(found[0]) > 5
    assert found[0][:4] == written[:4]
    assert not list(here.rglob("*.part"))


def test_a_device_stays_a_device(tmp_path: Path) -> None:
    device = tmp_path / "nul"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        device.symlink_to("/dev/null")
    with atomic(device) as part:
        part.write_text("gone")
    assert stat.S_ISCHR(device.stat().st_mode)
    assert Path("/dev/null").is_char_device()
    assert not [path for path in tmp_path.iterdir() if path != device]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB with nothing free."""
    yield from mounted(tmp_path / "full", "size=64k", fill=True)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that is only read."""
    yield from mounted(tmp_path / "read", "ro", fill=False)


def mounted(folder: Path, options: str, *, fill: bool) -> Iterator[Path]:
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("mounting needs an administrator")
    try:
        if fill:
            with pytest.raises(OSError), (folder / "fill").open("wb", buffering=0) as file:  # noqa: PT012
                while True:
                    file.write(bytes(1024))
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


ON_BAD_DISKS = ("inspect --json", "run --timeline", "placement --out", "import OUT", "curve --plot")


@pytest.mark.parametrize("name", ON_BAD_DISKS)
@pytest.mark.parametrize("disk", ["full_disk", "read_only"])
def test_a_full_or_read_only_disk_is_a_sentence(
    name: str, disk: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, request: Any
) -> None:
    folder: Path = request.getfixturevalue(disk)
    before = sorted(folder.iterdir())
    prepare(name, monkeypatch)
    with pytest.raises(SystemExit) as stopped:
        main(COMMANDS[name].format(folder / "out").split())
    said = capsys.readouterr().err
    assert stopped.value.code == 2
    assert ("No space left on device" if disk == "full_disk" else "is read-only, or belongs to") in said
    assert said.startswith("residency: ")
    assert said.count("\n") == 1
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize("command", ["sweep", "tune"])
def test_results_on_a_full_disk_are_a_sentence(command: str, full_disk: Path, here: Path, capsys: Any) -> None:
    if command == "tune":
        pytest.importorskip("optuna")
    choices = 'hardware = "tesla-p40"\ncapacity = "40%"\nmiss = "fetch"\n'
    Path("f.toml").write_text(
        f'traces = {{ t = "tiny.parquet" }}\n[constants]\n{choices}'
        if command == "sweep"
        else f'traces = {{ t = "tiny.parquet" }}\n[choices]\n{choices}eviction = "{{p}}"\n'
        '[parameters]\np = { values = ["lru"] }\n'
    )
    with pytest.raises(SystemExit) as stopped:
        main([command, "f.toml", "--out", str(full_disk / "out")])
    assert stopped.value.code == 2
    assert "No space left on device" in capsys.readouterr().err
    assert [path.name for path in full_disk.iterdir()] == ["fill"]


def test_a_table_into_a_full_disk_is_a_sentence() -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("needs /dev/full")
    code = "import sys; from expert_residency.sim.cli import main; main(sys.argv[1:])"
    for args in (["list", "formats"], ["list", "formats", "--json", "-"], ["--version"], ["list", "--help"]):
        with Path("/dev/full").open("wb") as out:
            done = subprocess.run(
                [sys.executable, "-c", code, *args], stdout=out, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 2
        assert done.stderr == "residency: the output: cannot be read or written (No space left on device)\n"


def test_a_timeline_that_cannot_be_ended_leaves_nothing(full_disk: Path) -> None:
    with pytest.raises(FileError, match="No space left"):
        fill(full_disk / "t.json")
    assert [path.name for path in full_disk.iterdir()] == ["fill"]


def fill(path: Path) -> None:
    with Timeline(path, random_trace(3).geometry, "x") as made:
        for number in range(20_000):
            made.filling(number, 1)


@pytest.mark.parametrize(
    "command",
    [
        "inspect tiny.parquet --json tiny.parquet",
        "inspect tiny.parquet --json=link",
        f"run --trace ./tiny.parquet {RUN} --timeline tiny.parquet",
        f"run --trace=tiny.parquet {RUN} --json link",
        "replay link --slots-per-layer 2 --eviction lru --json tiny.parquet",
    ],
)
def test_what_a_command_reads_it_does_not_write_over(command: str, here: Path, capsys: Any) -> None:
    (here / "link").symlink_to("tiny.parquet")
    before = (here / "tiny.parquet").read_bytes()
    with pytest.raises(SystemExit) as stopped:
        main(command.split())
    assert stopped.value.code == 2
    assert "is read by this command, so it is not written over" in capsys.readouterr().err
    assert (here / "tiny.parquet").read_bytes() == before


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "t.json"
    target.write_text("old")
    target.chmod(0o600)
    with atomic(target) as part:
        part.write_text("new")
    assert (target.read_text(), target.stat().st_mode & 0o777) == ("new", 0o600)


def test_a_mounted_file_is_written_to(tmp_path: Path) -> None:
    """As a container has it, into which one file was mounted."""
    real, mounted_on = tmp_path / "real", tmp_path / "file"
    with Path("/dev/shm").joinpath(f"real-{os.getpid()}").open("w") as file:
        real = Path(file.name)
    mounted_on.touch()
    bind = ["mount", "--bind", real, mounted_on]
    if subprocess.run(bind, capture_output=True, check=False).returncode:
        real.unlink()
        pytest.skip("mounting needs an administrator")
    try:
        with atomic(mounted_on) as part:
            part.write_text("new")
        assert real.read_text() == "new"
    finally:
        subprocess.run(["umount", mounted_on], check=True)
        real.unlink()


def test_a_file_in_a_closed_folder_is_written_to_and_a_closed_one_refused(tmp_path: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("nothing is closed to an administrator")
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "open").write_text("old")
    (closed / "shut").write_text("old")
    (closed / "shut").chmod(0o400)
    closed.chmod(0o500)
    try:
        with atomic(closed / "open") as part:
            part.write_text("new")
        assert (closed / "open").read_text() == "new"
        for name in ("shut", "new"):
            with pytest.raises(FileError, match="is read-only, or belongs to somebody else"):
                check_output(closed / name)
    finally:
        closed.chmod(0o700)
