"""`residency list`: what can be named elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from expert_residency.sim.cli import app
from expert_residency.sim.cli.common import JsonOpt, say, show, table, write_json

KINDS = ("policies", "hardware", "gpus", "cpus", "models", "formats", "engines", "traces")


@app.command("list")
def list_things(
    what: str = typer.Argument(metavar="|".join(KINDS), help="What to list."),
    template: Annotated[
        bool,
        typer.Option("--template", help="Print a commented profile to fill in, not the list (hardware)."),
    ] = False,
    json: JsonOpt = None,
) -> None:
    """List policies, machines, their parts, models, trace formats, engine presets or bundled traces."""
    from expert_residency.errors import SimError
    from expert_residency.text import check_known

    check_known("kind", what, KINDS)
    if template:
        from expert_residency.hwmodels.template import template as profile_template

        if what != "hardware" or json is not None:
            raise SimError("--template is TOML of hardware: residency list hardware --template > mine.toml")
        say(profile_template(), nl=False)
        return
    rows = _ROWS[what]()
    if json is not None:
        write_json(json, rows)
        if str(json) == "-":
            return
    if not rows:
        say(f"no {what}")
        return
    columns = list(rows[0])
    heads = [(column, column.replace("_", " ")) for column in columns]
    shown = table(None, heads, left=len(columns), also_names=("name", "aliases", "measured_in"))
    for row in rows:
        shown.add_row(*(_text(row[column]) for column in columns))
    show(shown)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else ""
    return str(value)


def _policies() -> list[dict[str, Any]]:
    from expert_residency.policies.registry import KINDS as POLICY_KINDS
    from expert_residency.policies.registry import describe

    return [{"kind": kind} | row for kind in POLICY_KINDS for row in describe(kind)]


def _hardware() -> list[dict[str, Any]]:
    from expert_residency.hwmodels.registry import list_profiles, load_profile

    rows = []
    for name in list_profiles():
        p = load_profile(name)
        rows.append(
            {
                "name": name,
                "aliases": list(p.aliases),
                "machine": p.summary,
                "vram_usable_gib": p.gpu.vram_usable_gib.value,
                "h2d_gb_per_s": p.link.h2d_gb_per_s.value,
                "ram_gib": p.ram.total_gib.value,
            }
        )
    return rows


def _gpus() -> list[dict[str, Any]]:
    from expert_residency.hwmodels.parts.rows import gpus

    return [
        {
            "name": row.name, "card": row.label, "gib": row.vram_gib, "gb_per_s": row.mem_gb_per_s,
            "link": row.link or "shared memory", "measured_in": row.profile, "source": row.source,
        }
        for row in gpus().values()
    ]  # fmt: skip


def _cpus() -> list[dict[str, Any]]:
    from expert_residency.hwmodels.parts.rows import cpus

    return [
        {
            "name": row.name, "processor": row.label, "cores": row.cores, "simd": row.simd,
            "memory": f"{row.channels} x {row.mt_per_s:,} MT/s" if row.channels else "the chip's own",
            "source": row.source,
        }
        for row in cpus().values()
    ]  # fmt: skip


def _models() -> list[dict[str, Any]]:
    from expert_residency.traces import list_models, load_model

    rows = []
    for name, quants in list_models().items():
        g = load_model(name)
        rows.append(
            {
                "name": name,
                "quants": quants,
                "moe_layers": g.n_layers,
                "experts": g.experts,
                "top_k": g.top_k,
                "expert_gib": round(g.all_expert_bytes / 2**30, 2),
            }
        )
    return rows


def _formats() -> list[dict[str, Any]]:
    from expert_residency.traces import list_formats

    return [{"name": name, "description": text} for name, text in list_formats().items()]


def _engines() -> list[dict[str, Any]]:
    from expert_residency.sim.choices.preset import list_engines, load_engine

    return [
        {"name": name, "miss": preset.miss, "summary": preset.summary, "source": preset.source}
        for name in list_engines()
        for preset in [load_engine(name)]
    ]


def _traces() -> list[dict[str, Any]]:
    from expert_residency.traces.bundled import list_bundled, load

    rows = []
    for name in list_bundled():
        trace = load(name)
        rows.append(
            {
                "name": f"bundled:{name}",
                "model": trace.geometry.label,
                "kind": "synthetic" if trace.synthetic else "recorded",
                "passes": trace.n_passes,
                "lookups": trace.n_lookups,
            }
        )
    return rows


_ROWS = {
    "policies": _policies,
    "hardware": _hardware,
    "gpus": _gpus,
    "cpus": _cpus,
    "models": _models,
    "formats": _formats,
    "engines": _engines,
    "traces": _traces,
}
