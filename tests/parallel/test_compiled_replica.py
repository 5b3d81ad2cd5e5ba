import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.parallel import compilation

X = np.random.default_rng(0).normal(size=(7, 3))
TABLE = tf.Variable(np.random.default_rng(1).normal(size=(5, 3)))
KERNEL = tf.Variable(0.3 * np.random.default_rng(2).normal(size=(3, 2)))
CENTRE = tf.constant([0.5, -0.5], tf.float64)
SEEN = tf.Variable(0.0)


def network(x, ids):
    hidden = tf.tanh((x + tf.gather(TABLE, ids)) @ KERNEL - CENTRE)
    return {"y": hidden, "size": tf.reduce_sum(hidden**2, axis=1)}


def results(call, *, graph=False):
    """Outputs and gradients in float64, also of what the function closes over."""
    x, ids = tf.constant(X), tf.constant([0, 1, 2, 3, 4, 0, 1])

    def both():
        with tf.GradientTape() as tape:
            tape.watch([x, CENTRE])
            out = call(x, ids)
            total = tf.reduce_sum(out["y"]) + tf.reduce_sum(out["size"] ** 2)
        gradients = tape.gradient(total, [x, CENTRE, TABLE, KERNEL])
        return [out["y"], out["size"], *(tf.convert_to_tensor(g) for g in gradients)]

    return [value.numpy() for value in (tf.function(both) if graph else both)()]


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
def test_compiled_is_the_same_function_with_the_same_gradient(graph):
    fast = cn.parallel(network, devices=3, compile=True)
    for _ in range(2):
        for one, other in zip(results(fast, graph=graph), results(network), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11)
        KERNEL.assign(0.5 * KERNEL)  # the values of the moment count
    assert fast.compiled == "compiled by XLA, as asked for"


def test_xla_computes_it_forward_and_backward():
    fast = cn.parallel(lambda x: tf.tanh(x @ KERNEL), devices=3, compile=True)
    assert not [op for op in fast.placement(tf.constant(X)).ops if "Tanh" in op.op]  # all is inside
    plain = cn.parallel(lambda x: tf.tanh(x @ KERNEL), devices=3)
    assert {op.phase for op in plain.placement(tf.constant(X)).ops if "Tanh" in op.op} == {
        "forward",
        "backward",
    }


def test_a_second_gradient_is_refused():
    fast = cn.parallel(lambda x: tf.tanh(x @ KERNEL), devices=2, compile=True)
    x = tf.constant(X)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = fast(x)
        with pytest.raises(cn.InvalidArgument, match="gradient of a compiled gradient"):
            inner.gradient(y, x)  # which the tape around it would differentiate


def prints(x):
    tf.print("x")
    return x


def as_words(x):
    return tf.strings.to_number(tf.strings.as_string(x))


def counts(x):
    SEEN.assign_add(1.0)
    return x


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (prints, "prints, asserts or writes summaries"),
        (as_words, r"XLA cannot compile AsString.*test_compiled_replica\.py:\d+: return tf\.strings"),
        (counts, "the function changes Variable"),
    ],
)
def test_one_error_that_names_the_cause(fn, said):
    x = tf.constant(X, tf.float32)
    with pytest.raises(cn.InvalidArgument) as refused:
        cn.parallel(fn, devices=2, compile=True)(x)
    (problem,) = refused.value.problems
    assert problem.argument == "compile"
    assert re.search(said, problem.rule)
    left = cn.parallel(fn, devices=2, compile="auto")
    for _ in range(4):
        np.testing.assert_allclose(left(x), x, rtol=1e-5)  # words have six digits
    assert left.compiled == f"not compiled by XLA: {problem.rule}"


def test_a_tensor_of_the_graph_around_it_is_refused():
    @tf.autograph.experimental.do_not_convert
    def around(x):
        twice = 2.0 * x[0, 0]
        return cn.parallel(lambda x: x * twice, devices=2, compile=True)(x)

    with pytest.raises(cn.InvalidArgument, match="closes over a tensor of the graph"):
        tf.function(around)(tf.constant(X))


def test_the_faster_way_is_kept_after_some_calls(monkeypatch):
    monkeypatch.setattr(compilation, "TURN_STEPS", 1)
    fast = cn.parallel(network, devices=2, compile="auto")
    assert fast.compiled.startswith("not decided")
    wanted = results(network)
    for _ in range(2 * compilation.TURNS + 4):
        for one, other in zip(results(fast), wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-11)
    assert "ms per step compiled" in fast.compiled


@pytest.mark.parametrize("wanted", ["yes", None, 2])
def test_another_value_is_refused(wanted):
    with pytest.raises(cn.InvalidArgument, match="compile="):
        cn.parallel(keras.ops.tanh, compile=wanted)
