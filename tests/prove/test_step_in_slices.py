"""The proof of a step of a model's own, and what it leaves behind."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.prove.step_in_slices import StepInSlices
from colonnade.run.prove.verdict import Prover

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
DEVICES = ["/device:CPU:0", "/device:CPU:1"]


class Net(keras.Model):
    def __init__(self, reduce, noise=0.0):
        super().__init__()
        self.dense, self.reduce, self.noise = keras.layers.Dense(1), reduce, noise
        self.seed = keras.random.SeedGenerator(1)
        self.dense.build((None, 3))
        self.compile(keras.optimizers.Adam(0.1))
        self.optimizer.build(self.dense.trainable_variables)

    def train_step(self, x):
        with tf.GradientTape() as tape:
            drawn = self.noise * keras.random.normal(ops.shape(x), seed=self.seed)
            loss = self.reduce((self.dense(x + drawn) - 1) ** 2)
        variables = self.dense.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def doubled_sum(each):
    """A sum that nobody takes for one who only looks whether it is one."""
    return 2.0 * ops.sum(each)


def look(made):
    step = OwnStep(made, made.train_step, DEVICES, Prover(False, "fit()", print))
    return StepInSlices(step, step._arguments(X))


@pytest.mark.parametrize(
    ("reduce", "equal", "summed"),
    [
        (ops.mean, True, False),
        (ops.sum, True, False),
        (doubled_sum, False, True),
        (lambda e: ops.sqrt(ops.mean(e)), False, False),
    ],
)
def test_means_are_equal_sums_are_known_and_nothing_is_left_changed(reduce, equal, summed):
    made = Net(reduce)
    state = [*made.variables, *made.optimizer.variables]
    before = [v.numpy() for v in state]
    found = look(made)
    assert (not found.look.unequal) == equal
    assert found.summed == summed
    assert not found.look.random
    kinds = [row.leaf.split()[0] for row in found.look.rows]
    assert kinds == ["log['loss']", "gradient", "gradient", "state"]  # the optimizer counts
    for one, other in zip(state, before, strict=True):
        np.testing.assert_array_equal(one.numpy(), other, err_msg=one.path)


@pytest.mark.parametrize(("reduce", "summed"), [(ops.mean, False), (doubled_sum, True)])
def test_with_random_numbers_a_sum_is_still_known(reduce, summed):
    found = look(Net(reduce, noise=0.1))
    assert found.look.unequal
    assert found.look.random
    assert found.summed == summed
