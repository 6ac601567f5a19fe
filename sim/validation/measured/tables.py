"""The older tables of published speeds (`hwmodels/runs/published/`) in the columns of the measured ones."""

from __future__ import annotations

import re

from expert_residency.hwmodels.runs import LlamaRun, MeasuredRun, StrataRun
from expert_residency.sim.validation.rows import MODELS


def of_strata(run: StrataRun) -> MeasuredRun | None:
    """A row of `strata.csv`; None where it prints no speed."""
    if run.tok_s is None:
        return None
    rate = re.match(r"[\d.]+", run.h2d_gbps)
    lanes = re.match(r"(\d)\.0 x(\d+)", run.pcie)
    link = f"{rate[0]} GB/s" if rate else f"PCIe{lanes[1]} x{lanes[2]}" if lanes else ""
    return MeasuredRun(
        source=run.source, date=run.date, gpu=run.gpu, n_gpus=run.n_gpus, cpu=run.cpu,
        ram=_memory(run), link=link, model=MODELS.get(run.model, run.model),
        quant=run.quant.partition(" (")[0], engine=f"Strata {run.engine_version}",
        mode=" ".join(f"{run.mode}; {run.flags}".split()), cache=f"{run.slots} slots" if run.slots else "",
        workload=run.workload, tok_s=run.tok_s, hit_rate_pct=run.hit_rate_pct, kind="run", read_in="source",
    )  # fmt: skip


def _memory(run: StrataRun) -> str:
    speed = re.search(r"DDR\d-\d{4}", run.cpu)
    return " ".join(
        text for text in (f"{run.ram_gb:g} GB" if run.ram_gb else "", speed[0] if speed else "") if text
    )


def of_llama(run: LlamaRun) -> MeasuredRun:
    """A row of `llamacpp.csv`; what of it is the prompt's is taken off."""
    layers = run.n_cpu_moe
    mode = "pure CPU" if layers == "cpu" else "all in VRAM" if layers == "0" else f"ncmoe {layers}"
    return MeasuredRun(
        source=run.source, gpu=run.gpu or "none", n_gpus=1 if run.gpu else 0, cpu=run.cpu, model=run.model,
        quant=run.quant, engine="llama.cpp", mode=mode, tok_s=run.tok_s / (1 - (run.prompt_pct or 0) / 100),
        kind="run", read_in="thread",
    )  # fmt: skip
