"""make_parallel and parallel against the same function called once, values and gradients.

Tolerances are those of float32 sums in another order: a slice is a smaller matrix product than the
whole batch, so the last bits may differ; 1e-5 of the largest value covers sums of 200 terms.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)


def close(a, b, tolerance=1e-5):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))


def test_a_plus_b():
    a, b = (RNG.normal(size=(1000, 100)).astype("float32") for _ in range(2))

    def add(a, b):
        return a + b

    assert np.array_equal(cn.make_parallel(add, 2, a=a, b=b), a + b)
    report = cn.parallel(add, devices=2).placement(a, b, strict=True)
    where = {(re.search(r"replica_(\d)", row.name)[1], row.actual) for row in report.ops if row.op == "AddV2"}
    assert where == {("0", "/device:CPU:0"), ("1", "/device:CPU:1")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "optimizer", [lambda: keras.optimizers.Adam(0.1), lambda: keras.optimizers.SGD(0.01)]
)
def test_the_quadratic_has_the_same_trajectory(optimizer):
    x = RNG.uniform(-1, 1, (1000, 1)).astype("float32")
    y = 5 * x**2 + 3

    def trajectory(num_devices, steps):
        w = tf.Variable(tf.zeros([3, 1]))
        chosen = optimizer()

        def model(x):
            return tf.concat([x * x, x, tf.ones_like(x)], axis=1) @ w

        @tf.function
        def train(x, y):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((cn.make_parallel(model, num_devices, x=x) - y) ** 2)
            chosen.apply([tape.gradient(loss, w)], [w])

        path = []
        for _ in range(steps):
            train(x, y)
            path.append(w.numpy().ravel())
        return np.array(path)

    adam = isinstance(optimizer(), keras.optimizers.Adam)
    steps = 1000 if adam else 100
    one, two = trajectory(1, steps), trajectory(2, steps)
    np.testing.assert_allclose(one, two, atol=2e-5)
    if adam:
        np.testing.assert_allclose(two[-1], [5, 0, 3], atol=1e-3)


@pytest.mark.parametrize(("batch", "devices"), [(99, 4), (3, 4), (1, 8), (8, 8)])
def test_uneven_batches(batch, devices):
    w = tf.Variable(RNG.normal(size=(5, 3)).astype("float32"))
    x = tf.constant(RNG.normal(size=(batch, 5)).astype("float32"))

    def model(x):
        return tf.nn.elu(x @ w)

    def run(f):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
            loss = tf.reduce_mean(y**2)
        return y, *tape.gradient(loss, [w, x])

    for found, expected in zip(run(cn.parallel(model, devices=devices)), run(model), strict=True):
        close(found, expected)


def test_gradients_of_sparse_outputs():
    w = tf.Variable(2.0)
    sparse = tf.sparse.from_dense(np.eye(4, dtype="float32"))
    with tf.GradientTape() as tape:
        y = cn.parallel(lambda s: s.with_values(s.values * w), devices=2)(sparse)
        loss = tf.reduce_sum(y.values)
    close(tape.gradient(loss, w), 4.0)


def test_a_variable_that_is_not_trainable_but_watched():
    v = tf.Variable(2.0, trainable=False)
    with tf.GradientTape() as tape:
        tape.watch(v)
        y = cn.parallel(lambda x: x * v, devices=2)(tf.ones(4))
    close(tape.gradient(y, v), 4.0)


def test_row_splits_of_another_dtype_are_another_trace():
    fast = cn.parallel(lambda r: r * 2, devices=2)
    rows = [[1], [2, 3]]
    for dtype in (tf.int64, tf.int32):
        assert fast(tf.ragged.constant(rows, row_splits_dtype=dtype)).to_list() == [[2], [4, 6]]


def test_gradients_of_ragged_values():
    values = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        tape.watch(values)
        ragged = tf.RaggedTensor.from_row_lengths(values, [1, 0, 2])
        y = cn.parallel(lambda r: tf.reduce_sum(r**2, axis=1), devices=2)(ragged)
        loss = tf.reduce_sum(y)
    close(tape.gradient(loss, values), [2.0, 4.0, 6.0])


def test_not_a_function():
    for make in (lambda: cn.parallel(3), lambda: cn.make_parallel("f", 2, x=[1.0])):
        with pytest.raises(cn.InvalidArgument, match="must be a function"):
            make()


def test_what_cannot_be_a_key_is_refused():
    with pytest.raises(cn.InvalidArgument, match=r"names='set': .* cannot be hashed, .* frozenset"):
        cn.parallel(lambda x, names: x, devices=2)(tf.ones(2), {"a"})

    class Callable:
        __hash__ = None

        def __call__(self, x):
            return x

    with pytest.raises(cn.InvalidArgument, match=r"cn.parallel\(fn\) once"):
        cn.make_parallel(Callable(), 2, x=tf.ones(2))


def test_zero_and_minus_zero_are_two_traces():
    fast = cn.parallel(lambda x, zero: x / zero, devices=2)
    assert fast(tf.ones(2), 0.0).numpy().tolist() == [np.inf, np.inf]
    assert fast(tf.ones(2), -0.0).numpy().tolist() == [-np.inf, -np.inf]


def test_an_argument_passed_twice_is_pythons_own_error():
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        cn.parallel(lambda x: x, devices=2)(tf.ones(2), x=tf.ones(2))


def test_fields_that_the_constructor_does_not_take():
    @dataclass(frozen=True)
    class Batch:
        x: Any
        total: Any = field(init=False, default=None)

    found = cn.parallel(lambda batch: batch, devices=2)(Batch(tf.ones(3)))
    assert isinstance(found, Batch)
    assert found.x.shape == [3]


@pytest.mark.parametrize("kind", [lambda x: x, tf.RaggedTensor.from_tensor, tf.sparse.from_dense])
def test_lengths_that_only_the_run_tells_must_agree(kind):
    fast = cn.parallel(lambda x, y: x, devices=2)
    signature = [tf.TensorSpec([None, 2]), tf.TensorSpec([None, 2])]
    run = tf.function(lambda x, y: fast(x, kind(y)), input_signature=signature, autograph=False)
    assert run(tf.ones([4, 2]), tf.ones([4, 2])).shape == [4, 2]
    with pytest.raises(tf.errors.InvalidArgumentError, match="y has another number of rows than x"):
        run(tf.ones([4, 2]), tf.ones([6, 2]))


def test_as_decorator_and_as_method():
    class Model:
        def __init__(self):
            self.w = tf.Variable(3.0)

        @cn.parallel(devices=2)
        def call(self, x):
            """Times w."""
            return x * self.w

    model = Model()
    close(model.call(tf.ones(3)), [3.0, 3.0, 3.0])
    assert Model.call.__doc__ == "Times w."


def test_a_method_of_a_dataclass_keeps_its_self():
    @dataclass
    class Scale:
        w: Any

        @cn.parallel(devices=2)
        def call(self, x):
            return x * self.w

    scale = Scale(tf.constant([1.0, 2.0]))
    close(scale.call(tf.ones([2, 2])), [[1.0, 2.0], [1.0, 2.0]])


def test_inside_a_persistent_tape_and_a_tf_function():
    w = tf.Variable(2.0)
    fast = cn.parallel(lambda x: w * x**2, devices=3)

    @tf.function
    def gradients(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = fast(x)
        return tape.gradient(y, w), tape.gradient(y, x)

    x = tf.constant([1.0, 2.0, 3.0, 4.0])
    for dw, dx in (gradients(x), gradients.python_function(x)):
        close(dw, 30.0)
        close(dx, 4 * x)


def test_second_derivatives():
    x = tf.constant([1.0, 2.0, 3.0])
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = cn.make_parallel(lambda x: x**3, 2, x=x)
        first = inner.gradient(y, x)
    close(outer.gradient(first, x), 6 * x)


def test_gradients_of_what_the_function_closes_over():
    w = tf.Variable(2.0)
    x = tf.range(8.0)

    def loss(x):
        with tf.GradientTape() as tape:
            outside = w * 3.0
            total = tf.reduce_sum(cn.parallel(lambda x: x * outside, devices=2)(x)) + w
        return tape.gradient(total, w)

    close(loss(x), 85.0)
    close(tf.function(loss)(x), 85.0)


def test_a_trace_that_captured_a_tensor_of_one_graph_is_not_called_in_another():
    outside = {}
    fast = cn.parallel(lambda x: x * outside["scale"], devices=2)

    def scaled(x, scale):
        outside["scale"] = scale + 1.0
        return fast(x)

    for scale in (1.0, 2.0):
        found = tf.function(scaled)(tf.ones(4), tf.constant(scale))
        assert found.numpy().tolist() == [scale + 1.0] * 4


def test_a_batch_size_that_the_graph_does_not_know():
    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def f(x):
        return cn.make_parallel(lambda x: x * 2, 3, x=x)

    for rows in (3, 7, 9):
        x = RNG.normal(size=(rows, 2)).astype("float32")
        assert np.array_equal(f(x), x * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs a static batch dim"):
        f(np.ones([2, 2], "float32"))


def test_keras_models_and_flags():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dropout(0.5)])
    x = tf.ones([6, 3])
    fast = cn.parallel(model, devices=3)
    close(fast(x, training=False), model(x, training=False))
    dropped = fast(x, training=True).numpy()
    assert not np.array_equal(dropped, fast(x, training=False))
    wide = cn.parallel(keras.layers.Dropout(0.5), devices=3)(tf.ones([6, 64]), training=True).numpy()
    assert len({part.tobytes() for part in np.split(wide, 3)}) == 3  # each replica its own mask


def test_variables_made_on_the_first_call_are_made_once():
    class Lazy:
        w = None

        def __call__(self, x):
            if self.w is None:
                self.w = tf.Variable(tf.ones([2, 2]), name="weights")
            return x @ self.w

    for wrap in (lambda f: f, tf.function):
        lazy = Lazy()
        x = tf.ones([5, 2])
        out = wrap(lambda x, lazy=lazy: cn.make_parallel(lazy, 2, x=x))(x)
        close(out, 2 * np.ones([5, 2]))
        assert lazy.w.name == "weights:0"
    model = keras.Sequential([keras.layers.Dense(3)])
    cn.make_parallel(model, 2, inputs=tf.ones([4, 2]))
    assert len(model.variables) == 2


def test_sparse_and_missing_gradients():
    table = tf.Variable(RNG.normal(size=(50, 3)).astype("float32"))
    unused = tf.Variable(1.0)
    ids = tf.constant([1, 2, 3, 3, 5])

    def embed(ids):
        return tf.gather(table, ids) + tf.stop_gradient(unused)

    with tf.GradientTape(persistent=True) as tape:
        y = cn.make_parallel(embed, 2, ids=ids)
        loss = tf.reduce_sum(y**2)
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    assert tape.gradient(loss, unused) is None
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embed(ids) ** 2)
    close(tf.convert_to_tensor(gradient), tf.convert_to_tensor(tape.gradient(loss, table)))


def test_every_example_is_seen_once():
    seen = []

    def see(ids):
        def note(part):
            seen.append(part.numpy().tolist())
            return part

        return tf.py_function(note, [ids], tf.int64)

    cn.make_parallel(see, 4, ids=np.arange(99))
    assert sorted(len(part) for part in seen) == [24, 25, 25, 25]
    assert sorted(i for part in seen for i in part) == list(range(99))


def test_forward_and_backward_ran_where_they_should():
    w = tf.Variable(RNG.normal(size=(4, 4)).astype("float32"))
    fast = cn.parallel(lambda x: tf.nn.elu(x @ w), devices=[3, 5])
    report = fast.placement(tf.ones([6, 4]), strict=True)
    where = {(row.phase, row.actual) for row in report.ops if "MatMul" in row.op}
    expected = {(phase, f"/device:CPU:{i}") for phase in ("forward", "backward") for i in (3, 5)}
    assert where == expected
    assert {row.actual for row in report.variables} == {"/device:CPU:0"}


def test_strict_fails_when_an_op_ran_elsewhere():
    def stubborn(x):
        with tf.device("/device:CPU:7"):
            return tf.sin(x)

    fast = cn.parallel(stubborn, devices=2)
    assert {row.actual for row in fast.placement(tf.ones(4)).ops if row.op == "Sin"} == {"/device:CPU:7"}
    with pytest.raises(cn.PlacementError, match=r"Sin, forward\) ran on CPU:7"):
        fast.placement(tf.ones(4), strict=True)


def test_no_new_trace_for_a_batch_that_splits_into_the_same_sizes():
    traced = []

    def f(x):
        traced.append(x.shape[0])
        return x

    fast = cn.parallel(f, devices=4)
    for rows in (99, 98, 97, 100, 99):
        fast(tf.ones(rows))
    assert traced == [25, 24]


def test_a_profile_of_calls():
    w = tf.Variable(tf.ones([64, 64]))

    @cn.parallel(devices=2)
    def layer(x):
        return tf.nn.softmax(tf.tanh(x @ w) @ w)

    timeline = layer.profile(tf.random.normal([256, 64]), calls=3)
    assert timeline.steps == (1, 2, 3)
    for device in ("CPU:0", "CPU:1"):
        kinds = [e.kind for e in timeline.events if e.device == device and e.kind != "waiting"]
        assert sorted(kinds) == ["backward"] * 3 + ["forward"] * 3
    with pytest.raises(cn.InvalidArgument, match="calls=0"):
        layer.profile(tf.ones([4, 64]), calls=0)


def test_widths_that_vary_share_a_trace():
    summed = cn.parallel(lambda x: tf.reduce_sum(x, axis=1), devices=2)
    for width in (2, 5, 3, 8, 2):
        np.testing.assert_array_equal(summed(tf.ones([4, width])), [width] * 4)
    assert len(summed.traces) == 2
