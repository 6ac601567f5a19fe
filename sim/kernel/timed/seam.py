"""Names that are bound when the timed kernel is linked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from expert_residency.policies.protocol import Event, Ints
from expert_residency.sim.kernel.timed.tables import Asked, RunTables

run_at: Callable[[int], RunTables]
call: Callable[[int, int, int, int, int, int], int]
"""Ask a compiled policy: address of its code, of its table, the question and three numbers."""

fetch_line: Callable[[int], None]
"""Ask for the cache line at an address."""
asked_state: Callable[[int], Asked]
policy_state: Callable[[int], Any]
policy_learn: Callable[[Any, Event], None]
policy_insert: Callable[[Any, int], None]
policy_remove: Callable[[Any, int], None]
policy_victim: Callable[[Any, int, int, Ints, int], int]
policy_select: Callable[[Any, Event, Ints, int], int]
policy_accepts: Callable[[Any, int, int], bool]
policy_pass_done: Callable[[Any, int, Ints, Ints, Ints], int]
policy_propose: Callable[[Any, Event, Ints, Ints], int]
