"""Search for policy parameters where a grid is too large: `tune`, on optuna.

A file gives the choices of a run, with `{name}` where a parameter goes, and the range of each parameter. Every
trial is a cell of the same kind as a sweep's and ends up in the same dataset; trials are asked for one after the
other, so that the seed decides them all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    field_validator,
    model_validator,
)

from expert_residency.errors import SimError
from expert_residency.sim.sweep.cells import Cell, make_cell
from expert_residency.sim.sweep.dataset import Dataset, read_dataset
from expert_residency.sim.sweep.folder import CACHE, JOURNAL, TRIALS, Claim, claim
from expert_residency.sim.sweep.journal import Journal
from expert_residency.sim.sweep.plan import SweepPlan, write_plan
from expert_residency.sim.sweep.rows import OK
from expert_residency.sim.sweep.run import SweepResult
from expert_residency.sim.sweep.spec import Choices, SweepFile, TraceRef, filled
from expert_residency.sim.sweep.stored import load_trace, store
from expert_residency.sim.sweep.worker import run_cell
from expert_residency.toml import checked, load

Objective = Literal["ms_per_token", "vram_bytes"]
_LARGEST = 1 << 53
_NEARLY = 1e-9
Bound = Annotated[
    Annotated[StrictInt, Field(ge=-_LARGEST, le=_LARGEST)]
    | Annotated[StrictFloat, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)],
    Field(union_mode="left_to_right"),
]
"""An end or a step of a range, whole or not."""


class Parameter(BaseModel):
    """Range of one parameter: `low` to `high` (whole numbers if both and the step are), or one of `values`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: Bound | None = None
    high: Bound | None = None
    step: Bound | None = None
    log: bool = False
    values: list[StrictStr | StrictBool | StrictInt | FiniteFloat] | None = None

    @field_validator("values", mode="before")
    @classmethod
    def _policies_in_words(cls, values: Any) -> Any:
        """In Python a policy or its class may stand for its words."""
        from expert_residency.policies import words_of

        return [words_of(value) for value in values] if isinstance(values, list) else values

    @model_validator(mode="after")
    def _one_kind(self) -> Parameter:
        span = self.low is not None and self.high is not None
        if span == (self.values is not None) or (self.values == []):
            raise ValueError("give low and high, or values")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")
        if self.log and self.step is not None:
            raise ValueError("a log scale takes no step")
        if self.log and self.low is not None and self.low <= 0:
            raise ValueError(f"a log scale begins above 0, low is {self.low}")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step is {self.step}, expected more than 0")
        if self.step is not None and self.low is not None and self.high is not None:
            steps = (self.high - self.low) / self.step
            if abs(steps - round(steps)) > _NEARLY:
                raise ValueError(f"from {self.low} to {self.high} is no whole number of steps of {self.step}")
        return self

    def suggest(self, trial: Any, name: str) -> Any:
        """Ask optuna."""
        if self.values is not None:
            return trial.suggest_categorical(name, self.values)
        assert self.low is not None
        assert self.high is not None
        if all(isinstance(x, int) for x in (self.low, self.high, 1 if self.step is None else self.step)):
            return trial.suggest_int(name, self.low, self.high, step=self.step or 1, log=self.log)
        return trial.suggest_float(name, self.low, self.high, step=self.step, log=self.log)


class TuneFile(BaseModel):
    """A search as written: see `docs/sweeps.md`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = ""
    seed: int = Field(default=0, ge=0, lt=1 << 31)
    objectives: list[Objective] = Field(default=["ms_per_token"], min_length=1, max_length=2)
    traces: dict[str, TraceRef | str] = Field(min_length=1)
    choices: Choices
    parameters: dict[str, Parameter] = Field(min_length=1)


def load_tune(source: str | Path | Mapping[str, Any]) -> tuple[TuneFile, Path]:
    """Read a tune file, or take its content as a mapping; also the folder that trace paths are relative to.

    Raises
    ------
    SimError
        Everything that is wrong with it.
    """
    if isinstance(source, Mapping):
        data, where, base = dict(source), "tune", Path()
    else:
        where, base = str(source), Path(source).parent
        data = load(Path(source))
    file = checked(TuneFile, data, where=where)
    text = repr(file.choices) + repr([p.values for p in file.parameters.values()])
    unused = [name for name in file.parameters if f"{{{name}}}" not in text]
    if unused:
        raise SimError(
            f"{where}: parameter {unused[0]} is in no choice; write {{{unused[0]}}} where its value goes"
        )
    if "seed" in file.choices:
        raise SimError(f"{where}: a search takes one seed a trace: `seed` goes into the trace's table `synthetic`")
    _check_circle(file, where)
    return file, base


def _check_circle(file: TuneFile, where: str) -> None:
    """Parameters may name others, but not themselves by way of them."""
    inner = {
        name: [other for other in file.parameters if f"{{{other}}}" in repr(parameter.values)]
        for name, parameter in file.parameters.items()
    }
    left = dict(inner)
    while leaves := [name for name, named in left.items() if not any(other in left for other in named)]:
        for name in leaves:
            del left[name]
    if left:
        raise SimError(f"{where}: parameters {', '.join(left)} name each other in a circle")


def tune(
    source: str | Path | Mapping[str, Any],
    out: str | Path,
    *,
    trials: int,
    resume: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Run `trials` trials in all and keep every one of them.

    Parameters
    ----------
    source
        Tune file, or its content as a mapping.
    out
        Folder of the results; `read_dataset` and `residency report` read it like a sweep's.
    trials
        How many to have in the end.
    resume
        Go on with what `out` holds.
    progress
        Called with (trials done, trials in all).

    Returns
    -------
    SweepResult
        Every trial, as a sweep's result.

    Raises
    ------
    SimError
        A file that is not valid, a folder that holds other files or results, or optuna is not installed.
    FileError
        A folder that cannot be written.
    """
    file, base = load_tune(source)
    folder = Path(out)
    sweep = SweepFile(misfits="record", traces=file.traces)
    cache = folder.absolute() / CACHE
    with claim(folder, resume=resume) as claimed:
        folders = {name: str(store(load_trace(sweep.trace_ref(name), base), cache)) for name in file.traces}
        ran = _search(file, folder, sweep, folders, trials, progress, claimed)
    return SweepResult(folder, read_dataset(folder), ran)


def _search(
    file: TuneFile,
    folder: Path,
    sweep: SweepFile,
    folders: dict[str, str],
    trials: int,
    progress: Callable[[int, int], None] | None,
    claimed: Claim,
) -> int:
    """Run the trials that are missing; returns how many cells were simulated."""
    with Journal(folder / JOURNAL) as journal:
        study = _Study(file, folder / TRIALS)
        cells: dict[str, Cell] = {}
        before = len(journal.rows)

        def run(values: Mapping[str, Any]) -> Cell:
            cell = make_cell(len(cells), filled(file.choices, values), sweep, folders)
            if cell.cell_id not in journal.rows:
                journal.append(cell.cell_id, run_cell(cell).row)
                claimed.kept = True
            return cells.setdefault(cell.cell_id, cell)

        for number in range(trials):
            if number < len(study.done):
                run(study.done[number].params)
            else:
                trial, values = study.ask(number)
                cell = run(values)
                study.tell(trial, cell.cell_id, journal.rows[cell.cell_id])
            if progress is not None:
                progress(number + 1, trials)
        write_plan(folder, SweepPlan(file.name, list(cells.values())))
        Dataset(folder, list(cells.values()), journal.rows)
        return len(journal.rows) - before


class _Study:
    """The optuna study of a folder; each trial has a sampler with its own seed, so that a stop changes nothing."""

    def __init__(self, file: TuneFile, path: Path) -> None:
        try:
            import optuna
            from optuna.storages.journal import JournalFileBackend
        except ImportError:
            raise SimError("searching needs optuna: pip install 'expert-residency[tune]'") from None
        optuna.logging.set_verbosity(logging.WARNING)
        self._optuna = optuna
        self._file = file
        storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        self._study = optuna.create_study(
            storage=storage, study_name="tune", directions=["minimize"] * len(file.objectives), load_if_exists=True
        )
        for trial in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
            self._study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        self.done = [trial for trial in self._study.trials if "cell" in trial.user_attrs]

    def ask(self, number: int) -> tuple[Any, dict[str, Any]]:
        """A new trial, and its parameters."""
        self._study.sampler = self._optuna.samplers.TPESampler(seed=self._file.seed + number)
        trial = self._study.ask()
        return trial, {name: p.suggest(trial, name) for name, p in self._file.parameters.items()}

    def tell(self, trial: Any, cell_id: str, row: Mapping[str, Any]) -> None:
        """What came of it; a cell without numbers is a failed trial."""
        trial.set_user_attr("cell", cell_id)
        if row["status"] == OK:
            self._study.tell(trial, [row[objective] for objective in self._file.objectives])
        else:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
