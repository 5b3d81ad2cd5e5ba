"""Mistakes with layers that are split by width: one error that names the argument and the rule."""

import keras
import pytest
import tensorflow as tf
from wide import sparse

import colonnade as cn

BAD = {
    "more devices than columns": (lambda: cn.width.Dense(3, devices=4), "4 devices cannot share 3 columns"),
    "more devices than rows": (
        lambda: cn.width.Dense(9, split="rows", devices=4)(tf.ones([2, 3])),
        "4 devices cannot share 3 rows",
    ),
    "more devices than words": (
        lambda: cn.width.Embedding(2, 9, split="rows", devices=3),
        "3 devices cannot share 2 rows",
    ),
    "unknown split": (lambda: cn.width.Dense(3, split="diagonal"), "must be one of columns, rows"),
    "no devices": (lambda: cn.width.Dense(3, devices=0), "must be a count from 1 up"),
    "an empty list": (lambda: cn.width.Dense(3, devices=[]), "names no device"),
    "no units": (lambda: cn.width.Dense(0), "must be a whole number from 1 up"),
    "parts of a sum": (lambda: cn.width.Dense(3, split="rows", gather=False), "is a sum"),
    "softmax of parts": (lambda: cn.width.Dense(3, "softmax", devices=2), "needs whole rows"),
    "TensorFlow's softmax": (lambda: cn.width.Dense(3, tf.nn.softmax, devices=2), "needs whole rows"),
    "a softmax layer": (lambda: cn.width.Dense(3, keras.layers.Softmax(), devices=2), "needs whole rows"),
    "a function of rows": (
        lambda: cn.width.Dense(3, lambda v: v / tf.norm(v, axis=-1, keepdims=True), devices=2),
        "needs whole rows",
    ),
    "an activation with weights": (
        lambda: cn.width.Dense(3, keras.layers.PReLU(), devices=2),
        "needs whole rows",
    ),
    "sparse into dense": (lambda: cn.width.Dense(3, devices=2)(sparse()), "cn.width.SparseDense"),
    "dense into sparse": (lambda: cn.width.SparseDense(3, devices=2)(tf.ones([2, 3])), "tf.SparseTensor"),
    "sparse into embedding": (lambda: cn.width.Embedding(9, 3, devices=2)(sparse()), "whole numbers"),
    "parts into columns": (
        lambda: cn.width.Dense(4, devices=2)(cn.width.Dense(4, gather=False, devices=2)(tf.ones([2, 3]))),
        "needs all of them",
    ),
    "parts of other devices": (
        lambda: cn.width.Dense(4, split="rows", devices=3)(
            cn.width.Dense(4, gather=False, devices=2)(tf.ones([2, 3]))
        ),
        "the layer before has 2 parts",
    ),
    "labels of another shape": (
        lambda: cn.width.softmax_cross_entropy(tf.constant([[1]]), tf.ones([2, 3])),
        "without their last dim",
    ),
    "labels that are no numbers of classes": (
        lambda: cn.width.softmax_cross_entropy(tf.ones([2]), tf.ones([2, 3])),
        "must be class numbers",
    ),
    "sparse labels of another width": (
        lambda: cn.width.softmax_cross_entropy(sparse(), tf.ones([6, 3])),
        "shape of the logits",
    ),
    "parts into an operation": (
        lambda: tf.nn.relu(cn.width.Dense(4, gather=False, devices=2)(tf.ones([2, 3]))),
        r"Parts of \(2, 2\).*no single tensor",
    ),
    "more than there are": (lambda: cn.width.top_k(tf.ones([2, 3]), 4), "from 1 to the 3 columns"),
    "other devices to load on": (lambda: cn.width.loading_on(0).__enter__(), "must be a count"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    call, message = BAD[name]
    with pytest.raises(cn.InvalidArgument, match=message):
        call()


def test_everything_wrong_comes_at_once():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.width.Dense(0, split="diagonal", gather=3)
    assert [problem.argument for problem in caught.value.problems] == ["units", "split", "gather"]
    with pytest.raises(cn.InvalidArgument, match="must be one of columns, rows"):
        cn.width.Dense(3, split=["rows"])
