"""`colonnade selftest`: the list of its checks, run one after the other on the devices of this machine.

A check compares what the engine does on all devices with something that does not use the engine:
NumPy, plain Keras on one device, a checksum, the cards' own library, the driver. It passes, fails, or
does not apply here.
"""

import os
from collections.abc import Iterator, Sequence
from functools import partial

import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.hardware.layout import Request, leased
from colonnade.hardware.probes import limit
from colonnade.run.selftest import children, equivalence, movement, summing
from colonnade.run.selftest.verdict import Result, SelfCheck
from colonnade.run.variables.homes import MODES

# Without cards, the CPU is divided into so many devices; a single card into as many as it takes to split.
VIRTUAL, PARTS = 4, 2

EXACT = "none: whole numbers, bytes and names are exact"
CALIBRATED = (
    "4 times what one device does to itself with the examples in another order and in slices, "
    "plus some steps of the float: adding in another order rounds differently"
)
CHECKS = (
    SelfCheck("set-up", "the devices asked for with those that compute", EXACT, equivalence.set_up),
    SelfCheck("split", "slices of several batch sizes with NumPy's", EXACT, equivalence.split),
    SelfCheck(
        "gradients", "outputs and gradients with those of one device", CALIBRATED, equivalence.gradients
    ),
    SelfCheck("placement", "where each op ran with where it should", EXACT, equivalence.placement),
    *(
        SelfCheck(
            f"variables: {mode}",
            "training with plain Keras on one device",
            CALIBRATED,
            partial(equivalence.variables, mode),
        )
        for mode in MODES
    ),
    SelfCheck(
        "mixed precision",
        "training in float16 and bfloat16 with plain Keras on one device",
        CALIBRATED,
        equivalence.mixed_precision,
    ),
    SelfCheck(
        "int32 and string inputs",
        "a call with Python, a training with plain TensorFlow on one device",
        CALIBRATED,
        equivalence.inputs,
    ),
    SelfCheck("placed adds", "sums of gradients with NumPy's", EXACT, movement.placed_adds),
    SelfCheck(
        summing.NAME, "sums on every device, by each way of summing, with NumPy's", EXACT, summing.sums
    ),
    SelfCheck("copies", "what each device reads with what each other one sent it", EXACT, movement.copies),
    SelfCheck(
        "placed adds and NCCL",
        "sums with those of the cards' own library",
        EXACT,
        movement.against_collective,
    ),
    SelfCheck(
        "memory limit and NVML",
        "what setup(memory=...) allows with what the driver sees taken",
        f"{limit.OVERHEAD} MiB, which CUDA takes beside TensorFlow",
        movement.memory_limit,
    ),
)


def start(count: int | None = None) -> tuple[str, ...]:
    """The devices to check: all cards, or so many of them; else virtual devices."""
    if hardware.started():
        return hardware.resolve(count, "selftest")
    cards = hardware.visible_cards()
    children.ask_first(cards[: count or len(cards)] if len(cards) > 1 else cards)
    # TensorFlow must leave memory to the checks that run in a process of their own.
    if len(cards) > 1:
        return hardware.setup(devices=count, growth=True)
    if cards:
        return hardware.setup(virtual=PARTS if count is None else count, growth=True)
    leased_or_some = leased(Request(), os.environ, cards).virtual or VIRTUAL
    return hardware.setup(virtual=leased_or_some if count is None else count)


def examine(devices: Sequence[str], checks: Sequence[SelfCheck] = CHECKS) -> Iterator[Result]:
    """Run the checks on these devices, one after the other."""
    # Cards may round single precision to 10 bits in products, which would drown what is looked for.
    rounded = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        results = []
        for check in checks:
            results.append(check.on(tuple(devices)))
            yield results[-1]
        summing.remember(devices, results)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(rounded)
