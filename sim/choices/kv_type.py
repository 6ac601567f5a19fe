"""How keys and values are stored where neither the user nor the engine's preset says it; loads nothing."""

KV_TYPE = "fp16"
"""One of `traces.session.KV_TYPES`."""
_OTHER_NAMES = {"f16": "fp16", "bf16": "fp16"}


def named(text: str) -> str:
    """A KV type in the words of llama.cpp (`f16`, `Q8_0`), as it is called here."""
    plain = text.strip().lower()
    return _OTHER_NAMES.get(plain, plain)
