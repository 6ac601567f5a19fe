"""The arithmetic of the timed model, once: integers in, integers out, no queue and no state.

The reference engine calls these functions as they stand and the kernel compiles them from this source, so that the
two cannot disagree on a number. What happens in which order stands in `sim.timed.engine` and once more in
`sim.kernel.timed`: written twice on purpose, and held against each other by tests.

Only scalars, indexing and integer arithmetic are used (the compiled subset, as in `policies.structures`). Times
are ns, rates MB/s (10^6 bytes a second), and bytes over a rate are rounded up. Weights are read once however many
rows use them; with many rows arithmetic may take longer, so a compute time is the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence

# ---- moving bytes --------------------------------------------------------------------------------


def bytes_ns(nbytes: int, mb_per_s: int) -> int:
    """Time of bytes at a rate, without any latency."""
    return -(-nbytes * 1000 // mb_per_s)


def copy_ns(nbytes: int, mb_per_s: int, submit_ns: int) -> int:
    """Time of one copy alone on its link, without the set-up of an idle engine.

    Parameters
    ----------
    nbytes, mb_per_s
        Bytes copied, and the rate of the link.
    submit_ns
        Least time between two copies, however small.

    Returns
    -------
    int
        ns.
    """
    return max(-(-nbytes * 1000 // mb_per_s), submit_ns)


def read_ns(nbytes: int, latency_ns: int, mb_per_s: int) -> int:
    """Time of one read that has its lane of the drive to itself.

    Parameters
    ----------
    nbytes
        Whole pages.
    latency_ns, mb_per_s
        Latency of a read, and the rate of a lane.

    Returns
    -------
    int
        ns.
    """
    return latency_ns - (-nbytes * 1000 // mb_per_s)


def page_bytes_of(nbytes: int, slices: int, page_bytes: int) -> int:
    """Bytes of each read of an expert that lies in some slices of its file.

    Parameters
    ----------
    nbytes
        Size of the expert.
    slices
        Reads that make one expert.
    page_bytes
        A read is whole pages of so many bytes.

    Returns
    -------
    int
        Bytes of one of the reads.
    """
    return -(-nbytes // (slices * page_bytes)) * page_bytes


def move_ns(nbytes: int, mb_per_s: int) -> int:
    """Time of moving bytes within memory: each is read and written."""
    return bytes_ns(2 * nbytes, mb_per_s)


# ---- shared servers ------------------------------------------------------------------------------


def slowed_ns(solo_ns: int, num: int, den: int) -> int:
    """Time of what takes `solo_ns` alone and is slowed by `num` / `den`, rounded up.

    Parameters
    ----------
    solo_ns
        What is left of the transfer, as if it were alone.
    num, den
        Demand on the server that slows it and what that has left for it (MB/s), or 1 and 1.

    Returns
    -------
    int
        ns.
    """
    return solo_ns if num == den else -(-solo_ns * num // den)


def progress_ns(elapsed_ns: int, num: int, den: int) -> int:
    """What a transfer slowed by `num` / `den` gets done in a time, rounded down: a server never moves too much.

    Parameters
    ----------
    elapsed_ns
        Time that has passed.
    num, den
        As for `slowed_ns`.

    Returns
    -------
    int
        ns of a transfer that is alone.
    """
    return elapsed_ns if num == den else elapsed_ns * den // num


def own_rate(nbytes: int, solo_ns: int, read_ns: int, mb_per_s: int) -> int:
    """What a transfer asks of a server while it moves bytes, MB/s rounded up.

    Parameters
    ----------
    nbytes
        Bytes moved.
    solo_ns
        Its time alone.
    read_ns
        Time of its bytes alone; less than `solo_ns` if something else takes longer (arithmetic, a least time).
    mb_per_s
        Rate of those bytes alone.

    Returns
    -------
    int
        `mb_per_s`, or less if the bytes are spread over a longer time.
    """
    return mb_per_s if solo_ns <= read_ns else max(1, -(-nbytes * 1000 // solo_ns))


def given_rate(mb_per_s: int, num: int, den: int) -> int:
    """What a transfer slowed by `num` / `den` takes of a server, MB/s rounded up: a server never gives too much.

    Parameters
    ----------
    mb_per_s
        Own rate of the transfer.
    num, den
        As for `slowed_ns`.

    Returns
    -------
    int
        MB/s.
    """
    return -(-mb_per_s * den // num)


# ---- computing -----------------------------------------------------------------------------------


def dense_ns(read_ns: int, rows: int, row_flop: int, flop_per_ns: int) -> int:
    """Time of a layer's dense part on a card.

    Parameters
    ----------
    read_ns
        Reading its weights, launches included.
    rows, row_flop
        Rows of the event, and operations of one of them.
    flop_per_ns
        Of the card.

    Returns
    -------
    int
        ns.
    """
    return read_ns if rows == 1 else max(read_ns, rows * row_flop // flop_per_ns)


def group_ns(
    nbytes: int, rows: int, launch_ns: int, mb_per_s: int, row_flop: int, flop_per_ns: int, measured_ns: int
) -> int:
    """Time of a group of experts that a card computes in one go.

    Parameters
    ----------
    nbytes, rows
        Weights of the group, and rows over all its experts.
    launch_ns, mb_per_s, flop_per_ns
        Of the card.
    row_flop
        Operations of one row through one expert, 0 if unknown.
    measured_ns
        Time of a group of so many bytes, launches included, if it was measured (`measured_ns`); else -1.

    Returns
    -------
    int
        ns.
    """
    compute_ns = rows * row_flop // flop_per_ns
    if measured_ns >= 0:
        return max(measured_ns, launch_ns + compute_ns)
    return launch_ns + max(-(-nbytes * 1000 // mb_per_s), compute_ns)


def measured_ns(
    nbytes: int, point_bytes: Sequence[int], point_ns: Sequence[int], first: int, end: int, mb_per_s: int
) -> int:
    """Time of a group of experts by its bytes: lines between points, flat before the first, a rate after the last.

    Parameters
    ----------
    nbytes
        Weights of the group.
    point_bytes, point_ns : (points,)
        What was measured, bytes ascending.
    first, end
        Points of this card; none if they are equal.
    mb_per_s
        Rate of the card.

    Returns
    -------
    int
        ns, or -1 if there is no point.
    """
    if first == end:
        return -1
    after = first
    while after < end and point_bytes[after] <= nbytes:
        after += 1
    if after == first:
        return point_ns[first]
    x, y = point_bytes[after - 1], point_ns[after - 1]
    if after == end:
        return y + bytes_ns(nbytes - x, mb_per_s)
    return y + (nbytes - x) * (point_ns[after] - y) // (point_bytes[after] - x)


def pool_ns(read_ns: int, rows: int, row_flop: int, flop_per_ns: int) -> int:
    """Time of one expert on the CPU pool.

    Parameters
    ----------
    read_ns
        Reading its weights from where they lie.
    rows, row_flop
        Rows that want it, and operations of one of them.
    flop_per_ns
        Of the pool, 0 if unknown.

    Returns
    -------
    int
        ns.
    """
    return read_ns if flop_per_ns == 0 else max(read_ns, rows * row_flop // flop_per_ns)


def handoff_ns(nbytes: int, fixed_ns: int, mb_per_s: int) -> int:
    """Time to hand activations to the next card over one of the two links.

    Parameters
    ----------
    nbytes
        Rows in hand.
    fixed_ns, mb_per_s
        Latency and rate of the link, peer to peer or through mapped host memory.

    Returns
    -------
    int
        ns.
    """
    return fixed_ns + bytes_ns(nbytes, mb_per_s)


# ---- what is waited for --------------------------------------------------------------------------


def disk_part_ns(waited_ns: int, until_submitted_ns: int, read_ns: int, copy_ns: int) -> int:
    """What of a wait for a copy was a wait for the drive; the rest was one for the link.

    Parameters
    ----------
    waited_ns
        The whole wait.
    until_submitted_ns
        From its beginning to when the copy was queued, its bytes being in memory.
    read_ns
        If the link reads the file, the read before the copy; else 0.
    copy_ns
        The copy alone.

    Returns
    -------
    int
        ns.
    """
    if read_ns > 0:
        return max(0, waited_ns - copy_ns)
    return min(max(until_submitted_ns, 0), waited_ns)


def common_ns(start: int, end: int, began: int, now: int) -> int:
    """How long an interval and a wait have in common.

    Parameters
    ----------
    start, end
        The interval, ns.
    began, now
        The wait, ns.

    Returns
    -------
    int
        ns, 0 if they do not meet.
    """
    return max(0, min(end, now) - max(start, began))


def extra_waves(nbytes: int, capacity: int) -> int:
    """Waves after the first of an event that wants `nbytes` from a scope of `capacity` bytes."""
    return -(-nbytes // max(capacity, 1)) - 1 if nbytes > capacity else 0
