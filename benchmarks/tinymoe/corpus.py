"""Text that lies on the machine -> token ids: prose (manuals, books, handbooks) and code (Python sources).

    python benchmarks/tinymoe/corpus.py --prose /usr/share/doc /usr/share/perl --code LIB... --out corpus.npz

A byte-level BPE is trained on a sample of both kinds. One document in 64 (by a hash of its name) is held out.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

VOCAB = 8192
END_OF_TEXT = 0
HELD_OUT = 64
MACHINE_MADE = re.compile(r"gcloud|/tests?/data|_pb2|unicode_data")
FOREIGN = re.compile(r"[./-](?!en)[a-z]{2}(-[A-Z]{2}|_[A-Z]{2})?(/|\.html|\.gz|\.txt)")


class _Text(HTMLParser):
    """Visible text of a page; blocks end lines."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.hidden += tag in ("script", "style", "head")
        if tag in ("p", "div", "li", "h1", "h2", "h3", "tr", "br", "dt", "dd", "pre"):
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style", "head")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def prose(path: Path) -> str:
    """Readable English of a file, or nothing."""
    name = path.name.removesuffix(".gz")
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", errors="ignore")
    if name.endswith((".html", ".htm")):
        parser = _Text()
        parser.feed(text)
        text = "".join(parser.parts)
    elif re.search(r"\.[1-8]$", name):
        text = re.sub(r"\\f.|\\&|^[.'].*$|\\-", lambda m: "-" if m[0] == "\\-" else "", text, flags=re.M)
    elif not name.endswith((".txt", ".pod")):
        return ""
    lines = [re.sub(r"\s+", " ", line).strip() for line in text.splitlines()]
    kept = [
        line for line in lines if len(line) > 20 and sum(c.isalpha() or c == " " for c in line) > 0.85 * len(line)
    ]
    return "\n".join(kept)


def code(path: Path) -> str:
    """A Python source file."""
    return path.read_text(encoding="utf-8", errors="ignore") if path.suffix == ".py" else ""


def collect(roots: list[Path], read: Callable[[Path], str], limit: int) -> tuple[list[str], list[str]]:
    """(training, held-out) documents, each once, up to `limit` characters."""
    train: list[str] = []
    held: list[str] = []
    seen: set[bytes] = set()
    total = 0
    paths = sorted((p for root in roots for p in root.rglob("*") if p.is_file() and not p.is_symlink()),
                   key=lambda p: hashlib.sha256(p.name.encode() + str(p.parent).encode()).digest())  # fmt: skip
    for path in paths:
        if MACHINE_MADE.search(str(path)) or (read is prose and FOREIGN.search(str(path))):
            continue
        try:
            text = read(path)
        except (OSError, EOFError):
            continue
        digest = hashlib.sha256(text.encode("utf-8", errors="ignore"))
        if len(text) < 500 or len(text) > 400_000 or digest.digest() in seen:
            continue
        seen.add(digest.digest())
        (held if int(hashlib.sha256(path.name.encode()).hexdigest(), 16) % HELD_OUT == 0 else train).append(text)
        total += len(text)
        if total > limit:
            break
    return train, held


def main() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prose", nargs="+", type=Path, required=True)
    parser.add_argument("--code", nargs="+", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=60_000_000, help="characters of each kind")
    args = parser.parse_args()

    texts = {"prose": collect(args.prose, prose, args.limit), "code": collect(args.code, code, args.limit)}
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    sample = [text for train, _ in texts.values() for text in train[: len(train) // 3]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(sample, trainer)
    arrays = {}
    for kind, parts in texts.items():
        for split, documents in zip(("train", "held"), parts, strict=True):
            encoded = tokenizer.encode_batch(documents)
            arrays[f"{kind}_{split}"] = np.concatenate(
                [np.asarray([*e.ids, END_OF_TEXT], dtype=np.uint16) for e in encoded]
            )
            print(kind, split, len(documents), "documents,", sum(map(len, documents)), "characters,",
                  len(arrays[f"{kind}_{split}"]), "tokens")  # fmt: skip
    np.savez_compressed(args.out, **arrays)
    tokenizer.save(str(args.out.with_suffix(".tokenizer.json")))


if __name__ == "__main__":
    main()
