"""Recording a trace from a Hugging Face mixture-of-experts model.

Forward hooks on the routers note, for each pass and layer, which experts each token was routed to and with
what weights; nothing in the model is changed. A prompt is one prefill pass (or several, if chunked), then
tokens are sampled one at a time with the KV cache. The last sampled token is never routed, as in any engine.

A *look-ahead prediction* is made as an engine would make it: at layer l the router of layer l + d is applied
to the input of layer l's router, long before layer l + d has its own. It is stored at the event it predicts.

Needs the extra `record` (torch, transformers). Tried on Mixtral, OLMoE, Qwen3-MoE, granite-moe, gpt-oss,
DeepSeek-V3, MiniMax-M2, LFM2-MoE and HunYuan-V3.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.families import quant_family
from expert_residency.traces.ahead import united
from expert_residency.traces.geometry import ModelGeometry
from expert_residency.traces.trace import Phase, RoutingTrace, assemble

if TYPE_CHECKING:
    import torch

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
_EXPERTS = re.compile(r"(?:^|\.)experts\.")


@dataclass(frozen=True)
class Router:
    """One router of the model."""

    layer: int
    """As the model numbers it."""
    module: torch.nn.Module
    experts: int
    top_k: int
    renormalize: bool | None
    """For routers that return bare logits: whether the k softmax values are scaled to add up to 1; None if
    logits alone do not say who is chosen (grouped or sigmoid selection)."""

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
        if ids:
            chosen = ids[0].reshape(-1, self.top_k)
            for weights in floats:
                if weights.shape == chosen.shape:
                    return chosen, weights
            full = [f for f in floats if f.shape[-1] == self.experts]
            if full:
                return chosen, full[-1].gather(-1, chosen)
        elif len(floats) == 1 and floats[0].shape[-1] == self.experts:
            if self.renormalize is None:
                raise TraceError(
                    f"layer {self.layer}: this model selects experts by more than the softmax of the logits"
                )
            weights, chosen = floats[0].softmax(-1).topk(self.top_k, dim=-1)
            return chosen, weights / weights.sum(-1, keepdim=True) if self.renormalize else weights
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors)
        raise TraceError(
            f"layer {self.layer}: router {type(self.module).__name__} returned tensors of shapes "
            f"{shapes or 'none'}; expected {self.top_k} expert ids a row or {self.experts} logits"
        )


def _config_value(config: Any, *names: str) -> int:
    for name in names:
        if (value := getattr(config, name, None)) is not None:
            return int(value)
    raise TraceError(f"{type(config).__name__} has none of {', '.join(names)}: not a mixture-of-experts model?")


def find_routers(model: torch.nn.Module) -> list[Router]:
    """Routers of a model in layer order.

    A router is a module named `gate` or `router` inside `layers.<n>.` with a weight of one row an expert.

    Raises
    ------
    TraceError
        None found.
    """
    config: Any = model.config
    experts = _config_value(config, "num_experts", "num_local_experts", "n_routed_experts")
    top_k = _config_value(config, "num_experts_per_tok", "moe_top_k")
    plain = getattr(config, "scoring_func", "softmax") == "softmax" and (getattr(config, "n_group", 1) or 1) == 1
    renormalize = bool(getattr(config, "norm_topk_prob", True)) if plain else None
    found = []
    for name, module in model.named_modules():
        place = _LAYER.search(name)
        if place is None or name.rsplit(".", 1)[-1] not in ("gate", "router"):
            continue
        if any(p.ndim == 2 and p.shape[0] == experts for p in module.parameters()):
            found.append(Router(int(place[1]), module, experts, top_k, renormalize))
    if not found:
        raise TraceError(f"{type(model).__name__} has no module named gate or router with {experts} rows")
    return sorted(found, key=lambda router: router.layer)


def geometry_of(model: torch.nn.Module, name: str | None = None) -> ModelGeometry:
    """Geometry of a loaded model, counted over its parameters as they lie in memory."""
    routers = find_routers(model)
    config: Any = model.config
    moe = [router.layer for router in routers]
    expert, dense = dict.fromkeys(moe, 0), dict.fromkeys(moe, 0)
    expert_params = dense_only = head = 0
    n = routers[0].experts
    for full_name, parameter in model.named_parameters():
        size = parameter.numel() * parameter.element_size()
        place = _LAYER.search(full_name)
        if place is None:
            head += 0 if "embed" in full_name else size
        elif int(place[1]) not in expert:
            dense_only += size
        elif _EXPERTS.search(place[2]) or (parameter.ndim == 3 and parameter.shape[0] == n):
            expert[int(place[1])] += size // n
            expert_params += parameter.numel() // n if int(place[1]) == moe[0] else 0
        else:
            dense[int(place[1])] += size
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return ModelGeometry(
        name=name or str(getattr(config, "model_type", type(model).__name__)),
        layer_ids=tuple(moe),
        experts=n,
        top_k=routers[0].top_k,
        expert_bytes=tuple(expert.values()),
        dense_bytes=tuple(dense.values()),
        quant=dtype,
        quant_family=quant_family(dtype),
        head_bytes=head,
        dense_only_bytes=dense_only,
        expert_params=expert_params,
        hidden_size=_config_value(config, "hidden_size"),
        total_layers=_config_value(config, "num_hidden_layers"),
        source="counted over the loaded model's parameters (measured)",
    )


@dataclass
class _Notes:
    """What the hooks saw, as columns of routing rows; one entry of each list an event."""

    ids: list[npt.NDArray[np.int64]] = field(default_factory=list)
    weights: list[npt.NDArray[np.float32]] = field(default_factory=list)
    place: list[tuple[int, int, int]] = field(default_factory=list)
    """(pass, layer index, first position) of each event."""
    predicted: dict[tuple[int, int, int], tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]] = field(
        default_factory=dict
    )
    """(depth, pass, layer index) to what was predicted for that event's rows, and the weights it was given."""


@contextmanager
def _watched(routers: Sequence[Router], where: Callable[[], tuple[int, int]], look_ahead: int) -> Iterator[_Notes]:
    """Hooks on all routers for the time of the block; `where` says the current (pass, first position)."""
    notes = _Notes()
    held: dict[int, tuple[int, Any]] = {}
    """Pass and input of the last routers, by index."""

    def note(index: int, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        pass_index, position = where()
        router = routers[index]
        ids, weights = router.decide(output)
        notes.ids.append(ids.cpu().numpy())
        notes.weights.append(weights.cpu().numpy())
        notes.place.append((pass_index, index, position))
        # Predictions for this layer are made now, when whatever else the router takes (a bias, say) is at hand.
        for depth in range(1, min(look_ahead, index) + 1):
            number, earlier = held[index - depth]
            if number != pass_index:
                continue
            named = kwargs if args else kwargs | {next(iter(kwargs)): earlier}
            guess, scores = router.decide(router.module.forward(*((earlier, *args[1:]) if args else ()), **named))
            notes.predicted[depth, pass_index, index] = (
                guess.flatten().cpu().numpy(), scores.float().flatten().cpu().numpy()
            )  # fmt: skip
        held[index] = pass_index, args[0] if args else next(iter(kwargs.values()))
        held.pop(index - look_ahead, None)

    handles = [
        router.module.register_forward_hook(
            lambda _module, args, kwargs, output, index=index: note(index, args, kwargs, output), with_kwargs=True
        )
        for index, router in enumerate(routers)
    ]
    try:
        yield notes
    finally:
        for handle in handles:
            handle.remove()


def record(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    decode_tokens: int = 512,
    prefill_chunk: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    look_ahead: int = 1,
    name: str | None = None,
    notes: str = "",
) -> RoutingTrace:
    """Run a model on prompts and record its routing.

    Parameters
    ----------
    model
        A `transformers` causal language model, loaded and in its final dtype, on any device.
    prompts
        Token ids of each request; requests run one after the other, each with a fresh KV cache.
    decode_tokens
        Decode passes of each request.
    prefill_chunk
        Tokens of one prefill pass; 0 for the whole prompt at once.
    temperature, seed
        Sampling of the continuation; temperature 0 takes the likeliest token.
    look_ahead
        How many layers ahead predictions are recorded; 0 for none.
    name, notes
        Stored with the trace.

    Returns
    -------
    RoutingTrace
        With weights, phases, positions and predictions with their scores. A prefill pass emits no token, but
        the last of a request emits one.

    Raises
    ------
    TraceError
        An empty prompt, or a model whose routing cannot be read.
    """
    import torch
    import transformers

    routers = find_routers(model)
    geometry = geometry_of(model, name)
    generator = torch.Generator().manual_seed(seed)
    passes: list[tuple[int, int, int]] = []
    position = 0
    # transformers renamed the argument in 5.x
    cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def forward(tokens: Sequence[int], request: int, phase: Phase, emits: int, cache: Any) -> Any:
        nonlocal position
        passes.append((request, int(phase), emits))
        ids = torch.tensor([list(tokens)], device=model.device)
        output = model(input_ids=ids, use_cache=True, **{cache_name: cache})
        position += len(tokens)
        return output

    was_training = model.training
    model.eval()
    with torch.no_grad(), _watched(routers, lambda: (len(passes) - 1, position), look_ahead) as seen:
        for request, prompt in enumerate(prompts):
            if len(prompt) == 0:
                raise TraceError(f"prompt {request} is empty")
            position, output = 0, None
            chunk = prefill_chunk or len(prompt)
            for start in range(0, len(prompt), chunk):
                part = prompt[start : start + chunk]
                last = int(start + chunk >= len(prompt))
                output = forward(part, request, Phase.PREFILL, last, output and output.past_key_values)
            for _ in range(decode_tokens):
                assert output is not None
                token = _sample(output.logits[0, -1], temperature, generator)
                output = forward([token], request, Phase.DECODE, 1, output.past_key_values)
    model.train(was_training)
    return _trace(geometry, passes, seen, {
        "source_engine": f"transformers {transformers.__version__}, {type(model).__name__}",
        "sampling": f"temperature {temperature:g}, seed {seed}",
        "notes": [notes] if notes else [],
    })  # fmt: skip


def _sample(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    import torch

    if temperature == 0.0:
        return int(logits.argmax())
    probabilities = (logits.float().cpu() / temperature).softmax(-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


def _trace(
    geometry: ModelGeometry, passes: Sequence[tuple[int, int, int]], seen: _Notes, meta: dict[str, Any]
) -> RoutingTrace:
    table = np.asarray(passes, dtype=np.int32)
    rows = np.asarray([len(ids) for ids in seen.ids])
    place = np.repeat(np.asarray(seen.place, dtype=np.int32), rows, axis=0)
    within = np.concatenate([np.arange(n) for n in rows])
    trace = assemble(
        geometry,
        pass_request=table[:, 0],
        pass_phase=table[:, 1],
        pass_emits=table[:, 2],
        row_pass=place[:, 0],
        row_layer=place[:, 1],
        row_position=place[:, 2] + within,
        row_counts=np.full(len(place), geometry.top_k),
        row_experts=np.concatenate(seen.ids).reshape(-1),
        row_weights=np.concatenate(seen.weights).reshape(-1),
        meta=meta,
    )
    return _with_predictions(trace, seen)


def _with_predictions(trace: RoutingTrace, seen: _Notes) -> RoutingTrace:
    """The trace with look-ahead and its scores; events that nothing could predict have an empty set."""
    predictions, scored = {}, {}
    events = zip(trace.event_pass.tolist(), trace.event_layer.tolist(), strict=True)
    place = {event: i for i, event in enumerate(events)}
    for depth in sorted({depth for depth, _, _ in seen.predicted}):
        own = {place[p, at]: found for (d, p, at), found in seen.predicted.items() if d == depth}
        offsets, experts, kept = united(
            np.asarray(list(own)),
            np.asarray([len(ids) for ids, _ in own.values()]),
            np.concatenate([ids for ids, _ in own.values()]),
            np.concatenate([scores for _, scores in own.values()]),
            n_events=trace.n_events,
            experts=trace.geometry.experts,
        )
        assert kept is not None
        predictions[depth], scored[depth] = (offsets, experts), kept
    return replace(trace, predictions=predictions, prediction_scores=scored)
