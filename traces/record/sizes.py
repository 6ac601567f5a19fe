"""Bytes of a loaded model, counted over its parameters as they lie in memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from expert_residency.errors import TraceError
from expert_residency.families import quant_family
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.record.routers import LAYER, Router, config_value, find_routers, text_config

if TYPE_CHECKING:
    import torch

_BESIDE = re.compile(r"(?:^|[._])(?:vision|visual|audio|image|mtp|nextn)")
"""Encoders of other inputs, and layers that draft tokens."""
_EXPERTS = re.compile(r"(?:^|\.)experts\.")


def geometry_of(model: torch.nn.Module, name: str | None = None) -> ModelGeometry:
    """Geometry of a loaded model, counted over its parameters as they lie in memory.

    Raises
    ------
    TraceError
        No routers, or a config that does not say how wide the model is.
    """
    routers = {router.layer: router for router in find_routers(model)}
    config = text_config(model)
    expert, dense = dict.fromkeys(routers, 0), dict.fromkeys(routers, 0)
    dense_only = head = 0
    prefix = next(iter(routers.values())).prefix
    for full_name, parameter in model.named_parameters():
        size = _bytes(model, full_name, parameter)
        if _BESIDE.search(full_name):
            continue
        place = LAYER.match(full_name[len(prefix) :]) if full_name.startswith(prefix) else None
        router = routers.get(int(place[1])) if place else None
        if place is None:
            head += 0 if "embed" in full_name else size
        elif router is None:
            dense_only += size
        elif _is_expert(place[2], parameter, router):
            # experts that compute nothing may have rows of their own, which are never read
            rows = max(router.experts, parameter.shape[0] if parameter.ndim == 3 else 0)
            expert[router.layer] += size // rows
        else:
            dense[router.layer] += size
    first = next(iter(routers.values()))
    quant = _quant(model, first)
    hidden, layers = config_value(config, "hidden_size"), config_value(config, "num_hidden_layers", "n_layers")
    if hidden is None or layers is None:
        raise TraceError(f"{type(config).__name__} does not say hidden_size and num_hidden_layers")
    return ModelGeometry(
        name=name or str(getattr(config, "model_type", type(model).__name__)),
        layer_ids=tuple(routers),
        experts=first.experts,
        top_k=first.top_k or 1,
        expert_bytes=tuple(expert.values()),
        dense_bytes=tuple(dense.values()),
        quant=quant,
        quant_family=quant_family(quant),
        head_bytes=head,
        dense_only_bytes=dense_only,
        expert_params=_weights(model, first),
        hidden_size=hidden,
        total_layers=layers,
        source="counted over the loaded model's parameters (measured)",
    )


def _is_expert(name: str, parameter: torch.nn.Parameter, router: Router) -> bool:
    return bool(_EXPERTS.search(name)) or (parameter.ndim == 3 and parameter.shape[0] == router.experts)


def _bytes(model: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> int:
    """Bytes of a parameter, with the scales that bitsandbytes keeps beside it."""
    size = int(parameter.numel()) * int(parameter.element_size())
    return int(size + sum(t.numel() * t.element_size() for t in _scales(model, name, parameter)))


def _scales(model: torch.nn.Module, name: str, parameter: Any) -> list[torch.Tensor]:
    state = _quant_state(model, name, parameter)
    if state is not None:
        nested = getattr(state, "state2", None)
        parts = [state.absmax, *([nested.absmax] if nested is not None else [])]
        return [t for t in parts if t is not None]
    scale = getattr(parameter, "SCB", None)  # of 8 bits
    return [] if scale is None else [scale]


def _quant_state(model: torch.nn.Module, name: str, parameter: Any) -> Any:
    """What bitsandbytes knows of a parameter of 4 bits: its shape, type and scales; None of any other."""
    state = getattr(parameter, "quant_state", None)
    if state is None and name.endswith(".original"):
        parametrized: Any = model.get_submodule(name.removesuffix(".original"))
        state = getattr(parametrized[0], "quant_state", None)
    return state


def _expert_parameters(model: torch.nn.Module, router: Router) -> list[tuple[str, Any]]:
    found = []
    for name, parameter in model.named_parameters():
        place = LAYER.search(name)
        if place and int(place[1]) == router.layer and _is_expert(place[2], parameter, router):
            found.append((name, parameter))
    return found


def _quant(model: torch.nn.Module, router: Router) -> str:
    """Name of what most bytes of the experts are, e.g. `bfloat16`, `nf4`, `int8`."""
    kinds: dict[str, int] = {}
    for name, parameter in _expert_parameters(model, router):
        state = _quant_state(model, name, parameter)
        kind = state.quant_type if state is not None else str(parameter.dtype).removeprefix("torch.")
        kinds[kind] = kinds.get(kind, 0) + _bytes(model, name, parameter)
    return max(kinds, key=lambda kind: kinds[kind])


def _weights(model: torch.nn.Module, router: Router) -> int:
    """Weights of one expert of a layer."""
    total = 0
    for name, parameter in _expert_parameters(model, router):
        state = _quant_state(model, name, parameter)
        shape = state.shape if state is not None else parameter.shape
        count = 1
        for n in shape:
            count *= int(n)
        total += count // max(router.experts, shape[0] if len(shape) == 3 else 0)
    return total
