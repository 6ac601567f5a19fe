"""Functions that are only ever parts of one compiled loop: linked into it, and optimized and translated with it.

By itself numba optimizes each function that a loop calls, makes machine code of it, and optimizes it once more in
everything that calls it. That code is never run, so that it need not be made: half of the time of compiling.

numba has no option for it, so this replaces steps of its code generator, which are private: only under the
versions in `tried`. It pays with the timed kernel, whose first compile takes 20 to 25 s of CPU without and 9 to
11 s with it; a replay kernel takes about 4 s either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from expert_residency.sim.kernel.compiler.tried import is_tried


class _Part(JITCodeLibrary):
    """A function, and those that it calls, as they were lowered."""

    def _optimize_final_module(self) -> None:
        """Left to the library into which this one is linked."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """No machine code."""
        return 0


@contextmanager
def parts_of(loop: str) -> Iterator[None]:
    """While this lasts, only the function of this name is made to be run."""
    if not is_tried():
        yield
        return
    codegen: Any = cpu_target.target_context.codegen()

    def create_library(name: str, **options: Any) -> Any:
        kind: Any = JITCodeLibrary if name == loop else _Part
        return kind(codegen, name, **options)

    def set_env(name: str, env: Any) -> None:
        if codegen._engine.get_global_value_address(name):  # a part has no place of its own in memory
            usual(name, env)

    usual = codegen.set_env
    with global_compiler_lock:
        codegen.create_library, codegen.set_env = create_library, set_env
        try:
            yield
        finally:
            del codegen.create_library, codegen.set_env
