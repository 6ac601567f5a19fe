"""Published models come out as published: from sparse files of their shapes, and as they are packaged."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from expert_residency.traces import ModelGeometry, list_models, load_model
from expert_residency.traces.file_sizes import SizeCheck, check_of, published_files, size_checks
from expert_residency.traces.geometry import read_model
from expert_residency.traces.weights.blueprint import (
    COMMENT,
    SHAPES,
    Blueprint,
    packaged_file,
    read_blueprint,
)
from expert_residency.traces.weights.ggml_types import TYPES
from expert_residency.traces.weights.mix import mixed
from expert_residency.traces.weights.write import model_toml
from tests.gguf_files import Shapes, write_gguf, write_safetensors
from tests.quantizer_sizes import FTYPES, sizes

HERE = Path(__file__).parent
GIB = 2**30
PUBLISHED_AS = {
    "DeepSeek-V3.1-Terminus": "deepseek-v3", "GLM-4.5-Air": "glm-4.5-air", "GLM-4.7-Flash": "glm-4.7-flash",
    "GLM-5.2": "glm-5.2", "Kimi-K2-Thinking": "kimi-k2", "Qwen3-VL-235B-A22B-Instruct": "qwen3-235b-a22b",
    "Qwen3.5-122B-A10B": "qwen3.5-122b-a10b", "Qwen3.5-35B-A3B": "qwen3.5-35b-a3b",
    "Qwen3.5-397B-A17B": "qwen3.5-397b-a17b", "Qwen3.6-35B-A3B": "qwen3.5-35b-a3b",
}  # fmt: skip
TYPE_TABLE = tomllib.loads((HERE / "published_types.toml").read_text())
FILES = [(model, quant) for model, quants in TYPE_TABLE.items() for quant in quants]
EXACT_NAMES = {kind.name.lower(): kind.name for kind in TYPES.values()}


def _blocks(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.split(","):
        ends, _, step = part.partition("/")
        first, _, last = ends.partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def published_tensors(model: str, quant: str) -> Shapes:
    """Name, shape and type of every tensor of a file of the tensor lists."""
    blueprint, table = read_blueprint(PUBLISHED_AS[model]), TYPE_TABLE[model][quant]
    plain = mixed(blueprint.shapes(), "F16", blocks=1, experts=1, query_groups=1)
    rules: dict[str, list[tuple[str, set[int] | None]]] = {}
    for kind, names in table.items():
        for entry in names if kind != "most" else ():
            name, _, blocks = entry.partition(" ")
            rules.setdefault(name, []).append((kind, _blocks(blocks) if blocks else None))
    found = []
    for tensor in plain:
        block = re.match(r"blk\.(\d+)\.(.+)", tensor.name)
        name = block[2] if block else tensor.name
        kind = "f32" if tensor.type == "f32" else table["most"]
        for other, blocks in rules.get(name, ()):
            if blocks is None or (block and int(block[1]) in blocks):
                kind = other
        found.append((tensor.name, tensor.shape, EXACT_NAMES[kind]))
    return found


def _metadata(blueprint: Blueprint) -> dict[str, object]:
    return dict(blueprint.header("F16").metadata)


def _rows(shared: Path) -> dict[tuple[str, str], dict[str, str]]:
    with (shared / "reference" / "geometry.csv").open(newline="") as file:
        return {(row["model"], row["quant"]): row for row in csv.DictReader(file)}


def _counted(text: str) -> Counter[int]:
    """`102x58 99x2` as a counter; a number alone is that of every layer."""
    return Counter({int(size): int(n or 1) for size, _, n in (part.partition("x") for part in text.split())})


def _whole(text: str) -> int:
    return int(text or 0)


@pytest.mark.shared
@pytest.mark.parametrize(("model", "quant"), FILES)
def test_sparse_files_of_the_published_shapes(model: str, quant: str, shared: Path, tmp_path: Path) -> None:
    row, blueprint = _rows(shared)[model, quant], read_blueprint(PUBLISHED_AS[model])
    path = tmp_path / f"{model}-{quant}.gguf"
    write_gguf(path, _metadata(blueprint), published_tensors(model, quant))
    g, file = load_model(str(path)), read_model(str(path))
    path.unlink()
    _same_geometry(g, row)
    assert Counter(g.expert_bytes) == _counted(row["expert_bytes_values"])
    assert Counter(g.dense_bytes) == _counted(row["dense_layer_bytes_values"])
    sizes = file.quants[g.quant]
    assert sizes.file_bytes == int(row["file_total_bytes"])
    rest = g.all_expert_bytes + sum(g.dense_bytes) + g.dense_only_bytes + g.head_bytes + int(row["embed_bytes"])
    assert sizes.file_bytes - rest == _whole(row["mtp_bytes"])
    assert any("multi-token" in note for note in file.notes) == bool(_whole(row["mtp_bytes"]))


def _same_geometry(g: ModelGeometry, row: dict[str, str]) -> None:
    ends = (g.n_layers, g.layer_ids[0], g.layer_ids[-1])
    assert ends == tuple(int(row[name]) for name in ("moe_layers", "first_moe", "last_moe"))
    assert (g.experts, g.top_k) == (int(row["experts"]), int(row["top_k"]))
    if row["hidden"]:
        assert (g.hidden_size, g.expert_params) == (int(row["hidden"]), int(row["expert_params"]))
    assert g.all_expert_bytes == int(row["expert_bytes_total"])
    assert g.dense_only_bytes == int(row["dense_only_bytes"])
    if row["head_bytes"]:
        assert g.head_bytes == int(row["head_bytes"])


GPT_OSS = {  # mix, GiB as published
    ("gpt-oss-120b", "MXFP4, ggml-org GGUF (Q8_0 attention, embeddings, head)"): ("MXFP4", 59.02),
    ("gpt-oss-120b", "MXFP4, unsloth F16 GGUF (16-bit attention, embeddings, head)"): ("MXFP4-F16", 60.87),
    ("gpt-oss-20b", "MXFP4, ggml-org / bartowski GGUF (Q8_0 attention, embeddings, head)"): ("MXFP4", 11.27),
}


@pytest.mark.shared
@pytest.mark.parametrize("key", GPT_OSS)
def test_gpt_oss_as_people_load_it(key: tuple[str, str], shared: Path, tmp_path: Path) -> None:
    row, (mix, gib) = _rows(shared)[key], GPT_OSS[key]
    blueprint = read_blueprint(key[0])
    tensors = [(t.name, t.shape, t.type) for t in blueprint.header(mix).tensors]
    path = write_gguf(tmp_path / f"{key[0]}-{mix}.gguf", _metadata(blueprint), tensors)
    g, file = load_model(str(path)), read_model(str(path))
    _same_geometry(g, row)
    assert set(g.expert_bytes) == {13_253_760}
    assert g.quant_family == "mxfp4"
    assert Counter(g.dense_bytes) == _counted(row["dense_layer_bytes_values"])
    assert file.quants[g.quant].file_bytes == int(row["file_total_bytes"])
    assert round(load_file_gib(key[0], mix), 2) == gib


def load_file_gib(model: str, quant: str) -> float:
    return read_model(model).quants[quant].file_bytes / GIB


BIGMOE = {  # types that differ from the mix, `kind: names`; there experts' biases are in the dense part
    "Qwen3-30B-A3B": ("qwen3-30b-a3b", "Q4_K_M", {}),
    "gpt-oss-120b": ("gpt-oss-120b", "Q4_K_M", {"mxfp4": ("_exps.weight",)}),
    "gemma-4-26B-A4B": ("gemma-4-26b-a4b", "Q4_K_M",
                        {"q8_0": ("attn_k.weight", "attn_v.weight"), "q5_K": ("attn_output.weight",)}),
}  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("model", BIGMOE)
def test_sizes_that_an_engine_printed(model: str, shared: Path, tmp_path: Path) -> None:
    row = next(r for (name, _), r in _rows(shared).items() if name == model and "BigMoeOnEdge" in r["source"])
    name, mix, others = BIGMOE[model]
    blueprint = read_blueprint(name)
    tensors = []
    for tensor in blueprint.header(mix).tensors:
        kind = next((k for k, names in others.items() if tensor.name.endswith(names)), tensor.type)
        if model.startswith("gemma") and "attn_q.weight" in tensor.name:
            same_layer = tensor.name.replace("attn_q", "ffn_down_exps")  # raised with the experts' down
            raised = next(t.type for t in blueprint.header(mix).tensors if t.name == same_layer) == "q8_0"
            kind = "q6_K" if raised else "q4_K"
        tensors.append((tensor.name, tensor.shape, kind))
    g = load_model(str(write_gguf(tmp_path / "x-Q4_K_M.gguf", _metadata(blueprint), tensors)))
    biases = sum(4 * math.prod(shape) for n, shape, _ in tensors if "_exps.bias" in n) // g.n_experts
    each = biases * g.experts
    assert Counter(size - biases for size in g.expert_bytes) == _counted(row["expert_bytes_values"])
    assert Counter(size + each for size in g.dense_bytes) == _counted(row["dense_layer_bytes_values"])


HF_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate", "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj", "ffn_down_shexp": "mlp.shared_experts.down_proj",
}  # fmt: skip
STACKED = ("gpt-oss-120b", "gpt-oss-20b", "llama-4-maverick", "llama-4-scout")
HF_KEYS = ("num_local_experts", "n_routed_experts", "num_experts")


def hf_tensors(blueprint: Blueprint) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """The parameters of a Hugging Face checkpoint of these shapes, every one in BF16."""
    for name, shape in blueprint.shapes():
        turned = tuple(reversed(shape))
        block = re.fullmatch(r"blk\.(\d+)\.([^.]+)\.?(.*)", name)
        if block is None:
            yield (
                {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight"}.get(
                    name, "model.norm.weight"
                ),
                turned,
                "BF16",
            )
            continue
        layer, part, kind = f"model.layers.{block[1]}.", block[2], block[3] or "weight"
        if part == "exp_probs_b":  # a buffer, no parameter
            continue
        if not part.endswith("_exps"):
            yield f"{layer}{HF_NAMES.get(part, f'linear_attn.{part}')}.{kind}", turned, "BF16"
            continue
        word = {"ffn_gate_exps": "gate", "ffn_up_exps": "up", "ffn_down_exps": "down"}[part]
        if blueprint.name in STACKED:
            suffix = "_bias" if kind == "bias" else ""
            yield f"{layer}mlp.experts.{word}_proj{suffix}", turned, "BF16"
            continue
        for expert in range(turned[0]):
            yield f"{layer}mlp.experts.{expert}.{word}_proj.{kind}", turned[1:], "BF16"


HF_ROWS = ("qwen3-30b-a3b", "gpt-oss-120b", "gpt-oss-20b", "deepseek-v3", "kimi-k2", "mixtral-8x7b",
           "llama-4-maverick", "llama-4-scout", "qwen3-next-80b-a3b", "minimax-m2",
           "granite-3.0-1b-a400m")  # fmt: skip


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", HF_ROWS)
def test_folders_of_the_published_shapes(name: str, shared: Path, tmp_path: Path) -> None:
    row, blueprint = _rows(shared)[name, "BF16 (Hugging Face)"], read_blueprint(name)
    facts, folder = blueprint.metadata, tmp_path / name
    folder.mkdir()
    config = {
        "model_type": row["model_type_hf"], "num_hidden_layers": facts["block_count"],
        HF_KEYS[len(name) % 3]: facts["expert_count"], "num_experts_per_tok": facts["expert_used_count"],
        "hidden_size": facts["embedding_length"],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tensors = list(hf_tensors(blueprint))
    write_safetensors(folder / "model.safetensors", tensors)
    g = load_model(str(folder))
    (folder / "model.safetensors").unlink()
    biases = sum(math.prod(shape) for n, shape, _ in tensors if n.endswith("_proj_bias")) // g.n_experts
    row = row | {"expert_params": str(int(row["expert_params"]) - biases)}  # counted with the weights there
    _same_geometry(g, row)
    assert set(g.expert_bytes) == set(_counted(row["expert_bytes_values"]))
    assert set(g.dense_bytes) == set(_counted(row["dense_layer_bytes_values"]))
    assert g.quant_family == "bf16"


@pytest.mark.parametrize("name", SHAPES.names())
def test_a_packaged_model_is_what_its_shapes_give(name: str) -> None:
    """Made anew by `python -m expert_residency.traces.weights.blueprint`."""
    packaged = Path(__file__).parents[1] / "traces" / "models" / f"{name}.toml"
    assert packaged.read_text() == model_toml(packaged_file(read_blueprint(name)), COMMENT)


PARAMETERS = {  # billions, as the authors or llama.cpp print them; of glm-5.2 the shapes are all that is published
    "deepseek-v2-lite": "15.71", "deepseek-v3": "671.026", "ernie-4.5-21b-a3b": "21.83",
    "ernie-4.5-300b-a47b": "300", "gemma-4-26b-a4b": "25.23", "glm-4.5-air": "110.47", "glm-4.6": "357",
    "glm-4.7-flash": "29.94",
    "gpt-oss-120b": "116.829", "gpt-oss-20b": "20.915", "granite-3.0-1b-a400m": "1.335",
    "granite-4.0-h-small": "32",
    "granite-4.0-h-tiny": "6.94", "hunyuan-a13b": "80.39", "kimi-k2": "1026.408", "lfm2-8b-a1b": "8.3",
    "llama-4-maverick": "400.712", "llama-4-scout": "107.77", "minimax-m2": "228.69", "mixtral-8x7b": "46.703",
    "nemotron-3-nano-30b-a3b": "31.58", "olmoe-1b-7b": "6.919", "phi-3.5-moe": "41.9", "qwen1.5-moe-a2.7b": "14.3",
    "qwen3-235b-a22b": "235.09", "qwen3-30b-a3b": "30.53", "qwen3-coder-480b-a35b": "480",
    "qwen3-next-80b-a3b": "79.67", "qwen3.5-122b-a10b": "122.11", "qwen3.5-35b-a3b": "34.66",
    "qwen3.5-397b-a17b": "397",
}  # fmt: skip


@pytest.mark.parametrize("name", PARAMETERS)
def test_shapes_have_the_published_number_of_parameters(name: str) -> None:
    total = sum(math.prod(shape) for _, shape in read_blueprint(name).shapes()) / 1e9
    printed = PARAMETERS[name]
    digits = len(printed.partition(".")[2])
    assert total == pytest.approx(float(printed), abs=0.51 * 10**-digits, rel=0 if digits else 0.007)


CHECKS = [check for checks in size_checks().values() for check in checks]


@pytest.mark.parametrize("check", [c for c in CHECKS if c.by == "file"], ids=lambda c: f"{c.model}/{c.quant}")
def test_packaged_sizes_are_those_of_published_files_or_named_otherwise(check: SizeCheck) -> None:
    assert check.source
    assert check.is_the_file == (not check.differs)
    ours = load_file_gib(check.model, check.quant)
    assert ours / check.gib - 1 == pytest.approx(check.off, abs=1e-12)


def test_every_mix_of_every_model_is_what_llama_cpp_s_quantizer_gives() -> None:
    """To the 0.01 MiB that it prints (table made by `python -m tests.quantizer_sizes`)."""
    checked = {(c.model, c.quant): c for c in CHECKS if c.by == "quantizer"}
    assert set(checked) == {
        (name, quant) for name in SHAPES.names() for quant in read_blueprint(name).quants if quant in FTYPES
    }
    for check in checked.values():
        assert abs(load_file_gib(check.model, check.quant) - check.gib) * 1024 < 0.011, check


def test_the_quantizer_s_rows_are_its_own() -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    for name in ("granite-3.0-1b-a400m", "lfm2-8b-a1b"):
        mixes = [quant for quant in read_blueprint(name).quants if quant in FTYPES]
        stored = {c.quant: c.gib for c in CHECKS if c.by == "quantizer" and c.model == name}
        assert {mix: round(mib / 1024, 5) for mix, mib in sizes(name, mixes)} == stored


def test_every_packaged_pair_says_what_it_was_compared_with() -> None:
    first = {pair: checks[0] for pair, checks in size_checks().items()}
    assert set(first) == {(model, quant) for model, quants in list_models().items() for quant in quants}
    assert Counter(c.by for c in first.values())["file"] >= 82
    unchecked = {model for (model, _), c in first.items() if c.by == "unchecked"}
    assert unchecked == {"glm-5.2", "qwen3.8-flash-next", "qwen3.8-flash-next-coder"}
    for check in first.values():
        assert bool(check.sentence()) != check.is_the_file
        assert check.by != "parameters" or abs(check.off) < 0.007
    files, equal, median, worst = published_files()
    assert files - equal == sum(bool(c.differs) for c in CHECKS)
    assert (
        f"of {files} others {equal} are equal, the rest (publishers' own mixes) off by {100 * median:.1f} % "
        f"in the median, {100 * worst:.1f} % at worst"
    ) in first["glm-4.6", "Q4_K_M"].sentence()
    assert "51.01 GiB, the sizes here are +4.1 %" in first["glm-4.5-air", "Q3_K_M"].sentence()


def test_only_packaged_sizes_are_compared(tmp_path: Path) -> None:
    packaged = load_model("glm-4.6/Q4_K_M")
    for known in (packaged, packaged.only_layers([0, 3])):
        check = check_of(known)
        assert check is not None
        assert (check.model, check.quant, check.by) == ("glm-4.6", "Q4_K_M", "quantizer")
    own = dataclasses.replace(packaged, expert_bytes=tuple(2 * size for size in packaged.expert_bytes))
    assert check_of(own) is None
    assert check_of(dataclasses.replace(packaged, name="mine")) is None
