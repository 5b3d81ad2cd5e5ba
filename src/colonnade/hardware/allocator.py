"""Keeps freed memory of CPU devices for the next op (malloc settings), which makes steps faster.

The C library gives a large block back to the system when it is freed. The next op gets fresh pages, and
each of them costs a page fault. A step of an embedding of 3 million numbers on two devices took 20 ms and
takes 15; on one device no difference was seen.
"""

import ctypes
import sys
from collections.abc import Mapping

# Of <malloc.h>.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

LARGEST = 32 * 2**20  # bytes: the largest block that glibc lets come out of its heap
KEPT = 2**30  # bytes: if more is free at the end of a heap, that goes back to the system

# Whoever sets one of these has settled it.
SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_blocks(environment: Mapping[str, str]) -> bool:
    """Let this process keep freed blocks of up to 32 MiB; whether it does.

    Only glibc has a word for it; and what the user has set stays.
    """
    if not sys.platform.startswith("linux") or any(name in environment for name in SETTINGS):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, LARGEST)) and bool(mallopt(M_TRIM_THRESHOLD, KEPT))
