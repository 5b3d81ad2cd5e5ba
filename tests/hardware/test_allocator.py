"""Large blocks of memory stay with the process: seen in the C library's own count of mapped blocks."""

import os
import subprocess
import sys

import pytest

from colonnade.hardware.allocator import SETTINGS

# Prints whether blocks are kept, and how many blocks glibc maps for one of 16 MiB.
PROGRAM = """
import ctypes, os
from colonnade.hardware.allocator import keep_blocks
class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]
libc = ctypes.CDLL(None)
libc.mallinfo2.restype, libc.malloc.restype = Info, ctypes.c_void_p
kept = keep_blocks(os.environ)
before = libc.mallinfo2().hblks
libc.malloc(16 * 2**20)
print(kept, libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
@pytest.mark.parametrize(
    ("environment", "told"), [({}, "True 0"), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, "False 1")]
)
def test_large_blocks_come_out_of_the_heap_unless_the_user_settled_it(environment, told):
    plain = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=plain | environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == told
