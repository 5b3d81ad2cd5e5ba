"""One contender in a process of its own: `contender.py NAME MODEL DEVICES SECONDS` prints its figures.

`first` is the time from nothing, after the imports, to the end of the first step, in seconds; `step`
the median time of a later step, in milliseconds; `memory` the peak of the process, in MiB.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from models import BATCH, LARGE, MODELS, Model

import colonnade as cn

LATE = 0.7  # of a step, for the input
WARM_UP = 1  # a call of full length that is not counted
ALIVE: list[Any] = []  # iterators: the end of one that 32 devices share takes minutes


def batches(model: Model) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(model.data(np.random.default_rng(0)))
        .batch(BATCH, drop_remainder=True)
        .cache()
        .repeat()
    )


class Clock:
    """Notes when calls end; says when it has been long enough."""

    def __init__(self, seconds: float, steps: int) -> None:
        self._seconds, self._steps = seconds, steps
        self._ends: list[float] = []

    def tick(self, *_: Any) -> bool:
        self._ends.append(time.perf_counter())
        counted = self._ends[WARM_UP:]
        return len(counted) > 3 and counted[-1] - counted[0] >= self._seconds

    def step(self) -> float:
        counted = self._ends[WARM_UP:]
        return median(np.diff(counted)) / self._steps * 1000


def colonnade(model: Model, num_devices: int, seconds: float, **options: Any) -> dict[str, float]:
    """The trainer: `steps` between log lines run in one call."""
    cn.setup(virtual=num_devices)
    data = batches(model)
    make = cn.Trainer  # imported by now
    start = time.perf_counter()
    trainer = make(model.build(), keras.optimizers.Adam(1e-3), devices=num_devices, **options)
    trainer.fit(data, steps=1, progress=False)
    first = time.perf_counter() - start
    clock = Clock(seconds, model.steps)
    trainer.fit(data, log_every=model.steps, steps=10**9, callbacks=[clock.tick], progress=False)
    return {"first": first, "step": clock.step()}


def fed(model: Model, num_devices: int, seconds: float) -> dict[str, float]:
    """The trainer on batches that are there at once, then on ones that take most of a step to arrive.

    Waiting costs no core, so what the second adds is what the devices wait for their input.
    """
    cn.setup(virtual=num_devices)
    data = batches(model)
    trainer = cn.Trainer(model.build(), keras.optimizers.Adam(1e-3), devices=num_devices)

    def timed_on(source: tf.data.Dataset) -> float:
        clock = Clock(seconds, model.steps)
        trainer.fit(source, log_every=model.steps, steps=10**9, callbacks=[clock.tick], progress=False)
        return clock.step()

    at_once = timed_on(data)
    delay = LATE * at_once / 1000

    def late(x: Any, y: Any) -> Any:
        waited = tf.py_function(lambda: time.sleep(delay), [], [])
        with tf.control_dependencies([waited] if isinstance(waited, tf.Operation) else waited):
            return tf.identity(x), tf.identity(y)

    return {"step": timed_on(data.map(late)), "at_once": at_once}


def copies(model: Model, num_devices: int, seconds: float) -> dict[str, float]:
    """The trainer with a copy of the variables on every device; for the comparison of memory."""
    return colonnade(model, num_devices, seconds, variables="mirrored")


def mirrored(model: Model, num_devices: int, seconds: float) -> dict[str, float]:
    """MirroredStrategy with the loop that its users write: many steps in one tf.function."""
    cn.setup(virtual=num_devices)
    data = batches(model)
    start = time.perf_counter()
    strategy = tf.distribute.MirroredStrategy([f"/device:CPU:{i}" for i in range(num_devices)])
    with strategy.scope():
        loss, optimizer, variables = built(model)
    step = replica_step(loss, optimizer, variables)

    @tf.function
    def many(iterator: Any, count: Any) -> Any:
        last = tf.constant(0.0)
        for _ in tf.range(count):
            losses = strategy.run(step, args=next(iterator))
            last = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        return last

    return timed(many, iter(strategy.experimental_distribute_dataset(data)), model.steps, seconds, start)


def towers(model: Model, num_devices: int, seconds: float) -> dict[str, float]:
    """What old articles wrote by hand, and no more: a copy of the graph per device, and one update."""
    cn.setup(virtual=num_devices)
    data = batches(model)
    start = time.perf_counter()
    loss, optimizer, variables = built(model)

    def tower(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(x, y)) / BATCH
        return value, tape.gradient(value, variables)

    def step(x: Any, y: Any) -> Any:
        found = []
        slices = zip(tf.split(x, num_devices), tf.split(y, num_devices), strict=True)
        for i, (own_x, own_y) in enumerate(slices):
            with tf.device(f"/device:CPU:{i}"):
                found.append(tower(own_x, own_y))
        values, gradients = zip(*found, strict=True)
        with tf.device("/device:CPU:0"):
            optimizer.apply([added(column) for column in zip(*gradients, strict=True)], variables)
            return tf.add_n(values)

    return timed(looped(step), iter(data.prefetch(tf.data.AUTOTUNE)), model.steps, seconds, start)


def added(column: Any) -> Any:
    """The sum of gradients, or of sparse ones, all of their rows."""
    if not isinstance(column[0], tf.IndexedSlices):
        return tf.add_n(column)
    values, rows = (tf.concat([getattr(g, part) for g in column], 0) for part in ("values", "indices"))
    return tf.IndexedSlices(values, rows, column[0].dense_shape)


def single(model: Model, num_devices: int, seconds: float) -> dict[str, float]:
    """One device with all cores, without Colonnade."""
    assert num_devices == 1
    data = batches(model)
    start = time.perf_counter()
    many = looped(replica_step(*built(model)))
    return timed(many, iter(data.prefetch(tf.data.AUTOTUNE)), model.steps, seconds, start)


def looped(step: Callable[..., Any]) -> Any:
    """Many steps in one tf.function."""

    @tf.function
    def many(iterator: Any, count: Any) -> Any:
        last = tf.constant(0.0)
        for _ in tf.range(count):
            last = step(*next(iterator))
        return last

    return many


def built(model: Model) -> tuple[Callable[..., Any], Any, list[Any]]:
    """A loss, an optimizer with its variables, and the variables that are trained."""
    made: list[Any] = []

    def note(next_creator: Callable[..., Any], **options: Any) -> Any:
        made.append(next_creator(**options))
        return made[-1]

    with tf.variable_creator_scope(note):
        loss = model.build()
    variables = [variable for variable in made if variable.trainable]
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(variables)
    return loss, optimizer, variables


def replica_step(loss: Callable[..., Any], optimizer: Any, variables: list[Any]) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(x, y)) / BATCH
        optimizer.apply(tape.gradient(value, variables), variables)
        return value

    return step


def timed(
    many: Callable[..., Any], iterator: Any, steps: int, seconds: float, start: float
) -> dict[str, float]:
    ALIVE.append(iterator)
    float(many(iterator, tf.constant(1)))
    first = time.perf_counter() - start
    clock = Clock(seconds, steps)
    while not clock.tick():
        float(many(iterator, tf.constant(steps)))
    return {"first": first, "step": clock.step()}


CONTENDERS = {function.__name__: function for function in (colonnade, fed, copies, mirrored, towers, single)}

if __name__ == "__main__":
    name, model_name, devices, duration = sys.argv[1:]
    keras.utils.set_random_seed(0)
    chosen = LARGE if model_name == "large" else MODELS[model_name]
    figures = CONTENDERS[name](chosen, int(devices), float(duration))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**figures, "memory": peak}), flush=True)
    os._exit(0)  # without ending the iterators
