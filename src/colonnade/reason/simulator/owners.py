"""Which device owns which variable where they are partitioned: the rule of the engine, on sizes alone.

The engine deals out whole variables, so no device has less than the largest of them. `run.variables.homes`
has the same rule for the variables of TensorFlow; a test holds them against each other.
"""

from collections.abc import Sequence


def dealt(sizes: Sequence[int], num_devices: int) -> list[int]:
    """The device of each variable: the largest first, always to the device that has least.

    >>> dealt([10, 40, 20, 30], 2)
    [0, 0, 1, 1]
    """
    loads = [0] * num_devices
    owners = [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        owners[i] = min(range(num_devices), key=lambda d: (loads[d], d))
        loads[owners[i]] += sizes[i]
    return owners
