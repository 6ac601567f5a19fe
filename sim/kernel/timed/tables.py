"""All that the timed kernel works on, in groups of arrays and numbers.

Python objects of `sim.timed.engine` and `sim.timed.channels` are numbers here: a batch, a flow or a segment is a
place in some arrays, and what an object would call back is a kind that says which function to call. Numbers that
change stand in `RunTables.v`, under the names at the end of this file.
"""

from __future__ import annotations

from typing import NamedTuple

from expert_residency.policies.protocol import Ints
from expert_residency.policies.structures import Links
from expert_residency.traces import Phase


class Trace(NamedTuple):
    """What is asked."""

    offsets: Ints
    """(events + 1,) look-ups of each event."""
    layers: Ints
    event_rows: Ints
    pass_first: Ints
    """(passes + 1,) events of each pass."""
    phase_of: Ints
    request_of: Ints
    keys: Ints
    rows: Ints


class Costs(NamedTuple):
    """`sim.timed.costs.Costs` and the preset's times, in ns."""

    card_of: Ints
    """(layers,)"""
    dense: Ints
    attention: Ints
    """(cards x passes,) what attention over the context adds to each layer."""
    dense_flop: Ints
    flop_per_ns: Ints
    expert_rate: Ints
    expert_launch: Ints
    points: Ints
    """(cards + 1,) first of the measured group times of each card."""
    point_bytes: Ints
    point_ns: Ints
    sync: Ints
    """(cards,) with the host's plan."""
    handoff: Ints
    """(cards x (most rows + 1),)"""
    most_rows: int
    cpu: Ints
    """(sources x layers,)"""
    cpu_rate: Ints
    cpu_flop_per_ns: int
    expert_flop: int
    dispatch: int
    head: int
    first: int
    row: int
    combine: int
    whole_pass: int
    draft: int
    start: int
    send: int
    ahead: int
    copy: int
    fill: int
    fill_copy: int
    beside: int
    predict: int


class Rules(NamedTuple):
    """Choices of the run; flags are 0 or 1."""

    miss: int
    fill: int
    in_flight_waits: int
    overlap: int
    by_layer: int
    """The card computes what was copied when all of the layer's has landed."""
    prefill_admits: int
    pinned_only: int
    fetched: Ints
    """(cards x (most misses + 1),) of so many misses of a layer, those that `hybrid` fetches."""
    most_misses: int
    periodic: int
    members_may_leave: int
    at_router: int
    at_layer: int
    at_pass: int
    insertion: int
    frames: int
    reach: int
    budget: int
    """Bytes a pass, -1 without a limit."""
    swap: int
    swaps_block: int
    link_reads: int
    direct: int
    """Reads of the drive go on all lanes; otherwise the CPU pool faults pages in one after the other."""


class Net(NamedTuple):
    """`SharedNet`: servers, and flows through them."""

    capacity: Ints
    demand: Ints
    asked: Ints
    left: Ints
    """(servers,) while rates are shared out."""
    fixed: Ints
    moving: Ints
    """0 while a flow pays `fixed`, what it pays once."""
    rising: Ints
    remaining: Ints
    rate: Ints
    num: Ints
    den: Ints
    finish: Ints
    kind: Ints
    ref: Ints
    """Engine of a COPY, key of a READ."""
    port: Ints
    """Second server, or -1."""
    order: Ints
    """Flows in the order in which they began."""
    ended: Ints
    free: Ints


class Batches(NamedTuple):
    """`Batch`: copies asked for together; `first`, `current` and `last` are places in `Copies`."""

    state: Ints
    priority: Ints
    deadline: Ints
    kind: Ints
    engine: Ints
    rate: Ints
    size: Ints
    landed: Ints
    first: Ints
    current: Ints
    last: Ints
    submitted: Ints
    refs: Ints
    """Who still holds it besides the engine: the staging ring, a read of the drive."""
    source: Ints
    host_ns: Ints
    """Host time to send it, which an idle engine waits for."""
    reading: Ints
    """1 while it waits for a read of the drive."""
    asked: Ints
    begun: Ints
    """Bytes that it asked of the drive, and that had been begun when it was dropped."""
    read_ns: Ints
    """Time of a read that the link carries out before the first copy."""


class Copies(NamedTuple):
    """One copy each."""

    key: Ints
    next: Ints
    rows: Ints
    """Rows of the event that wait for it."""
    pair: Ints
    """Of a victim that is copied back: batch of its newcomer."""


class Engines(NamedTuple):
    """`CopyEngine`, host to device of each card and then device to host of each card."""

    queues: Links
    """Batches; list 4 x engine + class, and in 4 x engine + 3 prefetches that the drive reads first."""
    current: Ints
    set_up: Ints
    floor: Ints
    port: Ints
    rate: Ints
    """(engines x 2,) from page-locked and from pageable memory."""
    flow_rate: Ints
    """Of the copy in service."""
    in_order: Ints
    nbytes: Ints
    """(engines x 3,) landed, by class."""
    blocked_since: Ints
    awaited: Ints
    blocked_ns: Ints
    blocking_bytes: Ints
    free_batches: Ints
    free_copies: Ints
    finished: Ints
    """Batches that nobody holds any more."""


class Host(NamedTuple):
    """`Host`, `Disk` and `PageCache`."""

    reading: Ints
    left: Ints
    """(keys,) slices of a read that have not landed."""
    wait_first: Ints
    wait_last: Ints
    wait_next: Ints
    """Who waits for a read: a batch, or `batches` + a segment of the CPU pool."""
    batches: int
    queues: Links
    """Keys whose read has slices that have not begun, by class."""
    queued: Ints
    flying: Ints
    """(keys,) slices that have not begun, and those under way."""
    missing: Ints
    """(keys,) slices that were taken back from a read that nobody waits for."""
    priority: Ints
    lanes: int
    latency: int
    lane_rate: int
    page_bytes: int
    slices: int
    cached: int
    """Whether there is a page cache."""
    lists: Links
    """Pages in memory: inactive, then active."""
    pages: Ints
    page_base: int
    page_capacity: int
    share: int
    whole: int


class Cpu(NamedTuple):
    """`CpuPool`: the segments of an event."""

    nbytes: Ints
    fixed: Ints
    solo: Ints
    rate: Ints
    ready: Ints
    fault: Ints
    """Key to read when the pool gets there, or -1."""
    wait_from: Ints
    wait_to: Ints


class Slots(NamedTuple):
    """`CachePool` and `Slots`: in one cache line a key, together with columns of the eviction policy."""

    lines: int
    """Address of the first key's."""
    resident: Ints
    guard: Ints
    ready: Ints
    copy_of: Ints
    """Batch under way, or -1."""
    unused: Ints
    displaced: Ints
    size_of: Ints
    scope_of: Ints
    card_of: Ints
    source_of: Ints
    """Where it lies on the host."""
    used: Ints
    capacity: Ints


class EventPlan(NamedTuple):
    """What becomes of the members of an event: lists, whose lengths are in `RunTables.v`."""

    hits: Ints
    missing: Ints
    sources: Ints
    admitted: Ints
    mark: Ints
    """(members,) FETCHED, DEFERRED, STAGED of this event."""
    wait_batch: Ints
    wait_copy: Ints
    wait_at: Ints
    wait_count: Ints
    cpu_key: Ints
    cpu_source: Ints
    cpu_rows: Ints
    now: Ints
    """Positions of misses that are fetched at once."""
    later: Ints
    """Positions of misses that are fetched in the next wave."""
    fills: Ints
    fill_source: Ints


class Ahead(NamedTuple):
    """`Prefetcher`."""

    keys: Ints
    deadlines: Ints
    ring: Links
    """Keys in the staging ring of each card, oldest first."""
    batch_of: Ints
    stuck_at: Ints
    """(scopes,) last call in which nobody could leave any more."""
    stuck_size: Ints
    read_bytes: Ints
    """(keys,) asked of the drive by a prefetched copy whose account is open."""


class Swaps(NamedTuple):
    """`Exchange`."""

    newcomers: Ints
    victims: Ints
    back: Ints
    """(cards,) batch of victims to copy back, or -1."""
    cards: Ints
    """Cards in the order in which they had a victim."""


class Calls(NamedTuple):
    """Code of the policies behind addresses, and their tables."""

    evict_code: int
    evict_table: int
    evict_records: int
    """Address of what the eviction policy keeps of each key outside that line, and bytes a key; 0 without."""
    evict_width: int
    admit_code: int
    admit_table: int
    admit_learns: int
    """0 if it does nothing then; below: if it accepts whatever it is asked."""
    admit_asks: int
    ahead_code: int
    ahead_table: int
    ahead_learns: int
    event: Ints
    """(8,) numbers of the event in hand, see `policies.protocol.Event`."""
    misses: Ints
    let_in: Ints
    """Event in which each position was let in last."""


class Found(NamedTuple):
    """Results."""

    pass_ns: Ints
    causes: Ints
    distinct: Ints
    routed: Ints
    stats: Ints


class RunTables(NamedTuple):
    """One run."""

    v: Ints
    trace: Trace
    costs: Costs
    rules: Rules
    net: Net
    batches: Batches
    copies: Copies
    engines: Engines
    host: Host
    cpu: Cpu
    slots: Slots
    plan: EventPlan
    ahead: Ahead
    swaps: Swaps
    calls: Calls
    found: Found


class Asked(NamedTuple):
    """What a compiled policy may see besides its own state."""

    event: Ints
    keys: Ints
    rows: Ints
    hits: Ints
    resident: Ints
    guard: Ints
    misses: Ints
    wanted: Ints
    """Room for keys: a prefetcher's, or newcomers."""
    others: Ints
    """Room for their deadlines, or victims."""


PREFILL, VERIFY = int(Phase.PREFILL), int(Phase.VERIFY)
M_CPU, M_FETCH, M_HYBRID, M_STREAM = range(4)
FREE, GUARDED, NEVER_EVICT, STAGING, PAGES = range(5)
SWAP_COPY, SWAP_EXCHANGE, SWAP_STREAMS = range(3)

# Kinds of flows.
COPY, COMPUTE, READ, MOVE = range(4)
# What a landing does.
NOTHING, INTO_SLOT, INTO_RING, SWAPPED, COPIED_BACK = range(5)
# Marks of a position of the event.
FETCHED, DEFERRED, STAGED, WELCOME = 1, 2, 4, 8

# Questions to policies.
LEARN, INSERT, REMOVE, VICTIM = range(4)
SELECT, ACCEPTS, PASS_DONE = 1, 2, 3
PROPOSE = 1

# Numbers of the event in hand.
E_NUMBER, E_PASS, E_LAYER, E_FIRST, E_END, E_PHASE, E_REQUEST = range(7)

(
    PROPOSED, ISSUED, ISSUED_BYTES, USEFUL, USEFUL_BYTES, LATE, LATE_BYTES, WASTED, UNUSED_BYTES, CANCELLED_COPIES,
    CANCELLED_BYTES, DRIVE_ISSUED, DRIVE_ISSUED_BYTES, DRIVE_USEFUL, DRIVE_USEFUL_BYTES, DRIVE_LATE,
    DRIVE_LATE_BYTES, DRIVE_WASTED, DRIVE_WASTED_BYTES, DRIVE_CANCELLED, DRIVE_CANCELLED_BYTES, REFUSED,
    OVER_BUDGET, POLLUTED, POLLUTED_BYTES, WANTED, N_STATS,
) = range(27)  # fmt: skip
STATS = (
    "proposed", "issued", "issued_bytes", "useful", "useful_bytes", "late", "late_bytes", "wasted", "unused_bytes",
    "cancelled", "cancelled_bytes", "drive_issued", "drive_issued_bytes", "drive_useful", "drive_useful_bytes",
    "drive_late", "drive_late_bytes", "drive_wasted", "drive_wasted_bytes", "drive_cancelled",
    "drive_cancelled_bytes", "refused", "over_budget", "polluted", "polluted_bytes", "wanted",
)  # fmt: skip
"""Fields of `sim.timed.result.PrefetchStats` in the order of `Found.stats`."""

(
    NOW, STATUS, FROM_PASS, TO_PASS, NUMBER, CARD, PASS,  # the clock and where the walk is
    SETTLED, WAKE, FLOWS, FREE_FLOWS, ENDING, CHANGED,  # the net
    USED_BATCHES, FREE_BATCHES, USED_COPIES, FREE_COPIES, FINISHED,  # copies
    ACTIVE_READS, AHEAD_READS, DRIVE_BLOCKED_SINCE, DRIVE_BLOCKED_NS, DRIVE_BLOCKING_BYTES,  # the drive
    ACTIVE_PAGES, INACTIVE_PAGES, DISK_BYTES,  # the host
    SEGMENTS, SEGMENT, WAITING_SINCE, CPU_WAITS, CPU_BUSY, CPU_BYTES,  # the CPU pool
    EVICTIONS, ADMITTED_BYTES, GPU_BYTES, WAVES,  # sums
    HIT_BYTES, HIT_ROWS, MISSING, WAITS, CPU_WORK, FILLS, SENDS, ADMITTED, NOWS, LATERS,  # the plan of an event
    SPENT_BYTES, SERIAL, COPYING, MOVING, MOVED_BYTES, STUCK, FAULT, FAULT_KEY, N_NUMBERS,
) = range(55)  # fmt: skip

OK, SWAPS_ONLY, OUT_OF_RECORDS, NEVER_WOKEN, POLICY_BROKE = range(5)
"""Values of STATUS."""
