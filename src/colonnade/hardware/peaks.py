"""How much memory was in use at most: of each card, and of the process, which CPU devices share."""

import resource
import sys
from collections.abc import Sequence

import tensorflow as tf


def device_peaks(devices: Sequence[str]) -> dict[str, int]:
    """By card the most bytes that TensorFlow held there; of CPU devices it does not tell."""
    return {
        device: int(tf.config.experimental.get_memory_info(device.removeprefix("/device:"))["peak"])
        for device in devices
        if device.startswith("/device:GPU:")
    }


def process_peak() -> int:
    """The most bytes of main memory that this process held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
