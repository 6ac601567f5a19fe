"""`residency validate`: predicted beside measured."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import JsonOpt, given, number, percent, picture, say, show, table, write_json

if TYPE_CHECKING:
    from expert_residency.sim.validation.cases import Bounds, Case, Summary
    from expert_residency.sim.validation.published import Left


@app.command()
def validate(
    context: typer.Context,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="Only exact, live, published, llamacpp, machine or advice (slow, only when named); repeat it."
        ),
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
    add: Annotated[
        Path | None,
        typer.Option(
            metavar="RUNS.csv",
            help="Only this: check measured runs of your own, predict them by rows of other machines, say "
            "what they would change.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="With --add: write the files of the machines there; rows in them are kept."
        ),
    ] = None,
    json: JsonOpt = None,
    plot: Annotated[
        Path | None, typer.Option(callback=picture, help="Write a scatter plot of predicted against measured.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Exit with 1 if a group is past its declared limit.")] = False,
    every: Annotated[bool, typer.Option("--cases/--no-cases", help="Print each case too.")] = True,
) -> None:
    """Set predictions beside what engines measured: every case, and median and worst error of each group."""
    from expert_residency.errors import SimError
    from expert_residency.sim.cli.validate_advice import advice_to_dict, judged_sweeps, past_wanted, print_advice
    from expert_residency.sim.validation.cases import (
        SECTIONS,
        load_bounds,
        summarize,
    )
    from expert_residency.text import check_known

    if _added(context, add, out, json):
        return
    chosen = group or list(SECTIONS)
    for name in chosen:
        check_known("group", name, (*SECTIONS, "advice"))
    for name, more in (("exact", exact), ("live", live), ("published", published)):
        if more and name not in chosen:
            raise SimError(f"--{name} adds cases to the group {name}: name it too, --group {name}")
    cases, left, said = _cases(chosen, exact or [], live or [], published or [])
    summaries = summarize(cases, load_bounds())
    past = [f"{one.group}, {one.use}: {what}" for one in summaries for what in one.over(one.limit)]
    sweeps = judged_sweeps(quiet=str(json) == "-") if "advice" in chosen else None
    past += past_wanted(sweeps[0]) if sweeps else []
    if json is not None:
        write_json(
            json,
            {
                "groups": [one.to_dict() for one in summaries],
                "past_limit": past,
                "notes": said,
                "not_predicted": [
                    {
                        "machine": _machine(one),
                        "quant": one.run.quant,
                        "source": one.run.source,
                        "missing": one.reason,
                    }
                    for one in left
                ],
                "cases": [case.to_dict() for case in cases],
            }
            | ({"advice": advice_to_dict(*sweeps)} if sweeps else {}),
        )
    if plot is not None:
        from expert_residency.sim.report.figures import draw_validation

        draw_validation([case for case in cases if case.group != "exact"], plot)
    if str(json) != "-":
        if every:
            _print_cases([case for case in cases if not case.group.startswith("machine")])
            _print_left(left)
        if "machine" in chosen:
            _print_machines([case for case in cases if case.group == "machine"], every)
        if summaries:
            _print_groups(summaries)
        if sweeps:
            print_advice(*sweeps)
        for line in [
            *_coverage(cases),
            *said,
            *([f"{len(left)} published rows cannot be predicted: --cases"] if left and not every else []),
        ]:
            say(line)
        for line in past:
            say(f"past the limit: {line}")
    if check and past:
        raise typer.Exit(1)


def _added(context: typer.Context, add: Path | None, out: Path | None, json: Path | None) -> bool:
    """Rows of the user's own, if that is what is asked."""
    from expert_residency.errors import SimError

    if add is None:
        if out is not None:
            raise SimError("--out writes the files of --add RUNS.csv: give it too")
        return False
    if beside := given(context, "add", "out", "json"):
        raise SimError(f"--add stands alone: leave out {', '.join(beside)}")
    from expert_residency.sim.cli.validate_added import validate_added

    validate_added(add, out, json)
    return True


def _cases(
    chosen: list[str], exact: list[str], live: list[Path], published: list[Path]
) -> tuple[list[Case], list[Left], list[str]]:
    """Cases of the chosen groups, published rows that cannot be predicted, and what else a reader must know."""
    from expert_residency.sim.validation.cases import (
        exact_cases,
        live_cases,
        llamacpp_cases,
        machine_cases,
        published_cases,
    )

    cases: list[Case] = []
    left: list[Left] = []
    said: list[str] = []
    if "exact" in chosen:
        cases += exact_cases(exact)
        if not exact:
            said.append("exact: no trace with an engine's residency column was given (--exact FILE@CAPACITY)")
    if "live" in chosen:
        for folder in (None, *live):
            cases += live_cases(folder)
    if "published" in chosen:
        for path in (None, *published):
            found, lacking, notes = published_cases(path)
            cases, left, said = cases + found, left + lacking, said + notes
    if "llamacpp" in chosen:
        cases += llamacpp_cases()
        said.append(
            "llamacpp: machines by data sheet, each left out of the one derived number; that cores before Zen 2 "
            "and Golden Cove are slow was seen in these rows"
        )
    if "machine" in chosen:
        found, notes = machine_cases()
        cases, said = cases + found, said + notes
    return cases, left, said


def _coverage(cases: list[Case]) -> list[str]:
    """How many rows that no constant saw lie in their intervals."""
    from expert_residency.sim.validation.cases import coverage

    unseen = [
        case
        for case in cases
        if case.use == "unseen" and case.interval is not None and not case.group.startswith("machine: ")
    ]
    share = coverage(unseen)
    if share is None:
        return []
    rows = f"{len(unseen)} rows that no constant saw"
    return [f"90 % intervals hold {100 * share:.0f} % of the {rows} (wanted: 85 to 95)"]


def _machine(left: Left) -> str:
    run = left.run
    return run.group or f"{run.n_gpus}x {run.gpu}, {run.cpu or 'processor not named'}"


def _print_left(left: list[Left]) -> None:
    """Rows that cannot be predicted, those of one machine that lack the same together."""
    if not left:
        return
    shown = table("published rows that cannot be predicted", ["machine", "missing", "rows"], left=2)
    for (machine, reason), rows in Counter((_machine(one), one.reason) for one in left).items():
        shown.add_row(machine, reason, str(rows))
    show(shown)


def _print_cases(cases: list[Case]) -> None:
    for group in dict.fromkeys(case.group for case in cases):
        unit = "first touches" if group == "exact" else "tokens/s"
        columns = ["case", "use", "measured", "predicted", "error %", "90 %"]
        shown = table(f"{group}: {unit}", columns, left=2)
        for case in cases:
            if case.group == group:
                figures = number(case.measured, 1), number(case.predicted, 1), f"{100 * case.error:+.1f}"
                shown.add_row(case.name, case.use, *figures, case.interval.text if case.interval else "-")
        show(shown)


def _print_machines(cases: list[Case], every: bool) -> None:
    """Every machine of the machine group, its rows where they are wanted, and what no row could be asked of."""
    from statistics import median

    from expert_residency.sim.validation.cases import order_of
    from expert_residency.sim.validation.measured.cases import not_asked

    by_machine: dict[str, list[Case]] = {}
    for case in cases:
        by_machine.setdefault(case.among, []).append(case)
    if every:
        _print_cases(cases)
        shown = table("measured rows that cannot be predicted", ["missing", "rows", "machines"], left=1)
        for reason, rows, machines in not_asked():
            shown.add_row(reason, str(rows), str(machines))
        show(shown)
    columns = ["machine", "rows", "median error %", "worst %", "wrong order"]
    shown = table("machine by machine, its rows left out of all constants", columns, left=1)
    for name, members in by_machine.items():
        errors = [case.error for case in members]
        pairs, wrong = order_of(members)
        worst = f"{100 * max(errors, key=abs):+.0f}"
        shown.add_row(name, str(len(members)), percent(median(map(abs, errors)), 1), worst, f"{wrong} of {pairs}")
    show(shown)


def _print_groups(summaries: list[Summary]) -> None:
    columns = ["group", "use", "cases", "median error %", "worst %", "bias %", "wrong order", "in 90 %",
               "limit", "target"]  # fmt: skip
    shown = table(
        "errors; limit and target: median, worst, wrong order in %", [*columns, "reached"], left=2,
        also_text=("reached",),
    )  # fmt: skip
    for one in summaries:
        missed = one.target is not None and bool(one.over(one.target))
        shown.add_row(
            one.group, one.use, str(one.cases), percent(one.median, 1), percent(one.worst, 1),
            f"{100 * one.bias:+.1f}", f"{one.wrong} of {one.pairs:,}",
            "-" if one.held is None else percent(one.held, 0), _bounds(one.limit), _bounds(one.target),
            "no" if missed else "yes" if one.target else "",
        )  # fmt: skip
    show(shown)


def _bounds(bounds: Bounds | None) -> str:
    return "none" if bounds is None else " ".join(f"{100 * share:g}" for share in vars(bounds).values())
