"""What a context occupies in one architecture, as facts of the model: `[session]` and `[draft]` of its file.

A position of the context has one *cell* in every layer that attends over all of it. How many bytes a cell takes
depends on how an engine stores keys and values (`KV_TYPES`), how many values it has on the model alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from expert_residency.errors import TraceError

KV_TYPES: dict[str, tuple[float, float]] = {
    "int8": (8.25, 8.25),
    "fp16": (16.0, 16.0),
    "q4_0": (4.5, 4.5),
    "k8v4": (8.25, 4.5),
    "q8_0": (8.5, 8.5),
}
"""Bits of a stored key value and of a value value, scales of their blocks included; `K/V` has two types."""


@dataclass(frozen=True)
class DraftShape:
    """The layer of a model that drafts tokens (multi-token prediction).

    Parameters
    ----------
    layer_bytes
        The layer with all its experts, without KV.
    head_bytes
        Its output head, where it has one of its own.
    cell_bytes
        Bytes a position that it keeps beside one KV cell.
    """

    layer_bytes: int
    head_bytes: int
    cell_bytes: int


@dataclass(frozen=True)
class SessionShape:
    """What a context occupies.

    Parameters
    ----------
    kv_layers
        Layers with a KV cell for every position.
    key_values, value_values
        Numbers in a cell; latent attention stores one vector for both, which is counted as keys.
    source
        Where the figures come from.
    state_bytes, buffer_bytes
        Fixed: recurrent state of all layers, small buffers.
    index_cell_bytes, rope_cell_bytes
        Bytes a position over all layers together, always on the card.
    window_layers, window_tokens
        Layers that attend over the last so many positions only.
    window_key_values, window_value_values
        Numbers in a cell of those layers; both 0: as in the others.
    draft
        The draft layer, where the model has one and its sizes are known.
    """

    kv_layers: int
    key_values: int
    value_values: int
    source: str
    state_bytes: int = 0
    buffer_bytes: int = 0
    index_cell_bytes: int = 0
    rope_cell_bytes: int = 0
    window_layers: int = 0
    window_tokens: int = 0
    window_key_values: int = 0
    window_value_values: int = 0
    draft: DraftShape | None = None

    def cell_bytes(self, kv_type: str) -> int:
        """Bytes of one cell of a layer that attends over all, keys and values each rounded up to a byte.

        Raises
        ------
        TraceError
            For an unknown KV type; the valid ones are listed.
        """
        return _cell_bytes(self.key_values, self.value_values, kv_type)

    def window_cell_bytes(self, kv_type: str) -> int:
        """Bytes of one cell of a layer with a window.

        Raises
        ------
        TraceError
            As `cell_bytes`.
        """
        if not self.window_key_values + self.window_value_values:
            return self.cell_bytes(kv_type)
        return _cell_bytes(self.window_key_values, self.window_value_values, kv_type)


def _cell_bytes(keys: int, values: int, kv_type: str) -> int:
    of_keys, of_values = kv_parts(kv_type)
    for part in (of_keys, of_values):
        if part not in KV_TYPES:
            raise TraceError(f"unknown KV type {part!r}; valid ones are {', '.join(KV_TYPES)}")
    bits = KV_TYPES[of_keys][0], KV_TYPES[of_values][1]
    return sum(-(-round(4 * each * n) // 32) for n, each in zip((keys, values), bits, strict=True))


def kv_parts(kv_type: str) -> tuple[str, str]:
    """The types of keys and of values: `q8_0/fp16` has two, any other name is of both."""
    keys, _, values = kv_type.partition("/")
    return keys, values or keys
