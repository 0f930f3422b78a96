"""Tell the C library what to do with freed memory."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
MAPPED = 1 << 24
"""Bytes: blocks of this size are no part of the heap, and go back to the system when they are freed."""
_KEPT = 1 << 25  # bytes


@cache
def settle_malloc() -> None:
    """Have the memory of large tensors returned to the system at once, and that of small ones kept for the next.

    glibc would keep large ones in the arenas of its threads, and give back the end of its heap with every tensor of a
    slice: arithmetic in slices then takes several times as long, most of it to map the same pages again.
    """
    with suppress(OSError, AttributeError):  # another C library
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_M_MMAP_THRESHOLD, MAPPED)
        libc.mallopt(_M_TRIM_THRESHOLD, _KEPT)


def release_freed() -> None:
    """Give back what was freed between tensors that are still there: the heap is cut at its end only, by itself."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)
