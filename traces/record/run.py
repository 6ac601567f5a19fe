"""Recording a trace from a Hugging Face mixture-of-experts model.

Forward hooks on routers and experts note, for each pass and layer, which experts each token was routed to and with
what weights; nothing in the model is changed. A prompt is one prefill pass (or several, if chunked), then
tokens are sampled one at a time with the KV cache. The last sampled token is never routed, as in any engine.

A *look-ahead prediction* is made as an engine would make it: at layer l the router of layer l + d is applied
to the input of layer l's router, long before layer l + d has its own. It is stored at the event it predicts.

Needs the extra `record` (torch, transformers). The families that it was tried on are in `docs/traces.md`, and
`tests/test_record_families.py` tries them again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from expert_residency.errors import TraceError
from expert_residency.traces.record.notes import Notes
from expert_residency.traces.record.routers import Router, find_routers
from expert_residency.traces.record.sizes import geometry_of
from expert_residency.traces.trace import Phase, RoutingTrace

if TYPE_CHECKING:
    import torch


def _add(notes: Notes, router: Router, place: tuple[int, int, int], found: tuple[Any, Any]) -> None:
    """Rows of one layer, by (rows, k) ids and weights; experts that compute nothing are left out."""
    chosen, weight = (tensor.cpu() for tensor in found)
    chosen, weight = chosen.numpy(), weight.float().numpy()
    kept = chosen < router.experts
    if router.may_skip:
        kept &= weight > 0
    if not kept.any(axis=1).all():
        raise TraceError(
            f"layer {router.layer}: a token uses none of the {router.experts} experts (it takes those that "
            "compute nothing), and a trace has no rows of none"
        )
    notes.counts.append(kept.sum(axis=1))
    notes.ids.append(chosen[kept])
    notes.weights.append(weight[kept])
    notes.place.append(place)


@contextmanager
def _watched(routers: Sequence[Router], where: Callable[[], tuple[int, int]], look_ahead: int) -> Iterator[Notes]:
    """Hooks on all routers for the time of the block; `where` says the current (pass, first position)."""
    notes = Notes()
    held: dict[int, tuple[int, Any]] = {}
    """Pass and input of the last routers, by index."""

    def call(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found = routers[index].called_with(args, kwargs)
        pass_index, position = where()
        _add(notes, routers[index], (pass_index, index, position), found)

    def done(index: int, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        pass_index, position = where()
        router = routers[index]
        if router.called is None:
            _add(notes, router, (pass_index, index, position), router.decide(output))
        # Predictions for this layer are made now, when whatever else the router takes (a bias, say) is at hand.
        for depth in range(1, min(look_ahead, index) + 1):
            number, earlier = held.get(index - depth, (-1, None))
            if number != pass_index:
                continue
            named = kwargs if args else kwargs | {next(iter(kwargs)): earlier}
            guess, scores = router.early((earlier, *args[1:]) if args else (), named)
            known = (guess < router.experts).cpu().numpy()
            notes.predicted[depth, pass_index, index] = (
                guess.cpu().numpy()[known],
                scores.float().cpu().numpy()[known],
            )
        held[index] = pass_index, args[0] if args else next(iter(kwargs.values()))
        held.pop(index - look_ahead, None)

    def hooked(index: int, hook: Callable[..., None]) -> Callable[..., None]:
        return lambda _module, *given: hook(index, *given)

    handles = []
    for index, router in enumerate(routers):
        if router.called is not None:
            handles.append(router.called.register_forward_pre_hook(hooked(index, call), with_kwargs=True))
        if router.module is not None:
            handles.append(router.module.register_forward_hook(hooked(index, done), with_kwargs=True))
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
    device = _input_device(model)
    # transformers renamed the argument in 5.x
    cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    def forward(tokens: Sequence[int], request: int, phase: Phase, emits: int, cache: Any) -> Any:
        nonlocal position
        passes.append((request, int(phase), emits))
        ids = torch.tensor([list(tokens)], device=device)
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
    return seen.trace(geometry, passes, {
        "source_engine": f"transformers {transformers.__version__}, {type(model).__name__}",
        "sampling": f"temperature {temperature:g}, seed {seed}",
        "notes": [notes] if notes else [],
    })  # fmt: skip


def _input_device(model: Any) -> torch.device:
    """Where token ids go: of a model that is spread over devices, where its embedding computes."""
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    import torch

    return torch.device(place) if place is not None else torch.device(model.device)


def _sample(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> int:
    import torch

    if temperature == 0.0:
        return int(logits.argmax())
    probabilities = (logits.float().cpu() / temperature).softmax(-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))
