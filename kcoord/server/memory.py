"""Keeps the memory of large answers and requests, instead of returning it to the system after each of them.

A fetch of a megabyte takes a megabyte for as long as it takes to send it. By default the C library of Linux gives such
memory back at once, and the next fetch gets new pages, which the system must find and clear: that took more CPU time
than reading and sending the records.
"""

from __future__ import annotations

from typing import Final

# Names and numbers of mallopt(3) in glibc.
M_TRIM_THRESHOLD: Final = -1
M_MMAP_THRESHOLD: Final = -3
# Free memory at the end of the heap up to this size stays with the process.
KEPT_BYTES: Final = 64 << 20
# The largest value that glibc accepts on 64-bit systems. Larger blocks are returned as soon as they are free.
HEAP_BLOCK_BYTES_MAX: Final = 32 << 20


def keep_freed_memory() -> bool:
    """Tell the C library; whether it understands. Other C libraries have no such setting."""
    try:
        import ctypes

        mallopt = ctypes.CDLL(None).mallopt
    except (ImportError, OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES_MAX)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
