"""Shapes of categories and of numbers for each rate, in a trace and in functions that it calls."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.prove.fixed_draws import NORMAL, with_fixed_draws
from colonnade.run.trace.traced import trace

LOGITS = tf.ones([3, 5])
SEED = keras.random.SeedGenerator(1)
RATES = tf.constant([[1.0, 2.0, 3.0]])
DRAWS = {
    "categories": (lambda x: tf.random.categorical(x, 4), 0, (3, 4)),
    "categories of Keras": (lambda x: keras.random.categorical(x, 2, seed=SEED), 0, (3, 2)),
    "a number for each rate": (lambda x: tf.random.poisson([2], RATES), 1, (2, 1, 3)),
    "a gamma for each": (lambda x: tf.random.gamma([7, 2], RATES, dtype=tf.float32), NORMAL, (7, 2, 1, 3)),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("inside", [False, True], ids=["in a trace", "in a function"])
def test_what_is_drawn_has_its_shape(name, inside):
    draw, value, shape = DRAWS[name]
    fixed = with_fixed_draws(trace(tf.function(draw) if inside else draw, tf.TensorSpec([None, 5])))
    (found,) = fixed.on("/device:CPU:0", [LOGITS], {})
    np.testing.assert_allclose(found, np.full(shape, value), rtol=1e-6)
    assert not any(
        "ultinomial" in op.type or "Random" in op.type for op in fixed.concrete.graph.get_operations()
    )
