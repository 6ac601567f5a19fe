"""Live runs carried out: the machine calibrated and every variant run, in turn, and the files that compare them.

With a card a round takes each measurement of the calibration and runs each variant among them, so that both meet
the same states of the machine. Without one, where these change within seconds, measurements and single runs take
turns, first with a warm page cache, then with a cold one; a figure is then that of the machine left to itself
(`Outcome.usual_tok_s`).
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.files import write_text
from expert_residency.hwmodels.executor.steps import Measured
from expert_residency.hwmodels.units import format_bytes
from expert_residency.sim.live.plan import Plan, State
from expert_residency.sim.live.schedule import Schedule, sizes_of
from expert_residency.sim.live.variants import Arm, decode_window, run_in_turn, to_rows, write_rows
from expert_residency.traces import RoutingTrace, write_parquet

if TYPE_CHECKING:
    from expert_residency.hwmodels.calibrate.run import OnCard

Runner = Callable[[Arm, Schedule], Measured]


def check_room(plan: Plan, folder: Path, most_bytes: int) -> None:
    """Refuse what the machine has no room for, or more disk than allowed.

    Parameters
    ----------
    plan
        What is to be run.
    folder
        Where the files go.
    most_bytes
        Most bytes that may be written there.

    Raises
    ------
    SimError
        What is short, by how much, and what to do.
    """
    label, disk, ram = plan.geometry.label, plan.disk_bytes, plan.ram_bytes
    if disk > most_bytes:
        raise SimError(
            f"runs of {label} write {format_bytes(disk)} to {folder}, more than {format_bytes(most_bytes)}: allow "
            f"it with --disk {-(-disk // 10**9)}GB, or take a smaller model"
        )
    free = shutil.disk_usage(folder).free
    if disk > free:
        raise SimError(
            f"runs of {label} write {format_bytes(disk)}, and {folder} has {format_bytes(free)} free: name "
            "another place with --folder"
        )
    available = _available_bytes()
    if available is not None and ram > available:
        raise SimError(f"runs of {label} hold {format_bytes(ram)} in memory; {format_bytes(available)} are free")


def measure(
    plan: Plan,
    out: Path,
    *,
    folder: Path | None = None,
    workers: int | None = None,
    profile: tuple[Path, Path] | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Path, list[str]]:
    """Carry out a plan and write `LABEL.toml`, `LABEL.engine.toml`, `LABEL.readings.json`, `live-LABEL.csv`.

    Parameters
    ----------
    plan
        What is run.
    out
        Folder of the files; each is written whole, the table last.
    folder
        On the drive to be measured, `out` by default; whatever is written there is taken away again.
    workers
        CPU threads that compute experts; all but those of the host and the driver by default.
    profile
        Profile and preset of `residency calibrate`, instead of measuring the machine in the same session.
    progress
        Told what is being done.

    Returns
    -------
    Path, list of str
        The table, and the figures of the calibration whose rounds differ too much.

    Raises
    ------
    HardwareError, SimError
        No card, a machine too busy to measure, no room.
    """
    from expert_residency.hwmodels.calibrate import calibrate
    from expert_residency.hwmodels.calibrate.cardless import USUAL
    from expert_residency.hwmodels.calibrate.oncard import USUAL as ON_CARD
    from expert_residency.hwmodels.calibrate.run import default_workers

    threads = workers or default_workers(card=not plan.cardless)
    with (
        tempfile.TemporaryDirectory(prefix="measure-", dir=folder or out) as place,
        contextlib.ExitStack() as ends,
    ):
        run, on = (
            _cardless(plan, Path(place), threads, ends)
            if plan.cardless
            else _card(plan, Path(place), threads, ends)
        )
        turns = {state: run_in_turn(found, run, progress) for state, found in plan.by_state.items()}

        def between(state: State) -> None:
            next(turns[state])

        if profile is None:
            made = calibrate(
                plan.sizes, Path(place), name=plan.label,
                family=plan.geometry.quant_family, cardless=plan.cardless, workers=workers,
                rounds=plan.calibration_rounds, progress=progress, between=between,
                turns=1 if plan.cardless else len(plan.outcomes), on=on,
            )  # fmt: skip
            texts, noisy = (made.profile_toml, made.engine_toml), made.noisy
            readings = json.dumps(made.readings.table(USUAL if plan.cardless else ON_CARD), indent=0) + "\n"
        else:
            for state, found in plan.by_state.items():
                for _ in range(plan.rounds * len(found)):
                    next(turns[state])
            texts = profile[0].read_text(encoding="utf-8"), profile[1].read_text(encoding="utf-8")
            noisy, readings = [], None
    for suffix, text in zip((".toml", ".engine.toml"), texts, strict=True):
        write_text(out / f"{plan.label}{suffix}", text)
    if readings is not None:
        write_text(out / f"{plan.label}.readings.json", readings)
    rows: list[dict[str, Any]] = []
    for one in plan.outcomes:
        passes, warmup = plan.spans[one.arm.start]
        usual = USUAL if plan.cardless else ON_CARD
        rows += to_rows(
            [one], describe(plan.label, plan.cardless), plan.windows[passes], warmup, usual, plan.depth
        )
    table = out / f"live-{plan.label}.csv"
    write_rows(rows, table)
    return table, noisy


def write_trace(trace: RoutingTrace, plan: Plan, path: Path) -> None:
    """Write the part of a trace that was run, where the table looks for it.

    Parameters
    ----------
    trace
        As it was read; its sizes are those of the group x1.
    plan
        Which passes were run.
    path
        `NAME.parquet` in the table's folder, with the name that the table has.
    """
    write_parquet(decode_window(trace, plan.rows * max(plan.windows)), path)


def _card(plan: Plan, folder: Path, workers: int, ends: contextlib.ExitStack) -> tuple[Runner, OnCard | None]:
    """One engine with room for the largest variant, and both kinds of host memory; calibrated in the same."""
    from expert_residency.hwmodels.calibrate.run import on_card

    sizes = plan.sizes
    on = on_card(sizes, folder, workers, ends, max(one.schedule.slots for one in plan.outcomes))
    engine, kinds = on.engine, {"arena": on.arena, "mmap": on.mapped}

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine.use(kinds[arm.host])
        engine.load(schedule)
        return engine.run(arm.start)

    return run, on


def _cardless(plan: Plan, folder: Path, workers: int, ends: contextlib.ExitStack) -> tuple[Runner, OnCard | None]:
    """The engine without a card, over the expert file that the calibration reads too."""
    from expert_residency.hwmodels.executor.cardless import CardlessEngine

    engine = CardlessEngine(sizes_of(plan.geometry), folder, workers)
    ends.callback(engine.close)

    def run(arm: Arm, schedule: Schedule) -> Measured:
        engine.load(schedule)
        return engine.run(arm.start)

    return run, None


def describe(label: str, cardless: bool) -> dict[str, object]:
    """Columns of the table that say where and when."""
    from expert_residency.hwmodels.calibrate.run import cpu_name
    from expert_residency.hwmodels.executor.card import require_card

    card: dict[str, object] = {"gpu": "none", "n_gpus": 0, "engine_version": "numba"}
    if not cardless:
        torch = require_card()
        found = torch.cuda.get_device_properties(0)
        memory = round(found.total_memory / 1e9)
        card = {"gpu": found.name, "n_gpus": 1, "vram_gb": memory, "engine_version": f"torch {torch.__version__}"}
    return card | {
        "source": "live executor of this project (residency measure)",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": f"{cpu_name()} ({os.cpu_count()} cores)",
        "ram_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "os": f"Linux {platform.release()}",
        "group": label,
        "profile": label,
        "engine": f"live-{label}",
    }


def _available_bytes() -> int | None:
    """Memory that a new program can have, where the system says it."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return None
