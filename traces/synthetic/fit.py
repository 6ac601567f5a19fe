"""Fit a routing style to published statistics.

The search is Nelder and Mead's simplex (1965) on the logarithms of the free parameters. Each trial draws the
same random numbers, so the loss is a deterministic function of the parameters.

`python -m expert_residency.traces.synthetic.fit NAME` fits a packaged style anew; it prints the
parameters, and asked against got.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.synthetic.generator import generate
from expert_residency.traces.synthetic.measure import measure
from expert_residency.traces.synthetic.style import RoutingStyle, StyleFile, Target, Workload, load_style_file

FREE = ("base_skew", "request_tilt", "tilt_half_life_tokens", "memory", "memory_half_life_tokens")
FLOOR, BARRIER = 1e-3, 1e6


@dataclass(frozen=True)
class FitResult:
    """Fitted parameters, the targets with `got` filled in, and the root mean square error in tolerances."""

    style: RoutingStyle
    targets: tuple[Target, ...]
    rms_tolerances: float


def shape_only(experts: int, top_k: int, layers: int) -> ModelGeometry:
    """Geometry without sizes (1 byte each): statistics depend on the shape alone.

    Parameters
    ----------
    experts
        Of a layer.
    top_k
        Experts of a token.
    layers
        MoE layers.

    Returns
    -------
    ModelGeometry
        The geometry.
    """
    ids, ones = tuple(range(layers)), (1,) * layers
    return ModelGeometry(f"{layers}x{experts}", ids, experts, top_k, ones, ones)


def evaluate(
    geometry: ModelGeometry,
    style: RoutingStyle,
    targets: Sequence[Target],
    workloads: dict[str, Workload],
    seed: int,
) -> tuple[Target, ...]:
    """The targets with `got` filled in; each workload is generated once.

    Parameters
    ----------
    geometry
        Shape of the traces.
    style
        Parameters to be tried.
    targets
        Statistics to measure.
    workloads
        Lengths of the traces, by the names that targets use.
    seed
        Of the generator.

    Returns
    -------
    tuple[Target, ...]
        The targets in their order.
    """
    got = [0.0] * len(targets)
    for name in dict.fromkeys(target.workload for target in targets):
        trace = generate(
            geometry, style, seed=seed, weights=False, **workloads[name].model_dump(exclude={"about"})
        )
        for layer in dict.fromkeys(target.layer for target in targets if target.workload == name):
            chosen = [i for i, t in enumerate(targets) if t.workload == name and t.layer == layer]
            values = measure(trace, [targets[i].statistic for i in chosen], layer=layer)
            for i in chosen:
                got[i] = values[targets[i].statistic]
    return tuple(t.model_copy(update={"got": value}) for t, value in zip(targets, got, strict=True))


def fit(
    geometry: ModelGeometry,
    targets: Sequence[Target],
    workloads: dict[str, Workload],
    seed: int,
    *,
    start: RoutingStyle,
    free: Sequence[str] = FREE,
    max_evaluations: int = 120,
) -> FitResult:
    """Adjust the `free` parameters of `start` until the fitted targets are met in the least-squares sense.

    Errors count in units of each target's tolerance. Targets with `fitted` false are evaluated at the end only.

    Parameters
    ----------
    geometry
        Shape of the traces.
    targets
        Statistics and their values, each with a tolerance.
    workloads
        Lengths of the traces, by the names that targets use.
    seed
        Of the generator.
    start
        Style whose other parameters stay.
    free
        Names of the parameters to adjust.
    max_evaluations
        Most styles to try.

    Returns
    -------
    FitResult
        The style, all targets, and the root mean square error in tolerances.

    Raises
    ------
    TraceError
        No target is marked as fitted, or a free parameter does not exist.
    """
    seen = [target for target in targets if target.fitted]
    if not seen:
        raise TraceError("no target is marked as fitted")
    for name in free:
        check_known("parameter", name, RoutingStyle.model_fields, TraceError)

    def style_at(point: npt.NDArray[np.float64]) -> RoutingStyle:
        return RoutingStyle(**start.model_dump() | dict(zip(free, np.exp(point).round(4).tolist(), strict=True)))

    def loss(point: npt.NDArray[np.float64]) -> float:
        try:
            style = style_at(point)
        except ValueError:
            return BARRIER
        return _loss(evaluate(geometry, style, seen, workloads, seed))

    first = np.log([max(FLOOR, getattr(start, name)) for name in free])
    best = style_at(nelder_mead(loss, first, step=0.4, max_evaluations=max_evaluations))
    done = evaluate(geometry, best, targets, workloads, seed)
    return FitResult(best, done, float(np.sqrt(_loss([target for target in done if target.fitted]))))


def _loss(targets: Sequence[Target]) -> float:
    """Mean squared error in tolerances."""
    return float(np.mean([(((t.got or 0.0) - t.asked) / t.tolerance) ** 2 for t in targets]))


def nelder_mead(
    function: Callable[[npt.NDArray[np.float64]], float],
    start: npt.NDArray[np.float64],
    *,
    step: float,
    max_evaluations: int,
    spread: float = 1e-4,
) -> npt.NDArray[np.float64]:
    """Lowest point found by a simplex of edge `step`, until its values differ by less than `spread`.

    Parameters
    ----------
    function
        What to make small.
    start
        (n,) point to start from.
    step
        Edge of the first simplex, in every direction.
    max_evaluations
        Most calls of `function`.
    spread
        Difference of values at which it stops.

    Returns
    -------
    npt.NDArray[np.float64]
        (n,) the lowest point.
    """
    n = len(start)
    points = [start, *(start + step * np.eye(n)[i] for i in range(n))]
    values = [function(point) for point in points]
    used = n + 1
    while used < max_evaluations:
        order = np.argsort(values, kind="stable")
        points, values = [points[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] < spread:
            break
        centre = np.mean(points[:-1], axis=0)
        away = centre - points[-1]
        reflected = function(centre + away)
        used += 1
        if reflected < values[0]:
            expanded = function(centre + 2 * away)
            used += 1
            factor, value = (2.0, expanded) if expanded < reflected else (1.0, reflected)
        elif reflected < values[-2]:
            factor, value = 1.0, reflected
        else:
            factor = 0.5 if reflected < values[-1] else -0.5
            value = function(centre + factor * away)
            used += 1
            if value >= min(reflected, values[-1]):
                points = [points[0], *((points[0] + point) / 2 for point in points[1:])]
                values = [values[0], *(function(point) for point in points[1:])]
                used += n
                continue
        points[-1], values[-1] = centre + factor * away, value
    lowest: npt.NDArray[np.float64] = points[int(np.argmin(values))]
    return lowest


def shape_of(file: StyleFile) -> ModelGeometry:
    """Geometry that the style's statistics are taken on."""
    return shape_only(file.experts, file.top_k, file.layers)


def main(name: str) -> None:
    """Fit a packaged style anew, from the parameters that it has, and print what came out."""
    file = load_style_file(name)
    result = fit(
        shape_of(file), file.targets, file.workloads, file.fit_seed, start=file.style, free=file.free_parameters
    )
    write = sys.stdout.write
    write(f"# rms error {result.rms_tolerances:.2f} tolerances\n[style]\n")
    for field, value in result.style.model_dump().items():
        write(f"{field} = {value}\n")
    for t in result.targets:
        where = "" if t.layer is None else f" layer {t.layer}"
        write(f"{t.workload:12} {t.statistic + where:24} asked {t.asked:8.4f} got {t.got:8.4f}"
              f"{'' if t.fitted else '  (check)'}\n")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
