"""Optimizers that look at a whole variable are refused where it is in parts."""

import keras
import pytest
import tensorflow as tf

from colonnade.run.step.whole_variables import looking
from colonnade.run.variables import part_offset


def cut():
    parts = [tf.Variable(tf.zeros([2, n]), name=f"kernel_part_{i}") for i, n in enumerate((3, 2))]
    part_offset.mark(parts, axis=1)
    return parts


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda: keras.optimizers.Lamb(0.1), [("optimizer", "Lamb")]),
        (lambda: keras.optimizers.Adafactor(0.1), [("optimizer", "Adafactor")]),
        (lambda: keras.optimizers.SGD(0.1, clipnorm=2.0), [("clipnorm", 2.0)]),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Lamb(0.1, clipnorm=2.0)),
            [("optimizer", "Lamb"), ("clipnorm", 2.0)],
        ),
        (lambda: keras.optimizers.Adam(0.1, global_clipnorm=2.0), []),
        (lambda: keras.optimizers.Adam(0.1, clipvalue=2.0), []),
    ],
)
def test_what_looks_at_whole_variables(optimizer, named):
    problems = list(looking(optimizer(), [tf.Variable(1.0), *cut()]))
    assert [(problem.argument, problem.value) for problem in problems] == named
    assert all("kernel_part_0" in problem.rule for problem in problems)


def test_whole_variables_may_be_looked_at():
    alone = tf.Variable(tf.zeros([2, 3]))
    part_offset.mark([alone], axis=1)  # a layer that is split over one device
    assert list(looking(keras.optimizers.Lamb(0.1), [tf.Variable(1.0), alone])) == []
