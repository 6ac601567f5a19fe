"""`residency validate --add`: a user's measured rows, what the model says of each, and what they would change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from expert_residency.sim.cli.common import number, percent, say, show, table, write_json

if TYPE_CHECKING:
    from expert_residency.sim.validation.measured.added import Added, Effect

PLACE = "hwmodels/runs/measured"
_MOST = 8
"""Constants and worse rows that are shown; JSON has all."""


def validate_added(path: Path, out: Path | None, json: Path | None) -> None:
    """Check, predict, say what changes, and write the files of machines if asked.

    Parameters
    ----------
    path
        The user's table.
    out
        Folder of the files, if they are to be written.
    json
        Where to write the result as JSON.

    Raises
    ------
    UserError
        The table is not valid, or a file cannot be written.
    """
    from expert_residency.errors import FileError, HardwareError
    from expert_residency.files import check_output, write_text
    from expert_residency.hwmodels.runs import load_measured_file
    from expert_residency.hwmodels.runs.machine_files import file_of, with_rows
    from expert_residency.sim.validation.measured.added import add

    lines = load_measured_file(path)
    if not lines:
        raise HardwareError("no row under the header", path=path)
    if out is not None:  # what cannot be written is said before the work
        if out.exists() and not out.is_dir():
            raise FileError("is a file, and --out names a folder", path=out)
        for name in {file_of(line.row) for line in lines} if out.exists() else ():
            check_output(out / name)
            with_rows(out, name, [])
    say("every machine is fitted without and with your rows, about half a minute ...", err=True)
    added, effect = add(lines)
    files = _files(added)
    written = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, rows in files.items():
            if new := [one.line for one in rows if not one.twin]:
                write_text(out / name, with_rows(out, name, new))
                written.append(out / name)
    if json is not None:
        write_json(json, _to_dict(path, added, effect, [str(one) for one in written]))
    if str(json) != "-":
        _print(added, effect, files)
        for one in written:
            say(f"written: {one}")
        if out is not None and not written:
            say("nothing is written: no row is new")


def _files(added: Sequence[Added]) -> dict[str, list[Added]]:
    files: dict[str, list[Added]] = {}
    for one in added:
        files.setdefault(one.file, []).append(one)
    return files


def _print(added: Sequence[Added], effect: Effect | None, files: dict[str, list[Added]]) -> None:
    from expert_residency.hwmodels.runs import measured_files

    shown = table(
        "your rows, tokens/s by rows of other machines",
        ["line", "row", "measured", "predicted", "error %", "90 %"], left=2,
    )  # fmt: skip
    for one in added:
        answer = one.answer
        shown.add_row(
            str(one.line.number), one.name, number(one.line.row.tok_s, 1),
            number(answer.tok_s if answer else None, 1),
            "n/a" if answer is None else f"{100 * (answer.tok_s / one.line.row.tok_s - 1):+.1f}",
            one.interval.text if one.interval else "-",
        )  # fmt: skip
    show(shown)
    for one in added:
        if missing := getattr(one.asked, "missing", ""):
            say(f"line {one.line.number} cannot be predicted: {missing}")
        if one.twin:
            say(
                f"line {one.line.number} is listed already and not added: {one.twin}; if it is another run, "
                "mode, cache or workload say what differs"
            )
    shown = table(f"files under {PLACE}/", ["file", "rows there", "new rows"], left=1)
    for name, rows in files.items():
        shown.add_row(name, str(len(measured_files().get(name, ()))), str(sum(not one.twin for one in rows)))
    show(shown)
    if effect is None:
        say("no row that is new can be predicted: constants and errors stay as they are")
    else:
        _print_effect(effect)


def _print_effect(effect: Effect) -> None:
    if effect.constants:
        shown = table("constants that move", ["constant", "before", "after", "%"], left=1)
        for name, (old, now) in list(effect.constants.items())[:_MOST]:
            shown.add_row(name, f"{old:.4g}", f"{now:.4g}", f"{100 * (now / old - 1):+.1f}")
        show(shown)
    moved = len(effect.constants)
    say(f"{moved} constants move by more than 1 %" + (f", {_MOST} shown" if moved > _MOST else ""))
    before, after, together = (percent(share, 2) for share in (effect.before, effect.after, effect.together))
    say(
        f"median error of the {effect.rows} shipped rows: {before} -> {after} %; "
        f"with yours, {effect.all_rows} rows: {together} %"
    )
    count = len(effect.worse)
    say(
        f"shipped rows that get worse by more than 2 points: {count}"
        + (f", {_MOST} shown" if count > _MOST else "")
    )
    for name, error, grown in effect.worse[:_MOST]:
        say(f"  {100 * error:+.1f} -> {100 * grown:+.1f} %: {name}")


def _to_dict(path: Path, added: Sequence[Added], effect: Effect | None, written: list[str]) -> dict[str, Any]:
    return {
        "file": str(path),
        "rows": [
            {
                "line": one.line.number,
                "name": one.name,
                "goes_to": one.file,
                "measured": one.line.row.tok_s,
                "predicted": one.answer and one.answer.tok_s,
                "error": one.answer and one.answer.tok_s / one.line.row.tok_s - 1,
                "interval_90": one.interval and one.interval.to_dict(),
                "missing": getattr(one.asked, "missing", None),
                "listed_as": one.twin or None,
            }
            for one in added
        ],
        "effect": effect and {
            "constants": {name: {"before": old, "after": now} for name, (old, now) in effect.constants.items()},
            "shipped_rows": effect.rows,
            "median_error_before": effect.before,
            "median_error_after": effect.after,
            "rows_with_yours": effect.all_rows,
            "median_error_with_yours": effect.together,
            "worse": [{"name": name, "before": old, "after": now} for name, old, now in effect.worse],
        },
        "written": written,
    }  # fmt: skip
