"""How keys and values are stored where neither the user nor the engine's preset says it; loads nothing."""

KV_TYPE = "fp16"
"""One of `traces.session.KV_TYPES`, or two of them as `K/V`."""
_OTHER_NAMES = {"f16": "fp16", "bf16": "fp16"}


def named(text: str) -> str:
    """A KV type in the words of llama.cpp (`f16`, `Q8_0`), as it is called here."""
    parts = [_OTHER_NAMES.get(plain, plain) for plain in map(str.strip, text.lower().split("/"))]
    return parts[0] if len(set(parts)) == 1 else "/".join(parts)
