"""Tries copies from device to device: whether every byte arrives, where, and how fast.

TensorFlow brings what a function returns to the caller's device, so the place of a result tells nothing.
Here the target itself sums up the bytes, and the graph as it was placed tells which device did that.

A single copy takes less time than a call, so speed is that of many copies in a loop of one graph. After each
the target reads some numbers of it, and their sum is the witness that so many copies arrived.

Run as a program, under a watchdog: `python -m colonnade.hardware.probes.copies` tries every pair of the cards
that TensorFlow sees, and prints as JSON what came of it.
"""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import placement, short
from colonnade.hardware.probes.probe import Copy
from colonnade.hardware.probes.repeated import timed

ROW = 4096  # bytes; sums of so many are exact in float32, and so are those of as many rows
LARGE = 2**26  # bytes between cards, so that bandwidth and not latency is measured
ROUNDS = 21
READ = 64  # numbers of each copy that the target reads

# Takes a tensor and the devices from which and to which it goes; returns it on the second one.
Move = Callable[[Any, str, str], Any]


@dataclass(frozen=True)
class Arrival:
    """What came of a copy; `bandwidth` is in bytes per second, without what a call takes."""

    intact: bool  # also when it was repeated
    read_on: str  # the device that summed up the bytes
    bandwidth: float


def send(move: Move, source: str, target: str, size: int) -> Arrival:
    """Copy so many random bytes, a multiple of `ROW`."""
    sent = np.random.default_rng(5).integers(0, 256, size, dtype="uint8")
    with tf.device(source):
        held = tf.identity(tf.constant(sent.view("float32")))

    @tf.function(autograph=False)
    def summed(held: Any) -> Any:
        arrived = move(held, source, target)
        with tf.device(target):
            rows = tf.reshape(tf.cast(tf.bitcast(arrived, tf.uint8), tf.float32), [-1, ROW])
            return tf.concat([tf.reduce_sum(rows, axis=0), tf.reduce_sum(rows, axis=1)], axis=0)

    rows = sent.reshape(-1, ROW).astype("int64")
    expected = np.concatenate([rows.sum(axis=0), rows.sum(axis=1)])
    # Concrete functions, because TensorFlow warns of one that is traced for every pair.
    intact = np.array_equal(summed.get_concrete_function(held)(held).numpy(), expected)
    sums = (row.actual for row in placement(summed, held).ops if row.op == "Sum")
    seconds, complete = _repeated(move, source, target, size)
    return Arrival(intact and complete, ", ".join(sorted(set(map(short, sums)))), size / seconds)


def _repeated(move: Move, source: str, target: str, size: int) -> tuple[float, bool]:
    """Seconds of a copy of so many bytes, one of many, and whether the target has read all of them."""
    numbers = np.random.default_rng(6).integers(0, 256, size // 4).astype("float32")
    places = np.linspace(0, len(numbers) - 1, READ).astype("int64")
    with tf.device(source):
        held = tf.identity(tf.constant(numbers))
    with tf.device(target):
        seen = tf.identity(tf.constant(0.0))

    def copied(now: Sequence[Any]) -> list[Any]:
        arrived = move(now[0], source, target)
        with tf.device(target):
            return [now[0], now[1] + tf.reduce_sum(tf.gather(arrived, places))]

    seconds, (_, witness) = timed(copied, [held, seen], ROUNDS)
    return seconds, witness == ROUNDS * float(numbers[places].sum())


def to_target(held: Any, source: str, target: str) -> Any:
    with tf.device(target):
        return tf.identity(held)


def main() -> None:
    """Copy between every two cards; they are named by their place on the PCI bus."""
    cards = hardware.visible_cards()
    places = list(zip(cards, hardware.setup(growth=True), strict=True))
    attempts = []
    for (card, source), (other, target) in itertools.permutations(places, 2):
        arrival = send(to_target, source, target, LARGE)
        arrived = arrival.intact and arrival.read_on == short(target)
        attempts.append(asdict(Copy(card.index, other.index, arrived, arrival.bandwidth)))
    print(json.dumps(attempts))


if __name__ == "__main__":
    main()
