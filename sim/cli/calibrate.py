"""`residency calibrate`: measure this machine into a profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.files import write_text
from expert_residency.sim.choices.trace import Reading
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, ModelOpt, say, writable, write_json
from expert_residency.sim.cli.progress import working
from expert_residency.sim.cli.reading import takes_reading

if TYPE_CHECKING:
    from expert_residency.sim.live.plan import Plan
    from expert_residency.traces import RoutingTrace


@app.command()
@takes_reading("join", "requests", "phase")
def calibrate(
    out: Annotated[Path, typer.Option(metavar="PROFILE.toml", callback=writable, help="Profile to write.")],
    trace: Annotated[
        str, typer.Option(help="Trace whose model's sizes are measured with; see --model.")
    ] = "bundled:tinymoe-prose",
    model: ModelOpt = None,
    fmt: FormatOpt = None,
    reading: Reading | None = None,
    like: Annotated[
        str | None, typer.Option(help="Profile to take card and link from, where there is no card.")
    ] = None,
    cardless: Annotated[
        bool, typer.Option(help="RAM and CPU as the card, the drive as the link: for live runs without a card.")
    ] = False,
    folder: Annotated[
        Path | None, typer.Option(help="On the drive to be measured; the profile's folder by default.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="CPU threads that compute experts.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Interleaved rounds of every measurement.")] = 5,
    disk: Annotated[str, typer.Option(help="Most that may be written there while it runs, with unit.")] = "4GB",
) -> None:
    """Measure this machine for one model's sizes: copies, layers, CPU pool, memory, drive.

    Time and disk are said before they are taken. Beside PROFILE.toml, PROFILE.engine.toml is the preset of the
    live executor and PROFILE.readings.json what was measured. Three short runs of the trace, measured and
    predicted, end it.
    """
    from expert_residency.errors import HardwareError
    from expert_residency.hwmodels.executor.card import has_card
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.choices.trace import open_trace
    from expert_residency.sim.live.check import check_plan

    try:
        import numba  # noqa: F401
    except ImportError:
        raise HardwareError("calibrating needs numba: pip install 'expert-residency[live]'") from None
    if out.suffix != ".toml":
        raise HardwareError("a profile's name ends in .toml", path=out)
    if like is not None:
        load_profile(like)
    recorded = open_trace(trace, fmt, model, reading)
    place = folder or out.resolve().parent
    with_engine = cardless or has_card()
    plan = (
        check_plan(recorded, Path(trace).stem, out.stem, cardless=cardless, rounds=rounds) if with_engine else None
    )
    if plan is not None and like is None:
        noisy, checked = _checked(recorded, plan, out, place, workers, disk)
    else:
        _announce(recorded, place, cardless, disk)
        noisy, checked = _alone(recorded, out, place, like, cardless, workers, rounds), []
    engine, readings = out.with_suffix(".engine.toml"), out.with_suffix(".readings.json")
    say(f"{out}, {engine}, {readings}: measured with the sizes of {recorded.geometry.label}")
    if noisy:
        say(f"noisy, the rounds differ by more than a quarter: {', '.join(noisy)}")
    for line in checked:
        say(line)


def _checked(
    trace: RoutingTrace, plan: Plan, out: Path, place: Path, workers: int | None, disk: str
) -> tuple[list[str], list[str]]:
    """Measure beside three short runs: figures that are noisy, and lines about the runs."""
    from tempfile import TemporaryDirectory

    from expert_residency.hwmodels.units import parse_size
    from expert_residency.sim.live.check import compared
    from expert_residency.sim.live.measure import check_room, measure, write_trace

    say(str(plan))
    check_room(plan, place, parse_size(disk))
    with TemporaryDirectory(prefix="calibrate-") as made, working("calibrating") as update:
        found = Path(made)
        write_trace(trace, plan, found / f"{plan.outcomes[0].arm.trace}.parquet")
        _, noisy = measure(plan, found, folder=place, workers=workers, progress=update)
        for suffix in (".toml", ".engine.toml", ".readings.json"):
            write_text(out.with_suffix(suffix), (found / f"{plan.label}{suffix}").read_text(encoding="utf-8"))
        return noisy, compared(plan.label, found, each=True)


def _announce(trace: RoutingTrace, place: Path, cardless: bool, disk: str) -> None:
    """Say what the files take before they are written, and refuse more than is allowed."""
    from expert_residency.errors import HardwareError
    from expert_residency.hwmodels.calibrate.run import LEAST_BYTES, MOST_BYTES
    from expert_residency.hwmodels.units import format_bytes, parse_size

    experts = trace.geometry.all_expert_bytes
    taken = min(MOST_BYTES, max(LEAST_BYTES, experts)) + cardless * experts
    if taken > parse_size(disk):
        raise HardwareError(
            f"calibrating writes {format_bytes(taken)} to {place}: allow it with --disk, or take a smaller model"
        )
    say(f"measuring takes minutes, and {format_bytes(taken)} of disk in {place} while it runs")


def _alone(
    trace: RoutingTrace, out: Path, place: Path, like: str | None, cardless: bool, workers: int | None, rounds: int
) -> list[str]:
    """Measure without a run: where there is no engine for one, or no pass to run. Figures that are noisy."""
    from expert_residency.hwmodels.calibrate import calibrate as measure
    from expert_residency.sim.live.schedule import sizes_of

    geometry = trace.geometry
    with working("calibrating") as update:
        made = measure(
            sizes_of(geometry), place, name=out.stem, family=geometry.quant_family, like=like, cardless=cardless,
            workers=workers, rounds=rounds, progress=update,
        )  # fmt: skip
    write_text(out, made.profile_toml)
    write_text(out.with_suffix(".engine.toml"), made.engine_toml)
    write_json(out.with_suffix(".readings.json"), made.readings.table())
    return made.noisy
