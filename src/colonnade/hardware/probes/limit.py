"""Tries whether a memory limit of `cn.setup(memory=...)` holds, by what NVML sees taken.

A limit is set when TensorFlow starts, so it is run as a program: `python -m colonnade.hardware.probes.limit
1024` prints what it found as JSON.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import Card, Machine, detect

MIB = 2**20
# CUDA's context and libraries take memory that TensorFlow's limit does not cover (MiB).
OVERHEAD = 1024
# A smaller limit (MiB) would be lost in that.
SMALLEST = 128
# What is tried, as parts of the limit: this much must fit, and this much more must not.
FITS, TOO_MUCH = 0.75, 0.5


@dataclass(frozen=True)
class MeasuredLimit:
    """What was tried under a limit, and what NVML said meanwhile; all in MiB."""

    limit: int
    used: int
    refused: bool  # what goes beyond the limit

    @property
    def holds(self) -> bool:
        return self.refused and FITS * self.limit <= self.used <= self.limit + OVERHEAD


def limit_for(card: Card) -> int:
    """A limit (MiB) small enough for a card in use, and far below all of it: a lost limit must show."""
    free = card.mib if card.free is None else card.free // MIB
    return min(1024, card.mib // 8, free // 2)


def used(machine: Machine, uuid: str, pid: int, before: int) -> int:
    """What a process takes of a card, in bytes; where NVML does not tell, what is taken since `before`."""
    card = next(card for card in machine.cards if card.uuid == uuid)
    own = [process.memory for process in card.processes if process.pid == pid and process.memory]
    return own[0] if own else before - (card.free or 0)


def measure(limit: int) -> MeasuredLimit:
    """Start TensorFlow with a limit on the first card, take most of it, and ask for more than it."""
    uuid = hardware.visible_cards()[0].uuid
    before = next(card.free or 0 for card in detect().cards if card.uuid == uuid)
    (device,) = hardware.setup(devices=1, memory=limit, growth=False)

    def allocate(mib: int) -> Any:
        with tf.device(device):
            return tf.zeros([mib * MIB // 4])

    return tried(limit, allocate, lambda: used(detect(), uuid, os.getpid(), before) // MIB)


def tried(limit: int, allocate: Callable[[int], Any], taken: Callable[[], int]) -> MeasuredLimit:
    """Take most of a limit and hold it, see what is taken, and ask for more; all in MiB."""
    held = allocate(int(FITS * limit))
    seen = taken()
    try:
        allocate(int(TOO_MUCH * limit))
        refused = False
    except tf.errors.ResourceExhaustedError:
        refused = True
    del held  # not before
    return MeasuredLimit(limit, seen, refused)


if __name__ == "__main__":
    print(json.dumps(asdict(measure(int(sys.argv[1])))))
