"""What the recorder must get right: the model's own routing, its sizes, and look-ahead without hindsight."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from expert_residency.errors import TraceError
from expert_residency.traces.record import find_routers, geometry_of, record
from expert_residency.traces.trace import Phase

torch = pytest.importorskip("torch", reason="the recorder needs the extra `record` (torch)")
transformers = pytest.importorskip("transformers", reason="the recorder needs the extra `record` (transformers)")

EXPERTS, TOP_K, LAYERS, HIDDEN, WIDTH = 8, 2, 3, 32, 16
COMMON = {
    "vocab_size": 64,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": TOP_K,
    "max_position_embeddings": 128,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = {
    "Mixtral": {"intermediate_size": WIDTH, "num_local_experts": EXPERTS},
    "Olmoe": {"intermediate_size": WIDTH, "num_experts": EXPERTS},
    "Qwen3Moe": {"intermediate_size": 48, "moe_intermediate_size": WIDTH, "num_experts": EXPERTS, "head_dim": 16},
    "GraniteMoe": {"intermediate_size": WIDTH, "num_local_experts": EXPERTS},
    # its routers also take a bias, so that a look-ahead by the hidden state alone was a TypeError
    "MiniMaxM2": {"intermediate_size": WIDTH, "num_local_experts": EXPERTS, "head_dim": 16},
}
FAMILIES = {name: own for name, own in FAMILIES.items() if hasattr(transformers, f"{name}Config")}


def make(family: str, **changes: Any) -> Any:
    config = getattr(transformers, f"{family}Config")(**{**COMMON, **FAMILIES[family], **changes})
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for gate in gates(model):  # the initial routers are so flat that ties would decide
        torch.nn.init.normal_(gate.weight, std=0.5)
    return model


def gates(model: Any) -> list[Any]:
    """The routers' own modules, in layer order."""
    found = []
    for router in find_routers(model):
        assert router.module is not None
        named = dict(router.module.named_modules())
        found.append(next(named[name] for name in ("gate", "router") if name in named))
    return found


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def model(request: pytest.FixtureRequest) -> Any:
    return make(request.param)


def test_shape_of_a_recording(model: Any) -> None:
    prompts = [list(range(1, 8)), list(range(20, 25))]
    trace = record(model, prompts, decode_tokens=4, look_ahead=2)
    phases = [Phase.PREFILL] + [Phase.DECODE] * 4
    assert trace.pass_phase.tolist() == phases * 2
    assert trace.pass_request.tolist() == [0] * 5 + [1] * 5
    assert trace.pass_emits.tolist() == [1] * 10
    assert trace.n_events == 10 * LAYERS
    assert trace.event_rows[:LAYERS].tolist() == [7] * LAYERS
    first_layer = trace.event_layer == 0
    rows_of = np.repeat(np.arange(trace.n_events), trace.event_rows)
    positions = trace.row_position[first_layer[rows_of]]
    assert positions.tolist() == [*range(7), 7, 8, 9, 10, *range(5), 5, 6, 7, 8]
    assert trace.row_weights is not None
    assert np.isfinite(trace.row_weights).all()
    by_row = trace.row_weights.reshape(-1, TOP_K)
    assert (np.diff(by_row, axis=1) <= 0).all()


def test_routing_is_the_models_own(model: Any) -> None:
    """A recording of a prompt equals the ids and weights that the experts themselves are called with."""
    called: list[tuple[Any, Any]] = []
    experts = [module for name, module in model.named_modules() if name.endswith(".experts")]
    hooks = [m.register_forward_pre_hook(lambda _module, args: called.append(args[1:3])) for m in experts]
    trace = record(model, [list(range(3, 15))], decode_tokens=0, look_ahead=0)
    for hook in hooks:
        hook.remove()
    assert len(called) == LAYERS
    assert trace.row_weights is not None
    for layer, (ids, weights) in enumerate(called):
        lo, hi = trace.event_row_offsets[layer] * TOP_K, trace.event_row_offsets[layer + 1] * TOP_K
        np.testing.assert_array_equal(trace.row_experts[lo:hi], ids.flatten().numpy())
        np.testing.assert_allclose(trace.row_weights[lo:hi], weights.flatten().numpy(), rtol=1e-6)


def test_decode_with_the_cache_routes_as_one_long_prefill(model: Any) -> None:
    prompt = [1, 5, 9]
    trace = record(model, [prompt], decode_tokens=5, look_ahead=0)
    chunked = record(model, [prompt], decode_tokens=5, look_ahead=0, prefill_chunk=2)
    assert chunked.pass_emits.tolist() == [0, 1, 1, 1, 1, 1, 1]
    assert chunked.event_rows[::LAYERS].tolist() == [2, 1, 1, 1, 1, 1, 1]
    np.testing.assert_array_equal(sorted_rows(trace), sorted_rows(chunked))


def sorted_rows(trace: Any) -> Any:
    """(rows, 2 + k) of layer, position and experts, in one order whatever the passes."""
    layer = np.repeat(trace.event_layer, trace.event_rows)
    table = np.column_stack([layer, trace.row_position, trace.row_experts.reshape(-1, TOP_K)])
    return table[np.lexsort((table[:, 1], table[:, 0]))]


def test_a_prediction_is_the_later_router_on_the_earlier_input(model: Any) -> None:
    """Shown by making the routers equal: then depth 1 predicts layer l's own choice for layer l + 1."""
    routers = gates(model)
    saved = [router.weight.detach().clone() for router in routers]
    with torch.no_grad():
        for router in routers[1:]:
            router.weight.copy_(saved[0])
    trace = record(model, [[2, 4, 6]], decode_tokens=3, look_ahead=2)
    with torch.no_grad():
        for router, weight in zip(routers, saved, strict=True):
            router.weight.copy_(weight)
    chosen = [
        set((trace.keys[trace.event_offsets[e] : trace.event_offsets[e + 1]] % EXPERTS).tolist())
        for e in range(trace.n_events)
    ]
    assert sorted(trace.predictions) == [1, 2]
    for depth, (offsets, experts) in trace.predictions.items():
        for event in range(trace.n_events):
            got = set(experts[offsets[event] : offsets[event + 1]].tolist())
            layer = int(trace.event_layer[event])
            assert got == (chosen[event - depth] if layer >= depth else set())
    weights = trace.row_weights[: 3 * TOP_K].reshape(3, TOP_K)  # what layer 0 chose for the prompt's rows
    best: dict[int, float] = {}
    for expert, weight in zip(trace.row_experts[: 3 * TOP_K].tolist(), weights.flatten().tolist(), strict=True):
        best[expert] = max(best.get(expert, 0.0), weight)
    lo, hi = trace.predictions[1][0][1:3]
    scores = dict(
        zip(trace.predictions[1][1][lo:hi].tolist(), trace.prediction_scores[1][lo:hi].tolist(), strict=True)
    )
    assert scores == pytest.approx(best, rel=1e-5)


def test_sizes_are_counted_over_the_parameters(model: Any) -> None:
    geometry = geometry_of(model, "tiny")
    assert geometry.name == "tiny"
    assert geometry.layer_ids == (0, 1, 2)
    assert geometry.expert_bytes == (3 * HIDDEN * WIDTH * 4,) * LAYERS
    assert geometry.expert_params == 3 * HIDDEN * WIDTH
    assert (geometry.experts, geometry.top_k, geometry.quant_family) == (EXPERTS, TOP_K, "fp32")
    everything = sum(p.numel() * p.element_size() for p in model.parameters())
    embedding = model.get_input_embeddings().weight.numel() * 4
    counted = geometry.all_expert_bytes + sum(geometry.dense_bytes) + geometry.head_bytes
    assert counted == everything - embedding


def test_layers_without_experts_keep_their_numbers() -> None:
    model = make("Qwen3Moe", mlp_only_layers=[0])
    trace = record(model, [[1, 2, 3]], decode_tokens=2)
    assert trace.geometry.layer_ids == (1, 2)
    assert trace.geometry.dense_only_bytes > 0


def test_sampling_is_seeded_and_hooks_are_removed() -> None:
    model = make("Mixtral")
    runs = [record(model, [[1, 2, 3]], decode_tokens=6, temperature=1.0, seed=seed) for seed in (0, 0, 1)]
    assert runs[0].content_hash == runs[1].content_hash != runs[2].content_hash
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())


def test_what_cannot_be_recorded_is_said() -> None:
    dense = transformers.LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=16, num_attention_heads=2)
    with pytest.raises(TraceError, match=r"not a mixture-of-experts model\?"):
        find_routers(transformers.LlamaForCausalLM(dense))
    with pytest.raises(TraceError, match="prompt 1 is empty"):
        record(make("Mixtral"), [[1], []], decode_tokens=0)


def test_a_router_of_bare_logits_and_one_of_unknown_output() -> None:
    router = dataclasses.replace(find_routers(make("Mixtral"))[0], renormalize=True)
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0]])
    ids, weights = router.decide(logits)
    assert ids.tolist() == [[1, 3]]
    assert float(weights.sum()) == pytest.approx(1.0)
    with pytest.raises(TraceError, match="expected 2 expert ids a row or 8 logits"):
        router.decide((torch.zeros(1, 3),))
    grouped = dataclasses.replace(router, renormalize=None)
    with pytest.raises(TraceError, match="more than the softmax"):
        grouped.decide(logits)
