"""llama.cpp's users: what they measured beside what data sheets and preset say, one machine held out at a time.

Of every machine only data sheets are taken (`hwmodels.datasheet`). One number is derived from these rows: what a
core of Skylake's kind gets through beside a newer one (`core_share`). Each processor of the kind is predicted with
the share that the others give; newer ones take nothing from these rows. That old cores are a group of their own
was seen in the rows; that choice of form is not held out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from expert_residency.hwmodels.datasheet import from_data_sheet
from expert_residency.hwmodels.parts.compose import MEMORY_SHARE
from expert_residency.hwmodels.profile import HardwareProfile
from expert_residency.hwmodels.quantity import Quantity
from expert_residency.hwmodels.runs import LlamaRun, load_llama_runs
from expert_residency.sim.choices.preset import EnginePreset, load_engine
from expert_residency.sim.runs.interval import Interval, around
from expert_residency.sim.runs.layer_sums import THIRDS, LayerSums, Parts
from expert_residency.traces import ModelGeometry, Phase, RoutingTrace, TraceBuilder

ENGINE = "llama.cpp"
TOLD_BY_ITS_OWN = ("RX 7900 XT",)
"""Cards whose share of the data sheet rests on a row here, with all of the model on the card."""
SHARES = tuple(round(0.15 * 1.01**n, 4) for n in range(190))
"""Of a newer core that are tried: 0.15 to 0.98, 1 % apart."""


@dataclass(frozen=True)
class Prediction:
    """One row: tokens/s with the core share that the other old processors give; None: a newer one."""

    run: LlamaRun
    core_share: float | None
    tokens_per_s: float

    @property
    def error(self) -> float:
        """Held out: predicted over measured, less 1."""
        return self.tokens_per_s / self.run.tok_s - 1

    def interval(self) -> Interval:
        """Where 90 % of such rows lie."""
        machine = (machine_of(self.run, self.core_share),), load_engine(ENGINE)
        return around(self.tokens_per_s, lambda drawn: 1.0 / parts_of(self.run, drawn[1], drawn[0][0]).ns, machine)


def geometry_of(run: LlamaRun) -> ModelGeometry:
    """The model of a row, with the bytes that its file has by tensor shapes."""
    n = run.moe_layers
    first = run.layers - n
    return ModelGeometry(
        run.model, tuple(range(first, run.layers)), run.experts, run.top_k, (run.expert_bytes,) * n,
        (run.dense_bytes // n,) * n, run.quant, run.family, head_bytes=run.head_bytes, total_layers=run.layers,
    )  # fmt: skip


def one_token(geometry: ModelGeometry) -> RoutingTrace:
    """A decoded token: in an engine that moves nothing one is as long as the next."""
    builder = TraceBuilder(geometry)
    builder.begin_pass(Phase.DECODE)
    for layer in geometry.layer_ids:
        builder.row(layer, list(range(geometry.top_k)))
    return builder.build()


def machine_of(run: LlamaRun, core_share: float | None = None) -> HardwareProfile:
    """The machine of a row by its data sheets, an old processor with another share of a newer core."""
    made = from_data_sheet(
        run.machine, gpu=run.gpu, gpu_gb_per_s=run.gpu_gb_per_s or 0, cpu=run.cpu, cores=run.cores,
        ram_gb_per_s=run.ram_gb_per_s,
    )  # fmt: skip
    if core_share is None or made.cpu.core_share is None:
        return made
    share = made.cpu.core_share.model_copy(
        update={"value": core_share, "spread": (0.83 * core_share, 1.45 * core_share)}
    )
    return made.model_copy(update={"cpu": made.cpu.model_copy(update={"core_share": share})})


def parts_of(run: LlamaRun, preset: EnginePreset, profile: HardwareProfile | None = None) -> Parts:
    """Where a token's time goes.

    Parameters
    ----------
    run
        Machine, model and `--n-cpu-moe`; None: all on the CPU.
    preset
        The engine.
    profile
        Its machine, if not as its data sheets say.

    Returns
    -------
    Parts
        Ns by cause.
    """
    geometry, profile = geometry_of(run), profile or machine_of(run)
    costs = LayerSums(one_token(geometry), {run.machine: profile}, profile, preset)
    if run.n_cpu_moe == "cpu":
        return _sum(costs.ends(run.machine, None), *[costs.on_host(0)] * geometry.n_layers)
    on_cpu = sum(layer_id < int(run.n_cpu_moe) for layer_id in geometry.layer_ids)
    layers = [costs.layer(run.machine, 0, thirds) for thirds in (0, THIRDS)]  # all layers are alike
    return _sum(
        costs.ends(run.machine, run.machine),
        *[layers[0]] * on_cpu, *[layers[1]] * (geometry.n_layers - on_cpu),
    )  # fmt: skip


def _sum(first: Parts, *others: Parts) -> Parts:
    for other in others:
        first += other
    return first


@cache
def _times(run: LlamaRun) -> tuple[int, int]:
    """Ns of a token if only memory limits the CPU, and if its rate is half of that."""
    preset, profile = load_engine(ENGINE), machine_of(run)
    half = run.ram_gb_per_s * MEMORY_SHARE / 2 / profile.cpu.most_gb_per_s(1.0)
    core = Quantity(value=half, kind="derived", source="half of memory's rate")
    return (
        parts_of(run, preset.model_copy(update={"cpu_core_gb_per_s": None}), profile).ns,
        parts_of(run, preset.model_copy(update={"cpu_core_gb_per_s": core}), profile).ns,
    )


def is_old(run: LlamaRun) -> bool:
    """Whether the processor's cores are of the kind whose share is derived here."""
    return machine_of(run).cpu.core_share is not None


def tokens_per_s(run: LlamaRun, core_share: float | None) -> float:
    """Decoding speed with a share of a newer core (None: all of it). What of a row is the prompt is taken off."""
    whole, half = _times(run)
    core = load_engine(ENGINE).cpu_core_gb_per_s
    assert core is not None
    most = core.value * run.cores * (core_share or 1.0)
    slower = max(1.0, run.ram_gb_per_s * MEMORY_SHARE / most)  # time is linear in a rate's inverse
    return 1e9 / (whole + (half - whole) * (slower - 1)) * (1 - (run.prompt_pct or 0) / 100)


def best_share(runs: Sequence[LlamaRun]) -> float:
    """The core share with the least mean absolute log error; the middle of those that are equally good."""
    off = {share: sum(abs(math.log(tokens_per_s(run, share) / run.tok_s)) for run in runs) for share in SHARES}
    least = min(off.values())
    alike = [share for share in SHARES if off[share] <= least * (1 + 1e-9)]
    return alike[len(alike) // 2]


def predict_llamacpp(runs: Sequence[LlamaRun] | None = None) -> list[Prediction]:
    """Every row, its machine held out with all others of the same processor.

    Parameters
    ----------
    runs
        Rows instead of those that ship.

    Returns
    -------
    list[Prediction]
        In the order of the rows.
    """
    runs = load_llama_runs() if runs is None else runs
    old = [run for run in runs if run.n_cpu_moe != "0" and is_old(run)]
    shares = {
        cpu: best_share([run for run in old if run.cpu != cpu]) for cpu in dict.fromkeys(run.cpu for run in old)
    }
    return [Prediction(run, shares.get(run.cpu), tokens_per_s(run, shares.get(run.cpu))) for run in runs]


def llamacpp_table() -> str:
    """Every row for the documentation, and the medians."""
    import statistics

    from expert_residency.text import markdown

    found = predict_llamacpp()
    rows = [
        (
            one.run.machine, f"{one.run.model} {one.run.quant}", _how(one.run), f"{one.run.tok_s:g}",
            f"{one.tokens_per_s:.1f}", f"{100 * one.error:+.0f} %", _share(one),
        )
        for one in found
    ]  # fmt: skip
    heads = (
        "machine",
        "model",
        "experts on the CPU",
        "tok/s",
        "predicted",
        "error",
        "a core beside newer ones, by the others",
    )
    table = markdown(heads, rows)
    parts = {
        "with experts on the CPU": [abs(p.error) for p in found if p.run.offloads],
        "all rows": [abs(p.error) for p in found],
    }
    said = "; ".join(
        f"{name}: {len(errors)} rows, median {100 * statistics.median(errors):.1f} %, "
        f"worst {100 * max(errors):.0f} %"
        for name, errors in parts.items()
    )
    return f"{table}\n\nAbsolute errors, each machine held out: {said}."


def _share(one: Prediction) -> str:
    return "" if one.core_share is None else f"{one.core_share:.2f}"


def _how(run: LlamaRun) -> str:
    if run.n_cpu_moe == "cpu":
        return "no card"
    return f"of {run.n_cpu_moe} layers" if run.n_cpu_moe != "0" else "none"
