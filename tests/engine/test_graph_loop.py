"""Many steps in one call are the same steps one by one, and stop where those would."""

import re
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from fresh import run
from lines import X, Y, linear, poisoned

import colonnade as cn


def test_a_fit_equals_single_steps_short_last_batch_included():
    w, trainer = linear()
    history = trainer.fit((X, Y), batch_size=16, epochs=3, progress=False)
    v, single = linear()
    losses = [
        single.train_on_batch(X[i : i + 16], Y[i : i + 16]).loss for _ in range(3) for i in range(0, 50, 16)
    ]
    np.testing.assert_allclose(w, v, atol=1e-6)
    np.testing.assert_allclose(history.losses, losses, rtol=1e-5)


def test_batches_of_many_sizes():
    sizes = [7, 7, 1, 12, 7, 3]
    ends = np.cumsum(sizes)
    w, trainer = linear(devices=4)
    trainer.fit(((X[e - s : e], Y[e - s : e]) for s, e in zip(sizes, ends, strict=True)), progress=False)
    v, one = linear(devices=1)
    for s, e in zip(sizes, ends, strict=True):
        one.train_on_batch(X[e - s : e], Y[e - s : e])
    np.testing.assert_allclose(w, v, atol=1e-6)


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_a_nan_in_a_fit_is_found_at_its_step(home):
    w, _, trainer, bad = poisoned(home)
    data = [(X[:12], Y[:12])] * 7 + [(bad, Y[:12])] + [(X[:12], Y[:12])] * 3
    with pytest.raises(cn.NotFinite, match="at step 8"):
        trainer.fit(iter(data), progress=False, log_every=100)
    assert trainer.step == 7
    v, _, clean, _ = poisoned(home)
    for _ in range(7):
        clean.train_on_batch(X[:12], Y[:12])
    np.testing.assert_allclose(w, v, atol=1e-6)


@pytest.mark.long
def test_no_warning_at_the_end_of_the_data():
    program = textwrap.dedent(
        """
        import colonnade as cn, keras, numpy as np, tensorflow as tf
        cn.setup(virtual=2)
        w = tf.Variable(1.0)
        trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), devices=2)
        dataset = tf.data.Dataset.from_tensor_slices(np.ones(10, "float32")).batch(4)
        trainer.fit(dataset, epochs=2, progress=False)
        print(trainer.step)
        """
    )
    done = run([sys.executable, "-c", program], TF_CPP_MIN_LOG_LEVEL="0")
    assert done.stdout == "6\n"
    assert not re.search(r"OUT_OF_RANGE|End of sequence|^W\d|Warning", done.stderr, re.M), done.stderr


@pytest.mark.parametrize(
    ("home", "log_every"), [("mirrored", 7), *long(("shared", 7), ("shared", 1), ("mirrored", 100))]
)
def test_the_limit_of_skipped_steps_does_not_depend_on_the_log(home, log_every):
    _, _, trainer, bad = poisoned(home, on_nan="skip")
    good = [(X[:12], Y[:12])] * 3
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        trainer.fit([*good, *[(bad, Y[:12])] * 30, *good], progress=False, log_every=log_every)
    assert (trainer.step, trainer.skipped) == (23, 20)
    trainer.fit([*[(bad, Y[:12])] * 19, *good] * 2, progress=False, log_every=log_every)
    assert trainer.skipped == 20 + 38


def test_skipped_steps_in_a_row_are_counted_across_calls():
    _, _, trainer, bad = poisoned("shared", on_nan="skip")
    for _ in range(12):
        trainer.train_on_batch(bad, Y[:12])
    trainer.fit([(bad, Y[:12])] * 4, progress=False)
    for _ in range(3):
        trainer.train_on_batch(bad, Y[:12])
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        trainer.train_on_batch(bad, Y[:12])
    assert (trainer.step, trainer.skipped) == (20, 20)


def test_batches_of_many_widths_take_two_traces():
    traced = []
    w = tf.Variable(1.0)

    def loss(x):
        traced.append(x.shape)
        return tf.reduce_mean((x * w - 1) ** 2, axis=1)

    def trained(devices, batches):
        w.assign(1.0)
        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=devices)
        history = trainer.fit(batches, epochs=1, log_every=1, progress=False)
        return history.losses, float(w)

    batches = [np.full([6, width], 1.0 + width, "float32") for width in (2, 3, 5, 4, 2, 7)]
    expected, end = trained(1, batches)
    traced.clear()
    found, reached = trained(2, batches)
    assert {tuple(shape) for shape in traced} == {(3, 2), (6, 2), (3, None), (6, None)}
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert reached == pytest.approx(end, rel=1e-6)


# TensorFlow puts these where the iterator or the variable is that they are given.
WITH_ITS_RESOURCE = {"IteratorGetNextAsOptional", "OptionalHasValue", "OptionalGetValue", "ReadVariableOp"}


def unplaced(function):
    """The ops of a loop, of its branches too, that name no device; inside a call it is that of the call."""
    graph = function.graph.as_graph_def()
    library = {f.signature.name: f for f in graph.library.function}
    found, open_lists = [], [graph.node]
    while open_lists:
        for node in open_lists.pop():
            parts = [node.attr[k] for k in ("body", "cond", "then_branch", "else_branch") if k in node.attr]
            open_lists += [library[part.func.name].node_def for part in parts if part.HasField("func")]
            if not node.device and node.op not in ("Placeholder", "NoOp", "Identity"):
                found.append(node)
    return found


# Assignments too, where variables are kept elsewhere than the update is.
WITH_ITS_VARIABLE = {*WITH_ITS_RESOURCE, "AssignVariableOp", "AssignAddVariableOp"}


@pytest.mark.parametrize("home", ["shared", "mirrored", "partitioned"])
def test_no_op_of_a_step_is_left_without_a_device(home):
    """Else it would be on the first card, and what it makes would travel from there."""
    table, w = tf.Variable(tf.ones([5, 1])), tf.Variable(1.0)
    norm = keras.layers.BatchNormalization()
    norm.build([None, X.shape[1]])

    def loss(x, y, training):
        return tf.reduce_mean(norm(x, training=training) * tf.gather(table, y % 5) * w, axis=1) ** 2

    trainer = cn.Trainer(
        loss,
        keras.optimizers.Adam(0.01, global_clipnorm=1.0),
        devices=3,
        variables=home,
        on_nan="skip",
        penalty=lambda: w**2,
    )
    numbers = np.arange(len(X))
    trainer.fit((X, numbers), batch_size=16, steps=2, progress=False)
    (loop,) = (each.graph for each in trainer._loop._many.values())
    trainer.train_on_batch(X[:9], numbers[:9])
    (once,) = trainer._loop._single.values()
    trainer.evaluate((X, numbers), batch_size=16)
    scores = list(trainer._evaluation._compiled.values())
    for made in (loop, once, *scores):
        left = [node for node in unplaced(made) if node.op not in WITH_ITS_VARIABLE]
        # An update of owners is on several devices, as the ops in it say; its gate is in the host's memory.
        assert [node.name for node in left if home != "partitioned" or "update_0/" not in node.name] == []
    assert sum(node.op == "ReadVariableOp" for node in unplaced(loop)) <= 1  # a count, on the host
