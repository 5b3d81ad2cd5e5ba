"""Sums by TensorFlow's collectives, which on cards are those of NCCL.

For steps of a training (`run.move.library_sums`), and for the self-test to compare with.

Run as a program, under a watchdog: `python -m colonnade.hardware.probes.collective 4` prints as JSON, for
each of `SIZES`, a checksum of what each of 4 devices holds, and the seconds that a sum took.
"""

import itertools
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware import gpu
from colonnade.hardware.cards import Card
from colonnade.hardware.probes.repeated import seconds_per_round
from colonnade.hardware.probes.watchdog import Answer, ask

# Few numbers and many: libraries take different ways for short and for long messages.
SIZES = (1_000, 4_000_000)
# The value of `reduce=` that asks for it, and what TensorFlow is told.
NAME = HINT = "nccl"
# After so many seconds in which a device has not come, a sum fails. TensorFlow keeps some 18 kB for each sum
# until then, so it cannot be long.
PATIENCE = 30.0
# At the first steps of a trace a device may come late by what it takes to load or compile its kernels.
AT_FIRST = 1800.0
# Of groups and of sums; other users of collectives begin with 1.
_groups: dict[tuple[str, ...], int] = {}
_keys = itertools.count(1_000_000)
# What NCCL is told to say, and where. At any of the levels that tell more than its version it tells that too.
LEVEL, FILE = "NCCL_DEBUG", "NCCL_DEBUG_FILE"
TELL_MORE = ("WARN", "INFO", "TRACE")


def numbers(replica: int, size: int) -> Any:
    """What a device adds: whole numbers, whose sum is exact in float32 in whatever order."""
    return np.random.default_rng(replica).integers(-1000, 1000, size).astype("float32")


def checksum(array: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(array).tobytes())


def refusals(devices: Sequence[str]) -> Iterator[str]:
    """Why the library cannot add up what these devices hold; nothing if it can."""
    cards = hardware.cards_of(devices)
    if not hardware.are_cards(devices):
        yield "is the library of NVIDIA's cards, and these devices are no cards"
    elif not cards:
        yield "needs to know the card of each device, and the driver does not tell"
    elif any(card.mig for card in cards):
        yield "does not work between instances of a card that is divided by MIG"
    elif len({card.uuid for card in cards}) < len(cards):
        yield "takes a card for each device, and some of these share one"
    elif len({card.name for card in cards}) > 1:
        kinds = ", ".join(sorted({card.name for card in cards}))
        yield f"takes cards of one kind, and these are {kinds}"


def tokens(devices: Sequence[str]) -> list[Any]:
    """A variable for each device, which gives its sums their order; to be kept as long as they run.

    With one token for all, TensorFlow would run the devices one after the other, and the first would wait for
    the second for ever.
    """
    made = []
    for device in devices:
        with tf.init_scope(), tf.device(device):
            made.append(tf.Variable(0.0, trainable=False, name="order_of_sums"))
    return made


def next_key() -> int:
    """A key that no sum of this process has yet."""
    return next(_keys)


def summed(tensor: Any, devices: Sequence[str], key: int, token: Any, patience: float | None = None) -> Any:
    """What one device gets for its tensor: the sum over all; to be called on each, with the same key.

    If a device has not come after so many seconds of `patience`, it fails.
    """
    group = _groups.setdefault(tuple(devices), 1000 + len(_groups))
    total = tf.raw_ops.CollectiveReduceV2(
        input=tensor,
        group_size=len(devices),
        group_key=group,
        instance_key=key,
        ordering_token=[token.handle],
        merge_op="Add",
        final_op="Id",
        communication_hint=HINT,
        timeout_seconds=PATIENCE if patience is None else patience,
    )
    return tf.ensure_shape(total, tensor.shape)


def all_reduce(devices: Sequence[str], patience: float | None = None) -> Any:
    """A function from a tensor per device, all of one shape, to their sum on every device, for a graph."""
    order = tokens(devices)

    def sums(tensors: Sequence[Any]) -> list[Any]:
        key, totals = next_key(), []
        for device, tensor, token in zip(devices, tensors, order, strict=True):
            with tf.device(device):
                totals.append(summed(tensor, devices, key, token, patience))
        return totals

    return sums


def means_of(sums_of: Any, devices: Sequence[str]) -> Any:
    """The same with means in place of sums, which stay as large however often they are taken."""

    def means(tensors: Sequence[Any]) -> list[Any]:
        made = []
        for device, total in zip(devices, sums_of(tensors), strict=True):
            with tf.device(device):
                made.append(total / len(devices))
        return made

    return means


def ask_cards(count: int, seconds: float, cards: Sequence[Card] = ()) -> tuple[Answer, str]:
    """What the program above says of so many cards, and the version of NCCL, empty if it took no part.

    It takes these `cards`, or the first that TensorFlow may use. What NCCL says else, because the user asked
    it to, goes to the error output.
    """
    chosen = {gpu.VISIBLE: ",".join(card.uuid for card in cards)} if cards else {}
    settings = {**telling(os.environ), **chosen}
    answer = ask("colonnade.hardware.probes.collective", str(count), seconds=seconds, environment=settings)
    if settings[LEVEL] != "VERSION":
        for line in (line for line in answer.printed if "NCCL" in line):
            print(line, file=sys.stderr)
    versions = (re.search(r"NCCL version ([0-9.]+(?:\+cuda[0-9.]+)?)", line) for line in answer.printed)
    return answer, next((match[1] for match in versions if match), "")


def telling(environment: Mapping[str, str]) -> dict[str, str]:
    """Settings with which NCCL prints its version, the proof that it was NCCL: those of the user if they do.

    >>> telling({"NCCL_DEBUG": "INFO"}), telling({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": "nccl.log"})
    ({'NCCL_DEBUG': 'INFO'}, {'NCCL_DEBUG': 'VERSION'})
    """
    level = environment.get(LEVEL, "").upper()
    # A file it is asked for takes all that it says; but at the lowest level, it prints.
    return {LEVEL: level if level in TELL_MORE and not environment.get(FILE) else "VERSION"}


def main() -> None:
    """Sum on all devices; without cards on virtual ones, where TensorFlow takes its own ring."""
    count = int(sys.argv[1])
    cards = hardware.visible_cards()
    devices = hardware.setup(devices=count, growth=True) if cards else hardware.setup(virtual=count)
    said = []
    for size in SIZES:
        sums_of, tensors = all_reduce(devices, AT_FIRST), []  # whoever asks ends it, if it takes too long
        for i, device in enumerate(devices):
            with tf.device(device):
                tensors.append(tf.constant(numbers(i, size)))
        once = tf.function(lambda *held: sums_of(held), autograph=False)  # noqa: B023 called at once
        sums = [checksum(tensor.numpy()) for tensor in once(*tensors)]
        seconds = seconds_per_round(means_of(sums_of, devices), tensors)
        said.append({"size": size, "sums": sums, "seconds": seconds})
    # NCCL may have been cut off in the middle of a line.
    print("", json.dumps(said), sep="\n", flush=True)


if __name__ == "__main__":
    main()
