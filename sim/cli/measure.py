"""`residency measure`: live runs of a trace on this machine, and the table for `residency validate --live`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.choices.trace import Reading, open_trace
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, ModelOpt, say
from expert_residency.sim.cli.progress import working
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.live.plan import Plan

TraceOpt = Annotated[
    str, typer.Option("--trace", help="Trace whose decode passes are run, of any known format, or bundled:NAME.")
]


@app.command()
@takes_reading()
def measure(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of profile, preset, readings and table.")],
    trace: TraceOpt = "bundled:tinymoe-prose",
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    name: Annotated[str, typer.Option(help="Of this machine, in the names of the files.")] = "here",
    group: Annotated[
        list[str] | None,
        typer.Option("--group", help="x1 (the model's sizes), x4 (four times the bytes); repeat. x1 by default."),
    ] = None,
    cardless: Annotated[
        bool,
        typer.Option("--cardless", help="CPU and RAM as the card, the drive as the link."),
    ] = False,
    passes: Annotated[
        int | None,
        typer.Option(min=2, help="Decode passes of a run; as many as there are up to 160, or 64 without a card."),
    ] = None,
    rows: Annotated[
        int,
        typer.Option(min=1, help="Rows of a pass: so many decode passes of the trace are one, as in a window."),
    ] = 1,
    depth: Annotated[
        int | None,
        typer.Option(min=0, help="Positions that passes attend over, beside the trace's own. None: no attention."),
    ] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Of them not counted; a fifth by default.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="How often every variant is run; 4 times, or 2 without a card.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="All variants, not a few of each kind.")] = False,
    profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Profile of `residency calibrate`, instead of calibrating now."),
    ] = None,
    engine: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="Its preset; by default the profile's name with .engine.toml."),
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="On the drive to be measured; DIR by default.")] = None,
    disk: Annotated[str, typer.Option(help="Most that may be written there while it runs, with unit.")] = "4GB",
    workers: Annotated[int | None, typer.Option(min=1, help="CPU threads that compute experts.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be run, and the time and disk it takes.")
    ] = False,
) -> None:
    """Run a trace for real (copies, reads, expert compute) under many policies, and measure this machine with it.

    Weights are random, of the model's sizes. What it takes is said before it starts. Then: residency validate
    --group live --live DIR.
    """
    from importlib.util import find_spec

    from expert_residency.errors import HardwareError, SimError
    from expert_residency.hwmodels.executor.card import has_card
    from expert_residency.hwmodels.units import parse_size
    from expert_residency.sim.live.measure import check_room, write_trace
    from expert_residency.sim.live.plan import make_plan
    from expert_residency.traces.bundled import list_bundled

    if find_spec("numba") is None:
        raise HardwareError("measuring needs numba: pip install 'expert-residency[live]'")
    if not cardless and not has_card():
        raise HardwareError("no CUDA card here: --cardless runs on the CPU")
    usual = 2 if cardless else 4
    factors = [_factor(one) for one in group or ["x1"]]
    most = parse_size(disk)
    chosen = None if profile is None else _profile(profile, engine)
    if engine is not None and profile is None:
        raise SimError("--engine is the preset of a profile: give --profile too")
    recorded = open_trace(trace, fmt, model, reading)
    label = trace.removeprefix("bundled:") if trace.startswith("bundled:") else Path(trace).name.split(".")[0]
    own = trace.removeprefix("bundled:") not in list_bundled() or model is not None
    plans = [
        make_plan(
            recorded, label, _label(name, cardless, factor, rows, depth),
            cardless=cardless, factor=factor, passes=passes, warmup=warmup, full=full, calibrate=chosen is None,
            rounds=usual if rounds is None else rounds, rows=rows, depth=depth,
        )
        for factor in dict.fromkeys(factors)
    ]  # fmt: skip
    for plan in plans:
        say(str(plan))
    if dry_run:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SimError(f"{out}: {error.strerror}") from None
    place = folder or out
    if not place.is_dir():
        raise SimError(f"--folder {place}: no such folder")
    for plan in plans:
        check_room(plan, place, most)
    if own:
        write_trace(recorded, plans[0], out / f"{label}.parquet")
    _run(plans, out, place, workers, chosen)


def _run(
    plans: list[Plan], out: Path, folder: Path, workers: int | None, profile: tuple[Path, Path] | None
) -> None:
    """Carry out all groups; what one has written stays when a later one fails."""
    from expert_residency.sim.live.check import compared
    from expert_residency.sim.live.measure import measure as carry_out

    for plan in plans:
        with working(plan.label) as update:
            table, noisy = carry_out(
                plan,
                out,
                folder=folder,
                workers=workers,
                profile=profile,
                progress=partial(_say, update, plan.label),
            )
        say(f"{table}: {len(plan.outcomes)} variants of {plan.rounds} rounds")
        for line in compared(plan.label, out, each=False):
            say(line)
        if noisy:
            say(f"noisy, the rounds differ by more than a quarter: {', '.join(noisy)}")
    say(f"next: residency validate --group live --live {out}")


def _say(update: Callable[[str], None], label: str, text: str) -> None:
    update(f"{label}: {text}")


def _label(name: str, cardless: bool, factor: int, rows: int, depth: int | None) -> str:
    """Name of a group's files, which is the name of its profile as well."""
    from expert_residency.errors import SimError

    if not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", name):
        raise SimError(f"--name {name}: lower-case letters, digits and . + - are possible, as in my-server")
    return (
        f"{name}-cardless" + (f"-x{factor}" if factor > 1 else "")
        if cardless
        else f"{name}-x{factor}" + (f"-r{rows}" if rows > 1 else "") + ("" if depth is None else f"-d{depth}")
    )


def _factor(group: str) -> int:
    """Whole square of `x4`: models are widened by its root."""
    from math import isqrt

    from expert_residency.errors import SimError

    digits = group.removeprefix("x")
    factor = int(digits) if group.startswith("x") and digits.isdigit() else 0
    if factor == 0 or isqrt(factor) ** 2 != factor:
        raise SimError(f"--group {group}: expected x1, x4, x9 or another square")
    return factor


def _profile(profile: Path, engine: Path | None) -> tuple[Path, Path]:
    """Profile and preset, both checked before anything runs."""
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.choices.preset import load_engine

    preset = engine or profile.with_suffix(".engine.toml")
    load_profile(profile)
    load_engine(str(preset))
    return profile, preset
