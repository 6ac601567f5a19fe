"""The errors of the user's making that this package raises."""

from __future__ import annotations


class SimError(ValueError):
    """One sentence: what is wrong, where, and what would be right."""


class MisfitError(SimError):
    """Valid choices, but more bytes than the machine has room for, or less room than one expert takes."""


class CompileError(SimError):
    """What the compiled kernel cannot run; the reference engine still does."""
