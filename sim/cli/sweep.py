"""`residency sweep`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.choices.trace import Reading
from expert_residency.sim.cli import app
from expert_residency.sim.cli.choices import ALL, Words, takes_words
from expert_residency.sim.cli.common import (
    MODEL_FORMS,
    SimulatorOpt,
    caution,
    dump_json,
    given,
    number,
    percent,
    say,
    show,
    table,
    warn,
)
from expert_residency.sim.cli.progress import Bar
from expert_residency.sim.cli.reading import ColdOpt, takes_reading

if TYPE_CHECKING:
    import pandas as pd

    from expert_residency.sim.sweep import SweepResult

FileArg = Annotated[
    Path | None, typer.Argument(metavar="[SWEEP.toml]", help="Sweep file; or give --trace for the built-in sweep.")
]
OutOpt = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the results.")]
WorkersOpt = Annotated[int | None, typer.Option("--workers", min=1, help="Local processes; all cores by default.")]
SchedulerOpt = Annotated[
    str | None,
    typer.Option(
        "--scheduler", metavar="ADDRESS", help="A running Dask scheduler to use instead, as tcp://host:8786."
    ),
]
ResumeOpt = Annotated[bool, typer.Option("--resume", help="Go on with what DIR holds; finished cells are kept.")]
RetryOpt = Annotated[bool, typer.Option("--retry-failed", help="With --resume: run failed cells again.")]
TraceOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--trace",
        help="Run the built-in sweep over this trace: a file, bundled:NAME, or synthetic:STYLE:tokens=300; or "
        "repeat it.",
    ),
]
SeedsOpt = Annotated[
    int | None,
    typer.Option("--seeds", min=1, help="Draw synthetic traces, and policies that say {seed}, with seeds 1 to N."),
]
FormatOpt = Annotated[str | None, typer.Option("--format", help="Trace format; sniffed by default.")]
ModelOpt = Annotated[
    str | None, typer.Option("--model", help=f"Model whose sizes the trace takes: {MODEL_FORMS}.")
]
PassesOpt = Annotated[int, typer.Option("--passes", min=0, help="First passes of the trace only; 0 for all.")]
OVER_SEEDS = "95 % over seeds"
RUNNING = ("out", "file", "workers", "scheduler", "resume", "retry_failed", "simulator", "json_out")
"""Parameters that choose nothing of a cell."""
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]


@app.command("sweep")
@takes_words(*(name for name in ALL if name != "card_capacity"), several=True)
@takes_reading()
def sweep_command(
    context: typer.Context,
    out: OutOpt,
    file: FileArg = None,
    trace: TraceOpt = None,
    fmt: FormatOpt = None,
    model: ModelOpt = None,
    words: Words | None = None,
    passes: PassesOpt = 4000,
    reading: Reading | None = None,
    cold: ColdOpt = "trace",
    seeds: SeedsOpt = None,
    workers: WorkersOpt = None,
    scheduler: SchedulerOpt = None,
    resume: ResumeOpt = False,
    retry_failed: RetryOpt = False,
    simulator: SimulatorOpt = "auto",
    json_out: JsonFlag = False,
) -> None:
    """Run policies x machines x capacities; every finished cell survives whatever happens.

    With a sweep file, or with --trace for a built-in sweep, whose file is left in DIR/sweep.toml to be changed.
    Choices of a run replace those of the built-in sweep (3 machines, 5 shares of what each card has room for, 4
    eviction and 3 prefetch policies, misses fetched or computed by the CPU); each may be repeated to compare.
    """
    from expert_residency.errors import SimError
    from expert_residency.sim.sweep import SweepError, sweep

    if (file is None) == (not trace):
        raise SimError(
            "give either a sweep file (residency sweep SWEEP.toml) or a trace (residency sweep --trace FILE)"
        )
    if retry_failed and not resume:
        raise SimError("--retry-failed goes with --resume")
    source: Path | dict[str, Any] | None = file  # or the content of the built-in one
    text = None
    if trace:
        from expert_residency.sim.sweep.default import built_in

        text, source = built_in(
            trace, format=fmt, model=model, passes=passes or None, cold=cold, seeds=seeds,
            reading=None if reading is None else reading.to_table(),
            **{key: value if isinstance(value, list) else [value] for key, value in (words or {}).items()},
        )  # fmt: skip
    elif extra := given(context, *RUNNING):
        raise SimError(f"a sweep file makes the choices itself; {extra[0]} and the like go with --trace")
    assert source is not None
    try:
        with Bar("cells", quiet=json_out) as bar:
            result = sweep(
                source, out, workers=workers, scheduler=scheduler, resume=resume, retry_failed=retry_failed,
                progress=bar.update, simulator=simulator, keep=text,
            )  # fmt: skip
    except SweepError as error:
        for problem in error.problems:
            say(f"residency: {error.where}: {problem}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        say(f"residency: interrupted; finished cells are in {out}, go on with --resume", err=True)
        raise SystemExit(130) from None
    if json_out:
        say(dump_json(_summary(result)), nl=False)
    else:
        _print(result)


def _summary(result: SweepResult) -> dict[str, Any]:
    counts = result.frame["status"].value_counts().to_dict()
    from expert_residency.sim.report.across import overall
    from expert_residency.sim.report.data import bases, regime_warnings, report_rows, row_caveats, varying

    columns = ["cell", "trace", "hardware", "capacity_bytes", "eviction", "prefetch", "miss", "tokens_per_s",
               "ms_per_token", "hit_rate", "vram_bytes"]  # fmt: skip
    columns += [column for column in varying(result.best(len(result.frame))) if column not in columns]
    if (best := result.best())["seeds"].gt(1).any():
        columns += ["seeds", "tokens_per_s_low", "tokens_per_s_high"]
    best = best[columns].astype(object)
    return {
        "folder": str(result.folder),
        "cells": len(result.frame),
        "ran": result.ran,
        "status": {str(k): int(v) for k, v in sorted(counts.items())},
        "basis": {trace: vars(basis) for trace, basis in bases(result.frame).items()},
        "warnings": [case["text"] for case in regime_warnings(result.frame)],
        "caveats": [case["text"] for case in row_caveats(result.frame)],
        "overall": overall(report_rows(result.frame)) if counts.get("ok") else [],
        "best": best.where(best.notna(), None).to_dict("records"),
    }


def _print(result: SweepResult) -> None:
    from expert_residency.sim.report.across import summary
    from expert_residency.sim.report.data import BASELINE, chosen, report_rows, varying

    frame = result.frame
    real = result.best(len(frame))
    named = {"hardware": "machine", "trace": "trace", "eviction": "eviction", "prefetch": "prefetch"}
    named |= {column: heading for column, heading in varying(real).items() if column not in named}
    drawn = bool(real["seeds"].gt(1).any())
    columns = [*named.values(), "cache GiB", "tokens/s", *([OVER_SEEDS] if drawn else []), "ms/token", "hit %"]
    rows = table(
        "Fastest of each machine and capacity (policies that see the future left out)", columns, left=len(named)
    )
    best = real.drop_duplicates(["hardware", "trace", "scenario", "miss", "capacity_bytes"])
    for row in best.head(15).to_dict("records"):
        rows.add_row(
            *(str(chosen(row[name])) for name in named),
            number(row["capacity_bytes"] / 2**30), number(row["tokens_per_s"]), *([_ends(row)] if drawn else []),
            number(row["ms_per_token"]), percent(row["hit_rate"]),
        )  # fmt: skip
    show(rows)
    if drawn:
        say(f"{OVER_SEEDS}: Student's t interval of the mean of ms/token over seeds, each another drawn workload")
    if (frame["status"] == "ok").any() and (said := summary(report_rows(frame), f"{BASELINE['eviction']} + none")):
        say(said)
    failed = result.failed
    ok = len(frame) - len(failed)
    ran = f"{result.ran} run now, {result.by_kernel} of them by the kernel"
    say(f"{ok} of {len(frame)} cells have numbers ({ran}); {result.folder}")
    for reason, group in failed.groupby("reason", sort=False):
        say(f"warning: {len(group)} cells {group['status'].iloc[0]}: {reason}")
    print_basis(frame)
    say(f"next: residency report {result.folder} --out report.html")


def _ends(row: Mapping[Any, Any]) -> str:
    """Ends of the interval over seeds."""
    if row["seeds"] < 2:
        return "n/a"
    return f"{number(row['tokens_per_s_low'])}..{number(row['tokens_per_s_high'])}"


def print_basis(frame: pd.DataFrame) -> None:
    """What the ranking of each trace stands on; caveats and warnings of the cells, alike ones together."""
    from expert_residency.sim.report.data import bases, regime_warnings, row_caveats

    ok = int((frame["status"] == "ok").sum())
    for trace, basis in bases(frame).items():
        say(f"ranking of {trace}: over {basis.words}")
    for tell, cases in ((caution, row_caveats(frame)), (warn, regime_warnings(frame))):
        tell([f"{case['text']} ({case['count']} of {ok} cells)" for case in cases])
