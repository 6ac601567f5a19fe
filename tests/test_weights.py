"""A model from its own files: right sizes from headers, and one sentence for whatever is wrong with them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.errors import TraceError
from expert_residency.sim.cli import main
from expert_residency.traces import load_model
from expert_residency.traces.geometry import read_model
from expert_residency.traces.weights.gguf import read_header
from expert_residency.traces.weights.write import write_model
from tests.gguf_files import header, write_gguf, write_safetensors, write_split

H, E, W, BLOCKS = 256, 4, 128, 4
Q8 = 34 / 32
Shape = tuple[str, tuple[int, ...], str]
META: dict[str, Any] = {
    "general.architecture": "glm4moe",
    "general.name": "Tiny MoE",
    "general.file_type": 7,
    "tokenizer.ggml.tokens": ["a", "bc", ""] * 50,
    "glm4moe.block_count": BLOCKS,
    "glm4moe.nextn_predict_layers": 1,
    "glm4moe.expert_count": E,
    "glm4moe.expert_used_count": 2,
    "glm4moe.embedding_length": H,
    "glm4moe.attention.head_count": 4,
    "glm4moe.attention.head_count_kv": 2,
    "glm4moe.attention.key_length": 64,
    "glm4moe.attention.value_length": 64,
}


def tensors(down: str = "q8_0") -> list[Shape]:
    """Block 0 dense, 1 and 2 with experts and a shared one, 3 for multi-token prediction; an untied head."""
    found: list[Shape] = [("token_embd.weight", (H, 150), "q8_0"), ("output.weight", (H, 150), "q8_0"),
                          ("output_norm.weight", (H,), "f32")]  # fmt: skip
    for block in range(BLOCKS):
        name = f"blk.{block}."
        found += [(f"{name}attn_k.weight", (H, 128), "q8_0"), (f"{name}attn_norm.weight", (H,), "f32")]
        if block == 0:
            found += [(f"{name}ffn_up.weight", (H, 1024), "q8_0")]
            continue
        found += [(f"{name}ffn_{part}_exps.weight", (H, W, E), "q8_0") for part in ("gate", "up")]
        found += [(f"{name}ffn_down_exps.weight", (W, H, E), down), (f"{name}ffn_gate_inp.weight", (H, E), "f32"),
                  (f"{name}ffn_up_shexp.weight", (H, W), "q8_0")]  # fmt: skip
    return [*found, ("blk.3.nextn.eh_proj.weight", (2 * H, H), "q8_0")]


EXPERT = int(3 * H * W * Q8)
DENSE = int(H * 128 * Q8) + 4 * H + 4 * H * E + int(H * W * Q8)
HEAD = int(H * 150 * Q8) + 4 * H


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "Tiny-MoE-Q8_0.gguf", META, tensors())


def test_sizes_are_those_of_the_tensors(tiny: Path) -> None:
    g = load_model(str(tiny))
    assert (g.name, g.quant, g.quant_family) == ("tiny-moe", "Q8_0", "q8")
    assert (g.layer_ids, g.experts, g.top_k, g.total_layers) == ((1, 2), E, 2, 3)
    assert g.expert_bytes == (EXPERT, EXPERT)
    assert g.dense_bytes == (DENSE, DENSE)
    assert g.dense_only_bytes == int(H * 128 * Q8) + 4 * H + int(H * 1024 * Q8)
    assert (g.head_bytes, g.expert_params, g.hidden_size) == (HEAD, 3 * H * W, H)
    assert g.session_shape is not None
    assert g.session_shape.cell_bytes("fp16") * g.session_shape.kv_layers == 3 * 2 * 2 * 64 * 2
    notes = read_model(str(tiny)).notes
    assert any("multi-token prediction (layer 3)" in note for note in notes)


def test_only_the_header_is_needed_and_a_folder_will_do(tmp_path: Path, tiny: Path) -> None:
    whole = load_model(str(tiny))
    head, _ = header(META, tensors())
    tiny.write_bytes(head)
    assert load_model(str(tiny)) == whole
    assert load_model(str(tmp_path)) == whole


def test_any_file_of_a_split_is_the_model(tmp_path: Path) -> None:
    paths = write_split(tmp_path / "Tiny-MoE-Q8_0", META, tensors(), 3)
    found = [load_model(str(path)) for path in paths]
    assert found[0].expert_bytes == (EXPERT, EXPERT)
    assert found[0] == found[1] == found[2]
    paths[1].unlink()
    with pytest.raises(
        TraceError, match=r"1 of the model's 3 files is missing beside it: Tiny-MoE-Q8_0-00002-of-00003"
    ):
        load_model(str(paths[0]))


def test_the_family_is_that_of_most_bytes_of_experts(tmp_path: Path) -> None:
    assert load_model(str(write_gguf(tmp_path / "tiny-Q4_K_M.gguf", META, tensors("f32")))).quant_family == "fp32"


def test_a_tied_head_is_the_embedding(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "t.gguf", META, [t for t in tensors() if t[0] != "output.weight"])
    assert load_model(str(path)).head_bytes == HEAD
    assert "the output head is the token embedding (tied)" in read_model(str(path)).notes


def test_irregular_layers_two_matrices_and_an_expert_a_tensor(tmp_path: Path) -> None:
    kept = [t for t in tensors() if not ("gate_exps" in t[0] or t[0].startswith(("blk.2.ffn_", "blk.3.")))]
    kept += [("blk.3.attn_k.weight", (H, 128), "q8_0")]
    kept += [(f"blk.3.ffn_{part}.{e}.weight", shape, "q8_0")
             for e in range(E) for part, shape in (("up", (H, W)), ("down", (W, H)))]  # fmt: skip
    g = load_model(str(write_gguf(tmp_path / "x.gguf", META | {"glm4moe.nextn_predict_layers": 0}, kept)))
    assert g.layer_ids == (1, 3)
    assert g.expert_bytes == (int(2 * H * W * Q8),) * 2
    assert g.expert_params == 2 * H * W


def test_latent_windowed_and_recurrent_layers(tmp_path: Path) -> None:
    latent = META | {"glm4moe.attention.kv_lora_rank": 512, "glm4moe.rope.dimension_count": 64}
    shape = load_model(str(write_gguf(tmp_path / "a.gguf", latent, tensors()))).session_shape
    assert shape is not None
    assert (shape.key_values, shape.value_values, shape.kv_layers) == (576, 0, 3)
    windowed = META | {
        "glm4moe.attention.sliding_window": 128,
        "glm4moe.attention.sliding_window_pattern": [True, False, True],
        "glm4moe.attention.key_length_swa": 32,
    }
    shape = load_model(str(write_gguf(tmp_path / "b.gguf", windowed, tensors()))).session_shape
    assert shape is not None
    assert (shape.kv_layers, shape.window_layers, shape.window_tokens) == (1, 2, 128)
    assert shape.window_cell_bytes("fp16") == 2 * (2 * 32 + 2 * 64)
    state = META | {"glm4moe.ssm.conv_kernel": 4, "glm4moe.ssm.inner_size": 4096, "glm4moe.ssm.state_size": 128,
                    "glm4moe.ssm.group_count": 16}  # fmt: skip
    mixed = [t for t in tensors() if t[0] != "blk.1.attn_k.weight"] + [
        ("blk.1.ssm_conv1d.weight", (4, 8192), "f32")
    ]
    shape = load_model(str(write_gguf(tmp_path / "c.gguf", state, mixed))).session_shape
    assert shape is not None
    assert (shape.kv_layers, shape.state_bytes) == (2, 4 * (3 * 8192 + 128 * 4096))


def test_a_written_model_is_read_back_equal(tmp_path: Path, tiny: Path) -> None:
    write_model(tmp_path / "mine.toml", read_model(str(tiny)), "made by a test")
    assert load_model(str(tmp_path / "mine.toml")) == load_model(str(tiny))


HEADER = header(META, tensors())[0]


@given(st.integers(0, len(HEADER) - 1))
def test_a_header_cut_anywhere_is_one_sentence(cut: int) -> None:
    _refused(HEADER[:cut])


@given(st.integers(0, len(HEADER) - 1), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_never_do_more_than_refuse(at: int, damage: bytes) -> None:
    _refused(HEADER[:at] + damage + HEADER[at + len(damage) :], must=False)


def _refused(data: bytes, *, must: bool = True) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.gguf")
        path.write_bytes(data)
        found: TraceError | None = None
        try:
            load_model(str(path))
        except TraceError as error:
            found = error
        assert found is not None or not must
        assert found is None or "x.gguf" in str(found)


def _with_type(number: int, part: bytes = b"up") -> bytes:
    name = b"blk.1.ffn_" + part + b"_exps.weight"
    at = HEADER.index(name) + len(name) + 4 + 3 * 8
    return HEADER[:at] + struct.pack("<I", number) + HEADER[at + 4 :]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_with_type(36), "tensor blk.1.ffn_up_exps.weight is of type 36, whose size is not known"),
        (_with_type(0), "runs into"),
        (_with_type(12, b"down"), "rows of 128 numbers are no whole blocks of 256, as type q4_K has"),
        (b"GGML" + HEADER[4:], "not a GGUF file"),
        (HEADER[:8] + struct.pack("<Q", 1 << 60) + HEADER[16:], "do not fit into a file"),
        (HEADER[:4] + struct.pack("<I", 9) + HEADER[8:], "GGUF version 9 is not known"),
        (HEADER.replace(b"blk.2.attn_norm", b"blk.1.attn_norm"), "tensor blk.1.attn_norm.weight is there twice"),
        (HEADER.replace(b"glm4moe.expert_count", b"glm4moe.expert_kount"), "not a mixture-of-experts model"),
        (HEADER.replace(b"blk.1.ffn_up_exps", b"blk.9.ffn_up_exps"), "is of no block, the model has 4"),
        (header(META | {"glm4moe.expert_count": 8}, tensors())[0], "has 4 experts, expert_count says 8"),
        (header(META | {"glm4moe.expert_used_count": 5}, tensors())[0], "top-k 5 of 4 experts"),
        (header({k: v for k, v in META.items() if "used" not in k}, tensors())[0], "lacks glm4moe.expert_used"),
        (header(META, [t for t in tensors() if "_exps" not in t[0]])[0], "no tensor of experts"),
        (header(META, [t for t in tensors() if t[0] != "blk.2.ffn_up_exps.weight"])[0],
         "layer 2 lacks blk.ffn_up_exps.weight"),
        (header(META, [t for t in tensors() if not t[0].startswith("blk.0.")])[0], "1 of 3 layers have no"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(data: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(data)
    with pytest.raises(TraceError) as error:
        load_model(str(path))
    assert says in str(error.value)


def test_the_vocabulary_is_passed_over_quickly(tmp_path: Path) -> None:
    big = META | {"tokenizer.ggml.tokens": ["token"] * 150_000, "tokenizer.ggml.merges": ["to ken"] * 300_000}
    found = read_header(write_gguf(tmp_path / "big.gguf", big, tensors()))
    assert found.metadata["tokenizer.ggml.merges"] is None
    assert found.metadata["glm4moe.expert_count"] == E


CONFIG: dict[str, Any] = {
    "model_type": "glm4_moe", "hidden_size": H, "num_hidden_layers": 3, "n_routed_experts": E,
    "num_experts_per_tok": 2, "moe_intermediate_size": W, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64,
}  # fmt: skip


def hf_tensors(kind: str = "BF16") -> list[Shape]:
    names: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (150, H)), ("lm_head.weight", (150, H)), ("model.norm.weight", (H,)),
        ("model.visual.patch.weight", (64, 64)),
    ]  # fmt: skip
    found: list[Shape] = [(name, shape, "BF16") for name, shape in names]
    for layer in range(4):  # the last one predicts more tokens
        name = f"model.layers.{layer}."
        found += [(f"{name}self_attn.k_proj.weight", (128, H), "BF16"), (f"{name}mlp.gate.weight", (E, H), "BF16")]
        if layer == 0:
            continue
        found += [(f"{name}mlp.shared_experts.up_proj.weight", (W, H), "BF16")]
        for e in range(E):
            found += [(f"{name}mlp.experts.{e}.{m}_proj.weight", (W, H), kind) for m in ("gate", "up", "down")]
            if kind != "BF16":
                found += [
                    (f"{name}mlp.experts.{e}.{m}_proj.weight_scale_inv", (1, 2), "F32")
                    for m in ("gate", "up", "down")
                ]
    return found


def _folder(folder: Path, config: dict[str, Any], shapes: list[Shape], files: int = 1) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = [f"model-{i + 1:05}-of-{files:05}.safetensors" for i in range(files)]
    shares = [shapes[i::files] for i in range(files)]
    for name, share in zip(names, shares, strict=True):
        write_safetensors(folder / name, share, hole=False)
    index = {tensor[0]: name for name, share in zip(names, shares, strict=True) for tensor in share}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.mark.parametrize("by", ["folder", "config", "index"])
def test_a_folder_of_hugging_face(by: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "Tiny-MoE", CONFIG, hf_tensors(), 2)
    spec = {"folder": folder, "config": folder / "config.json", "index": folder / "model.safetensors.index.json"}[
        by
    ]
    g = load_model(str(spec))
    assert (g.label, g.quant_family, g.layer_ids) == ("tiny-moe/BF16", "bf16", (1, 2))
    assert g.expert_bytes == (2 * 3 * H * W,) * 2
    assert g.dense_bytes == (2 * (128 * H + E * H + W * H),) * 2
    assert (g.head_bytes, g.expert_params) == (2 * (150 * H + H), 3 * H * W)
    assert g.session_shape is not None
    notes = " ".join(read_model(str(spec)).notes)
    assert "multi-token prediction (layer 3)" in notes
    assert "other modalities" in notes


def test_scales_of_a_quantized_expert_are_bytes_but_no_weights(tmp_path: Path) -> None:
    config = CONFIG | {"quantization_config": {"quant_method": "fp8"}}
    g = load_model(str(_folder(tmp_path / "t", config, hf_tensors("F8_E4M3"))))
    assert (g.quant, g.quant_family) == ("FP8", "fp8")
    assert g.expert_bytes == (3 * (H * W + 8),) * 2
    assert g.expert_params == 3 * H * W


def test_packed_experts_have_the_weights_of_their_widths(tmp_path: Path) -> None:
    packed = [(n, (s[0], s[1] // 8), "I32") if ".experts." in n else (n, s, k) for n, s, k in hf_tensors()]
    config = CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    g = load_model(str(_folder(tmp_path / "t", config, packed)))
    assert (g.quant, g.quant_family) == ("INT4-AWQ", "int4")
    assert g.expert_bytes == (3 * H * W // 2,) * 2
    assert g.expert_params == 3 * H * W


def test_stacked_experts_in_a_text_config(tmp_path: Path) -> None:
    stacked = [t for t in hf_tensors() if ".experts." not in t[0] and not t[0].startswith("model.layers.3")]
    for layer in (1, 2):
        name = f"model.layers.{layer}.mlp.experts."
        stacked += [(f"{name}gate_up_proj", (E, 2 * W, H), "BF16"), (f"{name}down_proj", (E, H, W), "BF16"),
                    (f"{name}down_proj_bias", (E, H), "BF16")]  # fmt: skip
    g = load_model(str(_folder(tmp_path / "t", {"text_config": CONFIG, "model_type": "x"}, stacked)))
    assert g.expert_bytes == (2 * (3 * H * W + H),) * 2
    assert g.expert_params in (3 * H * W, 3 * H * W + H)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda f: (f / "model-00002-of-00002.safetensors").unlink(),
            "1 of 2 files are missing: model-00002-of-00002",
        ),
        (
            lambda f: _edit(f, {"n_routed_experts": 0}),
            "config.json: not a mixture-of-experts model: n_routed_experts is 0, expected a whole number above 0",
        ),
        (
            lambda f: _edit(f, {"n_routed_experts": "x"}),
            'n_routed_experts is "x", expected a whole number above 0',
        ),
        (
            lambda f: _edit(f, {"num_hidden_layers": -3}),
            "num_hidden_layers is -3, expected a whole number above 0",
        ),
        (lambda f: _edit(f, {"n_routed_experts": 8}), "layer 1 has 4 experts, the config says 8"),
        (lambda f: _edit(f, {"n_routed_experts": 2}), "is of no expert, the config says 2"),
        (lambda f: _edit(f, {"num_experts_per_tok": 9}), "top-k 9 of 4 experts is impossible"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (lambda f: [p.unlink() for p in f.glob("*.safetensors*")], "there are no safetensors files beside it"),
        (lambda f: (f / "model-00001-of-00002.safetensors").write_bytes(b"\0" * 4), "not even its length"),
        (lambda f: (f / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 9), "not a safetensors file"),
        (
            lambda f: (f / "model-00001-of-00002.safetensors").write_bytes(struct.pack("<Q", 99) + b"{}"),
            "cut off: 99",
        ),
        (
            lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b"}}'),
            "other folders",
        ),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(damage: Callable[[Path], Any], says: str, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "t", CONFIG, hf_tensors(), 2)
    damage(folder)
    with pytest.raises(TraceError) as error:
        load_model(str(folder))
    assert says in str(error.value)


def _edit(folder: Path, changes: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))


def test_paths_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load_model(str(tmp_path / "none.gguf"))
    with pytest.raises(TraceError, match=r"neither config\.json nor a .gguf file"):
        load_model(str(tmp_path))
    with pytest.raises(TraceError, match=r"unknown model 'nothing'"):
        load_model("nothing/Q4_0")


def test_the_command_shows_and_writes(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.toml"
    with pytest.raises(SystemExit, match="0"):
        main(["model", str(tiny), "--layers", "--out", str(out)])
    shown = capsys.readouterr().out
    for expected in (
        f"{EXPERT:,} B x 2",
        "1 to 2",
        "top-2",
        "multi-token prediction",
        "3 layers x 512 B a token in fp16",
    ):
        assert expected in shown
    assert load_model(str(out)) == load_model(str(tiny))
    with pytest.raises(SystemExit, match="2"):
        main(["model", str(tmp_path / "no.gguf")])
    assert capsys.readouterr().err.count("\n") == 1
