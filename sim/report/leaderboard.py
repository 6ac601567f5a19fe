"""A leaderboard in words and as a page of Markdown: what wins where and by what, then the tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from expert_residency.sim.report.data import row_caveats
from expert_residency.sim.report.words import CAUSE_WORDS
from expert_residency.sim.studies.bootstrap import FEWEST, LEVEL
from expert_residency.sim.studies.leaderboard.board import EVERYWHERE, Board, Place, Row, counted
from expert_residency.sim.studies.leaderboard.field import BASELINE
from expert_residency.sim.studies.leaderboard.runs import HEADINGS
from expert_residency.sim.studies.leaderboard.times import Interval, real
from expert_residency.text import markdown, visible

MARKS = "\\`*_[]|#$~"
"""What Markdown would read as more than a letter."""
SHOWN_CAUSES = 2


def inert(text: str) -> str:
    """Text of a file as one line of Markdown, in which nothing is markup."""
    flat = escape(" ".join(visible(text).split()), quote=False)
    return "".join(f"\\{letter}" if letter in MARKS else letter for letter in flat)


def code(text: str) -> str:
    """A name as code, where its letters allow that."""
    return inert(text) if set(text) & set("`|<[\n") else f"`{text}`"


def span(interval: Interval | None) -> str:
    """`1.02-1.10`, or `n/a`."""
    return "n/a" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}"


def told(row: Row) -> str:
    """Whether a row is faster than the baseline for sure."""
    if row.entrant == BASELINE:
        return "baseline"
    if not row.faster and not row.slower:
        return "same"
    return {None: "n/a", False: "open", True: "faster" if row.ratio > 1 else "slower"}[row.real]


def share(value: float | None, digits: int = 0) -> str:
    """`12`, or `n/a`."""
    return "n/a" if value is None else f"{round(100 * value, digits) + 0.0:.{digits}f}"


def where(place: Place) -> str:
    """The cases of a place, in words."""
    plain = place.axis in (EVERYWHERE, "trace", "hardware")
    return place.value if plain else f"{HEADINGS.get(place.axis, place.axis)} {place.value}"


def saved(place: Place) -> str:
    """What the first saves of the baseline's time, largest cause first: `waiting for PCIe 12 %`."""
    causes = sorted(place.saved, key=lambda cause: -abs(place.saved[cause]))[:SHOWN_CAUSES]
    parts = [f"{CAUSE_WORDS[cause]} {100 * place.saved[cause]:+.0f} %" for cause in causes]
    return "; ".join(part for part in parts if not part.endswith(("+0 %", "-0 %"))) or "nothing"


def with_first(board: Board) -> list[str]:
    """Labels of those that cannot be told from the first."""
    return [row.entrant.label for row in board.ranked[1:] if row.told_from_first is False]


def sentences(board: Board) -> list[str]:
    """What wins everywhere, where it does not, and how sure that is."""
    first, everywhere = board.ranked[0], board.places[0]
    found = [f"Over {board.words}."]
    if first.entrant == BASELINE:
        found.append(f"Nothing is faster than {BASELINE.label} over all.")
    else:
        sure = {
            None: f"fewer than {FEWEST} requests, so whether that is real cannot be said",
            False: f"{100 * LEVEL:g} % interval {span(first.interval)}: others may turn it round",
            True: f"{100 * LEVEL:g} % interval {span(first.interval)}: real",
        }[first.real]
        found.append(
            f"First is {first.entrant.label}, {first.ratio:.2f} times as fast as {BASELINE.label} ({sure}), "
            f"faster in {first.faster} of {counted(board.cases, 'case')} and slower in {first.slower}."
        )
        found.append(
            f"It hits {share(first.hit_rate)} % instead of {share(everywhere.base_hit_rate)} %, and what it saves "
            f"of {BASELINE.label}'s time is {saved(everywhere)}."
        )
    if first.headroom is not None:
        found.append(f"That is {share(first.headroom)} % of what any schedule could save.")
    if others := with_first(board):
        found.append(f"Not to be told from the first: {', '.join(others)}.")
    found += _exceptions(board)
    counts = {
        what: sum(told(row) == what for row in board.ranked) for what in ("faster", "slower", "open", "same")
    }
    if board.requests >= FEWEST and board.ranked[1:]:
        found.append(
            f"Of {counted(len(board.ranked) - 1, 'other')}, {counts['faster']} are faster than {BASELINE.label}, "
            f"{counts['slower']} slower, {counts['same']} the same and {counts['open']} cannot be told from it: "
            f"at {100 * LEVEL:g} %, one in {1 / (1 - LEVEL):.0f} such verdicts may be chance."
        )
    return found


def _exceptions(board: Board) -> list[str]:
    """Places that somebody else wins, those first of which that is sure."""
    first = board.ranked[0].entrant.label
    sure: list[str] = []
    perhaps: list[str] = []
    for place in board.places:
        if place.over is not None:
            interval = "" if place.over_interval is None else f", {span(place.over_interval)}"
            text = f"{where(place)}: {place.first} ({place.over:.2f}{interval})"
            (sure if real(place.over_interval) else perhaps).append(text)
    found = []
    if sure:
        found.append(
            f"There somebody else is faster than {first} for sure (so many times, interval): {'; '.join(sure)}."
        )
    if perhaps:
        found.append(
            "There somebody else is faster on what was run, which other requests or models may turn round: "
            f"{'; '.join(perhaps)}."
        )
    return found


PLACE_HEADS = ("where", "first", "x lru", "interval", "ahead %", "hits %")


def place_cells(place: Place) -> list[str]:
    """A place as a row: who is first, by how much, how far ahead of the second, and what it hits."""
    ahead = "n/a" if place.ahead is None else f"{100 * place.ahead - 100:.1f}{'' if place.told else ' ?'}"
    hits = f"{share(place.base_hit_rate)} to {share(place.hit_rate)}"
    return [where(place), place.first, f"{place.ratio:.2f}", span(place.interval), ahead, hits]


def _row(row: Row, axes: Sequence[tuple[str, str]]) -> list[str]:
    by = [f"{row.by[axis][value]:.2f}" for axis, value in axes]
    return [
        "" if row.rank is None else str(row.rank), code(row.entrant.label), f"{row.ratio:.3f}",
        "" if row.entrant == BASELINE else span(row.interval), told(row), *by,
        f"{row.faster}/{row.slower}", str(row.fastest), share(row.headroom), share(row.hit_rate),
    ]  # fmt: skip


def _rows(rows: Sequence[Row], axes: Sequence[tuple[str, str]]) -> str:
    heads = ["#", "policy", "x lru", "interval", "than lru", *(inert(value) for _, value in axes),
             "faster/slower", "fastest", "headroom %", "hits %"]  # fmt: skip
    return markdown(heads, [_row(row, axes) for row in rows])


def page(board: Board, command: str) -> str:
    """The page.

    Parameters
    ----------
    board
        What was found.
    command
        Command line that makes it anew.
    """
    axes = [(axis, value) for axis, values in board.axes.items() if axis != "trace" for value in values
            if len(values) > 1]  # fmt: skip
    parts = ["# Leaderboard", f"Made by {code(command)}.", _made_of(board), "## What wins where"]
    parts += [" ".join(map(inert, sentences(board)))]
    heads = (*PLACE_HEADS, "second", "of lru's time")
    rows = [[*place_cells(place), place.second or "nobody", saved(place)] for place in board.places]
    parts.append(markdown(heads, [map(inert, cells) for cells in rows]))
    parts.append(
        f"`x lru`: speed over that of `{BASELINE.label}`; `ahead`: of the second (`?`: other requests may turn "
        "that round); hits: the baseline's and the first's; last, what it saves of the baseline's time, by cause."
    )
    parts += ["## Policies that see no future", _rows(board.ranked, axes), HOW]
    if board.bounds:
        parts += ["## Policies that see the future", FUTURE, _rows(board.bounds, axes)]
    if len(board.axes["trace"]) > 1:
        traces = [("trace", name) for name in board.axes["trace"]]
        names = ["policy", *(inert(name) for _, name in traces)]
        speeds = [[code(r.entrant.label), *(f"{r.by[a][v]:.2f}" for a, v in traces)] for r in board.ranked]
        parts += ["## By trace", markdown(names, speeds)]
    parts += ["## What this stands on", _traces(board), _lines(stands_on(board))]
    return "\n\n".join(part for part in parts if part) + "\n"


HOW = (
    "Speeds are geometric means: over the cases of a model, then over models, so that each model counts once. "
    f"Intervals ({100 * LEVEL:g} %) are drawn over models and their requests; `faster` and `slower` leave out 1, "
    "`open` does not. Cases: in how many it takes less or more time than the baseline, and the least of all. "
    "`headroom`: the time that it saves over what any schedule could save (the bound on time)."
)
FUTURE = (
    "No candidates: they know which experts will be wanted. They bound misses, not time; where a miss costs less "
    "than a copy, a policy without foresight may be faster."
)


def _made_of(board: Board) -> str:
    named = [f"{HEADINGS.get(axis, axis)}: {', '.join(map(inert, values))}" for axis, values in board.axes.items()]
    bound = f" No schedule, whatever it knows, is more than {board.limit:.2f} times as fast as the baseline."
    return (
        f"All on {inert(board.words)}; {'; '.join(named)}. Each policy decides one thing, the rest is LRU, every "
        f"miss admitted and nothing prefetched. Ranked by time.{bound if board.limit else ''}"
    )


def _traces(board: Board) -> str:
    rows = [
        (inert(name), inert(board.models[name]), f"{one.requests:,}", f"{one.tokens:,}")
        for name, one in board.basis.items()
    ]
    return markdown(("trace", "model", "requests", "tokens"), rows)


def stands_on(board: Board) -> list[str]:
    """What has no place, what does not fit, what the runs stand on, one sentence each."""
    own = [
        f"{row.entrant.label} is {row.entrant.home}" for row in [*board.ranked, *board.bounds] if row.entrant.home
    ]
    found = [f"not of this package: {', '.join(own)}"] if own else []
    found += [f"left out: {label}: {reason}" for label, reason in board.left_out.items()]
    unfit = {case: reason for reason, cases in board.misfits.items() for case in cases}
    if unfit:
        first, *others = unfit
        found.append(f"too large for the machine: {'; '.join([f'{first} ({unfit[first]})', *others])}")
    return found + _caveats(board)


def _caveats(board: Board) -> list[str]:
    """One of each kind, with how many more there are."""
    kinds: dict[str, list[tuple[str, int]]] = {}
    for case in row_caveats(board.result.frame):
        kind, _, text = str(case["text"]).partition(": ")
        kinds.setdefault(kind, []).append((text, int(case["count"])))
    total = int((board.result.frame["status"] == "ok").sum())
    found = []
    for alike in kinds.values():
        text, runs = alike[0][0], sum(count for _, count in alike)
        more = f"; {len(alike) - 1} more such of other models or machines" if alike[1:] else ""
        found.append(f"{text} (so or alike in {min(runs, total):,} of {total:,} runs{more})")
    return found


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(f"- {inert(line)}" for line in lines)
