"""Keeps the arithmetic of random seeds on the host, from where cards take their seeds.

A layer of Keras that draws numbers first computes with the state of its generator, two whole numbers. On a
card that would be a copy to the host for each layer and step, because ops that draw take their seeds in its
memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from colonnade.hardware import devices as hardware

HOST = "/device:CPU:0"
# How Keras calls the state of its generators.
STATE = "seed_generator_state:0"
# What Keras makes of a state before it draws, and of the state that comes next.
ARITHMETIC = frozenset(["AddV2", "Cast", "FloorMod", "Identity", "Mul"])
# The numbers with which it does: a constant is made before the op that takes it, so they are known by their
# values.
NUMBERS = ([0, 1], tf.int32.max - 1)


def seed_place(device: str) -> str:
    """Where the state of a generator is kept that is drawn from on a device."""
    return HOST if hardware.is_card(device) else device


def is_seed(variable: Any) -> bool:
    """Whether a variable is the state of one of Keras's generators."""
    return bool(variable.name.endswith(STATE))


@contextmanager
def seeds_on_host() -> Iterator[None]:
    """While a graph is built: what is computed with seeds is put on the host, where there are cards."""
    if not hardware.has_cards():
        yield
        return
    with tf.compat.v1.device(_place):
        yield


def _place(op: Any) -> str:
    if op.device:
        return str(op.device)
    if op.type == "Const":
        small = op.outputs[0].dtype == tf.int64 and op.outputs[0].shape.num_elements() <= 2
        return HOST if small and tf.make_ndarray(op.get_attr("value")).tolist() in NUMBERS else ""
    sources = [tensor.op for tensor in op.inputs if tensor.op.type != "Const"]
    return HOST if op.type in ARITHMETIC and sources and all(map(_holds_seed, sources)) else ""


def _holds_seed(op: Any) -> bool:
    """Whether an op gives a seed: it reads two whole numbers of 64 bits, or was found to compute with them.

    While a graph is built, nothing tells of which variable a handle is. If a user has such a variable for
    other things, they come out the same, on the host.
    """
    if op.type == "ReadVariableOp":
        return op.outputs[0].dtype == tf.int64 and op.outputs[0].shape == [2]
    return op.type in ARITHMETIC and op.device.endswith(HOST)
