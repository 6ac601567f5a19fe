"""`residency validate`: predicted beside measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import JsonOpt, number, percent, picture, show, table, write_json

if TYPE_CHECKING:
    from expert_residency.sim.validation.cases import Bounds, Case, Summary


@app.command()
def validate(
    group: Annotated[
        list[str] | None, typer.Option(help="Only exact, live or published; may be given several times.")
    ] = None,
    exact: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE@CAPACITY[@EVICTION]",
            help="A recorded trace with an engine's residency column, and the cache that the engine had.",
        ),
    ] = None,
    live: Annotated[
        list[Path] | None,
        typer.Option(metavar="FOLDER", help="More live runs: a folder that residency measure wrote."),
    ] = None,
    published: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="More published runs, columns as in strata.csv.")
    ] = None,
    json: JsonOpt = None,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Write a scatter plot of predicted against measured.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Exit with 1 if a group is past its declared limit.")] = False,
    every: Annotated[bool, typer.Option("--cases/--no-cases", help="Print each case too.")] = True,
) -> None:
    """Set predictions beside what engines measured: every case, and median and worst error of each group."""
    from expert_residency.sim.validation.cases import (
        SECTIONS,
        load_bounds,
        summarize,
    )
    from expert_residency.text import check_known

    chosen = group or list(SECTIONS)
    for name in chosen:
        check_known("group", name, SECTIONS)
    cases, said = _cases(chosen, exact or [], live or [], published or [])
    summaries = summarize(cases, load_bounds())
    past = [f"{one.group}, {one.use}: {what}" for one in summaries for what in one.over(one.limit)]
    if json is not None:
        write_json(
            json,
            {
                "groups": [one.to_dict() for one in summaries],
                "past_limit": past,
                "notes": said,
                "cases": [vars(case) | {"error": case.error} for case in cases],
            },
        )
    if plot is not None:
        from expert_residency.sim.report.figures import draw_validation

        draw_validation([case for case in cases if case.group != "exact"], plot)
    if str(json) != "-":
        if every:
            _print_cases(cases)
        _print_groups(summaries)
        for line in said:
            typer.echo(line)
        for line in past:
            typer.echo(f"past the limit: {line}")
    if check and past:
        raise typer.Exit(1)


def _cases(
    chosen: list[str], exact: list[str], live: list[Path], published: list[Path]
) -> tuple[list[Case], list[str]]:
    """Cases of the chosen groups, and what a reader must know of those that are missing."""
    from expert_residency.sim.validation.cases import exact_cases, live_cases, published_cases, user_cases

    cases: list[Case] = []
    said: list[str] = []
    if "exact" in chosen:
        cases += exact_cases(exact)
        if not exact:
            said.append("exact: no trace with an engine's residency column was given (--exact FILE@CAPACITY)")
    if "live" in chosen:
        for folder in (None, *live):
            cases += live_cases(folder)
    if "published" in chosen:
        cases += published_cases()
        for path in published:
            own, left = user_cases(path)
            cases += own
            if left:
                said.append(
                    f"{path}: {left} rows lack what a prediction needs (machine, model, hit rate or speed)"
                )
    return cases, said


def _print_cases(cases: list[Case]) -> None:
    for group in dict.fromkeys(case.group for case in cases):
        unit = "first touches" if group == "exact" else "tokens/s"
        shown = table(f"{group}: {unit}", ["case", "use", "measured", "predicted", "error %"], left=2)
        for case in cases:
            if case.group == group:
                figures = number(case.measured, 1), number(case.predicted, 1), f"{100 * case.error:+.1f}"
                shown.add_row(case.name, case.use, *figures)
        show(shown)


def _print_groups(summaries: list[Summary]) -> None:
    columns = ["group", "use", "cases", "median error %", "worst %", "bias %", "wrong order", "limit", "target"]
    shown = table(
        "errors; limit and target: median, worst, wrong order in %", [*columns, "reached"], left=2,
        also_text=("reached",),
    )  # fmt: skip
    for one in summaries:
        missed = one.target is not None and bool(one.over(one.target))
        shown.add_row(
            one.group, one.use, str(one.cases), percent(one.median, 1), percent(one.worst, 1),
            f"{100 * one.bias:+.1f}", f"{one.wrong} of {one.pairs:,}", _bounds(one.limit), _bounds(one.target),
            "no" if missed else "yes" if one.target else "",
        )  # fmt: skip
    show(shown)


def _bounds(bounds: Bounds | None) -> str:
    return "none" if bounds is None else " ".join(f"{100 * share:g}" for share in vars(bounds).values())
