"""Both sides of the bound: examples that are alike are not refused, three times what is allowed is.

Sums of equal numbers are rounded the same way again and again: on hundreds of equal examples slices differ
from the whole by up to fifty steps of a float32, where examples at random differ by three.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.parallel.gap import largest
from colonnade.run.prove.proof import InSlices
from colonnade.run.step.objective import Objective


def batch_of(rows, width, likeness, seed):
    """Examples that differ by so much from each other, relative to one."""
    rng = np.random.default_rng(seed)

    def alike(columns):
        one = rng.normal(size=(1, columns))
        return tf.constant((one * (1 + likeness * rng.normal(size=(rows, columns)))).astype("float32"))

    return Arguments((alike(width), alike(3)), {}, ("x", "y"))


def looked_at(rows, width, devices, likeness, seed, planted=0.0):
    """A batch in slices and as a whole; `planted` is by how much slices differ, relative to what is right."""
    keras.utils.set_random_seed(seed)
    layers = keras.layers.Dense(width, "tanh", name="first"), keras.layers.Dense(3, name="last")
    model = keras.Sequential([keras.Input([width]), *layers], name="model")  # so leaves are named alike

    def loss(x, y):
        right = tf.reduce_mean((model(x) - y) ** 2)
        return right if x.shape[0] == rows else right * (1.0 + planted)

    def traced(part):
        return Objective(loss, part, lambda scaled: scaled)

    batch = batch_of(rows, width, likeness, seed)
    look = InSlices.traced(traced, sizes(rows, devices), batch, "/device:CPU:0").look
    assert look.rows  # now: they are named after the model, which is gone after this
    return look


# These differ by 1.8 to 15 times what moving last digits and permuting the examples lets one allow.
ALIKE = [
    (512, 1, 4, 0.0, 86),
    (256, 32, 3, 0.0, 67),
    (256, 1, 2, 1e-7, 3),
    (512, 4, 4, 0.0, 1),
    (512, 4, 3, 1e-5, 71),
]
OTHERS = [(64, 128, 4, 0.0, 92), (512, 32, 4, 1e-5, 45), (128, 8, 8, 1e-3, 5), (33, 128, 8, 1.0, 9)]


# No rounding explains it, and it is not beyond all rounding: so a look takes all runs that it may take.
UNEXPLAINED = 1e-3


def allowed_of(look):
    """What is allowed, relative to the size of each value."""
    return {row.leaf: row.tolerance / largest(look.one[row.leaf]) for row in look.rows}


@pytest.mark.parametrize("case", [*ALIKE[:2], *long(*((case,) for case in (*ALIKE[2:], *OTHERS)))])
def test_examples_that_are_alike_are_not_refused_and_three_times_the_rounding_is(case):
    look = looked_at(*case)
    assert look.unequal == []
    # A look ends with the run that explains all differences; all runs together allow the most.
    allowed = allowed_of(looked_at(*case, planted=UNEXPLAINED))
    assert all(allowed[leaf] >= some for leaf, some in allowed_of(look).items())
    # Three times that is refused: of the value of which the least is allowed, and of every other one.
    least = min(allowed, key=allowed.get)
    planted = looked_at(*case, planted=3 * allowed[least])
    assert any(row.leaf == least for row in planted.unequal), planted.rows
    planted = looked_at(*case, planted=3 * max(allowed.values()))
    assert planted.unequal == list(planted.rows)
    # And that is little: a hundredth of a percent of a gradient at the most, and less of the loss.
    assert max(allowed.values()) < 1e-4
    assert allowed[least] < 1e-5


class Louder(keras.Sequential):
    """A step whose loss is larger on slices, by so much."""

    planted, rows = 0.0, 512

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
            loss *= 1.0 if x.shape[0] == self.rows else 1.0 + self.planted
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"mine": loss}


@pytest.mark.long
@pytest.mark.parametrize("likeness", [0.0, 1e-7, 1e-5, 1.0])
def test_a_step_of_its_own_on_examples_that_are_alike(likeness):
    """Nothing can be scaled there: the most that rounding can do to 512 equal numbers is allowed."""
    (x, y), _ = batch_of(512, 4, likeness, 1).unpack(batch_of(512, 4, likeness, 1).components())
    for planted, right in ((0.0, True), (3 * 512 * 2.0**-24 + 3e-5, False)):
        keras.utils.set_random_seed(0)
        model = Louder([keras.Input([4]), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)])
        model.planted = planted
        model.compile(keras.optimizers.SGD(0.01), "mse")
        options = {"devices": 4, "batch_size": 512, "shuffle": False, "verbose": 0}
        if right:
            assert np.isfinite(cn.fit(model, x, y, **options).history["mine"]).all()
        else:
            with pytest.raises(cn.InvalidArgument, match="is not the mean of the losses of slices"):
                cn.fit(model, x, y, **options)
