"""Tries an all-reduce by TensorFlow's collectives (NCCL on cards), for the self-test to compare with.

Run as a program, under a watchdog: `python -m colonnade.hardware.probes.collective 4` prints as JSON, for
each of `SIZES`, a checksum of what each of 4 devices holds, and the seconds that a sum took.
"""

import json
import re
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware.probes.watchdog import Answer, ask

# Few numbers and many: libraries take different ways for short and for long messages.
SIZES = (1_000, 4_000_000)
ROUNDS = 5
# NCCL then prints its version, which is the proof that it was NCCL.
SETTINGS = {"NCCL_DEBUG": "VERSION"}


def numbers(replica: int, size: int) -> Any:
    """What a device adds: whole numbers, whose sum is exact in float32 in whatever order."""
    return np.random.default_rng(replica).integers(-1000, 1000, size).astype("float32")


def checksum(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def all_reduce(devices: Sequence[str], key: int) -> Any:
    """A function from a tensor per device to their sum on every device; one `key` for one shape."""
    tokens = []
    for device in devices:
        with tf.device(device):
            tokens.append(tf.Variable(0.0))

    @tf.function(autograph=False)
    def summed(*tensors: Any) -> list[Any]:
        sums = []
        for device, tensor, token in zip(devices, tensors, tokens, strict=True):
            with tf.device(device):
                sums.append(
                    tf.raw_ops.CollectiveReduceV2(
                        input=tensor,
                        group_size=len(devices),
                        group_key=1,
                        instance_key=key,
                        # With one token for all, TensorFlow would run the replicas one after the
                        # other, and the first would wait for the second for ever.
                        ordering_token=[token.handle],
                        merge_op="Add",
                        final_op="Id",
                        communication_hint="nccl",
                    )
                )
        return sums

    return summed


def ask_cards(count: int, seconds: float) -> tuple[Answer, str]:
    """What the program above says of so many cards, and the version of NCCL, empty if it took no part."""
    answer = ask("colonnade.hardware.probes.collective", str(count), seconds=seconds, environment=SETTINGS)
    versions = (re.search(r"NCCL version ([0-9.]+(?:\+cuda[0-9.]+)?)", line) for line in answer.printed)
    return answer, next((match[1] for match in versions if match), "")


def main() -> None:
    """Sum on all devices; without cards on virtual ones, where TensorFlow takes its own ring."""
    count = int(sys.argv[1])
    cards = hardware.visible_cards()
    devices = hardware.setup(devices=count, growth=True) if cards else hardware.setup(virtual=count)
    said = []
    for key, size in enumerate(SIZES):
        summed, tensors = all_reduce(devices, key), []
        for i, device in enumerate(devices):
            with tf.device(device):
                tensors.append(tf.constant(numbers(i, size)))
        took = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            sums = [tensor.numpy() for tensor in summed(*tensors)]
            took.append(time.perf_counter() - start)
        said.append({"size": size, "sums": [checksum(each) for each in sums], "seconds": min(took)})
    print(json.dumps(said))


if __name__ == "__main__":
    main()
