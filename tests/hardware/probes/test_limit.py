"""Whether a memory limit holds, with a card and its driver made up."""

from dataclasses import replace

import pytest
import tensorflow as tf
from fresh import fresh

from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import Card, Machine, Process
from colonnade.hardware.probes import limit

GIB = 2**30
CARD = Card(0, "GPU-1", "00000000:01:00.0", "a card", 16 * GIB, free=15 * GIB)


@pytest.mark.parametrize(
    ("used", "refused", "holds"),
    [
        (1400, True, True),
        (1024, True, True),
        (1400, False, False),  # more was granted
        (14000, True, False),  # all of the card was taken
        (500, True, False),  # less than was allocated: another card was limited
    ],
)
def test_whether_a_limit_holds(used, refused, holds):
    assert limit.MeasuredLimit(1024, used, refused).holds == holds


def test_a_limit_that_shows_when_it_is_lost():
    assert limit.limit_for(CARD) == 1024
    assert limit.limit_for(replace(CARD, memory=4 * GIB)) == 512
    assert limit.limit_for(replace(CARD, free=GIB)) == 512


def test_what_a_process_takes_of_a_card():
    own = replace(CARD, free=9 * GIB, processes=(Process(7, None, 2 * GIB), Process(8, None, 4 * GIB)))
    topology = None
    assert limit.used(Machine((own,), topology), "GPU-1", 8, before=15 * GIB) == 4 * GIB
    # NVML does not list processes of another container.
    assert limit.used(Machine((own,), topology), "GPU-1", 9, before=15 * GIB) == 6 * GIB


class Allocator:
    """A card whose allocator hands out so much (MiB), and whose driver sees that and what CUDA takes."""

    def __init__(self, most, *, beside=300):
        self.most, self.held, self.beside = most, [], beside

    def allocate(self, mib):
        if sum(self.held) + mib > self.most:
            raise tf.errors.ResourceExhaustedError(None, None, "no memory")
        self.held.append(mib)
        return self.held

    def taken(self):
        return sum(self.held) + self.beside


@pytest.mark.parametrize(
    ("card", "measured", "holds"),
    [
        (Allocator(1024), limit.MeasuredLimit(1024, 768 + 300, True), True),
        (Allocator(16384), limit.MeasuredLimit(1024, 768 + 300, False), False),  # nothing was limited
        (
            Allocator(1024, beside=13000),
            limit.MeasuredLimit(1024, 13768, True),
            False,
        ),  # all was taken at once
        (
            Allocator(1024, beside=-500),
            limit.MeasuredLimit(1024, 268, True),
            False,
        ),  # another card was limited
    ],
)
def test_most_of_a_limit_fits_and_more_is_refused(card, measured, holds):
    assert limit.tried(1024, card.allocate, card.taken) == measured
    assert measured.holds == holds


def test_what_is_held_is_held_until_more_was_asked_for():
    """Else the second allocation would get the memory of the first, and no limit would ever refuse it."""
    alive = []

    class Block:
        def __init__(self, mib):
            alive.append(mib)

        def __del__(self):
            alive.pop()

    seen = []

    def allocate(mib):
        seen.append(list(alive))
        return Block(mib)

    limit.tried(1024, allocate, lambda: 0)
    assert seen == [[], [768]]
    assert alive == []


def test_a_limit_is_measured_where_it_was_set(monkeypatch):
    """TensorFlow allocates on a CPU device, which has no limit; the driver sees 5 MiB go."""
    settings = []

    def set_up(**asked):
        settings.append(asked)
        return ("/device:CPU:0",)

    machines = [Machine((replace(CARD, free=free),), None) for free in (15 * GIB, 15 * GIB - 5 * limit.MIB)]
    monkeypatch.setattr(hardware, "visible_cards", lambda: (CARD,))
    monkeypatch.setattr(hardware, "setup", set_up)
    monkeypatch.setattr(limit, "detect", lambda: machines.pop(0))
    assert limit.measure(8) == limit.MeasuredLimit(8, 5, refused=False)
    assert settings == [{"devices": 1, "memory": 8, "growth": False}]


ON_A_REAL_ALLOCATOR = """
from colonnade.hardware.probes import limit

def taken():
    return tf.config.experimental.get_memory_info("CPU:0")["current"] // limit.MIB

measured = limit.tried({limit}, lambda mib: tf.zeros([mib * limit.MIB // 4]), taken)
print(measured.used >= 48, measured.refused)
"""


@pytest.mark.long
@pytest.mark.parametrize(("asked", "refused"), [(64, True), (32, False)])
def test_tensorflows_own_allocator_refuses_what_is_beyond_its_limit(asked, refused):
    environment = {"TF_CPU_ALLOCATOR_USE_BFC": "true", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "64"}
    said = fresh(ON_A_REAL_ALLOCATOR.format(limit=asked), **environment)
    assert said.split() == [str(asked == 64), str(refused)]
