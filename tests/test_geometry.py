"""Model geometries: packaged sizes agree with published totals, and a missing size is never 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expert_residency.families import FAMILIES
from expert_residency.traces import ModelGeometry, TraceError, list_models, load_model
from expert_residency.traces.model_file import ModelFile

ALL = [f"{name}/{quant}" for name, quants in list_models().items() for quant in quants]

SHAPES = {  # MoE layers, experts, top-k, first MoE layer
    "qwen3.8-flash-next": (48, 512, 10, 0),
    "qwen3.8-flash-next-coder": (48, 256, 10, 0),
    "qwen3-30b-a3b": (48, 128, 8, 0),
    "gpt-oss-120b": (36, 128, 4, 0),
    "mixtral-8x7b": (32, 8, 2, 0),
    "deepseek-v2-lite": (26, 64, 6, 1),
    "glm-5.2": (75, 256, 8, 3),
    "glm-4.5-air": (45, 128, 8, 1),
    "llama-4-maverick": (24, 128, 1, 1),
    "nemotron-3-nano-30b-a3b": (23, 128, 6, 1),
}
FLASH_NEXT_GIB = {  # all routed experts, as printed by the engine
    "Q2_0": 31.64, "IQ2_XS": 33.0, "IQ3_XXS": 39.97, "IQ3_S": 46.84, "IQ4_XS": 60.94, "UD-IQ4_XS": 55.43,
    "UD-Q4_K_XL": 71.73, "Q4_0": 63, "NVFP4": 63.3, "Q8_0": 119.53,
}  # fmt: skip


@pytest.mark.parametrize("spec", ALL)
def test_every_packaged_quantization_loads_and_says_where_from(spec: str) -> None:
    g = load_model(spec)
    assert g.label == spec
    assert g.quant_family in FAMILIES
    assert g.source.endswith(("(measured)", "(datasheet)", "(derived)", "(assumed)"))
    assert min(g.dense_bytes) > 0
    assert g.head_bytes > 0
    assert ModelGeometry.from_dict(g.to_dict()) == g
    bits = 8 * g.all_expert_bytes / (g.expert_params * g.n_experts)
    assert 2 < bits <= 16.01  # gpt-oss has biases beside its weights


def test_shapes() -> None:
    assert {n: (g.n_layers, g.experts, g.top_k, g.layer_ids[0]) for n in SHAPES for g in [load_model(n)]} == SHAPES
    assert len(list_models()) >= 30


def test_models_of_the_same_shapes_have_one_file_and_several_names() -> None:
    assert load_model("Qwen3.6-35B-A3B/q8_0") == load_model("qwen3.5-35b-a3b", "Q8_0")
    assert load_model("deepseek-r1").name == "deepseek-v3"


@pytest.mark.parametrize("quant", list_models()["qwen3.8-flash-next"])
def test_flash_next_totals_are_the_published_ones(quant: str) -> None:
    g = load_model("Qwen3.8-Flash-Next", quant)
    assert g.all_expert_bytes / 2**30 == pytest.approx(FLASH_NEXT_GIB[quant], rel=0.005)


def test_flash_next_dense_bytes_leave_room_for_the_embedding_only() -> None:
    """File minus experts minus what a pass reads is the token embedding: 636 M weights, 3 to 5 bits each."""
    for quant, shard in (("IQ2_XS", 39_225_954_592), ("IQ3_S", 54_817_524_224)):
        g = load_model("qwen3.8-flash-next", quant)
        rest = shard - g.all_expert_bytes - sum(g.dense_bytes) - g.head_bytes
        assert 3 < 8 * rest / (248_320 * 2_560) < 5


def test_flash_next_uniform_sizes_are_shapes_times_bits() -> None:
    weights = 3 * 640 * 2560
    for quant, bits in (("Q2_0", 2.25), ("Q4_0", 4.5), ("Q8_0", 8.5)):
        assert set(load_model("qwen3.8-flash-next", quant).expert_bytes) == {round(weights * bits / 8)}


def test_glm_experts_are_the_published_bytes() -> None:
    g = load_model("glm-5.2")
    assert g.all_expert_bytes == pytest.approx(408e9, rel=0.002)
    assert g.layer_ids == tuple(range(3, 78))
    assert g.dense_only_bytes > 0


def test_a_slot_holds_a_whole_expert() -> None:
    """Some tools count a slot a projection, three an expert; here three such rooms hold exactly one expert."""
    g = load_model("qwen3-30b-a3b", "BF16")
    projection_bytes = 2 * 768 * g.hidden_size
    assert 3 * projection_bytes // g.expert_bytes[0] == 1
    assert g.expert_bytes[0] == 3 * projection_bytes


@given(st.integers(0, 74), st.integers(0, 255))
def test_keys_go_back_to_the_models_own_layer(index: int, expert: int) -> None:
    g = load_model("glm-5.2")
    assert g.layer_of_key(g.key(index, expert)) == (index + 3, expert)


def test_misspelt_names_list_the_valid_ones() -> None:
    with pytest.raises(
        TraceError, match=r"unknown model 'olmoe-1b-7c'; did you mean olmoe-1b-7b\? \(known: deepseek"
    ):
        load_model("olmoe-1b-7c")
    with pytest.raises(
        TraceError, match=r"unknown quantization 'Q3' of olmoe-1b-7b \(known: BF16, Q4_K_M, Q8_0, "
    ):
        load_model("olmoe-1b-7b/Q3")


GOOD = """
name = "mine"
total_layers = 4
first_moe_layer = 1
experts = 8
top_k = 2
source = "me"
default_quant = "Q4"
[quants.Q4]
family = "q4"
expert_bytes = [10, 20, 30]
dense_layer_bytes = 5
kind = "assumed"
source = "me"
"""


def test_a_file_of_the_users(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    g = load_model(str(path))
    assert g.layer_ids == (1, 2, 3)
    assert g.expert_bytes == (10, 20, 30)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("expert_bytes = [10, 20, 30]", "", "expert_bytes is missing"),
        ("expert_bytes = [10, 20, 30]", "expert_bytes = [10, 20]", "expert_bytes has 2 entries for 3 MoE layers"),
        ("expert_bytes = [10, 20, 30]", "expert_bytes = [10, 0, 30]", "expert bytes of layer 2 are missing"),
        ("dense_layer_bytes = 5", "", "quants.Q4.dense_layer_bytes is missing"),
        ("top_k = 2", "top_k = 9", "top-k 9 of 8 experts is impossible"),
        ('kind = "assumed"', 'kind = "guess"', "kind"),
        ('family = "q4"', 'family = "Q4"', "unknown family 'Q4'; did you mean q4? (known: iq1,"),
        ("experts = 8", 'experts = "8?"', "experts"),
        ("total_layers = 4", "total_layers = 1", "no MoE layer"),
        ('name = "mine"', 'name = "mine', "not valid TOML"),
        ('source = "me"', 'colour = "red"\nsource = "me"', "colour"),
    ],
)
def test_bad_files_are_one_sentence(old: str, new: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(TraceError) as error:
        load_model(str(path))
    assert says in str(error.value)
    assert "mine" in str(error.value)
    assert "\n" not in str(error.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        load_model(str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(TraceError, match="byte 2: not a text file"):
        load_model(str(tmp_path / "latin.toml"))


def test_unknown_geometry_field_is_refused() -> None:
    data = load_model("olmoe-1b-7b").to_dict() | {"colour": 1}
    with pytest.raises(TraceError, match="unknown key"):
        ModelGeometry.from_dict(data)


def test_irregular_layers_are_a_list(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    listed = GOOD.replace("first_moe_layer = 1", "moe_layers = [0, 1, 3]")
    path.write_text(listed)
    assert load_model(str(path)).layer_ids == (0, 1, 3)
    for wrong, says in (("moe_layers = [0, 1, 3]\nmoe_layer_step = 2", "leave first_moe_layer and"),
                        ("moe_layers = [0, 1, 4]", "moe_layers has layer 4, the model has 4 layers")):  # fmt: skip
        path.write_text(listed.replace("moe_layers = [0, 1, 3]", wrong))
        with pytest.raises(TraceError, match=says):
            load_model(str(path))


def test_the_schema_of_a_models_file_is_the_one_that_ships() -> None:
    """Made anew by `python -m expert_residency.traces.model_file > docs/model.schema.json`."""
    shipped = Path(__file__).parents[1] / "docs" / "model.schema.json"
    assert json.loads(shipped.read_text()) == ModelFile.model_json_schema()


def test_a_runs_own_k() -> None:
    for g in (load_model("qwen3-30b-a3b/Q8_0:top_k=6"), load_model("qwen3-30b-a3b", "Q8_0", top_k=6)):
        assert (g.label, g.top_k) == ("qwen3-30b-a3b/Q8_0", 6)
    assert load_model("qwen3-30b-a3b", "Q8_0:top-k=4").top_k == 4
    with pytest.raises(TraceError, match="top-k 200 of 128 experts is impossible"):
        load_model("qwen3-30b-a3b:top_k=200")
