"""The trainer on 1 to 4 devices, with variables in every home, against a plain loop on one device.

The reference is written without Colonnade: a tape, a mean, `optimizer.apply`. Five steps of a float32
model of this size differ by the order of sums only; 2e-6 is about sixteen units in the last place of
parameters of size 1. Adam divides by the root of small second moments, which amplifies the last
bits of a gradient near zero, so its runs get 2e-5.
"""

import gc
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept

import colonnade as cn
from colonnade.run.engine import traces
from colonnade.run.engine.traces import Traces
from colonnade.run.sync import workers

# Measuring coverage doubles the time of a trace; the same lines are run by other tests.

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 6)).astype("float32")
IDS = RNG.integers(0, 10, 24)
Y = RNG.normal(size=(24, 1)).astype("float32")


@dataclass
class Model:
    """A small model in plain TensorFlow: an embedding, two layers, a variable that nothing uses."""

    def __post_init__(self):
        rng = np.random.default_rng(1)
        sizes = {"table": (10, 6), "w1": (6, 8), "b1": (8,), "w2": (8, 1), "unused": (3,)}
        for name, size in sizes.items():
            setattr(self, name, tf.Variable(rng.normal(size=size).astype("float32"), name=name))

    @property
    def variables(self):
        return [self.table, self.w1, self.b1, self.w2, self.unused]

    def losses(self, x, ids, y):
        hidden = tf.nn.elu((x + tf.gather(self.table, ids)) @ self.w1 + self.b1)
        # What is stopped is watched by the tape, and has no gradient.
        return tf.squeeze((hidden @ self.w2 + 0.0 * tf.stop_gradient(self.unused[0]) - y) ** 2, axis=1)


@dataclass(frozen=True)
class Case:
    optimizer: Any
    batch: int = 24
    penalty: bool = False
    tolerance: float = 2e-6


CASES = {
    "plain": Case(lambda: keras.optimizers.SGD(0.01)),
    "momentum": Case(lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True)),
    "adam": Case(lambda: keras.optimizers.Adam(0.01), tolerance=2e-5),
    "clipped": Case(lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5)),
    "average": Case(lambda: keras.optimizers.SGD(0.01, use_ema=True, ema_momentum=0.5)),
    "accumulated": Case(lambda: keras.optimizers.SGD(0.01, gradient_accumulation_steps=2)),
    "schedule": Case(
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5, True))
    ),
    "scaled": Case(lambda: keras.optimizers.SGD(0.01, loss_scale_factor=128.0)),
    "penalty": Case(lambda: keras.optimizers.SGD(0.01), penalty=True),
    "uneven": Case(lambda: keras.optimizers.SGD(0.01), batch=23),
    "fewer than devices": Case(lambda: keras.optimizers.SGD(0.01), batch=2),
}
STEPS = 5


def penalty(model):
    return 0.1 * (tf.reduce_sum(model.w1**2) + tf.reduce_sum(model.table**2))


def state(model, optimizer):
    return [v.numpy() for v in model.variables], [np.asarray(v) for v in optimizer.variables]


_references: dict[str, Any] = {}


def reference(name):
    """A plain loop on one device."""
    if name not in _references:
        case, model = CASES[name], Model()
        optimizer = case.optimizer()
        used = model.variables[:-1]
        optimizer.build(used)
        for _ in range(STEPS):
            with tf.GradientTape() as tape:
                losses = model.losses(X[: case.batch], IDS[: case.batch], Y[: case.batch])
                loss = tf.reduce_mean(losses) + (penalty(model) if case.penalty else 0.0)
                scaled = optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, used)
            if name in ("accumulated", "scaled"):  # Keras cannot add up or divide sparse gradients
                gradients = [tf.convert_to_tensor(g) for g in gradients]
            optimizer.apply(gradients, used)
        _references[name] = state(model, optimizer), float(loss)
    return _references[name]


HOMES = ("shared", "mirrored", "partitioned")
# Every case has mirrored variables, as cards have by default, and one of the other homes: partitioned ones
# where one update per owner would be another update.
OWNED = ("momentum", "clipped", "average", "accumulated", "schedule", "scaled")
QUICK = [
    (name, home) for name in CASES for home in ("mirrored", "partitioned" if name in OWNED else "shared")
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "home", "devices"),
    kept(
        [(name, home, n) for name in CASES for home in HOMES for n in (1, 2, 3, 4)],
        *((name, home, 3) for name, home in QUICK),
    ),
)
def test_equal_to_one_device(name, home, devices):
    (expected, _), loss = reference(name)
    case, model = CASES[name], Model()
    optimizer = case.optimizer()
    trainer = cn.Trainer(
        model.losses,
        optimizer,
        devices=devices,
        variables=home,
        penalty=(lambda: penalty(model)) if case.penalty else None,
    )
    batch = (X[: case.batch], IDS[: case.batch], Y[: case.batch])
    for _ in range(STEPS):
        record = trainer.train_on_batch(*batch)
    assert record.loss == pytest.approx(loss, rel=1e-5)
    # One update per step, whoever owns the parts; Keras counts accumulated ones once.
    assert int(optimizer.iterations) == STEPS // (optimizer.gradient_accumulation_steps or 1)
    for variable, value in zip(model.variables, expected, strict=True):
        np.testing.assert_allclose(
            variable.numpy(), value, rtol=0, atol=case.tolerance, err_msg=variable.name
        )


@pytest.mark.parametrize("home", kept(HOMES, "partitioned"))
def test_optimizer_state_is_that_of_one_device(home):
    (_, expected), _ = reference("momentum")
    model, optimizer = Model(), CASES["momentum"].optimizer()
    optimizer.build(model.variables[:-1])
    trainer = cn.Trainer(model.losses, optimizer, devices=3, variables=home)
    for _ in range(STEPS):
        trainer.train_on_batch(X, IDS, Y)
    for variable, value in zip(optimizer.variables, expected, strict=True):
        np.testing.assert_allclose(np.asarray(variable), value, rtol=0, atol=2e-6, err_msg=variable.path)


def test_sums_of_gradients_of_sparse_and_dense_parts_agree_in_float64():
    """In float64 the tolerance leaves no room for anything but rounding."""
    w = tf.Variable(np.linspace(0.1, 1, 6)[:, None])

    def run(devices):
        w.assign(np.linspace(0.1, 1, 6)[:, None])
        trainer = cn.Trainer(
            lambda x, y: tf.squeeze((tf.nn.tanh(x @ w) - y) ** 2, 1),
            keras.optimizers.SGD(0.5),
            devices=devices,
        )
        for _ in range(20):
            trainer.train_on_batch(X.astype("float64"), Y.astype("float64"))
        return w.numpy()

    np.testing.assert_allclose(run(4), run(1), rtol=0, atol=1e-14)


# Broken on purpose: the comparison above must notice.


def assert_noticed(name, home, devices):
    reference(name)  # by a loop that is not broken
    with pytest.raises(AssertionError):
        test_equal_to_one_device(name, home, devices)


@pytest.mark.parametrize("home", kept(HOMES, "mirrored"))
def test_the_same_batch_everywhere_is_noticed(monkeypatch, home):
    def broken(batch, counts, *_):
        factor = tf.constant(1.0 / sum(counts), tf.float64)
        return [batch.rows(tf.range(count)).prefixed(factor) for count in counts]

    monkeypatch.setattr(workers, "slices", broken)
    assert_noticed("plain", home, 2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("home", "of_the_loss"), [("shared", False), ("mirrored", True)])
def test_a_penalty_that_counts_twice_is_noticed(monkeypatch, home, of_the_loss):
    once = Traces.with_penalty

    def broken(self, gradients, loss, *rest):
        gradients, first, health = once(self, gradients, loss, *rest)
        gradients, second, _ = once(self, gradients, first, *rest)
        return gradients, second if of_the_loss else first, health

    monkeypatch.setattr(Traces, "with_penalty", broken)
    assert_noticed("penalty", home, 2)


class PerOwner:
    """An optimizer that is applied to the variables one by one."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def __getattr__(self, name):
        return getattr(self._optimizer, name)

    def apply(self, gradients, variables):
        for gradient, variable in zip(gradients, variables, strict=True):
            self._optimizer.apply([gradient], [variable])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["clipped", "schedule"])
def test_one_update_per_owner_is_noticed(monkeypatch, name):
    whole = traces.Update
    monkeypatch.setattr(traces, "Update", lambda optimizer, *rest: whole(PerOwner(optimizer), *rest))
    assert_noticed(name, "partitioned", 3)


@pytest.mark.long
def test_a_placed_update_outlives_what_it_was_made_of():
    """TensorFlow 2.21 frees the branches of a function with it, wherever else they are called from."""
    table, w = tf.Variable(np.ones((5, 4))), tf.Variable(np.ones((4, 1)))
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.05), initial_scale=8.0)
    trainer = cn.Trainer(
        lambda ids: tf.squeeze(tf.tanh(tf.gather(table, ids) @ w), 1),
        optimizer,
        devices=2,
        variables="partitioned",
    )
    data = [np.arange(size) % 5 for size in (4, 4, 3, 3)]
    history = trainer.fit(data, progress=False, log_every=1, callbacks=[lambda _: gc.collect() and None])
    assert len(history.losses) == 4
