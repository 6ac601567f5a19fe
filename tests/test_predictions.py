"""The table of predictions: what changed is said row by row, and the table that is committed is what comes out."""

from __future__ import annotations

import pytest

from tests.predictions import TABLE, Row, changes, predicted, read, written

KEY = ("machine", "a card, a model", 0)


def test_what_moved_is_said_worst_first():
    old = {
        KEY: Row("unseen", 100.0, 105.0),
        ("g", "b", 0): Row("unseen", 50.0, 40.0),
        ("g", "c", 1): Row("u", 1, 1),
    }
    new = {
        KEY: Row("unseen", 100.0, 110.0),
        ("g", "b", 0): Row("unseen", 50.0, 45.0),
        ("g", "d", 0): Row("u", 1, 1),
    }
    assert changes(old, new) == [
        "WORSE +5.0 % -> +10.0 %: machine: a card, a model",
        "went: g: c (2)",
        "came: g: d",
        "-20.0 % -> -10.0 %: g: b",
    ]
    assert changes(old, old) == []
    assert changes({KEY: old[KEY]}, {KEY: Row("unseen", 100.0, 105.2)}) == [], "another platform's arithmetic"


def test_the_table_reads_back():
    rows = {KEY: Row("unseen", 100.0, 105.0), (*KEY[:2], 1): Row("derived", 7.5, 9.0)}
    assert read(written(rows)) == rows


@pytest.mark.slow
def test_predictions_are_those_of_the_table():
    """After a change that is meant: `python -m tests.predictions --update`, and the worse ones in the message."""
    lines = changes(read(TABLE.read_text("utf-8")), predicted())
    assert not lines, "\n".join(lines)
