"""How keys and values are stored where neither the user nor the engine's preset says it; loads nothing."""

KV_TYPE = "fp16"
"""One of `traces.session.KV_TYPES`."""
