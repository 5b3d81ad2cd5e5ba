"""One contender of TensorFlow in a process of its own: `contender.py NAME MODEL DEVICES`.

`first` is the time from nothing, after the imports, to the end of the first step, in seconds; `memory` the
peak of the process after the first call, in MiB; `step` the median time of a step in a turn, in milliseconds.
oneDNN is on for all of them: `import colonnade` comes before TensorFlow.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import colonnade as cn  # isort: skip
import keras
import numpy as np
import tensorflow as tf
from models import LARGE, MODELS, Model
from tasks import BATCH, LEARNING_RATE, TASKS
from turns import Turns, fastest, imported, peak, tell

from colonnade.hardware.cores import cores

LATE = 0.7  # of a step, for the input
TRIED = 2  # devices up to which XLA is tried: beyond that compiling takes minutes
PLAIN, XLA = "no XLA", "XLA"
# What TensorFlow raises where it cannot compile.
REFUSED = (tf.errors.OpError, ValueError, TypeError, NotImplementedError)
ALIVE: list[Any] = []  # iterators: the end of one that 32 devices share takes minutes


def batches(model: Model) -> tf.data.Dataset:
    return (
        tf.data.Dataset.from_tensor_slices(model.data(np.random.default_rng(0)))
        .batch(BATCH, drop_remainder=True)
        .cache()
        .repeat()
    )


def colonnade(model: Model, num_devices: int, **options: Any) -> None:
    """The trainer: `steps` between log lines run in one call."""
    cn.setup(virtual=num_devices)
    data = batches(model)
    make = cn.Trainer  # imported by now
    start = time.perf_counter()
    tried = "auto" if num_devices <= TRIED else False
    trainer = make(model.build(), adam(), devices=num_devices, compile=tried, **options)
    trainer.fit(data, steps=1, progress=False)
    first = time.perf_counter() - start
    often = {"log_every": model.steps, "progress": False}
    compiled = trainer.fit(data, steps=model.steps, **often).compiled
    memory = peak()
    while compiled is not None and compiled.startswith("not decided"):
        compiled = trainer.fit(data, steps=10 * model.steps, **often).compiled
    setting = XLA if (compiled or "").startswith("compiled") else PLAIN
    turns = Turns(model.steps, first=first, memory=memory, setting=told(setting))
    if not turns.over:
        trainer.fit(data, steps=10**9, callbacks=[turns.tick], **often)


def memory(model: Model, num_devices: int) -> None:
    """The peak of the trainer with one set of variables."""
    copies(model, num_devices, "shared")


def copies(model: Model, num_devices: int, variables: str = "mirrored") -> None:
    """The peak of the trainer with a copy of the variables on every device."""
    cn.setup(virtual=num_devices)
    trainer = cn.Trainer(model.build(), adam(), devices=num_devices, variables=variables)
    trainer.fit(batches(model), steps=2 * model.steps, progress=False)
    tell({"memory": peak()})


def fed(model: Model, num_devices: int) -> None:
    """The trainer on batches that are there at once, then on ones that take most of a step to arrive.

    Waiting costs no core, so what the second adds is what the devices wait for their input.
    """
    cn.setup(virtual=num_devices)
    data = batches(model)
    trainer = cn.Trainer(model.build(), adam(), devices=num_devices)

    def timed_on(source: tf.data.Dataset) -> float:
        trainer.fit(source, steps=model.steps, progress=False)
        history = trainer.fit(source, steps=6 * model.steps, log_every=model.steps, progress=False)
        return 1000 * history.seconds / (6 * model.steps)

    at_once = timed_on(data)
    delay = LATE * at_once / 1000

    def late(x: Any, y: Any) -> Any:
        waited = tf.py_function(lambda: time.sleep(delay), [], [])
        with tf.control_dependencies([waited] if isinstance(waited, tf.Operation) else waited):
            return tf.identity(x), tf.identity(y)

    tell({"step": timed_on(data.map(late)), "at_once": at_once})


def mirrored(model: Model, num_devices: int) -> None:
    """MirroredStrategy with the loop that its users write: many steps in one tf.function."""
    cn.setup(virtual=num_devices)
    data = batches(model)
    start = time.perf_counter()
    strategy = tf.distribute.MirroredStrategy([f"/device:CPU:{i}" for i in range(num_devices)])
    with strategy.scope():
        loss, optimizer, variables = built(model)

    def many(step: Callable[..., Any]) -> Any:
        @tf.function
        def loop(iterator: Any, count: Any) -> Any:
            last = tf.constant(0.0)
            for _ in tf.range(count):
                losses = strategy.run(step, args=next(iterator))
                last = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
            return last

        return loop

    iterator = iter(strategy.experimental_distribute_dataset(data))
    ways = {PLAIN: many(replica_step(loss, optimizer, variables))}
    if num_devices <= TRIED:
        ways[XLA] = many(replica_step(loss, optimizer, variables, jit=True))
    contend(ways, iterator, model.steps, start)


def towers(model: Model, num_devices: int) -> None:
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

    contend({PLAIN: looped(step)}, iter(data.prefetch(tf.data.AUTOTUNE)), model.steps, start)


def session(model: Model, num_devices: int) -> None:
    """The original program in `tf.compat.v1`: a graph with a tower per device, a step per call."""
    v1 = tf.compat.v1
    start = time.perf_counter()
    with tf.Graph().as_default() as graph:
        x, y = v1.data.make_one_shot_iterator(batches(model).prefetch(tf.data.AUTOTUNE)).get_next()
        loss = model.build()
        variables = v1.trainable_variables()
        before = len(graph.get_operations())
        optimizer = v1.train.AdamOptimizer(LEARNING_RATE, epsilon=1e-7)
        found, values = [], []
        slices = zip(tf.split(x, num_devices), tf.split(y, num_devices), strict=True)
        for i, (own_x, own_y) in enumerate(slices):
            with tf.device(f"/device:CPU:{i}"):
                values.append(tf.reduce_sum(loss(own_x, own_y)) / BATCH)
                found.append(
                    optimizer.compute_gradients(values[-1], variables, colocate_gradients_with_ops=True)
                )
        # A graph runs what it is asked for only: the averages of batch norms have to be asked for.
        averages = [op for op in graph.get_operations()[before:] if op.type.startswith("Assign")]
        columns = zip(*([gradient for gradient, _ in own] for own in found), strict=True)
        with tf.device("/device:CPU:0"):
            apply = optimizer.apply_gradients(zip(map(added, columns), variables, strict=True))
            with tf.control_dependencies([apply, *averages]):
                value = tf.add_n(values)
        # Gradients of shared tables and of loops are wanted on two devices at once.
        inside = 1 if num_devices >= cores() else 0  # as `cn.setup` has it for the others
        config = v1.ConfigProto(
            device_count={"CPU": num_devices}, allow_soft_placement=True, intra_op_parallelism_threads=inside
        )
        with v1.Session(graph=graph, config=config) as running:
            running.run(v1.global_variables_initializer())
            step = running.make_callable(value)
            step()
            first = time.perf_counter() - start

            def call() -> None:
                for _ in range(model.steps):
                    step()

            call()
            Turns(model.steps, first=first, memory=peak(), setting=told("a step per call", inside)).take(call)


def added(column: Any) -> Any:
    """The sum of gradients, or of sparse ones, all of their rows."""
    if not isinstance(column[0], tf.IndexedSlices):
        return tf.add_n(column)
    values, rows = (tf.concat([getattr(g, part) for g in column], 0) for part in ("values", "indices"))
    return tf.IndexedSlices(values, rows, column[0].dense_shape)


def single(model: Model, num_devices: int) -> None:
    """One device with all cores, without Colonnade."""
    assert num_devices == 1
    data = batches(model)
    start = time.perf_counter()
    made = built(model)
    ways = {PLAIN: looped(replica_step(*made)), XLA: looped(replica_step(*made, jit=True))}
    contend(ways, iter(data.prefetch(tf.data.AUTOTUNE)), model.steps, start)


def told(way: str, inside: int | None = None) -> str:
    """The setting of a contender; `inside` is how many threads an op has, 0 for one on every core."""
    inside = tf.config.threading.get_intra_op_parallelism_threads() if inside is None else inside
    return f"oneDNN, threads of an op: {inside or cores()}, {way}"


def adam() -> Any:
    return keras.optimizers.Adam(LEARNING_RATE)


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
    optimizer = adam()
    optimizer.build(variables)
    return loss, optimizer, variables


def replica_step(
    loss: Callable[..., Any], optimizer: Any, variables: list[Any], *, jit: bool = False
) -> Callable[..., Any]:
    """A step of one replica; XLA may compile the loss with its gradient."""

    def gradients(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = tf.reduce_sum(loss(x, y)) / BATCH
        return value, tape.gradient(value, variables)

    if jit:
        gradients = tf.function(gradients, jit_compile=True)

    def step(x: Any, y: Any) -> Any:
        value, found = gradients(x, y)
        optimizer.apply(found, variables)
        return value

    return step


def contend(ways: dict[str, Any], iterator: Any, steps: int, start: float) -> None:
    """Make the first step in the first way, choose the fastest, and take part."""
    ALIVE.append(iterator)
    one, count = tf.constant(1), tf.constant(steps)
    plain = next(iter(ways.values()))
    float(plain(iterator, one))
    first = time.perf_counter() - start
    float(plain(iterator, count))
    memory = peak()
    calls = {name: lambda way=way: float(way(iterator, count)) for name, way in ways.items()}
    chosen = fastest(calls, REFUSED)
    Turns(steps, first=first, memory=memory, setting=told(chosen)).take(calls[chosen])


CONTENDERS = {function.__name__: function for function in (colonnade, mirrored, towers, session, single)}
# These take no turns.
ALONE = {function.__name__: function for function in (memory, copies, fed)}

if __name__ == "__main__":
    name, model_name, devices = sys.argv[1:]
    keras.utils.set_random_seed(0)
    if model_name == "large":
        chosen = LARGE
    else:
        chosen = replace(MODELS[model_name], steps=TASKS[model_name].per_call(int(devices)))
    if name in CONTENDERS:
        imported()
    {**CONTENDERS, **ALONE}[name](chosen, int(devices))
    sys.stdout.flush()
    os._exit(0)  # without ending the iterators
