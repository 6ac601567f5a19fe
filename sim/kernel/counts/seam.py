"""Names of the policies in compiled loops, bound to real functions when a kernel is linked.

`*_state` makes a state out of the kernel's table; the others are the static functions of a policy
(`policies.protocol`) under the names of their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from expert_residency.policies.protocol import Event, Ints

job_state: Callable[[Ints], Any]
evict_state: Callable[[Ints], Any]
evict_learn: Callable[[Any, Event], None]
evict_insert: Callable[[Any, int], None]
evict_remove: Callable[[Any, int], None]
evict_victim: Callable[[Any, int, int, Sequence[int], int], int]
admit_state: Callable[[Ints], Any]
admit_learn: Callable[[Any, Event], None]
admit_select: Callable[[Any, Event, Ints, int], int]
admit_accepts: Callable[[Any, int, int], bool]
admit_pass_done: Callable[[Any, int, Sequence[int], Ints, Ints], int]
fetch_ahead: Callable[[Ints, int], None]
"""Ask for the cache line of an element."""
