"""Tables on the screen: at every width each heading, word by word, and each cell is there.

Where the natural widths are too much, text folds, then headings take their short form, then a row becomes a block
of `heading: value`. Numbers are never folded, headings and names, to be copied, only between words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from expert_residency.text import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

GAP = "  "
LONGEST_WORD = 24
"""Cells of text keep words together up to so many characters."""
LONGEST_NAME = 40
"""Names are kept together up to so many characters."""
TALLEST = 8
"""Lines of a cell; what needs more is easier to read as a block."""
_PIECE = re.compile(r"[^,;:/+@=|_-]*[,;:/+@=|_-]+|[^,;:/+@=|_-]+")
"""Where a word without spaces may break: after what joins names and values."""


def _wide(text: str) -> int:
    from rich.cells import cell_len

    return cell_len(text)


def _chopped(word: str, width: int) -> list[str]:
    """Pieces of a word, each at most `width` wide."""
    from rich.cells import chop_cells

    pieces: list[str] = []
    for piece in _PIECE.findall(word):
        pieces += [piece] if _wide(piece) <= width else chop_cells(piece, width)
    return pieces


def fold(text: str, width: int) -> list[str]:
    """Lines of a text, broken at spaces; wider words break after what joins their parts, else anywhere."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split():
            joined = f"{line} {word}" if line else word
            if _wide(joined) <= width:
                line = joined
                continue
            if line:
                lines.append(line)
            line = ""
            for piece in [word] if _wide(word) <= width else _chopped(word, width):
                if line and _wide(line + piece) > width:
                    lines.append(line)
                    line = ""
                line += piece
        lines.append(line)
    return lines


def _longest(texts: Iterable[str]) -> int:
    return max(map(_wide, texts), default=0)


@dataclass(frozen=True)
class Column:
    """Heading, its short form, and whether the cells are numbers, or names that are never broken."""

    heading: str
    short: str
    numbers: bool
    names: bool = False


class Sheet:
    """A table to be printed by rich; `add_row` takes plain text, in which nothing is markup."""

    def __init__(self, title: str | None, columns: Sequence[Column]) -> None:
        self.title, self.columns = None if title is None else visible(title), list(columns)
        self.rows: list[tuple[list[str], str | None]] = []

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Add a row; cells that are not given at its end stay empty."""
        if len(cells) > len(self.columns):
            raise ValueError(f"{len(cells)} cells for {len(self.columns)} columns")
        self.rows.append(([visible(cell) for cell in cells], style))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        rule = "-" if options.ascii_only else "─"
        for line, style in self.lines(options.max_width, rule):
            yield Text(line, style=style or "", no_wrap=True, overflow="ignore")

    def lines(self, width: int, rule: str = "─") -> Iterator[tuple[str, str | None]]:
        """Lines of at most `width` characters, each with its style; only words of headings may be wider."""
        yield "", None
        if self.title:
            yield from ((line, "italic") for line in fold(self.title, width))
        found = self._layout(width)
        yield from self._blocks(width) if found is None else self._grid(*found, rule)
        yield "", None

    def _cells(self, i: int) -> list[str]:
        return [cells[i] for cells, _ in self.rows if i < len(cells)]

    def _layout(self, width: int) -> tuple[list[str], list[int]] | None:
        """Headings and widths with which the table fits; None if a row must become a block."""
        room = width - len(GAP) * (len(self.columns) - 1)
        for whole_name in (True, False):
            for heads in ([c.heading for c in self.columns], [c.short for c in self.columns]):
                least = [self._least(i, head, whole_name) for i, head in enumerate(heads)]
                if sum(least) > room:
                    continue
                widths = self._spread(heads, least, room)
                if all(
                    len(fold(text, wide)) - text.count("\n") <= TALLEST
                    for i, wide in enumerate(widths)
                    for text in self._cells(i)
                ):
                    return heads, widths
        return None

    def _least(self, i: int, head: str, whole_name: bool) -> int:
        cells, words = self._cells(i), _longest(head.split())
        if self.columns[i].numbers:
            return max(words, _longest(cells))
        longest = _longest(line for text in cells for line in text.split("\n"))
        if whole_name and i == 0 and longest <= LONGEST_NAME:
            return max(words, longest)
        whole = [word for text in cells for word in text.split()]
        pieces = (piece for word in whole for piece in _PIECE.findall(word))
        if self.columns[i].names and _longest(whole) <= LONGEST_NAME:
            return max(words, _longest(whole), 1)
        return max(words, min(_longest(pieces), LONGEST_WORD), 1)

    def _spread(self, heads: list[str], least: list[int], room: int) -> list[int]:
        """Give what is left of the room to the columns that fold most."""
        natural = [
            max(_wide(head), _longest(line for text in self._cells(i) for line in text.split("\n")))
            for i, head in enumerate(heads)
        ]
        widths = list(least)
        for _ in range(room - sum(least)):
            lacking = [i for i in range(len(widths)) if widths[i] < natural[i]]
            if not lacking:
                break
            widths[max(lacking, key=lambda i: natural[i] / widths[i])] += 1
        return widths

    def _grid(self, heads: list[str], widths: list[int], rule: str) -> Iterator[tuple[str, str | None]]:
        rows = [(heads, "bold"), *self.rows]
        for n, (cells, style) in enumerate(rows):
            folded = [fold(text, wide) for text, wide in zip(cells, widths, strict=False)]
            high = max(map(len, folded), default=1)
            if n == 0:  # a heading stands on the rule
                folded = [[""] * (high - len(lines)) + lines for lines in folded]
            for k in range(high):
                parts = [
                    self._set(i, lines[k] if k < len(lines) else "", widths[i]) for i, lines in enumerate(folded)
                ]
                yield GAP.join(parts).rstrip(), style
            if n == 0:
                yield rule * (sum(widths) + len(GAP) * (len(widths) - 1)), None

    def _set(self, i: int, text: str, wide: int) -> str:
        fill = " " * (wide - _wide(text))
        return fill + text if self.columns[i].numbers else text + fill

    def _blocks(self, width: int) -> Iterator[tuple[str, str | None]]:
        """A block a row: the first cell, then headings with their cells, as many to a line as fit."""
        first, *others = self.columns
        for cells, style in self.rows:
            yield from ((line, style or "bold") for line in fold(f"{first.heading}: {cells[0]}", width))
            line = ""
            for column, text in zip(others, cells[1:], strict=False):
                pair = f"{column.heading}: {text or '-'}"
                joined = f"{line} | {pair}" if line else pair
                if "\n" not in pair and _wide(joined) <= width - len(GAP):
                    line = joined
                    continue
                if line:
                    yield GAP + line, style
                *full, line = fold(pair, max(1, width - len(GAP)))
                yield from ((GAP + done, style) for done in full)
            if line:
                yield GAP + line, style


def table(
    title: str | None,
    columns: Sequence[str | tuple[str, str]],
    *,
    left: int = 1,
    also_text: Collection[str] = (),
    also_names: Collection[str] = (),
) -> Sheet:
    """A table whose first `left` columns hold text and the others numbers.

    Parameters
    ----------
    title
        Printed above it.
    columns
        Headings, or pairs of a heading and the short form of it that narrow terminals get.
    left
        How many columns hold text.
    also_text
        Headings of more columns that do.
    also_names
        Headings of columns beside the first whose cells are names.

    Returns
    -------
    Sheet
        Without rows yet.
    """
    pairs = [(column, column) if isinstance(column, str) else column for column in columns]
    return Sheet(
        title,
        [
            Column(
                heading,
                short,
                numbers=i >= left and heading not in also_text,
                names=i == 0 or heading in also_names,
            )
            for i, (heading, short) in enumerate(pairs)
        ],
    )
