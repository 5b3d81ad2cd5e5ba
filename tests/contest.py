"""A random training on many devices against plain Keras on one, in float64.

The reference knows nothing of Colonnade: a tape, a mean, `optimizer.apply`. Batch normalisation that is
not synchronised takes each slice by itself, so there the reference goes slice by slice too.
"""

import sys
from collections.abc import Callable
from typing import Any

import blocks
import hypothesis
import keras
import numpy as np
import tensorflow as tf
from cases import Case, cases, densified
from doubles import in_double

import colonnade as cn

# Rounding, of numbers of the size of 1, in two or three steps; eps of 1e-7 magnifies it by as much.
TOLERANCE = 1e-7
MICRO_BATCHES = 2

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]


class Stepping(keras.Model):
    """With a step of its own."""

    def train_step(self, data: Any) -> dict[str, Any]:
        given, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum((self(given, training=True) - y) ** 2, axis=1))
            scaled = self.optimizer.scale_loss(loss + sum(self.losses))
        trained = self.trainable_variables
        gradients = tape.gradient(scaled, [v.value for v in trained])
        if self.optimizer.loss_scale_factor or self.optimizer.gradient_accumulation_steps:
            gradients = [tf.convert_to_tensor(g) for g in gradients]  # Keras cannot divide sparse ones
        self.optimizer.apply(gradients, trained)
        return {"loss": loss}


def batches(case: Case) -> list[Batch]:
    rng = np.random.default_rng(case.seed)
    return [
        (
            rng.normal(size=(size, blocks.WIDTH)),
            rng.integers(0, blocks.ROWS, (size, blocks.LOOKUPS)),
            rng.normal(size=(size, 1)),
        )
        for size in case.sizes
    ]


def optimizer_of(case: Case) -> Any:
    made = getattr(keras.optimizers, case.optimizer)(0.05, **case.options)
    if case.scaled:
        return keras.optimizers.LossScaleOptimizer(made, initial_scale=8.0, dynamic_growth_steps=2)
    return made


def slices_of(case: Case, size: int) -> list[int]:
    """The sizes of the slices that are normalised by themselves."""
    if "local norm" not in case.blocks:
        return [size]
    parts = MICRO_BATCHES if case.engine == "pipeline" else case.devices
    small, larger = divmod(size, parts)
    return [small + (i < larger) for i in range(parts) if small or i < larger]


def reference(case: Case, model: keras.Model) -> dict[str, np.ndarray]:
    optimizer = optimizer_of(case)
    trained = model.trainable_variables
    optimizer.build(trained)
    for x, ids, y in batches(case):
        sizes = slices_of(case, len(x))
        states = [v for v in model.weights if not v.trainable]
        before, after = [v.numpy() for v in states], []
        whole = gradients_of_one_call(model, states, x, ids) if len(sizes) > 1 else []
        with tf.GradientTape() as tape:
            total, start = 0.0, 0
            for size in sizes:
                rows = slice(start, start + size)
                if case.engine != "pipeline":  # there, one micro-batch follows the other
                    for state, value in zip(states, before, strict=True):
                        state.assign(value)
                out = model([x[rows], ids[rows]], training=True)
                total += tf.reduce_sum((out - y[rows]) ** 2)
                after.append([v.numpy() for v in states])
                start += size
            loss = optimizer.scale_loss(total / len(x) + sum(model.losses))
        if case.engine != "pipeline":
            for number, state in enumerate(states):
                own = [values[number] for values in after]
                state.assign(settled(state, before[number], own, replicas(case, len(x))))
        gradients = tape.gradient(loss, [v.value for v in trained])
        if len(sizes) > 1:
            gradients = [in_rows_of_one_call(*each) for each in zip(gradients, whole, strict=True)]
        if densified(case.options):
            gradients = [tf.convert_to_tensor(g) for g in gradients]
        optimizer.apply(gradients, trained)
    if case.engine in ("keras", "step"):  # model.fit ends with the averaged weights, where there are some
        optimizer.finalize_variable_values(trained)
    return outcome(model, optimizer)


def gradients_of_one_call(model: keras.Model, states: list[Any], x: Any, ids: Any) -> list[Any]:
    """Of some loss, to see which rows of a table a batch in one piece has."""
    before = [state.numpy() for state in states]
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(model([x, ids], training=True))
    for state, value in zip(states, before, strict=True):
        state.assign(value)
    return list(tape.gradient(total, [v.value for v in model.trainable_variables]))


def in_rows_of_one_call(gradient: Any, whole: Any) -> Any:
    """A table that is read at fixed rows has each of them once, in however many slices it is read."""
    if not isinstance(gradient, tf.IndexedSlices) or len(gradient.indices) == len(whole.indices):
        return gradient
    rows, place = tf.unique(tf.reshape(gradient.indices, [-1]))
    return tf.IndexedSlices(
        tf.math.unsorted_segment_sum(gradient.values, place, len(rows)), rows, gradient.dense_shape
    )


def replicas(case: Case, size: int) -> list[int]:
    """The sizes of the slices of the replicas that have any."""
    small, larger = divmod(size, case.devices)
    return [small + (i < larger) for i in range(case.devices) if small or i < larger]


def settled(state: Any, before: np.ndarray, after: list[np.ndarray], counts: list[int]) -> np.ndarray:
    """What one device has of a state of which each slice made something: counts add up, averages do not.

    A count of which its layer did not say so is averaged as well, by the sizes of slices: docs/trainer.md.
    """
    if state.path.endswith("own_examples"):
        return before + np.average(counts, weights=counts)
    if state.path.endswith("examples"):
        return before + sum(value - before for value in after)
    if len(after) == 1 or state.path.endswith("/steps"):
        return after[0]
    return np.average(after, axis=0, weights=counts)


def outcome(model: keras.Model, optimizer: Any) -> dict[str, np.ndarray]:
    values = {f"model {i} {v.path}": np.asarray(v) for i, v in enumerate(model.weights)}
    # An optimizer's own name counts up with every one that is made.
    names = [v.path.partition("/")[2] for v in optimizer.variables]
    slots = {
        f"optimizer {i} {name}": np.asarray(v)
        for i, (name, v) in enumerate(zip(names, optimizer.variables, strict=True))
    }
    return values | slots


def trained(case: Case, model: keras.Model) -> dict[str, np.ndarray]:
    optimizer, data = optimizer_of(case), batches(case)
    if case.built:
        optimizer.build(model.trainable_variables)
    if case.engine in ("keras", "step"):
        model.compile(optimizer, keras.losses.MeanSquaredError())
        spec = tuple(tf.TensorSpec([None, *column.shape[1:]], column.dtype) for column in data[0])
        dataset = tf.data.Dataset.from_generator(lambda: iter(data), output_signature=spec)
        dataset = dataset.map(lambda x, ids, y: ((x, ids), y)).apply(
            tf.data.experimental.assert_cardinality(len(data))
        )
        home = {"variables": case.home} if case.engine == "keras" else {}
        cn.fit(model, dataset, devices=case.devices, shuffle=False, verbose=0, **home)
        return outcome(model, optimizer)
    call, where = paths(case, model)

    def loss(x: Any, ids: Any, y: Any) -> Any:
        return tf.squeeze((call([x, ids], training=True) - y) ** 2, axis=1)

    penalty = (lambda: tf.add_n(model.losses)) if case.regularised else None
    trainer = cn.Trainer(loss, optimizer, penalty=penalty, **where)
    if case.engine == "fit":
        trainer.fit(data, progress=False)
    else:
        for batch in data:
            trainer.train_on_batch(*batch)
    return outcome(model, optimizer)


def paths(case: Case, model: keras.Model) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What the loss calls, and where the trainer works."""
    if case.engine == "pipeline":
        pipeline = pipelined(case, model)
        return pipeline, {"devices": pipeline}
    outer = cn.LocalSGD(every=1, outer=keras.optimizers.SGD(1.0))
    modes = {"local": cn.LocalSGD(every=1), "outer": outer, "asynchronous": cn.Asynchronous()}
    sync = modes.get(case.engine)
    return model, {"devices": case.devices, "sync": sync, "variables": case.home} | (
        {"variables": "auto"} if sync else {}
    )


def pipelined(case: Case, model: keras.Model) -> cn.Pipeline:
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    twice = [layer for layer in layers if isinstance(layer, blocks.Twice)]
    calls = len(layers) + len(twice)
    stages = min(case.devices, calls)
    placement = [i * stages // calls for i in range(calls)]
    return cn.Pipeline(
        model,
        devices=stages,
        micro_batches=MICRO_BATCHES,
        placement=placement,
        tied=[weight.value for layer in twice for weight in layer.weights],
    )


def differences(case: Case) -> dict[str, float]:
    """By how much each variable of the model and of the optimizer is off; empty where nothing is."""
    with in_double(anew=True):
        keras.utils.set_random_seed(case.seed)
        kind = Stepping if case.engine == "step" else keras.Model
        model = blocks.model(case.blocks, case.regularised, kind)
        start = model.get_weights()
        expected = reference(case, model)
        model.set_weights(start)
        actual = trained(case, model)
    off = {
        name: float(np.max(np.abs(actual[name] - value) / (1 + np.abs(value)), initial=0))
        for name, value in expected.items()
        # Left to itself, a trainer builds slots in the order of use, which is not that of the model.
        if case.built or name.startswith("model")
    }
    return {name: by for name, by in off.items() if not by <= TOLERANCE}


def judge(case: Case) -> str:
    """What is wrong with a case, with the line that repeats it; empty where nothing is."""
    try:
        off: Any = differences(case)
    except Exception as error:
        if isinstance(error, cn.InvalidArgument) and may_be_refused(case):
            return ""
        off = f"{type(error).__name__}: {str(error)[-400:]}"
    return f"{off}\n    again: python tests/cases.py {str(case)!r}" if off else ""


def may_be_refused(case: Case) -> bool:
    """What the pages refuse by name; all else must be right.

    An optimizer squares every row of a sparse gradient, and of a dense one the sum of them; and every
    micro-batch of a pipeline would assign again.
    """
    return "embedding by size" in case.blocks or (case.engine == "pipeline" and "masked" in case.blocks)


def look(count: int, seed: int, *, smallest: bool = False) -> list[str]:
    """What is wrong with the cases of a seed: with all of them, or with the smallest that there is."""
    wrong: list[str] = []

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(cases())
    def at(case: Case) -> None:
        if said := judge(case):
            wrong.append(said)
            assert not smallest, said

    at()
    return wrong


def main(arguments: list[str]) -> None:
    cn.setup(virtual=8)
    if arguments[0] in ("survey", "smallest"):
        wrong = look(int(arguments[1]), int(arguments[2]), smallest=arguments[0] == "smallest")
    else:
        wrong = [said for said in [judge(eval(arguments[0], {"Case": Case}))] if said]
    sys.exit("\n".join([*wrong, f"{len(wrong)} differ"]) if wrong else 0)
