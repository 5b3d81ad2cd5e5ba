"""What the user's code says in a graph, told from what libraries assert by themselves."""

import keras
import pytest
import tensorflow as tf

from colonnade.run.trace.ops import is_users, nodes
from colonnade.run.trace.traced import trace


def prints_in_a_loop(x):
    for _ in tf.range(2):
        tf.print(x)
    return x


def asserts(x):
    tf.debugging.assert_positive(x)
    return x


def asserts_of_numbers(x):
    tf.debugging.Assert(tf.reduce_sum(x) > 0, [tf.constant(1)])
    return x


def asserts_in_a_function(x):
    return tf.function(asserts)(x)


@pytest.mark.parametrize("fn", [prints_in_a_loop, asserts, asserts_of_numbers, asserts_in_a_function])
def test_what_the_user_says_is_heard(fn):
    assert trace(fn, tf.TensorSpec([None])).facts.speaks


def crossentropy(x):
    """Asserts inside that there are as many labels as rows."""
    labels = tf.zeros(tf.shape(x)[:2], tf.int32)
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, x)


def confusion(x):
    """Asserts inside, in a branch of its own, that labels are not negative."""
    labels = tf.cast(x[:, 0, 0], tf.int32)
    return tf.math.confusion_matrix(labels, labels, 3)


@pytest.mark.parametrize("fn", [crossentropy, confusion])
def test_what_libraries_assert_by_themselves_is_not(fn):
    traced = trace(fn, tf.TensorSpec([None, None, 3]))
    assert any(node.op == "Assert" for node in nodes(traced.concrete.graph.as_graph_def()))
    assert not traced.facts.speaks


def test_files_of_users_and_of_others():
    assert is_users(__file__)
    assert all(map(is_users, ("<string>", "<stdin>", "<python-input-3>", "<ipython-input-1-ab>")))
    assert not is_users("<frozen runpy>")
    assert not any(is_users(module.__file__) for module in (tf, keras, pytest))
    assert not is_users(is_users.__code__.co_filename)
