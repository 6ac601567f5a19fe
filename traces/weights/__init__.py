"""A model from its own files: headers of GGUF and safetensors are read, never a tensor's data."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from expert_residency.errors import TraceError

if TYPE_CHECKING:
    from expert_residency.traces.model_file import ModelFile

SUFFIXES = (".gguf", ".json", ".safetensors")
"""Files that `read_weights` takes beside folders; a file of any other name is looked into."""


def is_weights(spec: str) -> bool:
    """Whether a model's weights are meant: their suffix, a folder, or a file that begins as GGUF does."""
    if spec.endswith(".toml"):
        return False
    if spec.lower().endswith(SUFFIXES):
        return True
    path = Path(spec)
    try:
        if path.is_file():
            with path.open("rb") as file:
                return file.read(4) == b"GGUF"
        return path.is_dir()
    except OSError:
        return False


def read_weights(spec: str) -> ModelFile:
    """Shape and sizes of a model as its files have them, with one quantization.

    Raises
    ------
    TraceError
        No such file, a file that is damaged or is no mixture-of-experts model; with file and place.
    """
    path = Path(spec)
    try:
        if path.is_dir():
            path = _in_folder(path)
        path.stat()
        state = _state(path)
    except FileNotFoundError:
        raise TraceError("no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror})", path=path) from None
    return _read(path, state)


def _state(path: Path) -> tuple[tuple[str, int, int], ...]:
    """Names, times and sizes of the files beside it that may be the same model's; while they stay, so does it."""
    beside = (p for p in path.parent.iterdir() if p.suffix.lower() in SUFFIXES or p == path)
    return tuple(sorted((p.name, s.st_mtime_ns, s.st_size) for p in beside if p.is_file() for s in [p.stat()]))


@lru_cache(maxsize=16)
def _read(path: Path, _state: tuple[tuple[str, int, int], ...]) -> ModelFile:
    from expert_residency.traces.weights.checkpoint import model_file
    from expert_residency.traces.weights.gguf_model import read_gguf_model
    from expert_residency.traces.weights.huggingface import read_huggingface_model

    huggingface = path.suffix.lower() in (".json", ".safetensors")
    return model_file(read_huggingface_model(path) if huggingface else read_gguf_model(path))


def _in_folder(folder: Path) -> Path:
    """The file of a folder to begin with: `config.json`, or the only GGUF file (the first one of a split)."""
    config = folder / "config.json"
    if config.is_file():
        return config
    found = sorted(p for p in folder.iterdir() if p.suffix.lower() == ".gguf" and "mmproj" not in p.name.lower())
    first = [p for p in found if "-of-" not in p.stem or "-00001-of-" in p.stem]
    if len(first) == 1:
        return first[0]
    if found:
        names = ", ".join(p.name for p in (first or found)[:5])
        raise TraceError(f"the folder has several GGUF files; name one of them ({names})", path=folder)
    raise TraceError("no model in this folder (neither config.json nor a .gguf file)", path=folder)
