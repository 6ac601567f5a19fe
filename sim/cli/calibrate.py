"""`residency calibrate`: measure this machine into a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from expert_residency.files import write_text
from expert_residency.sim.choices.trace import Reading
from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import FormatOpt, ModelOpt, say, writable, write_json
from expert_residency.sim.cli.progress import working
from expert_residency.sim.cli.reading import takes_reading


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
) -> None:
    """Measure this machine for one model's sizes: copies, layers, CPU pool, memory, drive.

    Beside PROFILE.toml, PROFILE.engine.toml is the preset of the live executor and PROFILE.readings.json what
    was measured.
    """
    from expert_residency.errors import HardwareError
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.sim.choices.trace import open_trace
    from expert_residency.sim.live.schedule import sizes_of

    try:
        import numba  # noqa: F401

        from expert_residency.hwmodels.calibrate import calibrate as measure
    except ImportError:
        raise HardwareError("calibrating needs numba: pip install 'expert-residency[live]'") from None
    if out.suffix != ".toml":
        raise HardwareError("a profile's name ends in .toml", path=out)
    if like is not None:
        load_profile(like)
    geometry = open_trace(trace, fmt, model, reading).geometry
    with working("calibrating") as update:
        made = measure(
            sizes_of(geometry), folder or out.resolve().parent, name=out.stem, family=geometry.quant_family,
            like=like, cardless=cardless, workers=workers, rounds=rounds, progress=update,
        )  # fmt: skip
    engine, readings = out.with_suffix(".engine.toml"), out.with_suffix(".readings.json")
    write_text(out, made.profile_toml)
    write_text(engine, made.engine_toml)
    write_json(readings, made.readings.table())
    say(f"{out}, {engine}, {readings}: measured with the sizes of {geometry.label}")
    if made.noisy:
        say(f"noisy, the rounds differ by more than a quarter: {', '.join(made.noisy)}")
