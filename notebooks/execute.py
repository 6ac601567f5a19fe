"""Execute notebooks and keep their outputs: `python notebooks/execute.py [FILE ...]`, all by default."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def execute(path: Path) -> None:
    """Run from the top in the notebook's folder; times and versions of the run are not kept."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    book.metadata = nbformat.from_dict(KERNEL | {"language_info": {"name": "python"}})
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(book, path)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]) if sys.argv[1:] else sorted(Path(__file__).parent.glob("*.ipynb")):
        execute(path)
