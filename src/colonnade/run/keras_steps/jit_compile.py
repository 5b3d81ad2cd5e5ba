"""Keras's `jit_compile=True`: whether a model asks for XLA, and what does not go with it in `cn.fit`."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.model.training_step import has_own
from colonnade.run.sync.lockstep import Synchronous

WITHOUT = "Compile the model without jit_compile"


def asks_for_xla(model: Any) -> bool:
    """Whether `compile` was told `jit_compile=True`.

    Keras keeps what its default, `auto`, comes to, and not that it was the default. That is False where all
    devices are CPUs; elsewhere it may be True, and nothing can be told from it.
    """
    only_cpus = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
    return only_cpus and model.jit_compile is True


def jit_problems(model: Any, sync: Any, *, per_device: bool, several: bool) -> Iterator[Problem]:
    """What does not go with a model that asks for XLA."""
    if not asks_for_xla(model):
        return
    rules = {
        "is for Keras's own train_step; this model has one of its own": has_own(model, "train_step"),
        "does not go with per_device=True": per_device,
        "is for cn.Synchronous() only": not isinstance(sync, Synchronous),
        "is for the devices of one machine": several,
    }
    for rule, broken in rules.items():
        if broken:
            yield Problem("jit_compile", True, rule, WITHOUT)
