"""Recording a trace from a GGUF file, through llama-cpp-python.

llama.cpp calls back after each named node of its graph: `ffn_moe_topk` holds the experts of each row,
`ffn_moe_weights` and what it is scaled to their weights, `ffn_moe_logits` has the router's weights and input as
its sources. A pass is one `llama_decode`; everything is computed on the processor. In a prompt's pass the last
layer has only the row whose logits are asked for, as in any run of this engine.

A *look-ahead prediction* applies layer l's router to the input of layer l - d's. How a model selects by logits
(softmax, sigmoid, a bias, groups) is not in the graph's names, so each way is tried on the layer's own input and
has to give the layer's own choice; where none does, predictions are left out, and the trace says so.

Needs the extra `gguf` (llama-cpp-python).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from expert_residency.errors import TraceError
from expert_residency.traces.geometry import load_model
from expert_residency.traces.record.notes import Notes
from expert_residency.traces.trace import Phase, RoutingTrace

Floats = npt.NDArray[np.float32]
_NODE = re.compile(r"ffn_moe_(topk|logits|(?:logits|probs)_biased|probs|weights(?:_norm|_scaled|_softmax)?)-(\d+)")
_TYPES = {0: np.float32, 1: np.float16, 26: np.int32}
"""Tensor types that are read, by ggml's number."""
_BF16 = 30
_ERROR = 4
"""Level of a message of llama.cpp."""
_QUIET: list[Any] = []
_AGREES = 0.995
"""Share of rows that a way of selecting has to give exactly as the engine, to be believed."""


class _Tensor(ctypes.Structure):
    """`struct ggml_tensor` of ggml.h."""


_Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(_Tensor) * 10), ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64), ("extra", ctypes.c_void_p),
    ("padding", ctypes.c_char * 8),
]  # fmt: skip


@dataclass
class _Layer:
    """What the nodes of one layer's router held in the pass under way."""

    ids: npt.NDArray[np.int64] | None = None
    weights: Floats | None = None
    logits: Floats | None = None


@dataclass
class _Graph:
    """The callback: reads the router's nodes of every layer."""

    library: Any
    layer_index: dict[int, int]
    look_ahead: int
    seen: dict[int, _Layer] = field(default_factory=dict)
    inputs: dict[int, Floats] = field(default_factory=dict)
    """Router inputs of the pass under way, by layer index."""
    gates: dict[int, Floats | None] = field(default_factory=dict)
    """Router weights; None where they are of a type that is not read."""
    biases: dict[tuple[str, int], Floats] = field(default_factory=dict)
    error: Exception | None = None

    def __call__(self, pointer: int, ask: bool, _user: Any) -> bool:
        """Whether a node is wanted; once it is computed, note it."""
        try:
            tensor = ctypes.cast(pointer, ctypes.POINTER(_Tensor)).contents
            found = _NODE.fullmatch(tensor.name.decode("ascii", "replace"))
            if found is None or int(found[2]) not in self.layer_index:
                return not ask
            if not ask:
                self._note(found[1], self.layer_index[int(found[2])], tensor)
        except Exception as error:  # nothing may pass through C
            self.error = error
            return False  # ends the pass
        return True

    def _note(self, node: str, index: int, tensor: _Tensor) -> None:
        layer = self.seen.setdefault(index, _Layer())
        if node == "topk":
            layer.ids = self.read(tensor).reshape(-1, tensor.ne[0]).astype(np.int64)
        elif node == "logits":
            layer.logits = self.read(tensor)
            if self.look_ahead:
                if index not in self.gates:
                    self.gates[index] = self._source(tensor, 0)
                rows = self._source(tensor, 1)
                if rows is not None:
                    self.inputs[index] = rows
        elif node.endswith("_biased") or node == "probs":
            # Logits that stay what they are, bias added, take the name of probabilities.
            bias = self._source(tensor, 1)
            if bias is not None and bias.shape == (1, tensor.ne[0]):
                self.biases["probs_biased" if node == "probs_biased" else "logits_biased", index] = bias.reshape(
                    -1
                )
        elif layer.ids is not None:  # the last of them is what the experts' outputs are multiplied by
            layer.weights = self.read(tensor).reshape(layer.ids.shape)

    def _source(self, tensor: _Tensor, number: int) -> npt.NDArray[Any] | None:
        """What a node was made of; None if there is no such part, or of a type that is not read."""
        if not tensor.src[number] or tensor.src[number].contents.type not in (*_TYPES, _BF16):
            return None
        return self.read(tensor.src[number].contents)

    def read(self, tensor: _Tensor) -> npt.NDArray[Any]:
        """(rows, row length) values of a tensor, wherever its rows lie; dimensions beyond two are rows."""
        kind = np.dtype(np.uint16 if tensor.type == _BF16 else _TYPES[tensor.type])
        ne, nb = list(tensor.ne), list(tensor.nb)
        nbytes = kind.itemsize + sum((n - 1) * step for n, step in zip(ne, nb, strict=True))
        buffer = (ctypes.c_char * nbytes)()
        self.library.ggml_backend_tensor_get(ctypes.byref(tensor), buffer, 0, nbytes)
        flat = np.frombuffer(buffer, dtype=np.uint8)
        values = np.lib.stride_tricks.as_strided(flat, (*ne[::-1], kind.itemsize), (*nb[::-1], 1))
        array = np.ascontiguousarray(values).view(kind).reshape(-1, ne[0])
        if tensor.type == _BF16:
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float32) if kind == np.float16 else array


def record_gguf(
    path: str | Path,
    prompts: Sequence[str] | Sequence[Sequence[int]],
    *,
    decode_tokens: int = 512,
    prefill_chunk: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    look_ahead: int = 1,
    notes: str = "",
) -> RoutingTrace:
    """Run a GGUF file on prompts and record its routing.

    Parameters
    ----------
    path
        The file, or the first of a split one.
    prompts
        Text or token ids of each request; requests run one after the other, each with an empty context.
    decode_tokens
        Decode passes of each request.
    prefill_chunk
        Tokens of one prefill pass; 0 for the whole prompt at once.
    temperature, seed
        Sampling of the continuation; temperature 0 takes the likeliest token.
    look_ahead
        How many layers ahead predictions are recorded; 0 for none.
    notes
        Stored with the trace.

    Returns
    -------
    RoutingTrace
        With weights, phases, positions, and predictions with their scores where the engine's selection could be
        followed.

    Raises
    ------
    TraceError
        No llama-cpp-python, a file that it cannot load, or a model without routers.
    """
    if not Path(path).is_file():
        raise TraceError("no such file", path=path)
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise TraceError("is no GGUF file (another model: --model)", path=path)
    llama = _library()
    geometry = load_model(str(path))
    graph = _Graph(_ggml(), {layer: index for index, layer in enumerate(geometry.layer_ids)}, look_ahead)
    found, passes = Notes(), []
    ahead = _Ahead(graph, look_ahead)
    random = np.random.default_rng(seed)
    with _model(llama, path) as model:
        tokens = [_tokens(llama, model, prompt) for prompt in prompts]
        for number, prompt in enumerate(tokens):
            if not prompt:
                raise TraceError(f"prompt {number} is empty")
        chunk = prefill_chunk or max(map(len, tokens))
        with _context(llama, model, max(map(len, tokens)) + decode_tokens, chunk, graph) as context:

            def forward(part: Sequence[int], request: int, phase: Phase, emits: int, start: int) -> None:
                graph.seen, graph.inputs = {}, {}
                passes.append((request, int(phase), emits))
                try:
                    _decode(llama, context, part, start)
                finally:
                    if graph.error is not None:
                        why = f"llama.cpp's graph is not as expected ({graph.error})"
                        raise TraceError(why, path=path)
                _note_pass(found, graph, len(passes) - 1, start + len(part))
                ahead.add(len(passes) - 1)

            for request, prompt in enumerate(tokens):
                llama.llama_memory_clear(llama.llama_get_memory(context), True)
                for start in range(0, len(prompt), chunk):
                    part = prompt[start : start + chunk]
                    last = int(start + chunk >= len(prompt))
                    forward(part, request, Phase.PREFILL, last, start)
                for step in range(decode_tokens):
                    token = _sample(_logits(llama, model, context), temperature, random)
                    forward([token], request, Phase.DECODE, 1, len(prompt) + step)
    found.predicted, said = ahead.result()
    return found.trace(geometry, passes, {
        "source_engine": f"llama.cpp (llama-cpp-python {llama.__version__}), {Path(path).name}",
        "sampling": f"temperature {temperature:g}, seed {seed}",
        "notes": [*([notes] if notes else []), *said],
    })  # fmt: skip


def _library() -> Any:
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError):
        raise TraceError(
            "recording a GGUF file needs llama-cpp-python: pip install 'expert-residency[gguf]'"
        ) from None
    return llama_cpp


def _ggml() -> Any:
    from llama_cpp import _ggml

    library = _ggml.libggml
    library.ggml_backend_tensor_get.argtypes = [
        ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
    ]  # fmt: skip
    library.ggml_backend_tensor_get.restype = None
    return library


@contextmanager
def _model(llama: Any, path: str | Path) -> Iterator[Any]:
    said: list[str] = []

    def log(level: int, text: bytes, _user: Any) -> None:
        if level == _ERROR and text.strip():
            said.append(text.decode("utf-8", "replace").strip())

    logging = llama.llama_cpp.llama_log_callback(log)
    _QUIET.append(logging)  # the library may speak as long as it is loaded
    llama.llama_log_set(logging, None)
    llama.llama_backend_init()
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(str(path).encode(), options)
    if not model:
        raise TraceError(f"llama.cpp cannot load it ({said[0] if said else 'it does not say why'})", path=path)
    try:
        yield model
    finally:
        llama.llama_model_free(model)


@contextmanager
def _context(llama: Any, model: Any, positions: int, chunk: int, graph: _Graph) -> Iterator[Any]:
    options = llama.llama_context_default_params()
    options.n_ctx, options.n_batch, options.n_ubatch = positions, chunk, chunk
    options.cb_eval = llama.llama_cpp.ggml_backend_sched_eval_callback(graph)
    context = llama.llama_init_from_model(model, options)
    if not context:
        raise TraceError(f"llama.cpp cannot make a context of {positions} positions")
    try:
        yield context
    finally:
        llama.llama_free(context)


def _tokens(llama: Any, model: Any, prompt: str | Sequence[int]) -> list[int]:
    if not isinstance(prompt, str):
        return list(prompt)
    text, vocabulary = prompt.encode(), llama.llama_model_get_vocab(model)
    room = len(text) + 8
    buffer = (llama.llama_token * room)()
    n = llama.llama_tokenize(vocabulary, text, len(text), buffer, room, True, False)
    if n < 0:
        raise TraceError("llama.cpp cannot tokenize the prompt")
    return list(buffer[:n])


def _decode(llama: Any, context: Any, tokens: Sequence[int], start: int) -> None:
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    try:
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, start + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, 0
        batch.logits[len(tokens) - 1] = 1
        if code := llama.llama_decode(context, batch):
            raise TraceError(f"llama.cpp cannot decode {len(tokens)} tokens from position {start} (code {code})")
    finally:
        llama.llama_batch_free(batch)


def _logits(llama: Any, model: Any, context: Any) -> Floats:
    n = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    return np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), shape=(n,))


def _sample(logits: Floats, temperature: float, random: np.random.Generator) -> int:
    if temperature == 0.0:
        return int(logits.argmax())
    shifted = np.exp((logits.astype(np.float64) - logits.max()) / temperature)
    return int(random.choice(len(shifted), p=shifted / shifted.sum()))


def _note_pass(notes: Notes, graph: _Graph, number: int, end: int) -> None:
    """Rows of every layer of a pass; where a layer has fewer than the pass has tokens, they are its last."""
    if not graph.seen:
        raise TraceError("llama.cpp computed no node ffn_moe_topk: this build names it otherwise")
    for index, layer in sorted(graph.seen.items()):
        if layer.ids is None or layer.weights is None:
            raise TraceError(f"llama.cpp computed no ids or weights of MoE layer {index}")
        rows, k = layer.ids.shape
        order = np.argsort(-layer.weights, axis=1, kind="stable")
        notes.counts.append(np.full(rows, k))
        notes.ids.append(np.take_along_axis(layer.ids, order, 1).reshape(-1))
        notes.weights.append(np.take_along_axis(layer.weights, order, 1).reshape(-1))
        notes.place.append((number, index, end - rows))


def _softmax(x: Floats) -> Floats:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True), dtype=np.float32)


def _sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)), dtype=np.float32)


_WAYS: dict[str, Callable[[Floats], Floats]] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "the root of softplus": lambda x: np.sqrt(np.logaddexp(0, x)).astype(np.float32),
}
"""What a router may make of its logits before a bias is added and the k highest are taken."""


@dataclass
class _Ahead:
    """Predictions by each way of selecting, and how often a way gives the engine's own choice."""

    graph: _Graph
    depth: int
    right: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WAYS, 0))
    rows: int = 0
    found: dict[str, dict[tuple[int, int, int], tuple[npt.NDArray[np.int64], Floats]]] = field(
        default_factory=lambda: {way: {} for way in _WAYS}
    )
    unread: bool = False

    def add(self, number: int) -> None:
        """Predictions for the layers of the pass that has just ended."""
        graph = self.graph
        for index, layer in sorted(graph.seen.items()) if self.depth else ():
            gate = graph.gates.get(index)
            if layer.logits is None or layer.ids is None or gate is None:
                self.unread = True
                continue
            k = layer.ids.shape[1]
            own = np.sort(layer.ids, axis=1)
            self.rows += len(own)
            for way in _WAYS:
                same = np.sort(self._best(way, index, layer.logits, k)[0], axis=1) == own
                self.right[way] += int(same.all(axis=1).sum())
            for depth in range(1, min(self.depth, index) + 1):
                earlier = graph.inputs.get(index - depth)
                if earlier is None:
                    continue
                logits = earlier[-len(own) :] @ gate.T
                for way in _WAYS:
                    ids, scores = self._best(way, index, logits, k)
                    self.found[way][depth, number, index] = ids.reshape(-1), scores.reshape(-1)

    def _best(self, way: str, index: int, logits: Floats, k: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """(rows, k) ids of the highest and their scores."""
        biases = self.graph.biases
        scores = _WAYS[way](logits + biases.get(("logits_biased", index), np.float32(0)))
        scores = scores + biases.get(("probs_biased", index), np.float32(0))
        ids = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return ids, np.take_along_axis(scores, ids, 1)

    def result(self) -> tuple[dict[tuple[int, int, int], tuple[npt.NDArray[np.int64], Floats]], list[str]]:
        """Predictions by the way that gives the engine's own choice, and what to say of them."""
        if not self.depth:
            return {}, []
        best = max(self.right, key=lambda way: self.right[way])
        share = self.right[best] / self.rows if self.rows else 0.0
        if self.unread or share < _AGREES:
            why = "router weights of a type that is not read" if self.unread else (
                f"no way tried gives the engine's own choice ({share:.1%} of the rows at best)"
            )  # fmt: skip
            return {}, [f"look-ahead is left out: {why}"]
        return self.found[best], [f"look-ahead selects by {best}, as the engine in {share:.2%} of the rows"]
