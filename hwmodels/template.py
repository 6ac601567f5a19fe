"""A profile to fill in: every field with what it means, made from the schema so that none is forgotten.

What must be given stands as `value = "?"`; what `_generic` has a figure for, or what may be left out, is commented
out. A file that is not filled in is refused with all that is missing at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import FamilyRates, Section
from expert_residency.hwmodels.registry import PROFILES

HEAD = """\
# A machine with one card; fill in every "?" and delete what you do not need.
# value: a number in the unit that the field's name ends with (GB = 10^9 bytes, GiB = 2^30).
# kind: "measured" (somebody printed it), "datasheet", "derived" (from published figures) or "assumed" (a guess).
# source: where it comes from. Lines that begin with # keep the figure shown, of the base "_generic".
# residency calibrate --out FILE.toml measures most of this. Then: residency run --hardware FILE.toml ...
base = "_generic"
name = "my-machine"  # lower-case letters, digits, . + -
summary = "?"  # one line: card, processor, memory, system
"""
HINTS = {
    "gpu": "the card",
    "gpu.name": "as its maker calls it",
    "gpu.compute_capability": 'sm_86, gfx1100, ... or "cpu"',
    "gpu.vram_total_gib": "memory fitted",
    "gpu.vram_usable_gib": "less ECC, CUDA context, desktop: 0.4 to 1.2 less",
    "gpu.vram_reserve_mib": "kept free by the engine",
    "gpu.mem_gb_per_s": "bandwidth of its memory, data sheet",
    "gpu.expert_gb_per_s": "rate at which its kernels read experts: 0.7 to 0.8 of mem_gb_per_s on modern cards",
    "gpu.dense_gb_per_s": "the same for dense weights",
    "gpu.compute_tflops": "what its kernels reach on many rows; limits prompts",
    "gpu.launch_us": "one kernel launch",
    "gpu.kernel_us": "a kernel of a captured graph, at least; 0 if the rates contain it",
    "gpu.sync_us": "notice of the router's ids to the host, a layer",
    "gpu.sm_x_ghz": "multiprocessors times clock, for engines that place layers by it",
    "gpu.group_us_by_bytes": "measured times of a group of experts by its bytes",
    "gpu.attention_us_by_bytes": "measured times of a layer's attention by the bytes of its keys and values",
    "link": "from host memory to the card",
    "link.pcie": 'generation and lanes it runs at, as "4.0 x16"',
    "link.h2d_gb_per_s": "large copies from page-locked memory: 12 on 3.0 x16, 26 on 4.0 x16, 54 on 5.0 x16",
    "link.d2h_gb_per_s": "the other way",
    "link.h2d_pageable_gb_per_s": "from memory that is not page-locked, about h2d / 1.2",
    "link.copy_t0_us": "set-up of a copy that nothing else covers",
    "link.submit_us": "host time to send one copy",
    "link.handoff_us": "activations to the next card through the host: set-up",
    "link.handoff_gb_per_s": "and rate",
    "link.p2p_us": "card to card without the host: set-up",
    "link.p2p_gb_per_s": "and rate",
    "link.root_port": "name of a port that cards share",
    "link.root_port_gb_per_s": "and its rate",
    "cpu": "the processor's pool of workers, which computes experts from RAM",
    "cpu.name": "as its maker calls it",
    "cpu.cores": "physical ones",
    "cpu.workers": "threads that compute; the rates below hold for so many",
    "cpu.expert_gb_per_s": "",
    "cpu.expert_gb_per_s.pinned": "all workers out of page-locked memory: about 0.6 of dram.theory_gb_per_s",
    "cpu.expert_gb_per_s.pageable": "out of other memory",
    "cpu.expert_gb_per_s.page_cache": "out of a mapped file: about half",
    "cpu.expert_gb_per_s.budget": "out of the page-locked rest of a resident budget; as pinned without it",
    "cpu.expert_gb_per_s.assembled": "put together from slices of a model file; as page_cache without it",
    "cpu.expert_gb_per_s_by_workers": "rates by worker count, to price other counts",
    "cpu.dispatch_us": "to hand a layer's experts to the workers and join them",
    "cpu.core_share": "what one core gets through beside a newer one: old designs (Zen 2, Golden Cove) have less",
    "cpu.gflops": "what the pool reaches on many rows; without it a rule from the data sheet, and a caveat",
    "dram": "host memory bandwidth, shared by CPU and copies",
    "dram.stream_gb_per_s": "what a stream benchmark reaches: 0.8 of theory",
    "dram.shared_fraction": "of it, for CPU and copies together",
    "dram.theory_gb_per_s": "channels x 8 B x MT/s / 1000",
    "ram": "host memory",
    "ram.total_gib": "memory fitted, as the system shows it",
    "ram.os_reserve_gib": "system and programs",
    "ram.pin_limit_gib": "most that may be page-locked: all but the reserve on Linux, about half on Windows",
    "disk": "the drive that holds the expert file",
    "disk.name": "drive",
    "disk.seq_gb_per_s": "large reads of many lanes",
    "disk.latency_us": "one small read",
    "disk.lanes": "reads that are under way at once",
    "disk.lane_gb_per_s": "one lane alone",
    "disk.mmap_fault_gb_per_s": "a mapped file without read-ahead",
    "disk.read_ahead_gb_per_s": "a mapped file with read-ahead",
    "disk.page_bytes": "page of the system",
}
"""What each field means, in a line."""
ASKED = '{ value = "?", kind = "?", source = "?" }'


def template() -> str:
    """The commented file."""
    generic = PROFILES.read("_generic", as_base=True)
    parts = [HEAD]
    for name, field in HardwareProfile.model_fields.items():
        section = _section(field.annotation)
        if section is not None:
            parts.append("\n".join(_table(name, section, generic.get(name, {}), required=True)) + "\n")
    return "\n".join(parts)


def _section(annotation: Any) -> type[Section] | None:
    """Section that a field holds, looked for behind `| None`."""
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    found = [o for o in options if isinstance(o, type) and issubclass(o, Section) and "kind" not in o.model_fields]
    return found[0] if found else None


def _table(path: str, section: type[Section], known: dict[str, Any], *, required: bool) -> Iterator[str]:
    """Lines of one table, its own tables last."""
    off = "" if required else "# "
    if HINTS[path]:
        yield f"# {HINTS[path]}"
    below: list[str] = []
    lines: list[str] = []
    for name, field in section.model_fields.items():
        place = f"{path}.{name}"
        inner = _section(field.annotation)
        if issubclass(section, FamilyRates):
            if name == "default":
                lines.append(f"{off}default = {ASKED}")
        elif inner is not None:
            below += ["", *_table(place, inner, known.get(name, {}), required=required and field.is_required())]
        elif name in known:
            lines.append(f"# {name} = {_value(known[name])}  # {HINTS[place]}")
        else:
            asked = '"?"' if "name" in name or name in ("pcie", "compute_capability", "root_port") else ASKED
            if field.annotation is not None and get_origin(field.annotation) is dict:
                asked = f"{{ 1 = {ASKED} }}"
            mark = "" if required and field.is_required() else "# "
            lines.append(f"{mark}{name} = {asked}  # {HINTS[place]}")
    if issubclass(section, FamilyRates):
        lines.append(
            "# q4 = ... (also iq1 to iq4, q2 to q8, mxfp4, nvfp4, fp16, bf16): where a quantization differs"
        )
    if lines:
        yield f"{off}[{path}]"
        yield from lines
    yield from below if lines else below[1:]


def _value(known: Any) -> str:
    """A figure of the base as it stands in a file, without its source, which stays there."""
    if isinstance(known, dict):
        return f'{{ value = {known["value"]}, kind = "{known["kind"]}", source = "base" }}'
    return f'"{known}"'


def profile_toml(profile: HardwareProfile) -> str:
    """A whole profile as a file that `load_profile` reads back."""
    lines = [f"name = {json.dumps(profile.name)}", f"summary = {json.dumps(profile.summary, ensure_ascii=False)}"]
    data = profile.model_dump(exclude_none=True, exclude={"name", "summary", "aliases"})
    return "\n".join([*lines, *_tables(data, "")]) + "\n"


def _tables(data: dict[str, Any], path: str) -> Iterator[str]:
    for name, table in data.items():
        if not table:
            continue
        yield f"\n[{path}{name}]"
        inner = {key: value for key, value in table.items() if isinstance(value, dict) and "kind" not in value}
        yield from (f"{key} = {_written(value)}" for key, value in table.items() if key not in inner)
        yield from _tables(inner, f"{path}{name}.")


def _written(value: Any) -> str:
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    fields = (
        f"{key} = {json.dumps(field, ensure_ascii=False)}" for key, field in value.items() if field is not None
    )
    return "{ " + ", ".join(fields) + " }"
