"""What llama.cpp's own quantizer makes of the published shapes: a dry run over a file without weights.

    python -m tests.quantizer_sizes        writes the rows `quantizer` of traces/models/file_sizes.csv anew

Needs llama-cpp-python.
"""

from __future__ import annotations

import csv
import ctypes
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from expert_residency.traces.geometry import read_model
from expert_residency.traces.weights.blueprint import SHAPES, Blueprint, read_blueprint
from expert_residency.traces.weights.mix import mixed
from tests.gguf_files import write_gguf

TABLE = Path(__file__).parents[1] / "traces" / "models" / "file_sizes.csv"
FIELDS = ("model", "quant", "by", "gib", "here_bytes", "differs", "source")
FTYPES = {"Q4_0": 2, "Q8_0": 7, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18,
          "IQ4_XS": 30}  # fmt: skip
"""`llama_ftype` of llama.h."""
WHATEVER: dict[str, Any] = {
    **dict.fromkeys(("context_length", "vocab_size", "feed_forward_length", "expert_feed_forward_length",
                     "expert_shared_feed_forward_length", "ssm.inner_size"), 1024),
    **dict.fromkeys(("attention.q_lora_rank", "attention.kv_lora_rank"), 512),
    **dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length",
                     "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa",
                     "attention.indexer.key_length", "attention.indexer.top_k"), 64),
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"), 1e-6),
    **dict.fromkeys(("rope.freq_base", "rope.freq_base_swa"), 10000.0),
    **dict.fromkeys(("expert_weights_scale", "attention.scale", "residual_scale", "embedding_scale", "logit_scale",
                     "final_logit_softcapping", "rope.scaling.yarn_log_multiplier"), 1.0),
    **dict.fromkeys(("interleave_moe_layer_step", "expert_group_count", "expert_group_used_count",
                     "ssm.group_count", "expert_shared_count"), 1),
    **dict.fromkeys(("leading_dense_block_count", "attention.shared_kv_layers",
                     "embedding_length_per_layer_input"), 0),
    **dict.fromkeys(("ssm.conv_kernel", "full_attention_interval", "attention.indexer.head_count"), 4),
    **dict.fromkeys(("ssm.state_size", "ssm.time_step_rank"), 16),
    "attention.sliding_window": 128, "expert_gating_func": 2, "shortconv.l_cache": 3, "expert_weights_norm": True,
    "rope.dimension_sections": [8, 8, 8, 0],
}  # fmt: skip
"""Keys that an architecture must have, and on which no tensor's type depends."""


def keys(blueprint: Blueprint) -> dict[str, Any]:
    """Metadata of a file of these shapes."""
    own = WHATEVER | blueprint.metadata
    own.setdefault("attention.sliding_window_pattern", [True] * own["block_count"])
    if blueprint.architecture == "llama":  # rotates whole heads
        own["rope.dimension_count"] = own["attention.key_length"]
    arch = blueprint.architecture
    return {"general.architecture": arch} | {f"{arch}.{key}": value for key, value in own.items()}


def sizes(name: str, mixes: list[str]) -> Iterator[tuple[str, float]]:
    """Mixes of a model, each with the MiB of all tensors of the file that llama.cpp would write."""
    import llama_cpp

    library: Any = llama_cpp.llama_cpp
    said: list[str] = []

    def log(_level: int, text: bytes, _user: Any) -> None:
        said.append(text.decode("utf-8", "replace"))

    hook = library.llama_log_callback(log)
    LOGS.append(hook)
    library.llama_log_set(hook, None)
    nothing = (library.llama_model_imatrix_data * 2)()  # an importance matrix, as published files were made with
    one = (ctypes.c_float * 1)(1.0)
    nothing[0].name, nothing[0].data, nothing[0].size = b"none", ctypes.cast(one, type(nothing[0].data)), 1
    blueprint = read_blueprint(name)
    facts = blueprint.metadata
    tensors = mixed(blueprint.shapes(), "F16", blocks=facts["block_count"], experts=facts["expert_count"],
                    query_groups=1)  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = write_gguf(Path(folder) / "x.gguf", keys(blueprint), [(t.name, t.shape, t.type) for t in tensors])
        for mix in mixes:
            options = library.llama_model_quantize_default_params()
            options.ftype, options.dry_run, options.nthread, options.imatrix = FTYPES[mix], True, 1, nothing
            said.clear()
            code = library.llama_model_quantize(str(path).encode(), b"unwritten", ctypes.byref(options))
            found = re.search(r"quant size *= *([\d.]+) MiB", "".join(said))
            if code or found is None:
                raise RuntimeError(f"{name}/{mix}: {said[-3:]}")
            yield mix, float(found[1])


LOGS: list[Any] = []
"""The library may speak as long as it is loaded."""


def main() -> None:
    """See the module."""
    import llama_cpp

    with TABLE.open(newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["by"] != "quantizer"]
    source = f"llama-quantize of llama.cpp in llama-cpp-python {llama_cpp.__version__}, dry run on these shapes"
    for name in SHAPES.names():
        mixes = [mix for mix in read_blueprint(name).quants if mix in FTYPES]
        kept += [
            {
                "model": name,
                "quant": mix,
                "by": "quantizer",
                "gib": f"{mib / 1024:.5f}",
                "differs": "",
                "source": source,
            }
            for mix, mib in sizes(name, mixes)
        ]
    for row in kept:
        row["here_bytes"] = str(read_model(row["model"]).quants[row["quant"]].file_bytes)
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(kept, key=lambda row: (row["model"], row["quant"], row["by"])))


if __name__ == "__main__":
    main()
