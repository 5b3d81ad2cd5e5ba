"""How coarsely results are rounded: each by the floats that it is made of, and not by those of others."""

import numpy as np
import tensorflow as tf

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.parallel.rounding import STEPS, Rounding
from colonnade.run.trace.traced import Traced

X = tf.constant(np.random.default_rng(0).normal(size=(13, 6)).astype("float32"))


def rounding(fn, *args):
    arguments = Arguments(args, {}, ["x", "y"])
    return Rounding(Traced(fn, arguments), arguments)


def test_steps_are_those_of_the_floats():
    for dtype, step in STEPS.items():
        assert step == np.finfo(dtype.as_numpy_dtype).eps if dtype != tf.bfloat16 else 2.0**-7


def test_each_result_and_each_gradient_has_the_coarsest_step_on_its_way():
    w = tf.Variable(2.0, dtype=tf.float64, name="w")

    def f(x, y):
        return {"half": tf.cast(x, tf.float16), "double": y * w, "whole": tf.shape(x)}

    found = rounding(f, X, tf.cast(X, tf.float64))
    assert found.outputs["['half']"] == STEPS[tf.float16]
    assert found.outputs["['double']"] == STEPS[tf.float64]
    assert found.outputs["['whole']"] <= STEPS[tf.float32]
    assert found.gradients["x"] == STEPS[tf.float16]
    assert (found.gradients["y"], found.gradients["w:0"]) == (STEPS[tf.float64],) * 2


def test_what_a_called_function_does_inside_may_be_as_coarse_as_anything():
    inner = tf.function(lambda y: y + 1.0, autograph=False)
    found = rounding(lambda x, y: (tf.cast(x, tf.bfloat16), inner(y)), X, X)
    assert found.outputs["[1]"] == STEPS[tf.bfloat16]


def test_a_coarse_output_does_not_loosen_the_others():
    def f(x, y):
        return tf.cast(x, tf.bfloat16), y * 2.0

    tolerances = {row.leaf: row.tolerance for row in cn.verify(f, X, X, devices=2).rows}
    assert tolerances["output[0]"] > 0.1
    assert tolerances["gradient of x"] > 0.1
    assert tolerances["output[1]"] < 1e-4
    assert tolerances["gradient of y"] < 1e-4
