"""A GGUF file is recorded as its engine routes it: on a tiny model that the test writes itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from expert_residency.errors import TraceError
from expert_residency.sim.cli import main
from expert_residency.traces import read_trace
from expert_residency.traces.record.llamacpp import record_gguf
from expert_residency.traces.trace import Phase
from tests.tiny_gguf import (
    EXPERTS,
    HEAD,
    HIDDEN,
    LAYERS,
    TOKENS,
    TOP_K,
    WIDTH,
    metadata,
    qwen3_state,
    random_arrays,
    write,
)

llama_cpp = pytest.importorskip(
    "llama_cpp", reason="recording a GGUF file needs the extra `gguf` (llama-cpp-python)"
)
PROMPT = [5, 80, 120, 33, 7, 200, 91]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny-F32.gguf", metadata("qwen3moe"), random_arrays())


def test_shape_of_a_recording(qwen: Path) -> None:
    trace = record_gguf(qwen, [PROMPT, [9, 8]], decode_tokens=3, look_ahead=2)
    assert trace.pass_phase.tolist() == [Phase.PREFILL, *[Phase.DECODE] * 3] * 2
    assert trace.pass_request.tolist() == [0] * 4 + [1] * 4
    assert trace.event_rows[:LAYERS].tolist() == [7, 7, 1]  # the last layer has the row whose logits are asked for
    assert trace.row_position[:15].tolist() == [*range(7), *range(7), 6]
    assert trace.row_position[15:18].tolist() == [7] * 3
    assert (trace.geometry.layer_ids, trace.geometry.experts, trace.geometry.top_k) == ((0, 1, 2), EXPERTS, TOP_K)
    assert set(trace.geometry.expert_bytes) == {3 * HIDDEN * WIDTH * 4}
    assert trace.row_weights is not None
    np.testing.assert_allclose(trace.row_weights.reshape(-1, TOP_K).sum(axis=1), 1, rtol=1e-5)
    assert sorted(trace.predictions) == [1, 2]
    assert any("look-ahead selects by softmax, as the engine in 100.00%" in note for note in trace.meta["notes"])


def test_it_routes_as_transformers_does(qwen: Path) -> None:
    """The same weights in both: experts, weights and look-ahead agree row by row."""
    torch = pytest.importorskip("torch", reason="the comparison needs torch")
    transformers = pytest.importorskip("transformers", reason="the comparison needs transformers")
    from expert_residency.traces.record import record

    config = transformers.Qwen3MoeConfig(
        vocab_size=len(TOKENS), hidden_size=HIDDEN, intermediate_size=WIDTH, moe_intermediate_size=WIDTH,
        num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=2, head_dim=HEAD, num_experts=EXPERTS,
        num_experts_per_tok=TOP_K, norm_topk_prob=True, max_position_embeddings=256, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, tie_word_embeddings=False,
        pad_token_id=None, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = transformers.Qwen3MoeForCausalLM(config).eval()
    state = {name: torch.from_numpy(array.copy()) for name, array in qwen3_state(random_arrays()).items()}
    assert not model.load_state_dict(state, strict=False).unexpected_keys
    theirs = record(model, [PROMPT], decode_tokens=4, look_ahead=1)
    ours = record_gguf(qwen, [PROMPT], decode_tokens=4, look_ahead=1)
    mine, other = _rows(ours), _rows(theirs)
    assert len(mine) == len(other) - len(PROMPT) + 1  # all but the last layer's rows before the last token
    for place, (ids, weights) in mine.items():
        assert ids == other[place][0], place
        assert weights == pytest.approx(other[place][1], abs=5e-3)  # its KV cells have 16 bits
    last = {(0, LAYERS - 1)}  # of fewer rows
    assert {p: s for p, s in _predicted(ours).items() if p not in last} == {
        p: s for p, s in _predicted(theirs).items() if p not in last
    }


def _rows(trace: Any) -> dict[tuple[int, int], list[Any]]:
    """Ids and weights by (layer, position)."""
    layer = np.repeat(trace.event_layer, trace.event_rows).tolist()
    ids = trace.row_experts.reshape(-1, TOP_K).tolist()
    weights = trace.row_weights.reshape(-1, TOP_K).tolist()
    places = zip(layer, trace.row_position.tolist(), strict=True)
    return {place: row for place, *row in zip(places, ids, weights, strict=True)}


def _predicted(trace: Any) -> dict[tuple[int, int], set[int]]:
    offsets, experts = trace.predictions[1]
    return {
        (int(trace.event_pass[i]), int(trace.event_layer[i])): set(experts[offsets[i] : offsets[i + 1]].tolist())
        for i in range(trace.n_events)
    }


def test_a_router_with_a_bias_and_sigmoids_is_followed(tmp_path: Path) -> None:
    keys = metadata("dots1", leading_dense_block_count=1, expert_shared_count=1, expert_weights_scale=2.5,
                    expert_weights_norm=True, expert_gating_func=2)  # fmt: skip
    path = write(tmp_path / "bias-F32.gguf", keys, random_arrays(3, bias=True, dense=1))
    trace = record_gguf(path, [PROMPT], decode_tokens=4, prefill_chunk=3)
    assert trace.geometry.layer_ids == (1, 2)
    assert trace.pass_emits.tolist() == [0, 0, 1, 1, 1, 1, 1]
    assert trace.event_rows[::2].tolist() == [3, 3, 1, 1, 1, 1, 1]
    np.testing.assert_allclose(trace.row_weights.reshape(-1, TOP_K).sum(axis=1), 2.5, rtol=1e-4)
    assert any("look-ahead selects by sigmoid, as the engine in 100.00%" in note for note in trace.meta["notes"])


def test_groups_of_experts_are_recorded_and_their_look_ahead_is_left_out(tmp_path: Path) -> None:
    keys = metadata("dots1", leading_dense_block_count=1, expert_shared_count=1, expert_weights_norm=True,
                    expert_gating_func=2, expert_group_count=4, expert_group_used_count=1)  # fmt: skip
    path = write(tmp_path / "groups-F32.gguf", keys, random_arrays(3, bias=True, dense=1))
    trace = record_gguf(path, [PROMPT], decode_tokens=4)
    groups = np.sort(trace.row_experts.reshape(-1, TOP_K), axis=1) // (EXPERTS // 4)
    assert (groups[:, 0] == groups[:, 1]).all()
    assert trace.predictions == {}
    assert any("look-ahead is left out: no way tried" in note for note in trace.meta["notes"])


def test_a_router_with_a_bias_on_its_logits(tmp_path: Path) -> None:
    """gpt-oss: biases everywhere, the softmax over the chosen ones."""
    arrays = random_arrays(4, norms=False)
    rng = np.random.default_rng(4)
    for layer in range(LAYERS):
        arrays[f"blk.{layer}.post_attention_norm.weight"] = arrays.pop(f"blk.{layer}.ffn_norm.weight")
        sizes = {
            "attn_q": 2 * HEAD,
            "attn_k": 2 * HEAD,
            "attn_v": 2 * HEAD,
            "attn_output": HIDDEN,
            "ffn_gate_inp": EXPERTS,
        }
        arrays |= {f"blk.{layer}.{n}.bias": rng.normal(size=size).astype(np.float32) for n, size in sizes.items()}
        arrays[f"blk.{layer}.attn_sinks.weight"] = np.zeros(2, np.float32)
        for name, size in (("gate", WIDTH), ("up", WIDTH), ("down", HIDDEN)):
            arrays[f"blk.{layer}.ffn_{name}_exps.bias"] = np.zeros((EXPERTS, size), np.float32)
    keys = metadata("gpt-oss", **{"attention.sliding_window": 128})
    trace = record_gguf(write(tmp_path / "oss-F32.gguf", keys, arrays), [PROMPT], decode_tokens=3)
    np.testing.assert_allclose(trace.row_weights.reshape(-1, TOP_K).sum(axis=1), 1, rtol=1e-4)
    assert any("as the engine in 100.00% of the rows" in note for note in trace.meta["notes"])
    assert sorted(trace.predictions) == [1]


def test_text_seed_and_what_cannot_be_loaded(qwen: Path, tmp_path: Path) -> None:
    runs = [record_gguf(qwen, ["hello"], decode_tokens=4, temperature=2.0, seed=s).content_hash for s in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    with pytest.raises(TraceError, match="prompt 1 is empty"):
        record_gguf(qwen, [[1], []], decode_tokens=0)
    cut = tmp_path / "cut-F32.gguf"
    cut.write_bytes(qwen.read_bytes()[:-5000])
    with pytest.raises(TraceError, match=r"llama\.cpp cannot load it \(.*"):
        record_gguf(cut, [[1]], decode_tokens=0)
    other = tmp_path / "a.txt"
    other.write_text("x")
    for path, says in ((other, "is no GGUF file"), (tmp_path / "none.gguf", "no such file")):
        with pytest.raises(TraceError, match=says):
            record_gguf(path, [[1]])


def test_from_the_command_line(qwen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.txt").write_text("an expert")
    words = ["record", "--gguf", str(qwen), "--prompt-file", str(tmp_path / "p.txt"), "--decode-tokens", "4"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--out", str(tmp_path / "t.parquet")])
    assert not end.value.code
    assert "look-ahead selects by softmax" in capsys.readouterr().out
    trace = read_trace(tmp_path / "t.parquet")
    assert (trace.n_passes, trace.geometry.name, trace.geometry.quant) == (5, "tiny", "F32")
    assert "llama.cpp" in trace.meta["source_engine"]
    assert sorted(trace.prediction_scores) == [1]
