"""Which device owns which variable where they are partitioned; the engine goes by it too.

Variables are dealt out whole, so no device has less than the largest of them.
"""

from collections.abc import Sequence


def dealt(sizes: Sequence[int], num_devices: int, by: str = "size") -> list[int]:
    """Which device gets each of some variables: the largest first to the least loaded, or in turn.

    >>> dealt([10, 40, 20, 30], 2)
    [0, 0, 1, 1]
    >>> dealt([10, 40, 20, 30], 2, by="turn")
    [0, 1, 0, 1]
    """
    if by == "turn":
        return [i % num_devices for i in range(len(sizes))]
    loads = [0] * num_devices
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = min(range(num_devices), key=lambda d: (loads[d], d))
        loads[owners[i]] += sizes[i]
    return owners
