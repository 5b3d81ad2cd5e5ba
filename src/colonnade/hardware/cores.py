"""How many cores of the processor this process may use."""

import os


def cores() -> int:
    """Those that the system lets it run on; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
