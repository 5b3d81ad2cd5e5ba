"""Sums of sparse gradients against plain Keras on one device, in float64: only rounding is allowed.

Keras takes every row that a gradient has by itself, also rows that come twice. So what an optimizer is
given must have the very rows that the whole batch has on one device.
"""

from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long

import colonnade as cn

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 6, (12, 5))
Y = RNG.normal(size=(12, 5))
STEPS = 3


def unique(table, ids):
    rows, places = tf.unique(tf.reshape(ids, [-1]))
    return tf.reshape(tf.gather(tf.gather(table, rows), places), [*ids.shape, 2])


def unique_with_counts(table, ids):
    rows, places, _ = tf.unique_with_counts(tf.reshape(ids, [-1]))
    return tf.reshape(tf.gather(tf.gather(table, rows), places), [*ids.shape, 2])


def sorted_rows(table, ids):
    rows = tf.sort(tf.unique(tf.reshape(ids, [-1])).y) + 1
    places = tf.searchsorted(rows, tf.reshape(ids + 1, [-1]))
    return tf.reshape(tf.gather(tf.gather(table, rows), places), [*ids.shape, 2])


def masked_rows(table, ids):
    """The rows of a vocabulary that a batch has, by a mask."""
    present = tf.reduce_any(tf.cast(tf.one_hot(ids, 8), tf.bool), axis=[0, 1])
    rows = tf.where(present)[:, 0]
    places = tf.searchsorted(rows, tf.reshape(ids, [-1]))
    return tf.reshape(tf.gather(tf.gather(table, rows), places), [*ids.shape, 2])


def counted_to(table, ids):
    """Fixed rows that a loop makes."""
    rows = tf.map_fn(lambda i: 4 - i, tf.range(5))
    return tf.gather(table, rows)


def nested(function):
    return tf.function(function, autograph=False)


# What a table gives to examples with some ids: one of its rows, two numbers, for each of five positions.
LOOKUPS = {
    "ids": lambda table, ids: tf.gather(table, ids),
    "fixed": lambda table, ids: tf.gather(table, tf.range(5)),
    "constant": lambda table, ids: tf.gather(table, [4, 0, 1, 2, 3]),
    "repeated": lambda table, ids: tf.gather(table, [[0, 0, 1, 0, 1]]),
    "keras": lambda table, ids: keras.ops.take(table, keras.ops.arange(keras.ops.shape(ids)[1]), axis=0),
    "for each example": lambda table, ids: tf.gather(
        table, tf.tile(tf.range(5)[None], [tf.shape(ids)[0], 1])
    ),
    "zeros": lambda table, ids: tf.gather(table, tf.zeros_like(ids)),
    "both": lambda table, ids: tf.gather(table, tf.range(5)) + tf.gather(table, ids),
    "twice": lambda table, ids: tf.gather(table, tf.range(5)) * tf.gather(table, tf.range(1, 6)),
    "unique": unique,
    "unique with counts": unique_with_counts,
    "sorted": sorted_rows,
    "by a mask": masked_rows,
    "constant seed": lambda table, ids: tf.gather(
        table, tf.random.stateless_uniform([5], [1, 2], maxval=8, dtype=tf.int32)
    ),
    "loop": counted_to,
    "function": lambda table, ids: nested(lambda: tf.gather(table, tf.range(5)))(),
    "function of ids": lambda table, ids: nested(lambda i: tf.gather(table, i) + tf.gather(table, i + 1))(
        ids
    ),
    "function for each example": lambda table, ids: nested(
        lambda i: tf.gather(table, tf.tile(tf.range(5)[None], [tf.shape(i)[0], 1]))
    )(ids),
    "variable": lambda table, ids: tf.gather(table, POSITIONS),
    "mask": lambda table, ids: tf.reshape(tf.gather(table, tf.boolean_mask(ids, ids >= 0)), [-1, 5, 2]),
    "sparse and dense": lambda table, ids: tf.gather(table, ids) + table[:5],
}
POSITIONS = tf.Variable([3, 1, 2, 0, 4], trainable=False)


@dataclass
class Tables:
    """A table for every way to look something up."""

    names: list[str] = field(default_factory=lambda: list(LOOKUPS))

    def __post_init__(self):
        rng = np.random.default_rng(1)
        self.tables = {name: tf.Variable(rng.normal(size=(8, 2)), name=name) for name in self.names}

    def __call__(self, ids, y):
        found = [LOOKUPS[name](table, ids) for name, table in self.tables.items()]
        return tf.reduce_mean(sum(tf.reduce_sum(tf.tanh(rows), -1) for rows in found) * y, axis=1)


def plain(model, optimizer, ids=IDS, y=Y) -> dict[str, Any]:
    """Keras, without Colonnade."""
    variables = list(model.tables.values())
    optimizer.build(variables)
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(tf.reduce_mean(model(tf.constant(ids), tf.constant(y))))
        optimizer.apply(tape.gradient(loss, variables), variables)
    return {name: table.numpy() for name, table in model.tables.items()}


def assert_equal(model, expected):
    far = {n: float(abs(t.numpy() - expected[n]).max()) for n, t in model.tables.items()}
    assert {name: distance for name, distance in far.items() if distance > 1e-12} == {}


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.01),
    "clipped": lambda: keras.optimizers.Adam(0.01, clipnorm=0.01),
    "all clipped": lambda: keras.optimizers.SGD(0.01, momentum=0.9, global_clipnorm=0.01),
    "values clipped": lambda: keras.optimizers.SGD(0.01, clipvalue=0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "average": lambda: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.01)),
    "adamw": lambda: keras.optimizers.AdamW(0.01),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.01),
    "adadelta": lambda: keras.optimizers.Adadelta(0.01),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.01),
    "adafactor": lambda: keras.optimizers.Adafactor(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
}


@pytest.mark.parametrize("name", kept(OPTIMIZERS, "clipped"))
def test_an_optimizer_sees_the_rows_that_one_device_has(name):
    model, reference = Tables(), Tables()
    trainer = cn.Trainer(model, OPTIMIZERS[name](), devices=3)
    for _ in range(STEPS):
        trainer.train_on_batch(IDS, Y)
    assert_equal(model, plain(reference, OPTIMIZERS[name]()))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("home", "devices", "rows"),
    [
        ("mirrored", 2, 11),
        ("partitioned", 3, 3),
        *long(("mirrored", 4, 3), ("shared", 4, 2), ("shared", 1, 7)),
    ],
)
def test_rows_in_other_homes_and_of_uneven_and_single_examples(home, devices, rows):
    model, reference = Tables(), Tables()
    trainer = cn.Trainer(model, keras.optimizers.Adam(0.01), devices=devices, variables=home)
    for _ in range(STEPS):
        trainer.train_on_batch(IDS[:rows], Y[:rows])
    assert_equal(model, plain(reference, keras.optimizers.Adam(0.01), IDS[:rows], Y[:rows]))


@pytest.mark.long
def test_rows_of_micro_batches_and_of_rows_of_pipelines():
    def run(piped):
        model = Tables()
        first, second = list(LOOKUPS)[::2], list(LOOKUPS)[1::2]

        def begin(ids):
            return ids, sum(tf.reduce_sum(tf.tanh(LOOKUPS[n](model.tables[n], ids)), -1) for n in first)

        def end(given):
            ids, total = given
            return total + sum(tf.reduce_sum(tf.tanh(LOOKUPS[n](model.tables[n], ids)), -1) for n in second)

        if not piped:
            return plain(model, keras.optimizers.Adam(0.01))
        pipeline = cn.Pipeline([begin, end], [[0, 1], [2, 3]], micro_batches=2)
        trainer = cn.Trainer(
            lambda ids, y: tf.reduce_mean(pipeline(ids) * y, axis=1),
            keras.optimizers.Adam(0.01),
            devices=pipeline,
        )
        for _ in range(STEPS):
            trainer.train_on_batch(IDS, Y)
        return model

    assert_equal(run(True), run(False))


# A gradient that is sparse for slices of one size and dense for those of another.


def by_size(*sparse, rows):
    """Looks a table up by rows for slices of some sizes, and by a product for others."""

    def loss(ids, y):
        at = tf.range(5) if rows == "fixed" else ids
        if ids.shape[0] in sparse:
            found = tf.gather(table, at)
        else:
            found = tf.one_hot(at, 8, dtype=table.dtype) @ table
        return tf.reduce_mean(tf.reduce_sum(tf.tanh(found), -1) * y, axis=1)

    table = tf.Variable(np.random.default_rng(1).normal(size=(8, 2)), name="table")
    return loss, table


@pytest.mark.parametrize(
    ("home", "sparse", "rows"),
    [
        *long(("shared", (4,), "ids"), ("mirrored", (3,), "ids"), ("mirrored", (4, 11), "fixed")),
        ("partitioned", (4,), "ids"),
        ("shared", (3, 4), "ids"),  # of one kind on all slices, of another on one device
        ("mirrored", (3, 11), "fixed"),
        *long(("shared", (3, 4), "fixed"), ("partitioned", (11,), "fixed")),
    ],
)
def test_sparse_for_some_sizes_and_dense_on_one_device_or_of_fixed_rows(home, sparse, rows):
    """Eleven examples on three devices are slices of 4, 4 and 3."""
    loss, table = by_size(*sparse, rows=rows)
    trainer = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=3, variables=home)
    for _ in range(STEPS):
        trainer.train_on_batch(IDS[:11], Y[:11])
    same, expected = by_size(*sparse, rows=rows)
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build([expected])
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(same(tf.constant(IDS[:11]), tf.constant(Y[:11])))
        optimizer.apply(tape.gradient(value, [expected]), [expected])
    np.testing.assert_allclose(table.numpy(), expected.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sparse", [{3, 11}, {11}, *long({4, 11})])
def test_dense_for_some_sizes_and_rows_of_examples_on_one_device_is_refused(sparse):
    """An optimizer takes every row by itself, and a dense gradient has only their sum."""
    loss, table = by_size(*sparse, rows="ids")
    before = table.numpy()
    trainer = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=3)
    with pytest.raises(cn.InvalidArgument, match=r"table:0.*slices of 4 and 3 than for 11"):
        trainer.train_on_batch(IDS[:11], Y[:11])
    assert np.array_equal(table.numpy(), before)


def test_fixed_rows_among_others_inside_a_function_are_refused():
    model = Tables(["ids"])
    table = model.tables["ids"]
    both = nested(lambda ids: tf.gather(table, ids) + tf.gather(table, tf.range(5)))
    trainer = cn.Trainer(
        lambda ids, y: tf.reduce_mean(both(ids)[..., 0] * y, 1), keras.optimizers.Adam(0.01), devices=2
    )
    with pytest.raises(cn.InvalidArgument, match=r"ids:0.*several ways inside a tf.function"):
        trainer.train_on_batch(IDS, Y)


def test_rows_made_of_distinct_ids_are_refused_if_they_may_be_equal():
    """Two ids of one slice may fall together, and two of different slices too."""
    model = Tables(["ids"])
    table = model.tables["ids"]

    def loss(ids, y):
        rows = tf.unique(tf.reshape(ids, [-1])).y
        return tf.reduce_mean(y, 1) * tf.reduce_mean(tf.gather(table, rows // 2))

    trainer = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"ids:0.*made of distinct ids"):
        trainer.train_on_batch(IDS, Y)


@pytest.mark.parametrize("how", ["map_fn", "cond", "python"])
def test_rows_drawn_in_a_loop_or_a_branch_are_of_their_slice(how):
    """Each gradient goes to the rows that were drawn: where nothing was looked up, nothing changes."""
    seen = tf.Variable(tf.zeros([100], tf.int64), trainable=False, aggregation=tf.VariableAggregation.SUM)
    table = tf.Variable(tf.zeros([100, 1]))

    def drawn():
        if how == "map_fn":
            draw = lambda _: tf.random.uniform([], 0, 100, tf.int64)  # noqa: E731
            return tf.map_fn(draw, tf.zeros([5]), fn_output_signature=tf.int64)
        if how == "cond":
            zeros = lambda: tf.zeros([5], tf.int64)  # noqa: E731
            return 1 + tf.cond(tf.size(table) > 3, lambda: tf.random.uniform([5], 0, 99, tf.int64), zeros)
        draw = lambda _: np.random.default_rng().integers(100)  # noqa: E731
        one = lambda i: tf.ensure_shape(tf.numpy_function(draw, [i], tf.int64), [])  # noqa: E731
        return tf.map_fn(one, tf.range(5), fn_output_signature=tf.int64)

    def loss(x):
        rows = drawn()
        seen.assign(tf.tensor_scatter_nd_add(seen, rows[:, None], tf.ones_like(rows)))
        return x * tf.reduce_sum(tf.gather(table, rows))

    cn.Trainer(loss, keras.optimizers.SGD(1.0), devices=2).train_on_batch(np.ones(8, "float32"))
    assert int(tf.reduce_sum(seen)) == 10
    # Half of the batch has drawn each row.
    np.testing.assert_allclose(-table[:, 0], seen.numpy() / 2)


@pytest.mark.parametrize(("devices", "home"), [(1, "shared"), (3, "mirrored"), *long((3, "partitioned"))])
def test_a_penalty_of_some_rows_adds_its_rows(devices, home):
    """On one device the gradient of both has the rows of both, of which an optimizer takes each by itself."""

    def penalty(table):
        return tf.reduce_sum(tf.gather(table, [1, 3, 3]) ** 2)

    ids, start = IDS[:, 0], RNG.normal(size=(6, 2))
    alone, optimizer = tf.Variable(start), keras.optimizers.Adam(0.1)
    table = tf.Variable(start)
    trainer = cn.Trainer(
        lambda ids: tf.reduce_sum(tf.gather(table, ids) ** 2, axis=1),
        keras.optimizers.Adam(0.1),
        devices=devices,
        variables=home,
        penalty=lambda: penalty(table),
    )
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.reduce_sum(tf.gather(alone, ids) ** 2, axis=1)) + penalty(alone)
        optimizer.apply([tape.gradient(loss, alone)], [alone])
        trainer.train_on_batch(ids)
    np.testing.assert_allclose(table, alone, rtol=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_what_takes_its_gradient_as_its_value_is_for_one_device(devices):
    """The scales of a float8 layer: the sum of two slices would be twice the scale."""
    layer = keras.layers.Dense(2, dtype="float32", name="quantized")
    layer.build((None, 2))
    layer.quantize("float8")
    trainer = cn.Trainer(
        lambda x: tf.reduce_sum(layer(x, training=True) ** 2, axis=1),
        keras.optimizers.SGD(0.01),
        devices=devices,
    )
    if devices == 1:
        trainer.train_on_batch(np.ones((2, 2), "float32"))
        return
    with pytest.raises(cn.InvalidArgument, match=r"quantized/.*is given its next value .* \(float8\)"):
        trainer.train_on_batch(np.ones((2, 2), "float32"))
