"""Rows of a sweep's dataset: the columns, with units, and how a run becomes a row.

A row holds nothing that differs between two runs of the same cell: no clock, no host, no worker.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from expert_residency.policies import create, sees_future
from expert_residency.sim.choices.prefetch_rule import parse_insertion
from expert_residency.sim.choices.preset import load_engine
from expert_residency.sim.choices.spec import FIELDS, RunSpec
from expert_residency.sim.runs.simulate import vram_needs
from expert_residency.sim.sweep.cells import Cell
from expert_residency.sim.timed.binding import binding_sentence
from expert_residency.sim.timed.result import CAUSES, TIERS, RunResult, compared
from expert_residency.traces import RoutingTrace

if TYPE_CHECKING:
    import pyarrow as pa

OK, FAILED, MISFIT = "ok", "failed", "misfit"
Row = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type by name, its unit, and what it says."""

    name: str
    kind: str
    unit: str
    meaning: str


POLICY_COLUMNS = tuple(name for name in FIELDS if name not in ("hardware", "capacity", "layers_each"))
"""Choices of `RunSpec` that are columns as they are."""


def _choice(name: str) -> Column:
    choice = FIELDS[name]
    return Column(name, choice.kind.column, choice.unit, f"`{name}` as chosen; null: the default")


COLUMNS: tuple[Column, ...] = (
    Column("cell", "int32", "", "number of the cell in the sweep, from 0"),
    Column("cell_id", "string", "", "hash of everything that decides the row"),
    Column("status", "string", "", "`ok`, `failed` (see `reason`) or `misfit` (too large for the machine)"),
    Column("reason", "string", "", "why there are no numbers; null for `ok`"),
    Column("trace", "string", "", "name of the trace in the sweep file"),
    Column("scenario", "string", "", "name of the scenario, null if none"),
    Column("seed", "int32", "", "of what is drawn, a synthetic trace or `{seed}` in a choice; null if nothing is"),
    Column("setting", "string", "JSON", "all that the file chooses but the seed, where it chooses seeds"),
    Column("passes", "int32", "passes", "forward passes simulated"),
    Column("model", "string", "", "model and quantization whose byte sizes are used"),
    Column("hardware", "string", "", "machine profiles, one a card, joined by `+`"),
    Column("cards", "int16", "cards", "how many"),
    Column("layers_each", "string", "layers", "MoE layers of each card, joined by `+`; null: all on the first"),
    Column("scope", "string", "", "`global`, `layer` or `layer:PLACEMENT`"),
    Column("slots_per_layer", "int32", "experts", "as chosen, null if the capacity is in bytes"),
    Column("capacity_bytes", "int64", "bytes", "room for experts on all cards together"),
    *map(_choice, POLICY_COLUMNS),
    Column("oracle", "bool", "", "whether a policy sees the future: an oracle, not a candidate"),
    Column("vram_bytes", "int64", "bytes", "expert cache, staging ring and all other weights on all cards"),
    Column("cached_share", "double", "1", "capacity over the bytes of all experts"),
    Column("cycles", "double", "1", "capacity over the bytes that one token touches"),
    Column("tokens", "int64", "tokens", "emitted by all passes"),
    Column("decode_tokens", "int64", "tokens", "emitted by all passes but prefills; speeds count these"),
    Column("requests", "int32", "requests", "that decode; rankings stand on them and `decode_tokens`"),
    Column("request_tokens", "integers", "tokens", "`decode_tokens` by request"),
    Column("request_ns", "integers", "ns", "`decode_ns` by request"),
    Column("total_ns", "int64", "ns", "simulated time of all passes"),
    Column("decode_ns", "int64", "ns", "simulated time of all passes but prefills"),
    Column("bound_ns", "int64", "ns", "least `decode_ns` (if that is 0, `total_ns`) of any schedule"),
    Column("tokens_per_s", "double", "tokens/s", "decoded tokens over decoding time"),
    Column("ms_per_token", "double", "ms", "decoding time over decoded tokens"),
    *(Column(f"ms_per_pass_p{q}", "double", "ms", f"percentile {q} of a decode pass") for q in (50, 95, 99)),
    *(Column(f"{cause}_ms_per_token", "double", "ms", f"decoding time spent on {cause}; all causes add up to "
             "`ms_per_token`") for cause in CAUSES),
    Column("hit_rate", "double", "1", "share of distinct look-ups outside prefill that were ready in VRAM"),
    *(Column(f"share_{tier}", "double", "1", f"share of distinct look-ups served from {tier}; all add up to 1")
      for tier in TIERS),
    *(Column(f"{name}_bytes", "int64", "bytes", f"moved over the run: {name}")
      for name in ("h2d_demand", "h2d_adapt", "h2d_prefetch", "d2h", "disk", "cpu")),
    Column("prefetch_issued", "int64", "copies", "asked for by the prefetcher"),
    Column("prefetch_useful", "int64", "copies", "landed before they were wanted"),
    Column("prefetch_late", "int64", "copies", "wanted before they had landed"),
    Column("prefetch_wasted", "int64", "copies", "copied, then unused"),
    Column("prefetch_cancelled", "int64", "copies", "dropped before they had begun on the link"),
    *(Column(f"prefetch_{name}_bytes", "int64", "bytes", f"prefetched: {meaning}") for name, meaning in (
        ("useful", "landed in time"), ("late", "wanted before they had landed"),
        ("wasted", "moved or read for nothing"),
        ("harmful", "held up a demand, or displaced what was wanted again"))),
    Column("prefetch_recall", "double", "1", "prefetched over all that would have been missed"),
    Column("prefetch_precision", "double", "1", "wanted over all issued copies"),
    Column("evictions", "int64", "experts", "that left the cache"),
    Column("admitted_bytes", "int64", "bytes", "that entered it"),
    Column("start_bytes", "int64", "bytes", "copied before the clock starts"),
    Column("load_ns", "int64", "ns", "reading the experts into RAM before the clock starts"),
    Column("waves", "int64", "events", "larger than their part of the cache"),
    Column("binds", "string", "", "what takes most of the time, in words"),
    Column("warnings", "list", "", "what a reader must know before believing the row"),
    Column("caveats", "list", "", "what the row stands on, as `kind: text`"),
    Column("manifest", "string", "JSON", "versions, hashes and choices that decide the row"),
)  # fmt: skip


def schema() -> pa.Schema:
    """Arrow schema; each field carries its unit and meaning as metadata."""
    import pyarrow as pa

    kinds = {
        "list": pa.list_(pa.string()),
        "integers": pa.list_(pa.int64()),
        "double": pa.float64(),
        "bool": pa.bool_(),
    }
    return pa.schema(
        [
            pa.field(
                c.name, kinds.get(c.kind) or getattr(pa, c.kind)(), metadata={"unit": c.unit, "meaning": c.meaning}
            )
            for c in COLUMNS
        ]
    )


def cell_row(cell: Cell, result: Row) -> Row:
    """A whole row: what the sweep says of the cell, and what the run found."""
    spec = cell.spec
    row: Row = {column.name: None for column in COLUMNS}
    row |= {name: getattr(spec, name) for name in POLICY_COLUMNS}
    row |= {
        "cell": cell.number,
        "cell_id": cell.cell_id,
        "trace": cell.trace,
        "scenario": cell.scenario,
        "seed": cell.seed,
        "setting": cell.setting,
        "hardware": "+".join(spec.hardware),
        "cards": len(spec.hardware),
        "layers_each": None if spec.layers_each is None else "+".join(map(str, spec.layers_each)),
        "scope": spec.capacity.scope_words,
        "slots_per_layer": spec.capacity.slots_per_layer,
        "miss": spec.miss or load_engine(spec.engine).miss,
        "placement": spec.placement or create("eviction", spec.eviction).default_placement,
    }
    return row | result


def room_row(trace: RoutingTrace, spec: RunSpec) -> Row:
    """What is known of a cell without running it."""
    geometry = trace.geometry
    each = spec.layers_each or (geometry.n_layers,) + (0,) * (len(spec.hardware) - 1)
    layer_card = [card for card, n in enumerate(each) for _ in range(n)]
    capacity = spec.capacity  # quotas share out a card's bytes, and add none
    if capacity.quotas != "equal":
        capacity = replace(capacity, scope="global", quotas="equal")
    scopes = capacity.per_scope(geometry, layer_card)
    ring = parse_insertion(spec.insertion).staging_slots
    needs = vram_needs(geometry, layer_card, scopes, by_layer=capacity.scope == "layer", staging_slots=ring)
    room = sum(scopes)
    return {
        "passes": trace.n_passes,
        "model": geometry.label,
        "capacity_bytes": room,
        "vram_bytes": sum(map(sum, needs.values())),
        "cached_share": room / geometry.all_expert_bytes,
        "cycles": room / geometry.token_cycle_bytes,
        "oracle": sees_future(spec.eviction, spec.prefetch, spec.placement, spec.capacity.quotas),
    }


def result_row(result: RunResult, bound_ns: int | None = None) -> Row:
    """What a run found, and the least time that any could take."""
    prefetch, requests = result.prefetch, compared(result.requests())
    return {
        "status": OK,
        "tokens": int(result.pass_emits.sum()),
        "decode_tokens": result.decode_tokens,
        "requests": len(requests),
        "request_tokens": [one["tokens"] for one in requests],
        "request_ns": [one["ns"] for one in requests],
        "total_ns": result.total_ns,
        "decode_ns": result.decode_ns,
        "bound_ns": bound_ns,
        "tokens_per_s": result.tokens_per_s,
        "ms_per_token": result.ms_per_token,
        **{f"ms_per_pass_p{q}": result.percentile_ms(q) for q in (50, 95, 99)},
        **{f"{cause}_ms_per_token": ms for cause, ms in result.causes_ms_per_token().items()},
        "hit_rate": result.decode_hit_rate(),
        **{f"share_{tier}": share for tier, share in result.shares().items()},
        **{f"{name}_bytes": nbytes for name, nbytes in result.link_bytes.items()},
        "prefetch_issued": prefetch.issued,
        "prefetch_useful": prefetch.useful,
        "prefetch_late": prefetch.late,
        "prefetch_wasted": prefetch.wasted,
        "prefetch_cancelled": prefetch.cancelled,
        "prefetch_useful_bytes": prefetch.useful_bytes,
        "prefetch_late_bytes": prefetch.late_bytes,
        "prefetch_wasted_bytes": prefetch.wasted_bytes,
        "prefetch_harmful_bytes": prefetch.harmful_bytes,
        "prefetch_recall": prefetch.recall,
        "prefetch_precision": prefetch.precision,
        "evictions": result.evictions,
        "admitted_bytes": result.admitted_bytes,
        "start_bytes": result.start_bytes,
        "load_ns": result.load_ns,
        "waves": result.waves,
        "binds": binding_sentence(result),
        "warnings": result.warnings,
        "caveats": result.caveats,
        "manifest": json.dumps(result.manifest, sort_keys=True, allow_nan=False),
    }


def failed_row(reason: str, status: str = FAILED) -> Row:
    """A cell without numbers."""
    return {"status": status, "reason": reason, "warnings": [], "caveats": []}
