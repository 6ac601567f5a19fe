"""Where a transformers model decides which experts a token goes to, and what it decided.

Most models call a module `experts` with a layer's rows, the ids of each row's experts and their weights: what it
is called with is what is computed, however the router came to it. Where there is no such call (older
transformers, Llama-4), the output of the module named `gate` or `router` says it.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from expert_residency.errors import TraceError

if TYPE_CHECKING:
    import torch

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_GATES = ("gate", "router")
_COUNTS = ("num_routed_experts", "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "moe_topk", "top_k_experts", "top_k",
    "num_selected_experts",
)  # fmt: skip
_DRAFTS = re.compile(r"(?:^|\.)(?:mtp|nextn|draft)")
_CALLED_WITH = 3
"""Rows, ids and weights."""


class _Decided(Exception):  # noqa: N818 - no error: how a trial ends before the experts compute
    """Ids and weights with which the experts were about to be called."""


@dataclass
class Router:
    """One router of the model."""

    layer: int
    """As the model numbers it."""
    prefix: str
    """What stands before `layers.<n>` in the names of the language model's modules."""
    module: torch.nn.Module | None
    """What is asked early: the block of router and experts, or the router itself; None if neither can be."""
    experts: int
    top_k: int
    renormalize: bool | None = None
    """For routers that return bare logits: whether the k softmax values are scaled to add up to 1; None if
    logits alone do not say who is chosen (grouped or sigmoid selection)."""
    called: torch.nn.Module | None = None
    """The experts, where they are called with ids and weights."""
    block: bool = False
    """Whether `module` is the block, so that asking it early ends where it calls the experts."""
    may_skip: bool = False
    """Whether a token may choose to skip the experts, which then get a weight of 0."""
    trial: bool = field(default=False, repr=False)

    def early(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and weights that the router would decide on these inputs; nothing else is computed."""
        assert self.module is not None
        if not self.block:
            return self.decide(self.module.forward(*args, **kwargs))
        self.trial = True
        try:
            self.module.forward(*args, **kwargs)
        except _Decided as found:
            ids, weights = found.args
            return ids, weights
        finally:
            self.trial = False
        raise TraceError(f"layer {self.layer}: {type(self.module).__name__} did not call its experts")

    def called_with(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, k) ids and weights with which the experts are called; on a trial goes no further."""
        _, ids, weights = (*args, *kwargs.values())[:_CALLED_WITH]
        k = ids.shape[-1]
        ids = ids.reshape(-1, k)
        weights = weights.float().reshape(-1, weights.shape[-1])
        if weights.shape[-1] != k:
            weights = weights.gather(-1, ids)
        # By falling weight, since some routers give their k in any order.
        order = weights.sort(dim=-1, descending=True, stable=True).indices
        found = ids.gather(-1, order), weights.gather(-1, order)
        if self.trial:
            raise _Decided(*found)
        return found

    def decide(self, output: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """(rows, k) expert ids, best first, and weights, from what the router returned.

        Raises
        ------
        TraceError
            An output that holds neither k ids a row nor one logit an expert.
        """
        parts = output if isinstance(output, tuple | list) else (output,)
        tensors = [p for p in parts if hasattr(p, "is_floating_point")]
        ids = [t for t in tensors if not t.is_floating_point() and t.shape[-1] == self.top_k]
        floats = [t.float().reshape(-1, t.shape[-1]) for t in tensors if t.is_floating_point()]
        full = [f for f in floats if f.shape[-1] == self.experts]
        if ids:
            chosen = ids[0].reshape(-1, self.top_k)
            for weights in floats:
                if weights.shape == chosen.shape:
                    return chosen, weights
            if full:
                return chosen, full[-1].gather(-1, chosen)
        for scores in full:  # zero but for the chosen ones
            if self.top_k < self.experts and bool(((scores > 0).sum(-1) == self.top_k).all()):
                weights, chosen = scores.topk(self.top_k, dim=-1)
                return chosen, weights
        if not ids and len(floats) == 1 and full:
            if self.renormalize is None:
                raise TraceError(
                    f"layer {self.layer}: this model selects experts by more than the softmax of the logits"
                )
            weights, chosen = full[0].softmax(-1).topk(self.top_k, dim=-1)
            return chosen, weights / weights.sum(-1, keepdim=True) if self.renormalize else weights
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise TraceError(
            f"layer {self.layer}: router {type(self.module).__name__} returned tensors of shapes "
            f"{shapes or 'none'}; expected {self.top_k} expert ids a row or {self.experts} logits"
        )


def config_value(config: Any, *names: str) -> int | None:
    """The first of these that a config has, as a number; of a list its largest."""
    for name in names:
        value: Any = getattr(config, name, None)
        if isinstance(value, list | tuple) and value:
            value = max(value)
        if value is not None:
            return int(value)
    return None


def text_config(model: torch.nn.Module) -> Any:
    """The part of a model's config that speaks of its language model."""
    config: Any = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def find_routers(model: torch.nn.Module) -> list[Router]:
    """Routers of a model in layer order, those of layers that draft tokens left out.

    Raises
    ------
    TraceError
        None found, or two of one number.
    """
    found: dict[int, Router] = {}
    modules = {name: module for name, module in model.named_modules() if not _DRAFTS.search(name)}
    for name, module in modules.items():
        place = LAYER.search(name)
        if place is None or not place[2].endswith("experts") or not _takes_ids(module):
            continue
        layer = int(place[1])
        if layer in found:
            raise TraceError(f"two modules hold the experts of layer {layer}, the second being {name}")
        found[layer] = _called(layer, name, module, modules, text_config(model))
    if not found:
        found = _by_output(modules, model)
    return [found[layer] for layer in sorted(found)]


def _takes_ids(module: torch.nn.Module) -> bool:
    return len(inspect.signature(module.forward).parameters) >= _CALLED_WITH and any(
        p.ndim == _CALLED_WITH or "." in name for name, p in module.named_parameters()
    )


def _called(layer: int, name: str, module: Any, modules: dict[str, Any], config: Any) -> Router:
    """The router of experts that are called with ids."""
    parent = name.rpartition(".")[0]
    block = modules[parent]
    gate = next((modules[f"{parent}.{n}"] for n in _GATES if f"{parent}.{n}" in modules), None)
    # Where a whole decoder layer calls the experts, it cannot be tried early: its router can.
    whole_layer = re.search(r"layers\.\d+$", parent) is not None
    count = config_value(module, *_COUNTS) or len(next(p for p in module.parameters() if p.ndim > 1))
    return Router(
        layer=layer,
        prefix=name[: name.rindex(f"layers.{layer}.")],
        module=gate if whole_layer else block,
        experts=count,
        top_k=config_value(config, *_CHOSEN) or 0,
        called=module,
        block=not whole_layer,
        may_skip=(config_value(gate, "num_router_classes") or 0) > count,
    )


def _by_output(modules: dict[str, Any], model: torch.nn.Module) -> dict[int, Router]:
    """Routers whose output says it: named `gate` or `router` inside `layers.<n>.`, with a row an expert."""
    config = text_config(model)
    experts, top_k = config_value(config, *_COUNTS), config_value(config, *_CHOSEN)
    for names, value in ((_COUNTS, experts), (_CHOSEN, top_k)):
        if value is None:
            has_none = f"{type(config).__name__} has none of {', '.join(names)}"
            raise TraceError(f"{has_none}: not a mixture-of-experts model?")
    assert experts is not None
    assert top_k is not None
    plain = getattr(config, "scoring_func", "softmax") == "softmax" and (getattr(config, "n_group", 1) or 1) == 1
    renormalize = bool(getattr(config, "norm_topk_prob", True)) if plain else None
    found: dict[int, Router] = {}
    for name, module in modules.items():
        place = LAYER.search(name)
        if place is None or name.rsplit(".", 1)[-1] not in _GATES:
            continue
        if any(p.ndim == 2 and p.shape[0] == experts for p in module.parameters()):
            if int(place[1]) in found:
                raise TraceError(f"two routers in layer {place[1]}, the second being {name}: no trace has both")
            layer = int(place[1])
            found[layer] = Router(
                layer, name[: place.start(1) - len("layers.")], module, experts, top_k, renormalize
            )
    if not found:
        raise TraceError(f"{type(model).__name__} has no module named gate or router with {experts} rows")
    return found
