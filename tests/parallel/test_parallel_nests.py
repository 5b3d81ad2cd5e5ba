"""Any nest of tensors, in a batch of any size, on any number of devices: as the unsplit call."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import colonnade as cn
from colonnade.run.batch.split import flatten, pack

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Pair:
    first: Any
    second: Any


KINDS = ["float16", "float32", "float64", "int32", "int64", "bool", "string", "ragged", "sparse"]
NESTS = st.recursive(
    st.sampled_from(KINDS),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
    ),
    max_leaves=4,
)


def made(kind, rows):
    """A batch of this kind; whole numbers, so that sums are exact in any order."""
    whole = RNG.integers(-3, 4, (rows, 2))
    if kind == "string":
        return tf.constant([f"{i}" for i in range(rows)])
    if kind == "ragged":
        lengths = RNG.integers(0, 3, rows)
        values = tf.constant(RNG.integers(-3, 4, lengths.sum()), tf.float32)
        return tf.RaggedTensor.from_row_lengths(values, lengths)
    if kind == "sparse":
        return tf.sparse.from_dense(whole.astype("float32"))
    return tf.constant(whole.astype(kind))


def each(fn, nest):
    return pack(nest, iter([fn(leaf) for _, leaf in flatten(nest)]))


def parts(nest):
    return tf.nest.flatten([leaf for _, leaf in flatten(nest)], expand_composites=True)


def twice(x, w):
    if x.dtype == tf.string:
        return tf.strings.join([x, x])
    if x.dtype == tf.bool:
        return tf.logical_not(x)
    if isinstance(x, tf.SparseTensor):
        return x.with_values(x.values * tf.cast(w, x.dtype))
    return x * tf.cast(w, x.dtype) if x.dtype.is_floating else x * 2


NEST_AND_BATCH = given(nest=NESTS, rows=st.integers(1, 200), devices=st.integers(1, 8))


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@NEST_AND_BATCH
def test_any_nest_any_batch_any_number_of_devices(nest, rows, devices):
    """Equal to the unsplit call, bit for bit: values, and gradients of these sums of whole numbers."""
    assert_like_unsplit(nest, rows, devices)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@NEST_AND_BATCH
def test_many_more_nests_and_batches(nest, rows, devices):
    assert_like_unsplit(nest, rows, devices)


def assert_like_unsplit(nest, rows, devices):
    w = tf.Variable(2.0, dtype="float64")
    batch = each(lambda kind: made(kind, rows), nest)

    def run(call):
        floats = [x for x in parts(batch) if x.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(floats)
            out = call(batch)
            smooth = [y**2 for y in parts(out) if y.dtype.is_floating]
        return out, tape.gradient(smooth, [w, *floats]) if smooth else []

    def f(batch):
        return each(lambda x: twice(x, w), batch)

    found, gradients = run(cn.parallel(f, devices=devices))
    expected, wanted = run(f)
    assert [path for path, _ in flatten(found)] == [path for path, _ in flatten(expected)]
    assert type(found) is type(expected)
    for a, b in zip([*parts(found), *gradients], [*parts(expected), *wanted], strict=True):
        assert a.dtype == b.dtype
        assert np.array_equal(a.numpy(), b.numpy())


@dataclass
class Outputs:
    logits: Any
    extra: Any


def test_any_nest_comes_back():
    table = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0])

    def f(batch, table, flag, name=None):
        x = batch["x"]
        assert flag is True
        return Outputs(x * 2, {"sum": (x + tf.reduce_sum(table), [batch["ids"]]), "name": name, "none": None})

    x = tf.ones([7, 2])
    fast = cn.parallel(f, devices=3)
    out = fast({"x": x, "ids": np.arange(7, dtype="int32")}, cn.broadcast(table), True, name="model")
    assert isinstance(out, Outputs)
    assert np.array_equal(out.logits, x * 2)
    assert np.array_equal(out.extra["sum"][0], x + 15.0)
    assert out.extra["sum"][1][0].numpy().tolist() == list(range(7))
    assert out.extra["name"] == "model"
    assert out.extra["none"] is None


def test_strings_ragged_and_sparse_come_back():
    words = tf.constant([["a", "b"], ["c", "d"], ["e", "f"]])
    assert cn.make_parallel(lambda w: tf.strings.upper(w), 2, w=words).numpy().tolist()[2] == [b"E", b"F"]
    ragged = tf.ragged.constant([[1.0], [], [2.0, 3.0]])
    assert cn.make_parallel(lambda r: r * 2.0, 2, r=ragged).to_list() == [[2.0], [], [4.0, 6.0]]
    sparse = tf.sparse.from_dense(np.eye(5, dtype="float32"))
    back = cn.make_parallel(lambda s: s * 3.0, 2, s=sparse)
    assert np.array_equal(tf.sparse.to_dense(back), 3 * np.eye(5))
