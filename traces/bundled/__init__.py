"""Traces that ship with the package; README.md says what each is. Generated ones have `meta["synthetic"]`."""

from __future__ import annotations

from importlib import resources

from expert_residency.errors import TraceError
from expert_residency.text import check_known
from expert_residency.traces.trace import RoutingTrace


def list_bundled() -> list[str]:
    """Names of the traces of this package."""
    entries = resources.files("expert_residency.traces.bundled").iterdir()
    return sorted(entry.name.removesuffix(".parquet") for entry in entries if entry.name.endswith(".parquet"))


def load(name: str) -> RoutingTrace:
    """Bundled trace by name.

    Raises
    ------
    TraceError
        Unknown name; the valid ones are listed.
    """
    from expert_residency.traces.parquet import read_parquet

    check_known("bundled trace", name, list_bundled(), TraceError)
    with resources.as_file(resources.files("expert_residency.traces.bundled").joinpath(f"{name}.parquet")) as path:
        return read_parquet(path)
