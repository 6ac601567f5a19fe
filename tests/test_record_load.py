"""A model from a folder, as a user records it: spread over devices, in 4 bits, and what is refused."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from expert_residency.errors import TraceError
from expert_residency.sim.cli import main
from expert_residency.traces import read_trace
from tests.record_families import EXPERTS, HIDDEN, LAYERS, WIDTH, make

pytest.importorskip("torch", reason="the recorder needs the extra `record` (torch)")
transformers = pytest.importorskip("transformers", reason="the recorder needs the extra `record` (transformers)")
pytestmark = pytest.mark.filterwarnings("ignore")

from expert_residency.traces.record.load import load  # noqa: E402

ONE_EXPERT = 3 * HIDDEN * WIDTH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-MoE with a tokenizer of words, and a prompt beside it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    folder = tmp_path_factory.mktemp("model")
    make("qwen3_moe").save_pretrained(folder)
    words = Tokenizer(WordLevel({"<unk>": 0, "the": 1, "expert": 2, "is": 3, "away": 4}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    (folder / "prompt.txt").write_text("the expert is away")
    return folder


def recorded(folder: Path, out: Path, *words: str) -> Any:
    given = ["--model", str(folder), "--prompt-file", str(folder / "prompt.txt"), "--decode-tokens", "3"]
    with pytest.raises(SystemExit) as end:
        main(["record", *given, "--out", str(out), *words])
    assert not end.value.code
    return read_trace(out)


def need(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_spread_over_devices_it_routes_the_same(folder: Path, tmp_path: Path) -> None:
    need("accelerate")
    whole = recorded(folder, tmp_path / "a.parquet")
    spread = recorded(folder, tmp_path / "b.parquet", "--device-map", "auto")
    assert spread.content_hash == whole.content_hash
    assert set(whole.geometry.expert_bytes) == {ONE_EXPERT * 4}


def test_parts_that_are_left_on_the_drive_are_recorded_too(folder: Path, tmp_path: Path) -> None:
    need("accelerate")
    from accelerate import cpu_offload, disk_offload

    from expert_residency.traces.record import record

    whole, tokenizer = load(str(folder))
    prompt = [tokenizer("the expert is away")["input_ids"]]
    before = record(whole, prompt, decode_tokens=2)
    for offload in (lambda m: cpu_offload(m), lambda m: disk_offload(m, str(tmp_path), execution_device="cpu")):
        model, _ = load(str(folder))
        offload(model)
        after = record(model, prompt, decode_tokens=2)
        assert after.content_hash == before.content_hash


def test_in_four_bits_experts_take_an_eighth(folder: Path, tmp_path: Path) -> None:
    need("bitsandbytes")
    need("accelerate")
    wide = tmp_path / "wide"  # its rows are whole blocks of 64
    shutil.copytree(folder, wide)
    make("qwen3_moe", hidden_size=128, moe_intermediate_size=64, head_dim=64).save_pretrained(wide)
    trace = recorded(wide, tmp_path / "a.parquet", "--load-in", "4bit")
    one = 3 * 128 * 64
    assert set(trace.geometry.expert_bytes) == {one // 2 + one // 64 * 4}
    assert (trace.geometry.quant, trace.geometry.quant_family) == ("nf4", "int4")
    assert trace.geometry.expert_params == one
    assert (trace.geometry.n_layers, trace.geometry.experts) == (LAYERS, EXPERTS)


def test_eight_bits_would_leave_stacked_experts_as_they_are(folder: Path) -> None:
    need("bitsandbytes")
    need("accelerate")
    with pytest.raises(TraceError, match=r"one tensor a layer, of which bitsandbytes makes no 8 bits.*4bit"):
        load(str(folder), load_in="8bit")


@pytest.mark.parametrize(
    ("options", "package"), [({"load_in": "4bit"}, "bitsandbytes"), ({"device_map": "auto"}, "accelerate")]
)
def test_a_missing_package_is_named(
    options: dict[str, str], package: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else found(name))
    monkeypatch.setitem(sys.modules, "accelerate", sys.modules.get("accelerate"))
    with pytest.raises(TraceError, match=rf"needs the package {package}: pip install {package}"):
        load(str(folder), **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "int3"}, "unknown dtype 'int3'"),
        ({"load_in": "3bit"}, "cannot load in '3bit'"),
        ({"device": "cpu", "device_map": "auto"}, "one or the other"),
    ],
)
def test_choices_that_are_refused(options: dict[str, str], says: str, folder: Path) -> None:
    with pytest.raises(TraceError, match=says):
        load(str(folder), **options)


def test_model_or_file_and_not_both(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ["--prompt-file", str(folder / "prompt.txt"), "--out", str(tmp_path / "x.parquet")]
    for words, says in (
        ([], "give --model NAME, or --gguf FILE"),
        (["--gguf", "x.gguf", "--model", "y"], "and not both"),
        (["--gguf", "x.gguf", "--dtype", "auto"], "--dtype is of --model"),
    ):
        with pytest.raises(SystemExit) as end:
            main(["record", *prompt, *words])
        assert end.value.code == 2
        assert says in capsys.readouterr().err
