"""The charts of a report, in altair. Each reads the rows of `sim.report.data.report_rows`."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from expert_residency.errors import SimError
from expert_residency.sim.report.words import BOUND as NO_FASTER
from expert_residency.sim.report.words import CAUSE_MEANINGS, CAUSE_WORDS, FORESIGHT
from expert_residency.sim.timed.result import CAUSES

if TYPE_CHECKING:
    import altair as alt
    import pandas as pd

BOUND = "best with foresight"
TIME_BOUND = "bound on time"
PALETTE = (
    "#3b7dd8", "#e07b22", "#2f9e6b", "#c6467f", "#8a63d2", "#a88400", "#1f9bb3", "#d1495b", "#6b8e23", "#7a6a5d",
    "#5f7fbf", "#b9648f",
)  # fmt: skip
"""Mid tones, readable on white and on near black."""
MACHINE_PALETTE = ("#4c5866", "#b07aa1", "#59a14f", "#f28e2b", "#9c755f", "#76b7b2", "#e15759", "#edc948")
"""Machines have other colours than policies."""
CAUSE_COLOURS = (
    "#8fb4ee",
    "#3b7dd8",
    "#2f9e6b",
    "#e07b22",
    "#c6467f",
    "#8a63d2",
    "#a88400",
    "#98a1ab",
    "#1f9bb3",
    "#d1495b",
)
BOUND_COLOUR = "#8a8f98"
TIME_BOUND_COLOUR = "#c25b4e"
DOTTED = [2, 3]
"""Bounds on time, wherever they are drawn."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down")
BARS = 24


@dataclass(frozen=True)
class Figure:
    """One chart, with what a reader should take from it."""

    key: str
    title: str
    caption: str
    chart: alt.Chart | alt.LayerChart
    columns: tuple[str, ...]
    """Row columns that it reads."""
    panels: str = "work"
    """Column of which each value has a chart of its own: `work` (a trace) or `group` (a machine over it)."""
    bounds: bool = False
    """Whether it shows policies that see the future."""


def library() -> Any:
    """The altair module.

    Raises
    ------
    SimError
        If it is not installed.
    """
    try:
        import altair
        import vl_convert  # noqa: F401 - draws them
    except ImportError:
        raise SimError("reports need altair and vl-convert: pip install 'expert-residency[report]'") from None
    return altair


def figures(rows: pd.DataFrame) -> list[Figure]:
    """Every chart of the report, in reading order."""
    alt = library()
    return [_capacity(alt, rows), _causes(alt, rows), _hits(alt, rows), _pareto(alt, rows)]


def policy_colours(rows: pd.DataFrame) -> dict[str, str]:
    """The colour of each eviction policy, on every chart of the page."""
    return {name: _colour(i) for i, name in enumerate(sorted(rows["eviction"].unique()))}


def _colour(i: int) -> str:
    """One of the palette, and beyond it hues that are far from each other."""
    if i < len(PALETTE):
        return PALETTE[i]
    parts = colorsys.hls_to_rgb((i * 0.618) % 1, 0.5, 0.55)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _scale(alt: Any, colours: dict[str, str]) -> Any:
    return alt.Scale(domain=list(colours), range=list(colours.values()))


def _machines(alt: Any, rows: pd.DataFrame) -> Any:
    names = sorted(rows["hardware"].unique())
    return _scale(alt, {name: MACHINE_PALETTE[i % len(MACHINE_PALETTE)] for i, name in enumerate(names)})


def _tooltip(alt: Any) -> list[Any]:
    return [
        alt.Tooltip("rank:Q", title="rank"),
        alt.Tooltip("policy:N", title="policy"),
        alt.Tooltip("trace:N", title="trace"),
        alt.Tooltip("hardware:N", title="machine"),
        alt.Tooltip("room:N", title="cache"),
        alt.Tooltip("miss:N", title="miss"),
        alt.Tooltip("tokens_per_s:Q", title="tokens/s", format=".2f"),
        alt.Tooltip("bound_tokens_per_s:Q", title="bound on time, tokens/s", format=".2f"),
        alt.Tooltip("of_bound:Q", title="of the bound", format=".1%"),
        alt.Tooltip("hit_rate:Q", title="hit rate", format=".1%"),
        alt.Tooltip("vram_gib:Q", title="VRAM GiB", format=".2f"),
    ]


_TIP = (
    "rank", "policy", "trace", "hardware", "room", "miss", "tokens_per_s", "bound_tokens_per_s", "of_bound",
    "hit_rate", "vram_gib",
)  # fmt: skip


def _capacity(alt: Any, rows: pd.DataFrame) -> Figure:
    causal = set(rows.loc[~rows["oracle"], "eviction"])
    colours = {name: colour for name, colour in policy_colours(rows).items() if name in causal}
    scale = _scale(alt, colours | {BOUND: BOUND_COLOUR, TIME_BOUND: TIME_BOUND_COLOUR})
    x = alt.X("capacity_gib:Q", title="cache, GiB")
    y = alt.Y("best:Q", title="tokens/s")
    colour = alt.Color("series:N", scale=scale, title=None)
    tooltip = [
        alt.Tooltip("series:N", title="policy"),
        alt.Tooltip("capacity_gib:Q", title="cache GiB", format=".2f"),
        alt.Tooltip("best:Q", title="tokens/s", format=".2f"),
        alt.Tooltip("meaning:N", title="that is"),
    ]
    policies = (
        alt.Chart()
        .transform_calculate(series=f"datum.oracle ? '{BOUND}' : datum.eviction")
        .transform_aggregate(best="max(tokens_per_s)", groupby=["capacity_gib", "series", "oracle"])
        .transform_calculate(meaning=f"datum.oracle ? '{FORESIGHT}' : 'its best over all else'")
        .mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=2)
        .encode(
            x=x, y=y, color=colour, tooltip=tooltip,
            strokeDash=alt.StrokeDash(
                "oracle:N", legend=None, scale=alt.Scale(domain=[False, True], range=[[1, 0], [5, 4]])
            ),
        )
    )  # fmt: skip
    bound = (
        alt.Chart()
        .transform_filter("isValid(datum.bound_tokens_per_s)")
        .transform_aggregate(best="max(bound_tokens_per_s)", groupby=["capacity_gib"])
        .transform_calculate(series=f"'{TIME_BOUND}'", meaning=f"'{NO_FASTER}'")
        .mark_line(strokeDash=DOTTED, strokeWidth=2, point=alt.OverlayMarkDef(size=20, shape="stroke"))
        .encode(x=x, y=y, color=colour, tooltip=tooltip)
    )
    return Figure(
        "capacity",
        "Speed against capacity",
        "For each eviction policy its best over everything else that the filters leave. Dashed: the best of the "
        "policies that see the future: what foresight is worth. Dotted: the bound on time, which no schedule "
        "beats, whatever it knows.",
        alt.layer(policies, bound).properties(height=240),
        ("capacity_gib", "tokens_per_s", "bound_tokens_per_s", "eviction", "oracle"),
        panels="group",
        bounds=True,
    )


def _causes(alt: Any, rows: pd.DataFrame) -> Figure:
    known = [cause for cause in CAUSES if rows[f"{cause}_ms_per_token"].max() > 0]
    causes = [f"{cause}_ms_per_token" for cause in known]
    words = [CAUSE_WORDS.get(cause, cause) for cause in known]
    colours = [CAUSE_COLOURS[CAUSES.index(cause) % len(CAUSE_COLOURS)] for cause in known]
    names, meanings = (
        "{" + ", ".join(f"'{c}': '{w}'" for c, w in zip(causes, said, strict=True)) + "}"
        for said in (words, [CAUSE_MEANINGS.get(cause, cause) for cause in known])
    )
    fastest = (
        alt.Chart()
        .transform_window(place="row_number()", sort=[alt.SortField("order")])
        .transform_filter(f"datum.place <= {BARS}")
    )
    y = alt.Y("label:N", title=None, sort=alt.EncodingSortField("order", op="min"))
    bars = (
        fastest.transform_fold(causes, as_=["cause", "ms"])
        .transform_calculate(
            what=f"{names}[datum.cause]", stack=f"indexof({causes}, datum.cause)",
            meaning=f"{meanings}[datum.cause]",
        )
        .mark_bar()
        .encode(
            y=y,
            x=alt.X("ms:Q", title="ms a token", stack="zero"),
            color=alt.Color("what:N", title=None, sort=words, scale=alt.Scale(domain=words, range=colours)),
            order=alt.Order("stack:Q"),
            tooltip=[
                alt.Tooltip("label:N", title="cell"),
                alt.Tooltip("what:N", title="cause"),
                alt.Tooltip("ms:Q", title="ms a token", format=".3f"),
                alt.Tooltip("meaning:N", title="that is"),
            ],
        )
    )  # fmt: skip
    bound = (
        fastest.transform_filter("isValid(datum.bound_ms)")
        .transform_calculate(meaning=f"'{NO_FASTER}'")
        .mark_tick(thickness=3, color="#111418", stroke="#ffffff", strokeWidth=1, bandSize=17, opacity=1)
        .encode(
            y=y,
            x="bound_ms:Q",
            tooltip=[
                alt.Tooltip("label:N", title="cell"),
                alt.Tooltip("bound_ms:Q", title="bound on time, ms a token", format=".3f"),
                alt.Tooltip("meaning:N", title="that is"),
            ],
        )
    )
    return Figure(
        "causes",
        "Where the time goes",
        f"The {BARS} fastest cells of the selection. Every nanosecond of a token has one cause. The mark "
        "within each bar is the bound on time: no schedule ends before it.",
        alt.layer(bars, bound).properties(height=alt.Step(19)),
        ("order", "label", "bound_ms", *causes),
    )


def _hits(alt: Any, rows: pd.DataFrame) -> Figure:
    machines = sorted(rows["hardware"].unique())
    chart = (
        alt.Chart()
        .mark_point(filled=True, size=55, opacity=0.75)
        .encode(
            x=alt.X(
                "hit_rate:Q", title="hit rate", axis=alt.Axis(format="%", tickCount=8), scale=alt.Scale(zero=False)
            ),
            y=alt.Y("tokens_per_s:Q", title="tokens/s", scale=alt.Scale(zero=False)),
            color=alt.Color("eviction:N", title="eviction", scale=_scale(alt, policy_colours(rows))),
            shape=alt.Shape(
                "hardware:N",
                title="machine",
                scale=alt.Scale(domain=machines, range=[SHAPES[i % len(SHAPES)] for i in range(len(machines))]),
            ),
            tooltip=_tooltip(alt),
        )
        .properties(height=300)
    )
    return Figure(
        "hits",
        "Hit rate is not speed",
        "Cells one above the other hit equally often and differ in speed: the vertical spread is what a hit rate "
        "does not tell. What of the bound on time each reaches is in its tooltip.",
        chart,
        (*_TIP, "eviction"),
    )


def _pareto(alt: Any, rows: pd.DataFrame) -> Figure:
    colour = alt.Color("hardware:N", title="machine", scale=_machines(alt, rows))
    by_size = [alt.SortField("vram_gib"), alt.SortField("tokens_per_s", order="descending")]
    x = alt.X("vram_gib:Q", title="VRAM for cache, dense part and head, GiB")
    y = alt.Y("tokens_per_s:Q", title="tokens/s")
    every = alt.Chart().mark_point(filled=True, size=30, opacity=0.3).encode(
        x=x, y=y, color=colour, tooltip=_tooltip(alt)
    )  # fmt: skip
    front = (
        alt.Chart()
        .transform_window(so_far="max(tokens_per_s)", frame=[None, 0], sort=by_size, groupby=["hardware"])
        .transform_filter("datum.tokens_per_s >= datum.so_far")
    )
    line = front.mark_line(interpolate="step-after", strokeWidth=2).encode(x=x, y=y, color=colour)
    points = front.mark_point(filled=True, size=70).encode(x=x, y=y, color=colour, tooltip=_tooltip(alt))
    bound = (
        alt.Chart()
        .transform_filter("isValid(datum.bound_tokens_per_s)")
        .transform_aggregate(best="max(bound_tokens_per_s)", groupby=["vram_gib", "hardware"])
        .transform_calculate(meaning=f"'{NO_FASTER}'")
        .mark_line(strokeDash=DOTTED, strokeWidth=1.5, point=alt.OverlayMarkDef(size=20, shape="stroke"))
        .encode(
            x=x, y=alt.Y("best:Q", title="tokens/s"), color=colour,
            tooltip=[
                alt.Tooltip("hardware:N", title="machine"),
                alt.Tooltip("vram_gib:Q", title="VRAM GiB", format=".2f"),
                alt.Tooltip("best:Q", title="bound on time, tokens/s", format=".2f"),
                alt.Tooltip("meaning:N", title="that is"),
            ],
        )
    )  # fmt: skip
    return Figure(
        "pareto",
        "VRAM against speed",
        "The line of each machine joins the cells that no cell with as little VRAM beats. Dotted: its bound on "
        "time.",
        alt.layer(bound, every, line, points).properties(height=300),
        _TIP,
    )
