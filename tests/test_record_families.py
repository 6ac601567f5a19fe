"""Every family of transformers that the docs say can be recorded is: its trace names what the model computes.

A model whose experts that the trace does not name are changed gives the same logits, bit for bit; one that is
named changes them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expert_residency.errors import TraceError
from tests.record_families import EXPERTS, FAMILIES, REFUSED, TOP_K, WIDTH, make

torch = pytest.importorskip("torch", reason="the recorder needs the extra `record` (torch)")
pytest.importorskip("transformers", reason="the recorder needs the extra `record` (transformers)")
pytestmark = pytest.mark.filterwarnings("ignore")

from expert_residency.traces.record import find_routers, geometry_of, record  # noqa: E402

PROMPT = [3, 1, 2]
USUAL = ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "llama4_text", "longcat_flash", "nemotron_h")
EVERY = [pytest.param(family, marks=() if family in USUAL else pytest.mark.slow) for family in FAMILIES]


def model_of(family: str) -> Any:
    try:
        return make(family)
    except LookupError:
        pytest.skip(f"this transformers has no {family}")


def logits(model: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=torch.tensor([PROMPT])).logits


def stacked(model: Any, layer: int) -> list[Any]:
    """Tensors that hold all experts of a layer."""
    place = re.compile(rf"layers\.{layer}\..*\bexperts\.")
    return [p for name, p in model.named_parameters() if place.search(name) and p.ndim == 3]


@pytest.mark.parametrize("family", EVERY)
def test_a_trace_names_the_experts_that_are_computed(family: str) -> None:
    model = model_of(family)
    trace = record(model, [PROMPT], decode_tokens=0)
    before = logits(model)
    for index, layer in enumerate(trace.geometry.layer_ids):
        event = np.flatnonzero(trace.event_layer == index)[0]
        used = trace.keys[trace.event_offsets[event] : trace.event_offsets[event + 1]] % EXPERTS
        unused = np.setdiff1d(np.arange(EXPERTS), used)
        assert len(unused)
        for tensor in stacked(model, layer):
            with torch.no_grad():
                tensor[unused] += 1
    assert torch.equal(logits(model), before)
    for tensor in stacked(model, layer):
        with torch.no_grad():
            tensor[used[0]] += 1
    assert not torch.equal(logits(model), before)


@pytest.mark.parametrize("family", EVERY)
def test_phases_weights_sizes_and_look_ahead(family: str) -> None:
    model = model_of(family)
    trace = record(model, [[1, 2, 3, 4], [5, 6]], decode_tokens=2)
    layers = trace.geometry.n_layers
    assert trace.event_rows.tolist() == [4] * layers + [1] * 2 * layers + [2] * layers + [1] * 2 * layers
    assert trace.row_weights is not None
    by_row = trace.row_weights.reshape(-1, TOP_K)
    assert (np.diff(by_row, axis=1) <= 0).all()
    matrices = 2 if family == "nemotron_h" else 3
    assert geometry_of(model).expert_params >= matrices * 32 * WIDTH
    assert trace.geometry.all_expert_bytes == sum(
        p.numel() * p.element_size() for layer in trace.geometry.layer_ids for p in experts_of(model, layer)
    )
    ahead = {int(layer) for layer in trace.event_layer[np.diff(trace.predictions[1][0]) > 0]}
    assert ahead == set(range(1, layers))


def experts_of(model: Any, layer: int) -> list[Any]:
    """All parameters of a layer's experts, biases too."""
    place = re.compile(rf"layers\.{layer}\..*\bexperts\.")
    return [p for name, p in model.named_parameters() if place.search(name)]


@pytest.mark.parametrize("family", EVERY)
def test_a_router_asked_early_decides_as_it_does(family: str) -> None:
    """On a layer's own input the look-ahead gives the layer's own choice."""
    model = model_of(family)
    trace = record(model, [PROMPT], decode_tokens=0)
    early: dict[int, list[list[int]]] = {}

    def ask(router: Any, args: Any, kwargs: Any) -> None:
        early[router.layer] = router.early(args, kwargs)[0].sort(dim=-1).values.tolist()

    routers = find_routers(model)
    hooks = [
        router.module.register_forward_hook(
            lambda _module, args, kwargs, _out, router=router: ask(router, args, kwargs), with_kwargs=True
        )
        for router in routers
    ] + [
        router.called.register_forward_pre_hook(
            lambda _module, args, kwargs, router=router: router.called_with(args, kwargs) and None,
            with_kwargs=True,
        )
        for router in routers
        if router.called is not None
    ]
    logits(model)
    for hook in hooks:
        hook.remove()
    own = np.sort(trace.row_experts.reshape(-1, TOP_K), axis=1)
    assert [row for layer in trace.geometry.layer_ids for row in early[layer]] == own.tolist()


@pytest.mark.parametrize("family", REFUSED)
def test_what_a_trace_cannot_hold_is_said(family: str) -> None:
    with pytest.raises(TraceError, match=REFUSED[family][1]):
        record(model_of(family), [[1, 2, 3, 4, 5, 6]], decode_tokens=4)


def test_the_docs_list_these_families() -> None:
    text = (Path(__file__).parents[1] / "docs" / "traces.md").read_text()
    listed = re.search(r"families: (.+?)\. Refused", text, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`([a-z0-9_]+)`", listed[1])) == set(FAMILIES)


def test_experts_that_compute_nothing_are_no_experts() -> None:
    model = make("longcat_flash", zero_expert_num=2)
    trace = record(model, [PROMPT], decode_tokens=0)
    assert trace.geometry.experts == EXPERTS
    assert int(trace.row_experts.max()) < EXPERTS
    assert (np.diff(trace.row_offsets) < TOP_K).any()
    assert trace.geometry.expert_bytes[0] < geometry_of(make("longcat_flash")).expert_bytes[0] * 1.01


def test_a_tower_beside_the_language_model_is_no_part_of_its_layers() -> None:
    model = make("mixtral")
    plain = geometry_of(model)
    model.vision_tower = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(64, 64)])})
    assert geometry_of(model) == plain
