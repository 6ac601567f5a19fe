"""What a policy is: the whole seam between the simulator and an algorithm.

Keys are integers, `layer_index * experts + expert`. A policy is a small frozen dataclass whose fields are its
parameters; `start` makes its **state**, and the other methods are static functions of that state. State is
any object. Policies that want to run compiled keep it in a `NamedTuple` of sequences made by the given
allocator (Python lists under the SimPy engine, numpy arrays in the kernel) and use only scalar indexing,
integer and float arithmetic, loops and the helpers of `policies.structures`, `policies.heaps` and
`policies.tally`: the same source then serves both engines, and the class says `compiled = True`. Everything else
runs under the SimPy engine as it is.

An event goes through the seam in this order:

1. the cache classifies its members against the residency before the event, and protects them;
2. misses are served;
3. `learn(state, event)`: the policy sees the whole event, members resident or not;
4. for each miss that admission lets in, in the event's order: while room is short
   `victim(state, scope, incoming, guard, tick)` names a resident to leave, `remove` is called for it, and
   at last `insert` for the newcomer.

`victim` may return `incoming` itself, which means: do not admit it. It returns -1 if every resident is
protected. A key is protected while `guard[key] >= tick`. Ties go to the older stamp, then to the lower key.

What a policy need not do it leaves out: `learn`, `insert`, `remove`, `accepts` and `pass_done` of the base classes
do nothing. So `type(policy).learn is AdmissionPolicy.learn` says that nothing is learned, and an engine may spare
itself the call.

Causal policies cannot see the future: only a class that declares `needs_future` is handed a `Future`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from expert_residency.errors import PolicyError
from expert_residency.policies.parameters import check_parameters

Ints = MutableSequence[int]
Floats = MutableSequence[float]
NEVER = 1 << 62
"""Event index of a use that does not come; also the guard of a key that may not leave."""


class Allocator(Protocol):
    """Makes the sequences of a state: lists for the SimPy engine, arrays for the kernel."""

    def ints(self, n: int, fill: int = 0, most: int | None = None) -> Ints:
        """`n` integers, all `fill`.

        `most` promises that they will always lie between -1 and `most`: a compiled engine then keeps them in fewer
        bytes. It need not be given.

        Parameters
        ----------
        n
            Length.
        fill
            First value of every entry.
        most
            A promise that every entry always lies between -1 and `most`; None promises nothing.

        Returns
        -------
        Ints
            (n,) integers.
        """
        ...

    def floats(self, n: int, fill: float = 0.0) -> Floats:
        """`n` floats, all `fill`."""
        ...


class Lists:
    """The allocator of plain Python lists."""

    @staticmethod
    def ints(n: int, fill: int = 0, most: int | None = None) -> Ints:
        """`n` integers, all `fill`.

        Parameters
        ----------
        n
            Length.
        fill
            First value of every entry.
        most
            A promise that lists have no use for.

        Returns
        -------
        Ints
            (n,) integers.
        """
        return [fill] * n

    @staticmethod
    def floats(n: int, fill: float = 0.0) -> Floats:
        """`n` floats, all `fill`."""
        return [fill] * n


class Pool(NamedTuple):
    """What a policy may know of the cache that it manages.

    A *scope* is a part with a capacity of its own: one for a global pool, one a layer for layer quotas.
    """

    keys: int
    layers: int
    experts: int
    top_k: int
    scopes: int
    scope_of: Ints
    """(keys,) scope of each key."""
    size_of: Ints
    """(keys,) bytes of each expert."""
    capacity: Ints
    """(scopes,) bytes."""
    slots: Ints
    """(scopes,) whole experts of the scope's largest size that fit, at least 1."""
    link_mb_per_s: Sequence[int] = ()
    """(layers,) rate of copies to each layer's card; empty in a replay, which has no machine."""
    cpu_mb_per_s: int = 0
    """Rate at which the host computes experts out of page-locked memory, beside the copies; 0 in a replay."""
    resident: Sequence[int] = ()
    """(keys,) 1 where an expert has a slot now, kept up to date by the cache. For prefetch policies: read it, but
    never write it, and not in `start`. Empty where no cache stands behind the call: then nothing is resident."""


class Event(NamedTuple):
    """One (pass, layer): the set of distinct experts wanted, in order of their last row."""

    number: int
    """Running number of the event: the policy's clock."""
    pass_index: int
    layer: int
    offset: int
    """Running number of the event's first look-up."""
    keys: Sequence[int]
    rows: Sequence[int]
    """How many rows of the pass want each key."""
    hits: Sequence[int]
    """1 where the key was resident before the event, else 0."""
    phase: int = 1
    """0 prefill, 1 decode, 2 verify window."""
    request: int = 0
    """Request that the pass belongs to: policies that keep records of one sequence start again when it changes."""


class Predictions(NamedTuple):
    """What was predicted one number of layers ahead, in CSR form by the event that it is for."""

    offsets: Any
    """(events + 1,) integers, numpy."""
    experts: Any
    """(N,) expert ids within the layer, the best first within an event, numpy."""
    scores: Any = None
    """(N,) their scores, falling within an event, numpy; None where none were recorded."""


class Future(NamedTuple):
    """What only an oracle is given."""

    next_use: Sequence[int]
    """(look-ups,) index of the next event that wants the same key; NEVER if none does."""
    event_offsets: Sequence[int]
    """(events + 1,) look-ups of each event."""
    keys: Sequence[int]
    """(look-ups,) keys."""
    counts: Sequence[int]
    """(keys,) events that want each key, over the whole trace."""
    prompt_rows: Sequence[int]
    """(keys,) rows of prefill passes that want each key."""
    first_use: Sequence[int]
    """(keys,) index of the first event that wants each key; NEVER if none does."""


def require_future(future: Future | None, who: str) -> Future:
    """The future that an oracle asked for.

    Raises
    ------
    PolicyError
        If it was not given one; `who` names the policy.
    """
    if future is None:
        raise PolicyError(f"{who} needs the future of the trace")
    return future


@dataclass(frozen=True)
class Policy:
    """What all kinds share: a name, a source, and capabilities declared on the class."""

    name: ClassVar[str]
    source: ClassVar[str]
    needs_future: ClassVar[bool] = False
    compiled: ClassVar[bool] = False
    """Whether it keeps to the compiled subset, as `sim.testing` checks: compiled code checks nothing itself."""

    def __post_init__(self) -> None:
        """Check the parameters, as `policies.parameters` has it."""
        check_parameters(self)


class EvictionPolicy(Policy, ABC):
    """Decides which resident leaves when room is short."""

    may_evict_members: ClassVar[bool] = False
    """Whether members of the current event may leave after they were served (bounds with bypass)."""
    default_placement: ClassVar[str] = "none"
    """Placement used when the user names none."""

    @abstractmethod
    def start(self, pool: Pool, alloc: Allocator, future: Future | None) -> Any:
        """Fresh state for one run.

        Parameters
        ----------
        pool
            Sizes and capacities of the cache (bytes).
        alloc
            Makes the sequences of the state.
        future
            What comes, if the class declares `needs_future`, else None.

        Returns
        -------
        Any
            The state, handed to every other method.

        Raises
        ------
        PolicyError
            A parameter that is out of range, or an oracle without a future.
        """

    @staticmethod
    def learn(state: Any, event: Event) -> None:
        """See one whole event; called once an event, before any admission of it."""

    @staticmethod
    def insert(state: Any, key: int) -> None:
        """`key` has become resident."""

    @staticmethod
    def remove(state: Any, key: int) -> None:
        """`key` is resident no more."""

    @staticmethod
    @abstractmethod
    def victim(state: Any, scope: int, incoming: int, guard: Sequence[int], tick: int) -> int:
        """Resident of `scope` that leaves for `incoming`; `incoming` to bypass; -1 if all are protected.

        Parameters
        ----------
        state
            What `start` made.
        scope
            The part of the cache in which space is short.
        incoming
            Key that needs it; -1 if none does (an event's overflow is trimmed).
        guard
            (keys,) event up to which each key is protected.
        tick
            A key is protected while `guard[key] >= tick`.

        Returns
        -------
        int
            A resident key, `incoming`, or -1.
        """


class AdmissionPolicy(Policy, ABC):
    """Decides whether a miss may take a slot, and what changes between passes."""

    periodic: ClassVar[bool] = False
    """Whether `pass_done` is to be called."""

    @abstractmethod
    def start(self, pool: Pool, alloc: Allocator) -> Any:
        """Fresh state for one run."""

    @staticmethod
    def learn(state: Any, event: Event) -> None:
        """See one whole event, before `select`."""

    @staticmethod
    @abstractmethod
    def select(state: Any, event: Event, misses: Ints, n: int) -> int:
        """Reorder `misses[:n]` (positions in `event.keys`) so that those to admit come first; return how many.

        Parameters
        ----------
        state
            What `start` made.
        event
            The whole event.
        misses
            (keys,) positions in `event.keys`, of which the first `n` count; reordered in place.
        n
            How many misses there are.

        Returns
        -------
        int
            How many to admit, 0 to `n`.
        """

    @staticmethod
    def accepts(state: Any, incoming: int, victim: int) -> bool:
        """Whether `incoming` may displace `victim`, asked when the victim is known.

        Parameters
        ----------
        state
            What `start` made.
        incoming
            Key that wants the slot.
        victim
            Resident that would leave.

        Returns
        -------
        bool
            False turns `incoming` away.
        """
        return True

    @staticmethod
    def pass_done(state: Any, pass_index: int, resident: Sequence[int], newcomers: Ints, victims: Ints) -> int:
        """Swaps to make between two passes, written into `newcomers` and `victims` (-1: a free slot); how many.

        A victim leaves at once; its newcomer counts as resident when the copy has landed. Not called while copies
        of the last swaps are under way: a policy with a period counts passes in `learn`.

        Parameters
        ----------
        state
            What `start` made.
        pass_index
            Number of the pass that ended.
        resident
            (keys,) 1 where resident.
        newcomers
            (keys,) written: keys that get a slot.
        victims
            (keys,) written: the key that leaves for each of them, or -1.

        Returns
        -------
        int
            How many swaps were written.
        """
        return 0


class PrefetchPolicy(Policy, ABC):
    """Asks for copies ahead of need."""

    at_router: ClassVar[bool] = False
    """Called when an event's experts are known, before it is served."""
    at_layer: ClassVar[bool] = False
    """Called when an event is done."""
    at_pass: ClassVar[bool] = False
    """Called when a pass is done, with its last event."""

    @abstractmethod
    def start(self, pool: Pool, alloc: Allocator, future: Future | None, predictions: Any) -> Any:
        """Fresh state; `predictions` is what the trace holds, by look-ahead depth, or None.

        Parameters
        ----------
        pool
            Sizes and capacities of the cache (bytes).
        alloc
            Makes the sequences of the state.
        future
            What comes, if the class declares `needs_future`, else None.
        predictions
            `Predictions` by look-ahead depth in layers, or None.

        Returns
        -------
        Any
            The state, handed to every other method.

        Raises
        ------
        PolicyError
            A parameter that is out of range, an oracle without a future, or predictions that the trace lacks.
        """

    @staticmethod
    def learn(state: Any, event: Event) -> None:
        """See one whole event; called when it is done."""

    @staticmethod
    @abstractmethod
    def propose(state: Any, event: Event, keys: Ints, deadlines: Ints) -> int:
        """Write wanted keys, most urgent first, and the event index each is wanted for; return how many.

        Both sequences have room for `pool.keys` entries. A copy not begun by its deadline is cancelled.

        Parameters
        ----------
        state
            What `start` made.
        event
            The event at which it is asked.
        keys
            (pool.keys,) written: wanted experts, most urgent first, resident ones included.
        deadlines
            (pool.keys,) written: running number of the event that wants each.

        Returns
        -------
        int
            How many were written.
        """


class PlacementPolicy(Policy, ABC):
    """Ranks experts for the initial placement."""

    @property
    def other_texts(self) -> tuple[int, int] | None:
        """Other texts, and tokens of each, whose `Future` it is given instead of the trace's; None: of none."""
        return None

    @abstractmethod
    def rank(self, pool: Pool, future: Future | None) -> list[int]:
        """Keys in the order in which they fill the slots; may be shorter than the pool."""
