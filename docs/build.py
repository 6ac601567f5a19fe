"""Make the tables and figures of these pages anew: `python docs/build.py [--check] [NAME...]`.

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, a number of a shipped profile between
`<!-- value: PROFILE PATH -->` and `<!-- end -->`. `BLOCKS` says which function makes it, `FIGURES`
who draws what is in `img/`. Without names all tables are made that take no time; a page (`split`), a table
(`split:ram`) or a figure (`kernel-scaling.png`) is made when it is named. `--check` writes nothing and fails if a
table is not what is made. Some need the recorded traces: EXPERT_RESIDENCY_SHARED is the folder of `traces/`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from expert_residency.hwmodels.registry import load_profile

HERE = Path(__file__).resolve().parent
SHARED = "EXPERT_RESIDENCY_SHARED"
_BLOCK = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_VALUE = re.compile(r"(<!-- value: (\S+) (\S+) -->)(.*?)(<!-- end -->)")


@dataclass(frozen=True)
class Block:
    """Who makes a table or figure, as `module:function`, and what that takes.

    `argument` is handed to the function; `costly` ones take minutes; `traces` ones need the recorded traces too.
    """

    made_by: str
    argument: str | None = None
    costly: bool = False
    traces: bool = False

    def make(self, *more: Any) -> str:
        """The text of a table; a figure is drawn to the path that is given."""
        module, _, name = self.made_by.partition(":")
        given = (*([self.argument] if self.argument else []), *more)
        return str(getattr(import_module(module), name)(*given))


def _blocks(module: str, *names: str, costly: bool = True, traces: bool = False) -> dict[str, Block]:
    return {name: Block(f"{module}:{name}", None, costly, traces) for name in names}


STYLES = ("qwen3.8-flash-next", "qwen3-30b-a3b", "gpt-oss-20b")
BLOCKS: dict[str, dict[str, Block]] = {
    "hardware": _blocks("expert_residency.hwmodels.tables", "profiles", "machines", costly=False),
    "models": {
        "fields": Block("expert_residency.traces.model_file:fields_table"),
        "packaged": Block("model_tables:packaged"),
        "compared": Block("model_tables:compared"),
    },
    "model-sizes": {"sizes": Block("model_tables:sizes")},
    "vram": _blocks("expert_residency.sim.validation.slots", "breakdown", "slots", costly=False),
    "published": {
        "published": Block("expert_residency.sim.validation.published_table:published_table"),
        "llamacpp": Block("expert_residency.sim.validation.llamacpp:llamacpp_table"),
    },
    "validation": {
        **_blocks("expert_residency.sim.validation.measured.cases", "machines_table"),
        **_blocks("expert_residency.hwmodels.runs.machine_files", "columns_table", costly=False),
    },
    "live": {"live": Block("expert_residency.sim.validation.live_table:shipped_table", costly=True)},
    "synthetic": {name: Block("synthetic_figures:table", name) for name in STYLES},
    "split": _blocks("split_tables", "seed", "ram", "formula", "measured", "third", "pair"),
    "policies": {
        "listing": Block("policy_tables:listing"),
        **_blocks("policy_tables", "claims", "hits", "inversion", "speeds", "length", traces=True),
    },
    "prefetch": {
        "map": Block("prefetch_tables:map_table", costly=True),
        **_blocks("prefetch_tables", "speeds", "rules", "inversion", "line", traces=True),
    },
    "leaderboard": _blocks("leaderboard_tables", "board", traces=True),
    "learned": _blocks("learned_tables", "learned", traces=True),
    "time-bound": _blocks("time_bound_tables", "near"),
}
"""Page to name to block."""
FIGURES = {
    "kernel-scaling.png": Block("kernel_figures:draw", costly=True),
    "leaderboard.png": Block("leaderboard_tables:draw", costly=True, traces=True),
    "split-p40-3070.png": Block("split_tables:draw", costly=True),
    "synthetic-lru.png": Block("synthetic_figures:draw", costly=True),
}


def fill(page: Path, wanted: Iterable[str] | None = None, *, write: bool = True) -> list[str]:
    """Make blocks of a page anew.

    Parameters
    ----------
    page
        The Markdown file; its name without suffix is a key of `BLOCKS`.
    wanted
        Names of blocks; None for those that take no time.
    write
        Whether to write the page.

    Returns
    -------
    list of str
        Names of the blocks that were not what is made.

    Raises
    ------
    SystemExit
        The page and `BLOCKS` do not name the same blocks, or recorded traces are missing.
    """
    blocks = BLOCKS[page.stem]
    chosen = set(wanted if wanted is not None else (name for name, block in blocks.items() if not block.costly))
    text = page.read_text(encoding="utf-8")
    if sorted(there := [found[2] for found in _BLOCK.finditer(text)]) != sorted(blocks):
        raise SystemExit(f"{page}: holds tables {', '.join(there)}, but {', '.join(blocks)} are made")
    stale: list[str] = []

    def made(found: re.Match[str]) -> str:
        name = found[2]
        if name not in chosen:
            return found[0]
        if blocks[name].traces and SHARED not in os.environ:
            raise SystemExit(f"{page.stem}:{name} needs the recorded traces: set {SHARED}")
        new = blocks[name].make()
        if new.strip() == found[3].strip():
            return found[0]
        stale.append(name)
        return f"{found[1]}\n{new.strip()}\n\n{found[4]}"

    def read(found: re.Match[str]) -> str:
        number = f"{value(found[2], found[3]):g}"
        if number != found[4]:
            stale.append(f"{found[2]} {found[3]}")
        return f"{found[1]}{number}{found[5]}"

    new = _VALUE.sub(read, _BLOCK.sub(made, text))
    if write and stale:
        page.write_text(new, encoding="utf-8")
    return stale


def value(profile: str, path: str) -> float:
    """A number of a shipped profile, by its path in the file."""
    found: Any = load_profile(profile)
    for name in path.split("."):
        found = getattr(found, name)
    return float(found.value)


def main(arguments: list[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table is out of date")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a page, page:block, or a figure of img/")
    options = parser.parse_args(arguments)
    known = [*BLOCKS, *(f"{page}:{name}" for page in BLOCKS for name in BLOCKS[page]), *FIGURES]
    for name in options.names:
        if name not in known:
            parser.error(f"unknown name {name!r} (known: {', '.join(known)})")
    asked: dict[str, list[str] | None] = {} if options.names else dict.fromkeys(BLOCKS)
    for name in options.names:
        page, _, block = name.partition(":")
        if page in BLOCKS:
            asked[page] = [*(asked.get(page) or []), *([block] if block else BLOCKS[page])]
        elif not options.check:
            FIGURES[name].make(HERE / "img" / name)
    stale = [
        f"{page}:{name}"
        for page, wanted in asked.items()
        for name in fill(HERE / f"{page}.md", wanted, write=not options.check)
    ]
    for name in stale:
        sys.stdout.write(f"{name} {'is out of date: python docs/build.py' if options.check else 'made anew'}\n")
    if stale and options.check:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
