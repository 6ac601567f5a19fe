"""Published runs and slot counts: what real engines printed, row by row with its source.

`measured/` holds decode speeds of many engines, one file a machine.
Five tables ship in `published/`. `strata.csv`, `other_engines.csv` and `llamacpp.csv` hold speeds, `slots.csv`
expert slots, `constants.csv` which numbers of profiles and presets were derived from the speeds of which report.
In `strata.csv` some columns are added to what was published. `group` is the machine (cards, processor),
`profile` the shipped profile of it. `use` alternates ``fit, unseen`` over the rows of a group that give a
speed, in file order, so that a model fitted on one half is judged on the other. The counts (windows, hits,
experts served by the processor or over PCIe) are those that the `notes` of the row print.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from expert_residency.errors import HardwareError
from expert_residency.text import unknown


class Span(NamedTuple):
    """A published range; `low` equals `high` where one number was printed."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Half-way between the ends."""
        return (self.low + self.high) / 2


def _share_pct(text: Any) -> Any:
    """A range of percents."""
    span = _span(text)
    if isinstance(span, Span) and not span.low <= span.high <= 100:
        raise ValueError(f"{text!r} is no percentage, nor a range of them from low to high")
    return span


def _span(text: Any) -> Any:
    """``70``, ``70-74`` and ``81-96 (first requests)``; an empty cell is unknown, anything else an error."""
    if not isinstance(text, str):
        return text
    found = re.fullmatch(r"([\d.]+)(?:-([\d.]+))?(?: \(.*\))?", text)
    if not found:
        raise ValueError(f"{text!r} is neither a number nor a range such as 70-74")
    return Span(float(found[1]), float(found[2] or found[1]))


_WRITTEN = {"anyOf": [{"type": "number", "minimum": 0, "maximum": 100},
                      {"type": "string", "pattern": r"^[\d.]+-[\d.]+( \(.*\))?$"}]}  # fmt: skip
MaybeSpan = Annotated[Span | None, BeforeValidator(_share_pct), WithJsonSchema(_WRITTEN)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StrataRun(_Row):
    """One row of `strata.csv`; what was not printed is None (numbers) or empty (text).

    Times are milliseconds, rates GB/s, a window is one verify round. `hit_rate_pct` follows the engine: of the
    routed entries not served over PCIe, the share found in VRAM.
    """

    source: str = Field(min_length=3)
    date: str = ""
    engine_version: str = ""
    gpu: str
    n_gpus: Annotated[int, Field(ge=0)]
    vram_gb: str = ""
    pcie: str = ""
    cpu: str = ""
    ram_gb: Positive | None = None
    os: str = ""
    model: str
    quant: str = ""
    expert_blob_bytes: Annotated[int, Field(gt=0)] | None = None
    slots: Count | None = None
    mode: str = ""
    flags: str = ""
    workload: str = ""
    hit_rate_pct: MaybeSpan = None
    tok_s: Positive | None = None
    ms_token: Positive | None = None
    ms_gpu: Positive | None = None
    ms_cpu_experts: Positive | None = None
    h2d_gbps: str = ""
    cpu_expert_gbps: Positive | None = None
    notes: str = ""
    group: str = ""
    profile: str = ""
    use: Literal["fit", "unseen", ""] = ""
    windows: Count | None = None
    tokens_window: Positive | None = None
    rows_window: Positive | None = None
    ms_window: Positive | None = None
    lookups: Count | None = None
    vram_hits: Count | None = None
    cpu_served: Count | None = None
    pcie_served: Count | None = None
    routed: Count | None = None
    drafts_accepted: Count | None = None
    drafts_offered: Count | None = None


class EngineRun(_Row):
    """One row of `other_engines.csv`. Speeds are text as published: some cells hold a before and an after."""

    source: str = Field(min_length=3)
    engine: str
    gpu: str = ""
    n_gpus: str = ""
    pcie: str = ""
    cpu: str = ""
    ram: str = ""
    model: str = ""
    quant: str = ""
    experts_on_gpu_or_ncmoe: str = ""
    workload: str = ""
    tok_s_decode: str = ""
    tok_s_prefill: str = ""
    hit_rate_pct: str = ""
    notes: str = ""

    @property
    def decode_tok_s(self) -> Span | None:
        """Decode speed where the cell is one number or one range."""
        try:
            return Span(*_span(self.tok_s_decode))
        except ValueError:
            return None


class SlotCount(_Row):
    """One row of `slots.csv`: a published number of expert slots and what its arithmetic needs.

    `residual_mib` is CUDA context and desktop: 1,197 on Windows (the audit's machine) and on the Linux desktop of
    PR #3265, 375 on other Linux machines (the middle of the audit's estimate for headless ones). `basis` says
    whether a row is predicted or a size was derived from it; `reason` is why a row misses by more than 2 %.
    """

    source: str = Field(min_length=3)
    gpu: str
    vram_total_mib: Positive
    residual_mib: Positive
    reserve_mib: Positive
    quant: str
    expert_bytes: Annotated[int, Field(gt=0)]
    dense_mib: Positive
    head_mib: Annotated[float, Field(ge=0)]
    draft_head_mib: Annotated[float, Field(ge=0)]
    draft_mib: Annotated[float, Field(ge=0)]
    context_tokens: Annotated[int, Field(gt=0)]
    kv_type: str
    kv_resident: Count
    slots: Annotated[int, Field(gt=0)]
    basis: str
    reason: str = ""


class MeasuredRun(_Row):
    """One row of a file in `measured/`: a decode speed that somebody printed (`measured/README.md`)."""

    model_config = ConfigDict(title="A measured run", use_attribute_docstrings=True)

    source: str = Field(min_length=3)
    """Where it was printed, so that others find it: address, report, or whose run it is."""
    date: str = Field(default="", pattern=r"^(\d{4}(-\d\d){0,2})?$")
    """Of the run: 2026, 2026-10 or 2026-10-06."""
    gpu: str
    """The card as its maker calls it, with its memory where there are two of the name; `none` without one."""
    n_gpus: Count
    """Cards of that kind; 0 without one and for a chip that shares its memory."""
    cpu: str = ""
    """Processor; sockets before it (`2x Xeon Gold 6454S`), pool and instructions in brackets,
    `(7 workers, AVX2)`."""
    ram: str = ""
    """Of the host, as `64 GB DDR5-5600 2-ch`."""
    link: str = ""
    """As `PCIe4 x16, 24.0 GB/s probe`."""
    model: str
    """By name, without its quantization."""
    quant: str = ""
    """Of the experts, as the file's name has it."""
    engine: str
    """With its version, as `llama.cpp b6500`."""
    mode: str = ""
    """Flags that decide where experts are: `ncmoe 24`, `all in VRAM`, `arena, pcie-frac 0.55`."""
    cache: str = ""
    """What holds experts on the card: `3897 slots 7.44 GiB`."""
    workload: str = ""
    """Prompt and context, as `tg128, context 4096`."""
    tok_s: Positive
    """Decode speed in tokens a second."""
    hit_rate_pct: MaybeSpan = None
    """Share of look-ups that the card served by the engine's count: `95.8`, or a range `81-96`."""
    kind: Literal["run", "resident", "lossy", "flagged"]
    """`run`; `resident`: all experts on the card; `lossy`: the engine changes the routing; `flagged`: memory
    over-committed or a cache without effect."""
    read_in: Literal["source", "page", "thread", "derived"]
    """`source`: the report itself; `page` or `thread`: one that tells it; `derived`: arithmetic on it."""


class ConstantSource(_Row):
    """One row of `constants.csv`: a number of a profile or preset that was derived from measured speeds.

    `report` stands in the source of the rows that it was derived from, `where` is the profile or preset,
    `constant` the path of the number in it. The same report's rows do not test a prediction that uses it.
    """

    report: str = Field(min_length=3)
    where: str
    constant: str
    how: str


RowT = TypeVar("RowT", bound=_Row)


class Line(NamedTuple, Generic[RowT]):
    """A row, the cells that it was written in, and where it ends in the file."""

    number: int
    cells: dict[str, str]
    row: RowT


class LlamaRun(_Row):
    """One row of `llamacpp.csv`: a decoding speed of llama.cpp on a machine of which data sheets are known.

    Rates are GB/s of the data sheet, bytes those of the file's tensors: of one expert (mean), of the dense part of
    all layers, of the head. `n_cpu_moe` is the option, `cpu` where there is no card; `prompt_pct` is the share of
    the time that was the prompt's, where the number has it in.
    """

    machine: str = Field(min_length=1)
    gpu: str = ""
    gpu_gb_per_s: Positive | None = None
    cpu: str
    cores: Annotated[int, Field(gt=0)]
    ram_gb_per_s: Positive
    model: str
    quant: str
    family: str
    layers: Annotated[int, Field(gt=0)]
    moe_layers: Annotated[int, Field(gt=0)]
    experts: Annotated[int, Field(gt=0)]
    top_k: Annotated[int, Field(gt=0)]
    expert_bytes: Annotated[int, Field(gt=0)]
    dense_bytes: Annotated[int, Field(gt=0)]
    head_bytes: Annotated[int, Field(gt=0)]
    n_cpu_moe: Annotated[str, Field(pattern=r"^(cpu|\d+)$")]
    tok_s: Positive
    prompt_pct: Positive | None = None
    source: str = Field(min_length=3)

    @property
    def offloads(self) -> bool:
        """Whether a card computes some layers and the CPU experts of others."""
        return self.n_cpu_moe not in ("cpu", "0")


def load_strata_runs(path: Path | None = None) -> tuple[StrataRun, ...]:
    """Rows of `strata.csv`, or of a user's file with its columns (those that are optional may be missing).

    Raises
    ------
    HardwareError
        For a file that cannot be read, an unknown or missing column, a cell that is no number: file, line, column.
    """
    return _load(StrataRun, path, "strata.csv")


def load_engine_runs(path: Path | None = None) -> tuple[EngineRun, ...]:
    """Rows of `other_engines.csv`; errors as in `load_strata_runs`."""
    return _load(EngineRun, path, "other_engines.csv")


@cache
def compared_pairs() -> frozenset[tuple[str, str]]:
    """(model, profile) of every measured speed that ships and that a prediction is laid beside, in lower case."""
    rows = [_Pair(row.model, row.profile) for row in load_strata_runs() if row.profile and row.tok_s is not None]
    own = resources.files("expert_residency.hwmodels.runs") / "own"
    for file in own.iterdir():
        if file.name.startswith("live-") and file.name.endswith(".csv"):
            found = csv.DictReader(file.read_text("utf-8").splitlines())
            rows += [_Pair(row["model"], row["profile"]) for row in found]
    return frozenset((row.model.lower().replace(" ", "-"), row.profile) for row in rows)


class _Pair(NamedTuple):
    model: str
    profile: str


def load_llama_runs(path: Path | None = None) -> tuple[LlamaRun, ...]:
    """Rows of `llamacpp.csv`; errors as in `load_strata_runs`."""
    return _load(LlamaRun, path, "llamacpp.csv")


def load_slot_counts(path: Path | None = None) -> tuple[SlotCount, ...]:
    """Rows of `slots.csv`; errors as in `load_strata_runs`."""
    return _load(SlotCount, path, "slots.csv")


def load_measured_runs() -> tuple[MeasuredRun, ...]:
    """Rows of all files in `measured/`; errors as in `load_strata_runs`."""
    return tuple(row for rows in measured_files().values() for row in rows)


@cache
def measured_files() -> dict[str, tuple[MeasuredRun, ...]]:
    """Rows of `measured/` by the name of their file."""
    folder = resources.files("expert_residency.hwmodels.runs") / "measured"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".csv")), key=lambda file: file.name)
    return {file.name: _read(MeasuredRun, file, f"measured/{file.name}") for file in files}


def load_measured_file(path: Path) -> list[Line[MeasuredRun]]:
    """A user's measured runs, columns as in `measured/`; errors as in `load_strata_runs`."""
    return _lines(MeasuredRun, path, path)


def load_constant_sources(path: Path | None = None) -> tuple[ConstantSource, ...]:
    """Rows of `constants.csv`; errors as in `load_strata_runs`."""
    return _load(ConstantSource, path, "constants.csv")


def _load(row_type: type[RowT], path: Path | None, shipped: str) -> tuple[RowT, ...]:
    file: Traversable = path or resources.files("expert_residency.hwmodels.runs") / "published" / shipped
    return _read(row_type, file, path or shipped)


def _read(row_type: type[RowT], file: Traversable, where: str | Path) -> tuple[RowT, ...]:
    return tuple(line.row for line in _lines(row_type, file, where))


def _lines(row_type: type[RowT], file: Traversable, where: str | Path) -> list[Line[RowT]]:
    """All rows; what is wrong with any of them is said at once."""
    try:
        text = file.read_text("utf-8-sig")
    except OSError as error:
        raise HardwareError(f"cannot read the runs: {error.strerror}", path=where) from None
    except UnicodeDecodeError:
        raise HardwareError("not a text file", path=where) from None
    table = csv.reader(text.splitlines(), strict=True)
    found: list[Line[RowT]] = []
    faults: list[str] = []
    try:
        header = next(table, [])
        faults += [f"line 1: {fault}" for fault in _header_faults(row_type, header)]
        for cells in () if faults else filter(None, table):
            row = _row(row_type, header, cells)
            if isinstance(row, list):
                faults += [f"line {table.line_num}: {fault}" for fault in row]
            else:
                found.append(Line(table.line_num, dict(zip(header, cells, strict=True)), row))
    except csv.Error as error:
        faults.append(f"line {table.line_num}: not valid CSV: {error}")
    if faults:
        raise HardwareError("; ".join(faults), path=where)
    return found


def _header_faults(row_type: type[RowT], header: list[str]) -> list[str]:
    fields = row_type.model_fields
    faults = [unknown("column", column, fields) for column in header if column not in fields]
    faults += [f"column {name!r} appears twice" for name in dict.fromkeys(header) if header.count(name) > 1]
    missing = [name for name, field in fields.items() if field.is_required() and name not in header]
    return faults + [f"column {name!r} is missing" for name in missing]


def _row(row_type: type[RowT], header: list[str], cells: list[str]) -> RowT | list[str]:
    """The row, or what is wrong with its cells."""
    if len(cells) != len(header):
        return [f"{len(cells)} cells under {len(header)} columns"]
    try:
        return row_type.model_validate({name: cell for name, cell in zip(header, cells, strict=True) if cell})
    except ValidationError as error:
        return [
            f"{one['loc'][0]} "
            + ("is empty" if one["type"] == "missing" else f"{one['input']!r}: {one['msg'].lower()}")
            for one in error.errors()
        ]
