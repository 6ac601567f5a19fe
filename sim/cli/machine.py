"""`residency machine`: every number of a machine, with what it is and where it comes from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import JsonOpt, say, show, table, writable, write_json

if TYPE_CHECKING:
    from expert_residency.hwmodels.profile import HardwareProfile


@app.command()
def machine(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SRC",
            help="Profile NAME or FILE.toml, or parts: CARD:cpu=NAME,ram=64GB@6000x2,link=4.0x8,drive=gen4; "
            "none:cpu=NAME without a card (residency list gpus, cpus).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", callback=writable, help="Write it as a profile, to be corrected by hand."),
    ] = None,
    json: JsonOpt = None,
) -> None:
    """Every number of a machine: measured, by data sheet, derived or assumed, and its source."""
    from expert_residency.files import write_text
    from expert_residency.hwmodels.registry import load_profile
    from expert_residency.hwmodels.template import profile_toml

    profile = load_profile(source)
    rows = list(_numbers(profile.model_dump(exclude_none=True)))
    if out is not None:
        write_text(out, profile_toml(profile))
    if json is not None:
        write_json(json, {"name": profile.name, "summary": profile.summary, "numbers": rows})
        if str(json) == "-":
            return
    shown = table(f"{profile.name}: {profile.summary}", ["number", "value", "kind", "source"], left=4)
    for row in rows:
        shown.add_row(row["field"], f"{row['value']:,g}", row["kind"], row["source"])
    show(shown)
    say(said(profile))
    if out is not None:
        say(f"wrote {out}")


def said(profile: HardwareProfile) -> str:
    """How many of a machine's numbers are of which kind."""
    kinds = [row["kind"] for row in _numbers(profile.model_dump(exclude_none=True))]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("measured", "datasheet", "derived", "assumed"))
    return f"{profile.name}: {counted} numbers"


def _numbers(table_: dict[str, Any], path: str = "") -> Any:
    for key, value in table_.items():
        if isinstance(value, dict) and "kind" in value:
            yield {"field": f"{path}{key}", **{k: value[k] for k in ("value", "kind", "source")}}
        elif isinstance(value, dict):
            yield from _numbers(value, f"{path}{key}.")
