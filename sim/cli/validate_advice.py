"""`residency validate --group advice`: knob sweeps of measured rows beside what would have been advised."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from expert_residency.sim.cli.common import percent, say, show, table

if TYPE_CHECKING:
    from expert_residency.sim.choices.knob import Value
    from expert_residency.sim.studies.advise.sweeps import Judged, NotJudged, Sweep

HELD_OUT, FITTED = (0.05, 0.15), 0.05
"""What is wanted: median and worst regret with constants of other machines, worst after a fit."""


def judged_sweeps(*, quiet: bool) -> tuple[list[Judged], list[NotJudged]]:
    """All sweeps of the shipped rows."""
    from expert_residency.sim.studies.advise.sweeps import judge

    return judge(progress=None if quiet else lambda text: say(f"advice: {text} ...", err=True))


def past_wanted(judged: list[Judged]) -> list[str]:
    """What falls short, in sentences."""
    from expert_residency.sim.studies.advise.sweeps import FAR

    if not judged:
        return ["advice: no sweep could be run"]
    before = [one.regret(one.predicted) for one in judged]
    after = [(one, one.fitted) for one in judged if one.fitted is not None]
    found = []
    if statistics.median(before) > HELD_OUT[0] or max(before) > HELD_OUT[1]:
        found.append(f"advice: regret held out, median {percent(statistics.median(before), 1)} %, worst "
                     f"{percent(max(before), 1)} %")  # fmt: skip
    if (worst := max((one.regret(speeds) for one, speeds in after), default=0.0)) > FITTED:
        found.append(f"advice: regret after a fit, worst {percent(worst, 1)} %")
    unseen = [other for one in judged if (other := one.unseen())]
    lost = [one.regret(one.fitted) for one in unseen if one.fitted is not None]
    if max(lost, default=0.0) > FITTED:
        found.append(
            f"advice: regret after a fit on settings that it did not see, worst {percent(max(lost), 1)} %"
        )
    if wrong := sum(one.wrong(speeds, FAR)[0] for one, speeds in after):
        found.append(f"advice: {wrong} pairs over {percent(FAR, 0)} % apart in the wrong order after a fit")
    return found


def advice_to_dict(judged: list[Judged], left: list[NotJudged]) -> dict[str, Any]:
    """JSON-able form."""
    from expert_residency.sim.studies.advise.sweeps import APART, FAR, by_knob

    every = [*(one.sweep for one in judged), *(one.sweep for one in left)]
    return {
        "sweeps": len(every),
        "by_knob": dict(by_knob(every)),
        "judged": [_judged(one, (APART, FAR)) for one in judged],
        "not_judged": [_sweep(one.sweep) | {"missing": one.missing} for one in left],
        "past_wanted": past_wanted(judged),
    }


def _sweep(sweep: Sweep) -> dict[str, Any]:
    return {
        "sweep": sweep.name, "knob": sweep.knob, "source": sweep.rows[0].source, "cache": sweep.rows[0].cache,
        "values": list(sweep.values), "measured": list(sweep.tok_s), "best": sweep.values[sweep.best],
    }  # fmt: skip


def _judged(one: Judged, distances: tuple[float, ...]) -> dict[str, Any]:
    data = _sweep(one.sweep)
    for name, speeds in (("held_out", one.predicted), ("fitted", one.fitted)):
        if speeds is not None:
            data[name] = {
                "tokens_per_s": list(speeds), "advised": one.sweep.values[one.advised(speeds)],
                "regret": one.regret(speeds),
                "wrong_order": {f"{far:g}": list(one.wrong(speeds, far)) for far in distances},
            }  # fmt: skip
    if one.fitted is not None:
        data["fit_saw"] = [one.sweep.values[at] for at in one.used]
    return data


def print_advice(judged: list[Judged], left: list[NotJudged]) -> None:
    """Every sweep: best measured, advised, what that loses, pairs in the wrong order; before and after a fit."""
    from expert_residency.sim.studies.advise.sweeps import MOST_RUNS, by_knob

    every = [*(one.sweep for one in judged), *(one.sweep for one in left)]
    counts = ", ".join(f"{knob} {n}" for knob, n in by_knob(every).items())
    say(f"{len(every)} knob sweeps of at least three settings in the measured rows: {counts}")
    out = table(
        "advice: machines by data sheets, constants of other machines; after a fit on at most "
        f"{MOST_RUNS} of the machine's rows",
        ["sweep", "settings", "best", "advised", "regret %", "wrong", "after fit", "regret %", "wrong"],
        left=1, also_text=("best", "advised", "after fit"),
    )  # fmt: skip
    for one in judged:
        cells = [text for speeds in (one.predicted, one.fitted) for text in _cells(one, speeds)]
        sweep = one.sweep
        out.add_row(
            f"{sweep.knob}, {sweep.name}, {sweep.rows[0].cache}", str(len(sweep.values)),
            _text(sweep.values[sweep.best]), *cells,
        )  # fmt: skip
    show(out)
    if left:
        lacking = table("sweeps that cannot be run", ["sweep", "settings", "missing"], also_text=("missing",))
        for lack in left:
            lacking.add_row(f"{lack.sweep.knob}, {lack.sweep.name}", str(len(lack.sweep.values)), lack.missing)
        show(lacking)
    _totals("held out", [(one, one.predicted) for one in judged])
    _totals("after a fit", [(one, one.fitted) for one in judged if one.fitted is not None])
    unseen = [other for one in judged if (other := one.unseen())]
    _totals("unseen by fit", [(one, one.fitted) for one in unseen if one.fitted is not None])
    _speeds(judged)
    machines = sorted({one.sweep.machine for one in judged})
    say(f"all of {len(machines)} machine{'s' if len(machines) > 1 else ''}: {'; '.join(machines)}")


def _totals(name: str, rows: list[tuple[Judged, tuple[float, ...]]]) -> None:
    from expert_residency.sim.studies.advise.sweeps import APART, FAR

    if not rows:
        return
    regrets = [one.regret(speeds) for one, speeds in rows]
    orders = []
    for far in (APART, FAR):
        found = [one.wrong(speeds, far) for one, speeds in rows]
        orders.append(f"{sum(w for w, _ in found)} of {sum(n for _, n in found)} pairs over {percent(far, 0)} %")
    say(
        f"{name}: regret median {percent(statistics.median(regrets), 1)} %, worst {percent(max(regrets), 1)} %; "
        f"in the wrong order {' and '.join(orders)} apart"
    )


def _speeds(judged: list[Judged]) -> None:
    """How far the speeds themselves are off."""
    fitted = [(one, one.fitted) for one in judged if one.fitted is not None]
    kinds = (
        ("by data sheets", [e for one in judged for used in (True, False)
                            for e in one.errors(one.predicted, used=used)]),
        ("fitted, runs of the fit", [e for one, speeds in fitted for e in one.errors(speeds, used=True)]),
        ("fitted, other runs", [e for one, speeds in fitted for e in one.errors(speeds, used=False)]),
    )  # fmt: skip
    said = [
        f"{name} {percent(statistics.median(map(abs, errors)), 0)} (worst {percent(max(map(abs, errors)), 0)})"
        for name, errors in kinds if errors
    ]  # fmt: skip
    say(f"speeds, median % off: {'; '.join(said)}")


def _cells(one: Judged, speeds: tuple[float, ...] | None) -> tuple[str, str, str]:
    from expert_residency.sim.studies.advise.sweeps import APART

    if speeds is None:
        return "-", "-", "-"
    wrong, pairs = one.wrong(speeds, APART)
    return _text(one.sweep.values[one.advised(speeds)]), percent(one.regret(speeds), 1), f"{wrong} of {pairs}"


def _text(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).removeprefix("adapt ")
