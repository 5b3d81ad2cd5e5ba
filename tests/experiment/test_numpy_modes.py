"""The modes in NumPy against the engines: the same batches, the same order, plain SGD, in float64.

Only the order of float sums differs, so what is left is rounding: 1e-12 after a dozen steps.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long

import colonnade as cn
from colonnade.experiment.numpy_modes import (
    NumpyAsynchronous,
    NumpyDiLoCo,
    NumpyElastic,
    NumpyLocal,
    NumpySynchronous,
    Task,
)
from colonnade.experiment.perceptron import Perceptron
from colonnade.reason.simulator.staleness import race

RATE = 0.25  # exact in float32, in which Keras keeps it
SINGLE = {"rate": float(np.float32(0.7)), "momentum": float(np.float32(0.9))}  # likewise
NET = Perceptron(inputs=6, hidden=5, classes=3)
START = NET.start(np.random.default_rng(1))
STEPS, BATCH = 14, 12


def batches():
    rng = np.random.default_rng(2)
    for _ in range(STEPS):
        yield rng.normal(size=(BATCH, NET.inputs)), rng.integers(0, NET.classes, BATCH)


def engine(sync, num_devices, **options):
    first, bias, second, last = (tf.Variable(view) for view in NET.views(START))

    def loss(images, labels):
        logits = tf.tanh(images @ first + bias) @ second + last
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(RATE), devices=num_devices, sync=sync, **options)
    trainer.fit(batches(), progress=False, log_every=STEPS)
    return np.concatenate([v.numpy().ravel() for v in (first, bias, second, last)]), trainer


def simulated(mode, seconds):
    *_, last = mode.train(Task(NET.gradient, START, RATE, batches()), seconds)
    return last


EVEN, SLOW = [1.0] * 4, [1.0, 1.0, 1.0, 4.0]
CASES = {
    "synchronous": (NumpySynchronous(), lambda _: cn.Synchronous(), EVEN),
    "asynchronous": (NumpyAsynchronous(), lambda s: cn.Asynchronous(order=race(s)), EVEN),
    "asynchronous, slow": (NumpyAsynchronous(), lambda s: cn.Asynchronous(order=race(s)), SLOW),
    "damped": (NumpyAsynchronous("", None, True), lambda s: cn.Asynchronous(None, True, order=race(s)), SLOW),
    "local": (NumpyLocal("local", 4), lambda _: cn.LocalSGD(4), EVEN),
    "DiLoCo": (NumpyDiLoCo("DiLoCo", 4, **SINGLE), lambda _: cn.DiLoCo(4), EVEN),
    "elastic": (
        NumpyElastic("elastic", 4),
        lambda _: cn.Elastic(4, NumpyElastic("elastic", 4).alpha(4)),
        EVEN,
    ),
}
for bound in (0, 1, 2, 16):
    for name, seconds in (("even", EVEN), ("slow", SLOW)):
        CASES[f"staleness {bound}, {name}"] = (
            NumpyAsynchronous("", bound),
            lambda s, bound=bound: cn.Asynchronous(bound, order=race(s, bound)),
            seconds,
        )


@pytest.mark.parametrize("name", kept(CASES, "synchronous", "asynchronous", "staleness 1, slow", "local"))
def test_a_simulated_training_is_the_engines(name):
    mode, sync, seconds = CASES[name]
    found = simulated(mode, seconds)
    parameters, trainer = engine(sync(seconds), len(seconds))
    np.testing.assert_allclose(found.parameters, parameters, rtol=0, atol=1e-12)
    assert np.abs(found.parameters - START).max() > 0.1  # it has learned something
    assert dict(found.ages) == trainer.staleness
    if mode.raced:
        assert found.updates == 4 * STEPS


@pytest.mark.parametrize("name", ["asynchronous", "local", *long("synchronous", "DiLoCo", "elastic")])
def test_what_is_moved_is_what_the_engine_counts(name):
    mode, sync, seconds = CASES[name]
    variables = "shared" if mode.raced else "mirrored"
    _, trainer = engine(sync(seconds), len(seconds), variables=variables)
    whole_joins = 12 / STEPS if name in ("local", "DiLoCo", "elastic") else 1  # two steps after the last
    bytes_per_step = simulated(mode, seconds).moved * NET.size * 8 / STEPS
    assert bytes_per_step == pytest.approx(trainer.traffic() * whole_joins)


def test_one_device_is_synchronous_in_every_mode_that_averages():
    wanted = simulated(NumpySynchronous(), [1.0]).parameters
    for mode in (NumpyAsynchronous(), NumpyAsynchronous("", 1), NumpyLocal("", 4)):
        np.testing.assert_allclose(simulated(mode, [4.0]).parameters, wanted, rtol=0, atol=1e-13)


def test_a_weight_that_should_move_by_1_moves_by_6():
    """The article's example: every slice's gradient is -1, and nobody sees what the others push."""
    task = Task(lambda w, x, y: -np.ones(1), np.zeros(1), 1.0, [(np.zeros([6, 1]), np.zeros(6))])
    for mode, moves in (
        (NumpySynchronous(), 1),
        (NumpyAsynchronous(), 6),
        (NumpyAsynchronous("", 0), 6),
        (NumpyLocal("", 1), 1),
    ):
        (step,) = mode.train(task, [1.0] * 6)
        assert step.parameters == moves, mode


def test_models_side_by_side_are_the_models_one_by_one():
    rng = np.random.default_rng(3)
    starts = np.stack([NET.start(rng) for _ in range(3)])
    data = [(rng.normal(size=(3, 8, 6)), rng.integers(0, 3, (3, 8))) for _ in range(9)]
    rates = np.array([0.1, 0.5])
    mode, seconds = NumpyDiLoCo("", 4), [1.0, 2.0]
    *_, together = mode.train(Task(NET.gradient, np.stack([starts] * 2), rates[:, None, None], data), seconds)
    for i, rate in enumerate(rates):
        for j, start in enumerate(starts):
            own = [(images[j], labels[j]) for images, labels in data]
            *_, alone = mode.train(Task(NET.gradient, start, rate, own), seconds)
            np.testing.assert_allclose(together.parameters[i, j], alone.parameters, rtol=0, atol=1e-12)
