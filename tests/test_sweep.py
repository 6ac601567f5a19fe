"""Sweeps: what is checked before, what survives during, what the dataset holds after."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expert_residency.errors import MisfitError, SimError
from expert_residency.hwmodels.registry import load_profile
from expert_residency.sim.choices.capacity import Capacity
from expert_residency.sim.choices.spec import RunSpec
from expert_residency.sim.cli import main
from expert_residency.sim.runs.simulate import prepare
from expert_residency.sim.sweep import SweepError, load_sweep, read_dataset, sweep
from expert_residency.sim.sweep.cells import plan_cells
from expert_residency.sim.sweep.default import default_sweep
from expert_residency.sim.sweep.pools import DIED, Pool, run_all
from expert_residency.sim.sweep.spec import expand
from expert_residency.sim.sweep.stored import open_stored, store
from expert_residency.traces import Phase
from expert_residency.traces.bundled import load
from expert_residency.traces.parquet import write_parquet

SMALL: dict[str, Any] = {
    "name": "small",
    "traces": {"code": "bundled:tinymoe-code"},
    "constants": {"miss": "fetch", "passes": 6},
    "axes": {
        "hardware": ["rtx-5070", "tesla-p40"],
        "capacity": ["20%", "50%"],
        "eviction": ["lru", "lfu"],
        "prefetch": ["none", "previous-token"],
    },
}
TOML = """
name = "small"
[traces]
code = "bundled:tinymoe-code"
[constants]
miss = "fetch"
passes = {passes}
[axes]
hardware = ["rtx-5070", "tesla-p40"]
capacity = ["20%", "50%"]
eviction = ["lru", "lfu", "min"]
prefetch = ["none", "previous-token"]
"""


def changed(**tables: Any) -> dict[str, Any]:
    return SMALL | tables


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "cells").iterdir())}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small sweep, run with one worker from end to end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    sweep(SMALL, folder, workers=1)
    return folder


# ---- before anything starts --------------------------------------------------------------------


def test_last_axis_changes_fastest_and_exclusions_are_partial_matches() -> None:
    file, _, _ = load_sweep(changed(exclude=[{"hardware": "tesla-p40", "eviction": ["lfu"]}, {"capacity": "50%"}]))
    cells = [(c["hardware"], c["capacity"], c["eviction"], c["prefetch"]) for c in expand(file)]
    assert cells == [
        ("rtx-5070", "20%", "lru", "none"),
        ("rtx-5070", "20%", "lru", "previous-token"),
        ("rtx-5070", "20%", "lfu", "none"),
        ("rtx-5070", "20%", "lfu", "previous-token"),
        ("tesla-p40", "20%", "lru", "none"),
        ("tesla-p40", "20%", "lru", "previous-token"),
    ]


def test_scenarios_bundle_choices(tmp_path: Path) -> None:
    source = changed(
        scenarios={"ram": {"host": "arena"}, "ssd": {"host": "mmap", "start": "cold"}},
        axes={"scenario": ["ram", "ssd"], "hardware": ["rtx-5070"], "capacity": ["20%"]},
    )
    frame = sweep(source, tmp_path / "out", workers=1).frame
    assert frame[["scenario", "host", "start"]].values.tolist() == [
        ["ram", "arena", "warm"],
        ["ssd", "mmap", "cold"],
    ]
    assert frame["disk_bytes"].tolist()[0] == 0 < frame["disk_bytes"].tolist()[1]


def test_a_list_is_one_card_each(tmp_path: Path) -> None:
    axes = {
        "hardware": [["tesla-p40", "tesla-p40"]],
        "layers_each": [[3, 3]],
        "capacity": ["50%", ["60MiB", "70MiB"]],
    }
    n_layers = load("tinymoe-code").geometry.n_layers
    axes["layers_each"] = [[n_layers // 2, n_layers - n_layers // 2]]
    frame = sweep(changed(axes=axes), tmp_path / "out", workers=1).frame
    assert frame["hardware"].tolist() == ["tesla-p40+tesla-p40"] * 2
    assert frame["capacity_bytes"].tolist()[1] == 130 * 2**20
    assert frame["cached_share"].iloc[0] == pytest.approx(0.5, abs=1e-6)


def test_every_bad_cell_is_named_before_anything_runs(tmp_path: Path) -> None:
    axes = SMALL["axes"] | {
        "eviction": ["lruu", "lru"],
        "capacity": ["20%", "12"],
        "hardware": ["rtx-5070", "p41"],
    }
    with pytest.raises(SweepError) as error:
        sweep(changed(axes=axes), tmp_path / "out", workers=1)
    text = "; ".join(error.value.problems)
    assert "unknown eviction policy 'lruu'; did you mean lru?" in text
    assert "size 12 has no unit" in text
    assert "'p41'" in text
    assert "cells 0, 1 of 16" in text
    assert not (tmp_path / "out" / "journal.jsonl").exists()


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"axis": {}}, "unknown key 'axis'; did you mean axes"),
        ({"axes": SMALL["axes"] | {"evict": ["lru"]}}, "axes: unknown choice 'evict'"),
        ({"constants": {"eviction": "lru"}}, "eviction is both an axis and a constant"),
        ({"axes": SMALL["axes"] | {"eviction": []}}, "axes.eviction: no values"),
        ({"axes": SMALL["axes"] | {"eviction": ["lru", "lru"]}}, "'lru' is listed twice"),
        ({"scenarios": {"a": {"eviction": "lru"}}}, "eviction is set by scenario a and again outside it"),
        ({"exclude": [{"eviction": "lur"}]}, "exclude 1 matches no cell"),
        ({"exclude": [{"miss": "fetch"}]}, "leave no cell"),
        ({"constants": {"trace": "prose"}}, "unknown trace 'prose' (known: code)"),
        ({"constants": {"scenario": "x"}}, "unknown scenario 'x'"),
        ({"constants": {"passes": 0}}, "passes is 0, expected a whole number above 0"),
        ({"constants": {"passes": "all"}}, "passes is 'all', expected a whole number"),
        ({"constants": {"slots_per_layer": 3}}, "capacity and slots_per_layer are both given"),
        ({"constants": {"host": "ram"}}, "unknown host mode 'ram'"),
        ({"constants": {"miss": "ignore"}}, "unknown miss mode 'ignore'"),
        ({"constants": {"layers_each": [1]}}, "do not add up"),
        ({"axes": SMALL["axes"] | {"prefetch": ["gate-lookahead:depth=9"]}}, "depth 9"),
        ({"traces": {"code": "missing.csv"}}, "no such file"),
        ({"traces": {"code": {"path": "x", "kind": "csv"}}}, "kind"),
        ({"axes": {"capacity": ["1MiB"]}}, "hardware is missing"),
        ({"axes": SMALL["axes"] | {"capacity": ["20%", "20.0%"]}}, "the same run as cell"),
        ({"axes": SMALL["axes"] | {"capacity": ["40GiB"]}}, "does not fit"),
    ],
)
def test_bad_sweeps_are_refused_in_words(tables: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(SweepError) as error:
        sweep(changed(**tables), tmp_path / "out", workers=1)
    assert words in str(error.value)


def test_a_file_that_is_not_toml_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("axes = [")
    with pytest.raises(SweepError, match=r"bad.toml: not valid TOML"):
        load_sweep(tmp_path / "bad.toml")
    with pytest.raises(SweepError, match="no such file"):
        load_sweep(tmp_path / "none.toml")


def test_misfits_may_be_recorded(tmp_path: Path) -> None:
    source = changed(misfits="record", axes=SMALL["axes"] | {"capacity": ["20%", "16GiB"]})
    result = sweep(source, tmp_path / "out", workers=1)
    misfits = result.frame[result.frame["status"] == "misfit"]
    assert set(misfits["hardware"]) == {"rtx-5070"}
    assert misfits["reason"].str.contains("does not fit").all()
    assert misfits["tokens_per_s"].isna().all()
    assert (result.frame["status"] == "ok").sum() == 12


@pytest.mark.parametrize("placement", ["hindsight", "none", "layers"])
def test_a_cell_fits_if_the_run_does(placement: str, tmp_path: Path) -> None:
    """RAM holds what no card holds, and who is on the card may depend on passes after the first."""
    whole = load("tinymoe-code")
    trace = whole.select_passes((whole.pass_phase == Phase.DECODE) & (np.arange(whole.n_passes) < 200))
    write_parquet(trace, tmp_path / "decode.parquet")
    reserve = load_profile("rtx-5070").ram.os_reserve_gib.value
    capacity = Capacity(total_bytes=trace.geometry.all_expert_bytes // 2)
    fitting = []
    for share in (0.3, 0.49, 0.51, 0.75, 0.99, 1.01):
        ram = reserve + share * trace.geometry.all_expert_bytes / 2**30
        profile = tmp_path / f"{share}.toml"
        profile.write_text(
            f'base = "rtx-5070"\nname = "small"\nsummary = ""\n[ram]\n'
            f'total_gib = {{ value = {ram!r}, kind = "assumed", source = "a test" }}\n',
            encoding="utf-8",
        )
        choices = {"hardware": (str(profile),), "admission": "never", "host": "resident", "placement": placement}
        spec = RunSpec(capacity=capacity, **choices)
        try:
            prepare(trace, spec)
            fitting.append(share)
        except MisfitError:
            pass
        constants = choices | {"hardware": str(profile), "capacity": "50%"}
        file, where, base = load_sweep(
            {"traces": {"code": str(tmp_path / "decode.parquet")}, "misfits": "record", "constants": constants}
        )
        (cell,) = plan_cells(file, where, base, tmp_path / "cache")
        assert (cell.misfit is None) == (share in fitting)
    assert fitting == [1.01] if placement == "none" else fitting[-1:] == [1.01] and len(fitting) > 1


# ---- traces ------------------------------------------------------------------------------------


def test_a_stored_trace_is_the_trace(tmp_path: Path) -> None:
    trace = load("tinymoe-code")
    folder = store(trace, tmp_path)
    again = open_stored(folder)
    assert again.content_hash == trace.content_hash
    assert again.meta == trace.meta
    assert not again.row_experts.flags.owndata
    assert store(trace, tmp_path) == folder
    assert sorted(p.name for p in tmp_path.iterdir()) == [folder.name]


# ---- the same bytes ----------------------------------------------------------------------------


def test_two_workers_write_the_same_bytes(undisturbed: Path, tmp_path: Path) -> None:
    result = sweep(SMALL, tmp_path / "out", workers=2)
    assert result.ran == 16
    assert parts(tmp_path / "out") == parts(undisturbed)


def command(*args: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "import sys; from expert_residency.sim.cli import main; main(sys.argv[1:])",
        *args,
    ]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(path: Path, n: int, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + 60
    while lines(path) < n and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_killed_twice_resumed_and_equal(workers: str, tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(TOML.format(passes=20))
    whole, out = tmp_path / "whole", tmp_path / "out"
    sweep(file, whole, workers=1)
    args = command("sweep", str(file), "--out", str(out), "--workers", workers)
    for number, extra in ((4, []), (12, ["--resume"])):
        with subprocess.Popen([*args, *extra], stdout=subprocess.DEVNULL) as process:
            wait_for(out / "journal.jsonl", number, process)
            process.kill()
            process.wait()
        assert process.returncode == -signal.SIGKILL
        assert number <= lines(out / "journal.jsonl") < 24
    done = lines(out / "journal.jsonl")
    result = sweep(file, out, workers=int(workers), resume=True)
    assert result.ran == 24 - done
    ids = [json.loads(line)["cell_id"] for line in (out / "journal.jsonl").read_text().splitlines()]
    assert len(ids) == len(set(ids)) == 24
    assert parts(out) == parts(whole)


@pytest.mark.slow
def test_interrupted_from_the_keyboard(tmp_path: Path) -> None:
    file, out = tmp_path / "sweep.toml", tmp_path / "out"
    file.write_text(TOML.format(passes=400))  # so that it is not over before the signal comes
    args = command("sweep", str(file), "--out", str(out), "--workers", "2")
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        wait_for(out / "journal.jsonl", 3, process)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert errors.strip() == f"residency: interrupted; finished cells are in {out}, go on with --resume"
    before = lines(out / "journal.jsonl")
    assert sweep(file, out, workers=1, resume=True).ran == 24 - before


@pytest.mark.slow
def test_a_killed_worker_costs_nothing_but_time(tmp_path: Path) -> None:
    file, out, whole = tmp_path / "sweep.toml", tmp_path / "out", tmp_path / "whole"
    file.write_text(TOML.format(passes=20))
    sweep(file, whole, workers=1)
    with subprocess.Popen(command("sweep", str(file), "--out", str(out), "--workers", "2")) as process:
        wait_for(out / "log.jsonl", 2, process)
        pid = json.loads((out / "log.jsonl").read_text().splitlines()[0])["pid"]
        os.kill(pid, signal.SIGKILL)
        process.wait(120)
    assert process.returncode == 0
    assert (read_dataset(out)["status"] == "ok").all()
    assert parts(out) == parts(whole)


class FragileExecutor(Executor):
    """Breaks for good when it is handed a cell of `deadly`."""

    def __init__(self, deadly: set[int]) -> None:
        self.deadly = deadly
        self.broken = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.broken:
            raise BrokenExecutor
        future: Future[Any] = Future()
        if args[0].number in self.deadly:
            self.broken = True
            future.set_exception(BrokenExecutor())
        else:
            future.set_result(fn(*args))
        return future


def test_a_cell_that_kills_its_worker_is_recorded_and_the_rest_go_on(tmp_path: Path) -> None:
    file, where, base = load_sweep(SMALL)
    cells = plan_cells(file, where, base, tmp_path)

    @contextlib.contextmanager
    def make(number: int | None) -> Iterator[Pool]:
        yield Pool(FragileExecutor({5, 6}), number or 4)

    found: dict[int, Any] = {}
    run_all(cells, make, lambda cell, outcome: found.update({cell.number: outcome.row}))
    assert sorted(found) == list(range(16))
    assert {n for n, row in found.items() if row["status"] == "failed"} == {5, 6}
    assert found[5]["reason"] == DIED


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def dask_cluster(tmp_path: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two worker processes on the loopback."""
    pytest.importorskip("distributed", reason="needs the extra 'cluster'")
    address = f"tcp://127.0.0.1:{free_port()}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": Path(__file__).parents[1]}
    start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard", "--host", address]
    scheduler = subprocess.Popen(start, **quiet)
    start = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny", "--no-dashboard",
             "--nthreads", "1", "--local-directory", str(tmp_path), "--death-timeout", "60"]  # fmt: skip
    workers = [subprocess.Popen(start, **quiet) for _ in range(2)]
    from distributed import Client

    try:
        with Client(address, timeout="60s") as client:
            client.wait_for_workers(2, timeout=60)
        yield address, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_dask_writes_the_same_bytes_and_survives_a_killed_worker(
    dask_cluster: tuple[str, list[subprocess.Popen[bytes]]], undisturbed: Path, tmp_path: Path
) -> None:
    address, workers = dask_cluster
    sweep(SMALL, tmp_path / "out", scheduler=address)
    assert parts(tmp_path / "out") == parts(undisturbed)

    def kill_one(done: int, total: int) -> None:
        if done == 3:
            workers[0].kill()

    sweep(SMALL, tmp_path / "again", scheduler=address, progress=kill_one)
    assert parts(tmp_path / "again") == parts(undisturbed)


def test_no_cluster_at_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="needs the extra 'cluster'")
    monkeypatch.setattr("expert_residency.sim.sweep.pools.CONNECT", "1s")
    with pytest.raises(SimError, match=r"no Dask scheduler at tcp://127\.0\.0\.1:1 "):
        sweep(SMALL, tmp_path / "out", scheduler="tcp://127.0.0.1:1")


# ---- accidents ---------------------------------------------------------------------------------


def test_a_full_disk_loses_no_finished_cell(tmp_path: Path) -> None:
    file, out, whole = tmp_path / "sweep.toml", tmp_path / "out", tmp_path / "whole"
    file.write_text(TOML.format(passes=4))
    sweep(file, whole, workers=1)
    sweep(changed(axes={"hardware": ["rtx-5070"], "capacity": ["20%"]}), out, workers=1)  # stores the trace

    def tiny_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    args = command("sweep", str(file), "--out", str(out), "--workers", "1", "--resume")
    run = subprocess.run(args, preexec_fn=tiny_disk, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "journal.jsonl: cannot be written (File too large)" in run.stderr
    assert "go on with --resume" in run.stderr
    assert "Traceback" not in run.stderr
    safe = lines(out / "journal.jsonl") - 1
    assert safe > 2
    assert (out / "journal.jsonl").read_bytes().endswith(b"\n")
    assert sweep(file, out, workers=1, resume=True).ran == 24 - safe
    assert parts(out) == parts(whole)


def test_the_kernel_fills_the_same_rows_and_the_log_says_who_ran(tmp_path):
    """Results do not say who computed them, since they are the same."""
    pytest.importorskip("numba")
    for simulator in ("reference", "kernel"):
        result = sweep(SMALL, tmp_path / simulator, workers=1, simulator=simulator)
        assert result.by_kernel == (result.ran if simulator == "kernel" else 0)
        log = (tmp_path / simulator / "log.jsonl").read_text().splitlines()
        assert {json.loads(line)["simulator"] for line in log} == {simulator}
    one, other = (sorted((tmp_path / name).rglob("*.parquet")) for name in ("reference", "kernel"))
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in other]


def test_failing_cells_are_recorded_and_may_be_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from expert_residency.sim.runs.simulate import simulate

    def fails_with_lfu(trace: Any, spec: Any, **_: Any) -> Any:
        if spec.eviction == "lfu":
            raise RuntimeError("no luck")
        return simulate(trace, spec)

    monkeypatch.setattr("expert_residency.sim.sweep.worker.simulate", fails_with_lfu)
    result = sweep(SMALL, tmp_path, workers=1)
    assert len(result.failed) == 8
    assert set(result.failed["reason"]) == {"RuntimeError: no luck"}
    assert set(result.failed["eviction"]) == {"lfu"}
    monkeypatch.undo()
    assert sweep(SMALL, tmp_path, workers=1, resume=True).ran == 0
    again = sweep(SMALL, tmp_path, workers=1, resume=True, retry_failed=True)
    assert again.ran == 8
    assert again.failed.empty


def test_a_changed_sweep_goes_on_with_what_it_has(undisturbed: Path, tmp_path: Path) -> None:
    half = changed(axes=SMALL["axes"] | {"eviction": ["lfu"]})
    assert sweep(half, tmp_path, workers=1).ran == 8
    assert sweep(SMALL, tmp_path, workers=1, resume=True).ran == 8
    assert parts(tmp_path) == parts(undisturbed)
    assert sweep(half, tmp_path, workers=1, resume=True).ran == 0
    assert len(read_dataset(tmp_path)) == 8


def test_a_folder_is_not_overwritten(undisturbed: Path) -> None:
    with pytest.raises(SimError, match="there are results here already; go on with --resume"):
        sweep(SMALL, undisturbed)


def test_a_torn_line_is_cut_and_a_damaged_one_named(tmp_path: Path, undisturbed: Path) -> None:
    sweep(SMALL, tmp_path, workers=1)
    journal = tmp_path / "journal.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-40])
    assert sweep(SMALL, tmp_path, workers=1, resume=True).ran == 1
    assert parts(tmp_path) == parts(undisturbed)
    journal.write_bytes(b"{}\n" + whole)
    with pytest.raises(SimError, match=r"journal.jsonl: line 1 is damaged"):
        sweep(SMALL, tmp_path, workers=1, resume=True)


# ---- the dataset -------------------------------------------------------------------------------


def test_an_unfinished_sweep_can_be_read(tmp_path: Path, undisturbed: Path) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 5:
            raise Stop

    with pytest.raises(Stop):
        sweep(SMALL, tmp_path, workers=1, progress=stop)
    frame = read_dataset(tmp_path)
    assert len(frame) == 5
    assert frame.equals(read_dataset(undisturbed).head(5))


def test_every_axis_that_varies_is_a_column_of_the_summary_and_of_the_report(tmp_path, capsys) -> None:
    from expert_residency.sim.report.data import filters, report_rows

    axes = {"eviction": ["lru", "lfu"], "admission": ["always", "two-hit"], "scope": ["global", "layer"],
            "host": ["arena", "mmap"]}  # fmt: skip
    file = tmp_path / "sweep.toml"
    file.write_text(
        '[traces]\ncode = "bundled:tinymoe-code"\n[constants]\npasses = 4\nhardware = "rtx-5070"\n'
        'capacity = "40%"\nmiss = "cpu"\n[axes]\n' + "".join(f"{k} = {json.dumps(v)}\n" for k, v in axes.items())
    )
    with pytest.raises(SystemExit):
        main(["sweep", str(file), "--out", str(tmp_path / "out"), "--workers", "1"])
    head = next(line for line in capsys.readouterr().out.splitlines() if "eviction" in line).split()
    assert set(axes) <= set(head)
    rows = report_rows(read_dataset(tmp_path / "out"))
    assert set(axes) <= {found["column"] for found in filters(rows)}
    assert "lru + two-hit + none" in set(rows["policy"])


def test_duckdb_and_pandas_read_it_without_help(undisturbed: Path) -> None:
    import pandas as pd

    duckdb = pytest.importorskip("duckdb", reason="needs duckdb")
    frame = pd.read_parquet(undisturbed / "cells")
    assert len(frame) == 16
    best = duckdb.sql(
        f"select hardware, max(tokens_per_s) from '{undisturbed}/cells/*.parquet' group by 1 order by 1"
    ).fetchall()
    assert best == [(name, group["tokens_per_s"].max()) for name, group in frame.groupby("hardware")]


def test_columns_carry_units_and_are_documented(undisturbed: Path) -> None:
    import pyarrow.parquet as pq

    text = (Path(__file__).parents[1] / "docs" / "sweeps.md").read_text()
    schema = pq.read_schema(undisturbed / "cells" / "part-00000.parquet")
    for field in schema:
        assert field.metadata[b"meaning"]
        unit = field.metadata[b"unit"].decode()
        assert f"| `{field.name}` | {unit} |" in text, field.name
        for suffix in ("bytes", "ns", "ms", "tokens_per_s"):
            if field.name.endswith(f"_{suffix}"):
                assert unit


def test_numbers_of_a_row_agree_with_each_other(undisturbed: Path) -> None:
    from expert_residency.sim.timed.result import CAUSES, TIERS

    frame = read_dataset(undisturbed)
    assert (frame[[f"{c}_ms_per_token" for c in CAUSES]].sum(axis=1) - frame["ms_per_token"]).abs().max() < 1e-9
    assert (frame[[f"share_{t}" for t in TIERS]].sum(axis=1) - 1).abs().max() < 1e-9
    assert (frame["tokens_per_s"] * frame["ms_per_token"] - 1000).abs().max() < 1e-6
    for row in frame.to_dict("records"):
        made = json.loads(row["manifest"])
        assert made["spec"]["eviction"] == row["eviction"]


def test_a_row_is_the_run(undisturbed: Path) -> None:
    import numpy as np

    from expert_residency.sim.choices.capacity import Capacity
    from expert_residency.sim.choices.spec import RunSpec
    from expert_residency.sim.runs.simulate import simulate

    row = read_dataset(undisturbed).iloc[6]
    trace = load("tinymoe-code")
    trace = trace.select_passes(np.arange(trace.n_passes) < 6)
    spec = RunSpec(
        (row["hardware"],), Capacity(int(row["capacity_bytes"])), eviction=row["eviction"],
        prefetch=row["prefetch"], miss="fetch",
    )  # fmt: skip
    result = simulate(trace, spec)
    assert result.total_ns == row["total_ns"]
    assert result.decode_hit_rate() == row["hit_rate"]


# ---- the command -------------------------------------------------------------------------------


def test_the_built_in_sweep_of_a_trace(tmp_path: Path) -> None:
    out = tmp_path / "out"
    args = ["--trace", "bundled:tinymoe-code", "--passes", "4", "--hardware", "rtx-5070", "--capacity", "30%"]
    run = subprocess.run(command("sweep", *args, "--out", str(out)), capture_output=True, text=True, check=True)
    assert "24 of 24 cells have numbers (24 run now, 0 of them by the kernel)" in run.stdout
    assert f"next: residency report {out}" in run.stdout
    assert "lru" in (out / "sweep.toml").read_text()
    file = str(out / "sweep.toml")
    run = subprocess.run(
        command("sweep", file, "--out", str(out), "--resume", "--json"), capture_output=True, text=True, check=True
    )
    summary = json.loads(run.stdout)
    assert (summary["cells"], summary["ran"], summary["status"]) == (24, 0, {"ok": 24})


def test_the_built_in_sweep_is_a_valid_sweep_file(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(default_sweep("bundled:tinymoe-prose", model=None, passes=5))
    file, where, base = load_sweep(path)
    assert len(plan_cells(file, where, base, tmp_path)) == 3 * 5 * 4 * 3 * 2


def test_bad_cells_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(TOML.format(passes=4).replace('"lfu"', '"lfuu"'))
    args = command("sweep", str(file), "--out", str(tmp_path / "out"))
    run = subprocess.run(args, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stderr.startswith(f"residency: {file}: cells 2, 3, 8, 9, ")
    assert "Traceback" not in run.stderr
