"""`sweep`: plan, run, record."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.files import write_text
from expert_residency.sim.sweep.cells import Cell, plan_cells
from expert_residency.sim.sweep.dataset import Dataset, read_dataset
from expert_residency.sim.sweep.folder import CACHE, JOURNAL, LOG, SWEEP_FILE, claim
from expert_residency.sim.sweep.journal import Journal
from expert_residency.sim.sweep.plan import SweepPlan, write_plan
from expert_residency.sim.sweep.pools import dask, local, run_all
from expert_residency.sim.sweep.rows import FAILED
from expert_residency.sim.sweep.seeds import over_seeds
from expert_residency.sim.sweep.spec import load_sweep
from expert_residency.sim.sweep.worker import Outcome

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int], None]
"""Called with (cells done, cells in all)."""


@dataclass(frozen=True)
class SweepResult:
    """What a sweep left behind.

    Parameters
    ----------
    folder
        Where it is.
    frame
        One row a cell; columns as `docs/sweeps.md` has them.
    ran
        Cells that were simulated by this call; the others were there.
    """

    folder: Path
    frame: pd.DataFrame
    ran: int
    by_kernel: int = 0
    """How many of those the compiled kernel simulated."""

    @property
    def failed(self) -> pd.DataFrame:
        """Cells without numbers, with their reasons."""
        return self.frame[self.frame["status"] != "ok"]

    def over_seeds(self) -> pd.DataFrame:
        """One row a setting, as `sim.sweep.seeds.over_seeds` has it: means and intervals over seeds."""
        return over_seeds(self.frame)

    def best(self, n: int = 10) -> pd.DataFrame:
        """The fastest settings whose policies cannot see the future, seeds taken together."""
        frame = self.over_seeds()
        real = frame[(frame["status"] == "ok") & ~frame["oracle"].fillna(False).astype(bool)]
        return real.sort_values(["ms_per_token", "vram_bytes", "cell"]).head(n)


def sweep(
    source: str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    resume: bool = False,
    retry_failed: bool = False,
    progress: Progress | None = None,
    simulator: str = "auto",
    keep: str | None = None,
) -> SweepResult:
    """Run every cell of a sweep.

    Parameters
    ----------
    source
        Sweep file, or its content as a mapping.
    out
        Folder of the results; without one they are kept in memory only.
    workers
        Local processes; all cores by default.
    scheduler
        Address of a Dask scheduler to use instead; its workers must see `out` under the same path.
    resume
        Go on with what `out` holds. Finished cells are not run again, also when the sweep has changed since.
    retry_failed
        With `resume`: run failed cells again.
    progress
        Called as cells finish.
    simulator
        `auto`, `reference` or `kernel`, as for `sim.runs.simulate.simulate`; the log says which ran each cell.
    keep
        Text of the sweep file to leave in `out`, where the source is no file.

    Raises
    ------
    SweepError
        Anything wrong with the sweep, before a cell has started.
    SimError
        A folder that holds a sweep already, or files that no sweep made; no cluster at the address.
    FileError
        A folder that cannot be written.
    """
    if out is None:
        with tempfile.TemporaryDirectory(prefix="residency-sweep-") as passing:
            return sweep(
                source, passing, workers=workers, scheduler=scheduler, progress=progress, simulator=simulator
            )
    if workers is not None and workers < 1:
        raise SimError(f"{workers} workers cannot run anything")
    file, where, base = load_sweep(source)
    folder = Path(out)
    with claim(folder, resume=resume) as claimed:
        if keep is not None:
            _keep(folder, keep)
        cells = plan_cells(file, where, base, folder.absolute() / CACHE)
        with Journal(folder / JOURNAL) as journal:
            write_plan(folder, SweepPlan(file.name, cells))
            claimed.kept = True
            return _run(folder, cells, journal, workers, scheduler, retry_failed, progress, simulator)


def _keep(folder: Path, text: str) -> None:
    """Leave a sweep file in the folder; one that is there already must say the same."""
    path = folder / SWEEP_FILE
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise SimError(
            f"{path} differs from this command's sweep; run `residency sweep {path} --out {folder} --resume`"
        )
    write_text(path, text)


def _run(
    folder: Path,
    cells: list[Cell],
    journal: Journal,
    workers: int | None,
    scheduler: str | None,
    retry_failed: bool,
    progress: Progress | None,
    simulator: str,
) -> SweepResult:
    rows = journal.rows
    if retry_failed:
        for cell_id in [i for i, row in rows.items() if row["status"] == FAILED]:
            del rows[cell_id]
    dataset = Dataset(folder, cells, rows)
    todo = sorted((c for c in cells if c.cell_id not in rows), key=lambda c: (str(c.view), c.number))
    done = len(cells) - len(todo)
    by = Counter[str]()
    if progress is not None:
        progress(done, len(cells))

    with (folder / LOG).open("a", encoding="utf-8", buffering=1) as log:

        def collect(cell: Cell, outcome: Outcome) -> None:
            nonlocal done
            journal.append(cell.cell_id, outcome.row)
            done += 1
            by[outcome.simulator] += 1
            entry = {"cell": cell.number, "cell_id": cell.cell_id, "ended_s": time.time(),
                     "seconds": outcome.seconds, "pid": outcome.pid,
                     "peak_rss_bytes": outcome.peak_rss_bytes, "simulator": outcome.simulator}  # fmt: skip
            log.write(json.dumps(entry) + "\n")
            dataset.add(cell)
            if progress is not None:
                progress(done, len(cells))

        if todo:
            pools = dask(scheduler) if scheduler else local(min(workers or _cores(), len(todo)))
            run_all(todo, pools, collect, simulator)
    return SweepResult(folder, read_dataset(folder), len(todo), by["kernel"])


def _cores() -> int:
    from joblib import cpu_count

    return int(cpu_count())


__all__ = ["SweepResult", "sweep"]
