"""Device names in the order in which people count them."""

from collections.abc import Iterable


def in_order(devices: Iterable[str]) -> list[str]:
    """Devices by kind and number.

    >>> in_order(["CPU:10", "CPU:2"])
    ['CPU:2', 'CPU:10']
    """

    def parts(device: str) -> tuple[str, int]:
        kind, _, number = device.rpartition(":")
        return (kind, int(number)) if number.isdigit() else (device, -1)

    return sorted(devices, key=parts)
