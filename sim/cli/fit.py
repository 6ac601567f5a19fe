"""`residency fit`: what a few runs of an engine say about the constants of machine and engine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import (
    MODEL_FORMS,
    FormatOpt,
    JsonOpt,
    caution,
    number,
    say,
    show,
    table,
    warn,
    writable,
    write_json,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from expert_residency.sim.cli.tables import Sheet
    from expert_residency.sim.studies.fit import FitResult, MeasuredRun
    from expert_residency.sim.studies.fit.fit import Fitted, NextRun
    from expert_residency.traces import RoutingTrace

PASSES = 60


@app.command()
def fit(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS",
            help="Measured runs: a CSV with a column tokens_per_s and one for each choice that differs (capacity, "
            "n_cpu_moe, depth, miss, ..., or a field of the preset as pcie_share), what llama-bench -o json "
            "writes, or the log of Strata's server.",
        ),
    ],
    hardware: Annotated[
        str,
        typer.Option(
            help="Profile to start from, NAME or FILE.toml, or parts, CARD:cpu=NAME,ram=64GB; several joined by +."
        ),
    ],
    engine: Annotated[str, typer.Option(help="Engine that made the runs: preset, NAME or FILE.toml.")],
    model: Annotated[
        str | None, typer.Option(help=f"Model: {MODEL_FORMS}. Not needed where RUNS has a column model.")
    ] = None,
    trace: Annotated[
        str | None, typer.Option(help="Routing; the model's bundled trace or a synthetic one by default.")
    ] = None,
    fmt: FormatOpt = None,
    windows: Annotated[
        str | None,
        typer.Option(
            metavar="ROWS,EMITTED",
            help="Verify windows of an engine that drafts, on average; by default those of a log.",
        ),
    ] = None,
    passes: Annotated[int, typer.Option(min=4, help="Passes of the trace that each run simulates.")] = PASSES,
    noise: Annotated[float, typer.Option(help="Standard deviation of a measured speed, in percent.")] = 3.0,
    out: Annotated[
        Path | None,
        typer.Option(
            callback=writable,
            metavar="FILE.toml",
            help="Write the machine with what was determined, and FILE.engine.toml where the engine's changed.",
        ),
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Fit constants to measured runs: what they determine, what they cannot tell apart, which run would."""
    from functools import cache

    from expert_residency.errors import SimError
    from expert_residency.sim.choices.caveats import caveats, texts
    from expert_residency.sim.choices.trace import routing_of
    from expert_residency.sim.studies.fit import fit_runs, read_runs
    from expert_residency.sim.studies.fit.llama_bench import of_one_machine
    from expert_residency.traces.windows import compose_windows

    measured, left_out = read_runs(runs)

    @cache
    def composed(own: str | None, shape: tuple[float, float] | None) -> RoutingTrace:
        found = routing_of(own or model, trace, fmt, passes=passes)
        return found if shape is None else compose_windows(found, rows=shape[0], emitted=shape[1])

    given = _windows(windows) if windows else None

    def trace_of(run: MeasuredRun) -> RoutingTrace:
        return composed(run.model, given or (run.windows if run.windows != (1.0, 1.0) else None))

    geometry = trace_of(measured[0]).geometry
    measured, others = of_one_machine(measured, geometry, hardware.count("+") + 1)
    left_out += others
    if not measured:
        raise SimError(f"{runs}: no run is left to fit to: {left_out[0]}")
    quiet = str(json) == "-"
    found = fit_runs(
        measured, hardware, engine, trace_of, noise=noise / 100,
        progress=None if quiet else lambda step: say(f"{step} ...", err=True),
    )  # fmt: skip
    said = texts(caveats(trace_of(measured[0]), hardware=found.profiles, context_counted=True))
    if json is not None:
        write_json(json, _plain(found, left_out, said))
    if out is not None:
        _write(found, out, hardware, engine, runs)
    if quiet:
        return
    _print(found, engine)
    caution(said)
    warn([f"left out: {row}" for row in left_out])


def _windows(text: str) -> tuple[float, float]:
    from expert_residency.errors import SimError

    try:
        rows, emitted = map(float, text.split(","))
    except ValueError:
        raise SimError(f"--windows {text}: expected rows and emitted tokens of a window, as 3.5,2.6") from None
    return rows, emitted


def _print(found: FitResult, engine: str) -> None:
    from expert_residency.sim.studies.fit.fit import BIRGE

    runs = table(
        f"Runs, tokens/s; by others: as the other runs predict it. Engine {engine}",
        ["run", "measured", "before", "after", "error %", "by others", "error %"],
        left=1,
    )
    for one in found.checked:
        truth = one.run.tokens_per_s
        errors = [number((speed / truth - 1) * 100, 1) for speed in (one.after, one.left_out)]
        runs.add_row(
            one.run.name, number(truth), number(one.before), number(one.after), errors[0], number(one.left_out),
            errors[1],
        )  # fmt: skip
    constants = table(
        "Constants that these runs feel; 5 and 95 %: what fits",
        ["constant", "was", "kind", "now", "5 %", "95 %", "verdict"],
        also_text=("kind", "verdict"),
    )
    for fitted in found.fitted:
        was = fitted.constant
        constants.add_row(
            was.name, f"{was.value:.4g}", was.kind, f"{fitted.value:.4g}", f"{fitted.low:.4g}",
            f"{fitted.high:.4g}", fitted.verdict,
        )  # fmt: skip
    before, after, others = found.error
    lines = [
        f"median error: {before:.1f} % before, {after:.1f} % after, {others:.1f} % for each run by the others",
        f"{found.unfelt} further constants change no run by {0.5:g} %: they stay what they were",
    ]
    lines += _ties(found.fitted)
    if found.misfit > BIRGE:
        lines.append(
            f"the misfit is {found.misfit:.1f} times what noise and priors allow: the model lacks something that "
            "these runs have, and every interval is widened by as much"
        )
    show(runs, constants, *lines)
    if found.following:
        show(_following(found.following))


def _ties(fitted: Sequence[Fitted]) -> list[str]:
    """One line a constant that cannot be told from others; each pair is named once."""
    lines: list[str] = []
    said: set[frozenset[str]] = set()
    for one in fitted:
        name = one.constant.name
        others = [other for other in one.tied if frozenset((name, other)) not in said]
        said |= {frozenset((name, other)) for other in others}
        if others:
            lines.append(f"not told apart: {name} and {', '.join(others)}")
    return lines


def _following(runs: Sequence[NextRun]) -> Sheet:
    """Runs to measure next."""
    shown = table(
        "Runs that would tell more, the best first; tokens/s",
        ["run", "predicted", "5 %", "95 %", "tells of"],
        also_text=("tells of",),
    )
    for run in runs:
        words = ", ".join(f"{key}={value}" for key, value in run.words.items())
        shown.add_row(
            words, number(run.tokens_per_s), number(run.low), number(run.high), ", ".join(run.tells) or "-"
        )
    return shown


def _plain(found: FitResult, left_out: list[str], said: list[str]) -> dict[str, object]:
    before, after, others = found.error
    return {
        "noise": found.noise,
        "misfit": found.misfit,
        "median_error_pct": {"before": before, "after": after, "by_others": others},
        "constants": [
            {
                "name": one.constant.name,
                "was": one.constant.value,
                "kind": one.constant.kind,
                "value": one.value,
                "low": one.low,
                "high": one.high,
                "verdict": one.verdict,
                "tied": list(one.tied),
            }
            for one in found.fitted
        ],
        "unfelt": found.unfelt,
        "runs": [
            {
                "name": one.run.name,
                "tokens_per_s": one.run.tokens_per_s,
                "before": one.before,
                "after": one.after,
                "by_others": one.left_out,
            }
            for one in found.checked
        ],
        "next_runs": [asdict(one) for one in found.following],
        "left_out": left_out,
        "caveats": said,
    }


def _write(found: FitResult, out: Path, hardware: str, engine: str, runs: Path) -> None:
    from expert_residency.errors import SimError
    from expert_residency.files import write_text
    from expert_residency.sim.studies.fit.write import preset_toml, profile_toml
    from expert_residency.toml import is_path

    if len(found.profiles) > 1:
        raise SimError(f"{out}: a machine of {len(found.profiles)} cards is not one profile; fit each card alone")
    # Bases are relative to the file that names them, which may be in another folder.
    bases = [str(Path(name).resolve()) if is_path(name) else name for name in (hardware, engine)]
    write_text(out, profile_toml(found, bases[0], runs.name))
    text = preset_toml(found, bases[1], runs.name)
    if text:
        write_text(out.with_suffix(".engine.toml"), text)
