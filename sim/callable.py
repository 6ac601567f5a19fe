"""Modules that can be called: `sim.replay(...)` works although `sim.replay` is a module too.

A package attribute and a submodule of the same name shadow each other depending on who was imported first; with
the module itself callable, both orders mean the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


def make_callable(module: str, function: Callable[..., Any]) -> None:
    """Let `module`, which is being imported, be called as `function`."""

    class CallableModule(ModuleType):
        __call__ = staticmethod(function)

    CallableModule.__doc__ = function.__doc__
    sys.modules[module].__class__ = CallableModule
