"""A Hugging Face model made ready to be recorded: on one device, spread over several, or in 4 or 8 bits."""

from __future__ import annotations

import importlib.util
from typing import Any

from expert_residency.errors import TraceError

DTYPES = ("auto", "bfloat16", "float16", "float32")
LOAD_IN = ("4bit", "8bit")
_STACKED = 3
"""Dimensions of a tensor that holds all experts of a layer."""


def load(
    name: str,
    *,
    device: str | None = None,
    device_map: str | None = None,
    dtype: str | None = None,
    load_in: str | None = None,
) -> tuple[Any, Any]:
    """A causal language model and its tokenizer.

    Parameters
    ----------
    name
        Hub name or folder.
    device
        Where the whole model goes; the CPU if None.
    device_map
        Instead: how `accelerate` spreads it, `auto`, `balanced`, `sequential`, or a device.
    dtype
        Of the weights: `auto` (if None), `bfloat16`, `float16` or `float32`.
    load_in
        `4bit` (NF4) or `8bit`, by bitsandbytes.

    Returns
    -------
    tuple
        Model and tokenizer.

    Raises
    ------
    TraceError
        A package that is missing, choices that do not go together, or a model that cannot be loaded.
    """
    import torch
    import transformers

    library: Any = transformers
    dtype = dtype or "auto"
    _check(device, device_map, dtype, load_in)
    options: dict[str, Any] = {"torch_dtype": dtype}
    if device_map:
        options["device_map"] = device_map
    if load_in:
        options["quantization_config"] = library.BitsAndBytesConfig(
            load_in_4bit=load_in == "4bit", load_in_8bit=load_in == "8bit", bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16, llm_int8_enable_fp32_cpu_offload=True,
        )  # fmt: skip
        options.setdefault("device_map", device or "cpu")
    try:
        place = torch.device(device or "cpu")
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        if load_in == "8bit":
            _refuse_stacked(name)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(name, **options)
        if "device_map" not in options:
            model.to(place)
    except (OSError, ValueError, RuntimeError) as error:
        raise TraceError(f"{name}: cannot be loaded: {str(error).splitlines()[0]}") from None
    if load_in == "4bit":
        quantize_stacked(model)
    return model, tokenizer


def _check(device: str | None, device_map: str | None, dtype: str, load_in: str | None) -> None:
    if dtype not in DTYPES:
        raise TraceError(f"unknown dtype {dtype!r} (known: {', '.join(DTYPES)})")
    if device and device_map:
        raise TraceError(f"device {device} and a device map {device_map}: one or the other")
    if load_in and load_in not in LOAD_IN:
        raise TraceError(f"cannot load in {load_in!r} (known: {', '.join(LOAD_IN)})")
    for wanted, what, package in (
        (device_map or load_in, "spreading a model over devices", "accelerate"),
        (load_in, f"loading in {load_in}", "bitsandbytes"),
    ):
        if wanted and importlib.util.find_spec(package) is None:
            raise TraceError(f"{what} needs the package {package}: pip install {package}")


def _refuse_stacked(name: str) -> None:
    """Eight bits are for linear layers; experts in one tensor a layer would stay as they are, and silently so."""
    import torch
    import transformers

    library: Any = transformers
    from expert_residency.traces.record.routers import find_routers

    with torch.device("meta"):
        empty = library.AutoModelForCausalLM.from_config(library.AutoConfig.from_pretrained(name))
    if any(_stacked(router.called) for router in find_routers(empty)):
        raise ValueError(
            "its experts are one tensor a layer, of which bitsandbytes makes no 8 bits; take --load-in 4bit"
        )


def _stacked(experts: Any) -> list[str]:
    """Parameters that hold all experts of a layer."""
    if experts is None:
        return []
    return [name for name, p in experts.named_parameters() if p.ndim == _STACKED and p.is_floating_point()]


def quantize_stacked(model: Any) -> None:
    """Make NF4 of experts that are one tensor a layer, which loading in 4 bits leaves as they were.

    Raises
    ------
    TraceError
        Experts that are not in memory, or a bitsandbytes that cannot do it.
    """
    from expert_residency.traces.record.routers import find_routers

    try:
        from bitsandbytes.nn.parametrize import replace_parameter_4bit
    except ImportError:
        raise TraceError(
            "this bitsandbytes has no 4 bits for experts that are one tensor a layer: pip install -U bitsandbytes"
        ) from None
    for router in find_routers(model):
        experts: Any = router.called
        for name in _stacked(experts):
            if getattr(experts, name).device.type == "meta":
                raise TraceError(
                    f"the device map leaves the experts of layer {router.layer} on the drive: no 4 bits there"
                )
            replace_parameter_4bit(experts, name, quant_type="nf4")
