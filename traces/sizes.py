"""How much a packed file may unpack to, so that a damaged or forged one does not take all memory."""

from __future__ import annotations

import io
from collections.abc import Callable

from expert_residency.errors import TraceError

MOST_TIMES = 100
"""Packed traces shrink by 3 to 20; gzip shrinks zeros by 1,030."""
ALWAYS_BYTES = 1 << 30
"""What may come out of any file."""
_CHUNK = 1 << 24


def check_unpacked(nbytes: int, packed_bytes: int, path: object) -> None:
    """Refuse what unpacks to far more than traces do.

    Parameters
    ----------
    nbytes
        Unpacked, as claimed or as counted so far.
    packed_bytes
        Of the file.
    path
        Named in the error.

    Raises
    ------
    TraceError
        More than `ALWAYS_BYTES` and more than `MOST_TIMES` the file.
    """
    if nbytes > max(ALWAYS_BYTES, MOST_TIMES * packed_bytes):
        raise TraceError(
            f"unpacks to more than {nbytes / 2**30:,.1f} GiB from {packed_bytes:,} bytes, over {MOST_TIMES} times "
            "its size, which no trace does; if it is one, unpack it first",
            path=path,
        )


def read_limited(read: Callable[[int], bytes], packed_bytes: int, path: object) -> bytes:
    """All that `read` unpacks, some bytes at a time.

    Parameters
    ----------
    read
        Gives up to so many bytes, none at the end.
    packed_bytes
        Of the file.
    path
        Named in the error.

    Returns
    -------
    bytes
        The whole.

    Raises
    ------
    TraceError
        As `check_unpacked`.
    """
    whole = io.BytesIO()
    while data := read(_CHUNK):
        whole.write(data)
        check_unpacked(whole.tell(), packed_bytes, path)
    return whole.getvalue()
