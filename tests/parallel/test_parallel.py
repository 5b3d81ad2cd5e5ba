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
from hypothesis import given, settings
from hypothesis import strategies as st

import colonnade as cn
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import flatten, pack

RNG = np.random.default_rng(0)


def close(a, b, tolerance=1e-5):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max(initial=0)))


def test_b1_a_plus_b():
    a, b = (RNG.normal(size=(1000, 100)).astype("float32") for _ in range(2))

    def add(a, b):
        return a + b

    assert np.array_equal(cn.make_parallel(add, 2, a=a, b=b), a + b)
    report = cn.parallel(add, devices=2).placement(a, b, strict=True)
    where = {(re.search(r"replica_(\d)", row.name)[1], row.actual) for row in report.ops if row.op == "AddV2"}
    assert where == {("0", "/device:CPU:0"), ("1", "/device:CPU:1")}


@pytest.mark.parametrize(
    "optimizer", [lambda: keras.optimizers.Adam(0.1), lambda: keras.optimizers.SGD(0.01)]
)
def test_b2_the_quadratic_has_the_same_trajectory(optimizer):
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
def test_b3_uneven_batches(batch, devices):
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


@dataclass
class Outputs:
    logits: Any
    extra: Any


def test_b4_any_nest_comes_back():
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


def test_a_mean_does_not_overflow_in_half_precision():
    mean = cn.parallel(lambda x: x[0], devices=2, join="mean")
    close(mean(100 * tf.ones(4096, tf.float16)), 100.0, tolerance=1e-3)


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


@pytest.mark.parametrize(("join", "expected"), [("mean", 3.0), ("sum", 3.5 + 2.0), ("stack", [3.5, 2.0])])
def test_scalars_are_joined_as_asked(join, expected):
    f = cn.parallel(tf.reduce_mean, devices=2, join=join)
    close(f(tf.constant([1.0, 6.0, 2.0])), expected)


def test_a_scalar_without_a_join_is_an_error_with_the_choices():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.make_parallel(lambda x: {"loss": tf.reduce_mean(x)}, 2, x=tf.ones(4))
    assert "output['loss']" in str(caught.value)
    assert all(f'"{join}"' in str(caught.value) for join in ("mean", "sum", "stack"))


def test_a_mean_is_weighted_with_its_gradient():
    w = tf.Variable(2.0)
    x = tf.constant(RNG.normal(size=(99, 3)).astype("float32"))
    f = cn.parallel(lambda x: (tf.reduce_mean((x * w) ** 2), x * w), devices=4, join="mean")
    with tf.GradientTape() as tape:
        loss, rows = f(x)
    assert rows.shape == [99, 3]  # what has a batch dim is concatenated, whatever the join
    close(tape.gradient(loss, w), np.mean(2 * 2.0 * x**2))


def test_a_dim_of_the_slice_size_by_chance_is_no_batch_dim():
    f = cn.parallel(lambda x: tf.reduce_sum(x, axis=0), devices=2, join="sum")
    close(f(tf.ones([6, 3])), [6.0, 6.0, 6.0])  # slices of 3 rows, and 3 columns


@pytest.mark.parametrize("join", ["sum", "mean"])
def test_sums_follow_the_links(monkeypatch, join):
    """Peers {0,1} and {2,3} add among themselves first; only then does one sum go between the pairs."""
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    monkeypatch.setattr(
        hardware, "topology", lambda: cn.Topology.groups([[0, 1], [2, 3], [4], [5], [6], [7]])
    )
    f = cn.parallel(lambda x: tf.reduce_sum(x, axis=0), devices=4, join=join)
    x = tf.reshape(tf.range(24.0), [8, 3])
    ops = f.placement(x).ops
    adds = {row.actual for row in ops if row.op in ("AddN", "AddV2") and row.phase == "forward"}
    assert adds == {"/device:CPU:0", "/device:CPU:2"}  # TensorFlow joins the two adds on CPU:0
    expected = tf.reduce_sum(x, axis=0) / (1 if join == "sum" else 4)
    assert np.array_equal(f(x), expected)  # whole numbers, and a quarter of them: exact


@pytest.mark.parametrize("shape", [[8, 3], [None, 3]])
def test_an_output_of_fixed_size_is_not_concatenated(shape):
    """Four times three column sums are not the column sums."""
    fast = tf.function(cn.parallel(lambda x: tf.reduce_sum(x, axis=0), devices=4), autograph=False)
    with pytest.raises(cn.InvalidArgument, match=r"float32\[3\]': has no batch dim .* join=\"mean\""):
        fast.get_concrete_function(tf.TensorSpec(shape))


def test_flattened_and_filtered_batches_are_still_batches():
    x = tf.reshape(tf.range(8.0), [4, 2])
    flat = cn.parallel(lambda x: tf.reshape(x, [-1]), devices=2, join="mean")
    close(flat(x), tf.range(8.0))
    filtered = cn.parallel(lambda x: tf.boolean_mask(x, x >= 0), devices=2, join="sum")
    close(filtered(tf.range(4.0)), tf.range(4.0))


def test_concatenation_knows_a_flattened_batch():
    close(cn.parallel(lambda x: tf.reshape(x, [-1]), devices=2)(tf.ones([4, 2])), np.ones(8))


def test_a_join_where_the_batch_size_is_not_known():
    fast = cn.parallel(lambda x: (tf.reduce_sum(x, axis=0), 2 * x), devices=2, join="sum")
    total, rows = tf.function(fast, input_signature=[tf.TensorSpec([None, 3])])(tf.ones([6, 3]))
    close(total, [6.0, 6.0, 6.0])
    close(rows, 2 * np.ones([6, 3]))


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(cn.InvalidArgument, match="stack"):
        cn.parallel(lambda x: tf.reduce_max(x), devices=2, join="mean")(tf.constant([1, 2, 3]))


@pytest.mark.parametrize("bad", ["average", None, 1])
def test_unknown_join(bad):
    with pytest.raises(cn.InvalidArgument, match="must be one of concat, mean, sum, stack"):
        cn.parallel(lambda x: x, join=bad)


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


def test_a6_sparse_and_missing_gradients():
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


def test_a2_every_example_is_seen_once():
    seen = []

    def see(ids):
        def note(part):
            seen.append(part.numpy().tolist())
            return part

        return tf.py_function(note, [ids], tf.int64)

    cn.make_parallel(see, 4, ids=np.arange(99))
    assert sorted(len(part) for part in seen) == [24, 25, 25, 25]
    assert sorted(i for part in seen for i in part) == list(range(99))


def test_b5_forward_and_backward_ran_where_they_should():
    w = tf.Variable(RNG.normal(size=(4, 4)).astype("float32"))
    fast = cn.parallel(lambda x: tf.nn.elu(x @ w), devices=[3, 5])
    report = fast.placement(tf.ones([6, 4]), strict=True)
    where = {(row.phase, row.actual) for row in report.ops if "MatMul" in row.op}
    expected = {(phase, f"/device:CPU:{i}") for phase in ("forward", "backward") for i in (3, 5)}
    assert where == expected
    assert {row.actual for row in report.variables} == {"/device:CPU:0"}


def test_b5_strict_fails_when_an_op_ran_elsewhere():
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


@pytest.mark.parametrize("graph", [False, True])
def test_legacy_randomness_differs_between_replicas_and_repeats(graph):
    def draw(x):
        return x + tf.random.uniform(tf.shape(x))

    def run():
        tf.random.set_seed(3)
        fast = cn.parallel(draw, devices=3)
        return (tf.function(lambda x: fast(x)) if graph else fast)(tf.zeros([6, 4])).numpy()

    first = run()
    assert len({part.tobytes() for part in np.split(first, 3)}) == 3
    assert np.array_equal(first, run())


def test_a_tf_function_does_not_repeat_its_numbers_and_another_seed_gives_others():
    @tf.function
    def draw(x):
        return x + tf.random.uniform(tf.shape(x))

    drawn = []
    for seed in (3, 3, 4):
        tf.random.set_seed(seed)
        drawn.append(cn.parallel(draw, devices=3)(tf.zeros([3, 4])).numpy())
    assert len({row.tobytes() for row in drawn[0]}) == 3
    assert not np.array_equal(drawn[0], drawn[2])
    plain = cn.parallel(lambda x: x + tf.random.uniform(tf.shape(x)), devices=2)
    tf.random.set_seed(3)
    first = plain(tf.zeros([4])).numpy()
    tf.random.set_seed(4)
    assert not np.array_equal(first, plain(tf.zeros([4])).numpy())


def test_a_tf_function_inside_that_was_called_before_is_refused():
    @tf.function
    def noise(x):
        return tf.random.uniform(tf.shape(x))

    tf.random.set_seed(3)
    noise(tf.zeros([2, 4]))
    with pytest.raises(cn.InvalidArgument, match=r"tf\.function='noise': was called before"):
        cn.parallel(lambda x: x + noise(x), devices=2)(tf.zeros([4, 4]))


def test_a_generator_gives_each_replica_its_own_numbers_and_repeats():
    def run():
        generator = tf.random.Generator.from_seed(5)
        return cn.make_parallel(lambda x: x + generator.uniform([2]), 3, x=tf.zeros([3, 2])).numpy()

    first = run()
    assert len({row.tobytes() for row in first}) == 3
    assert np.array_equal(first, run())


def test_captured_tables_and_constants_work_and_iterators_are_refused():
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
    constant = tf.constant([10, 20])
    found = cn.make_parallel(lambda w: table.lookup(w) + constant[0], 2, w=tf.constant(["a", "b", "c"]))
    assert found.numpy().tolist() == [11, 12, 9]
    iterator = iter(tf.data.Dataset.range(10))
    with pytest.raises(cn.InvalidArgument, match=r"an iterator.*race for its elements"):
        cn.make_parallel(lambda x: x + next(iterator), 2, x=tf.zeros([4], tf.int64))


def test_an_error_names_the_device_and_the_line():
    def invert(x):
        return tf.linalg.inv(x)  # this very line

    x = np.stack([np.eye(2), np.eye(2), np.zeros((2, 2))]).astype("float32")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        cn.make_parallel(invert, 3, x=x)
    text = str(caught.value)
    assert text.startswith("on CPU:2: Input is not invertible.")
    assert "test_parallel.py" in text
    assert "this very line" in text


def test_an_assertion_names_the_device_in_a_tf_function_too():
    def positive(x):
        tf.debugging.assert_positive(x, message="must be positive")
        return x

    x = tf.constant([1.0, -2.0, 3.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"^on CPU:1: .*must be positive"):
        cn.make_parallel(positive, 3, x=x)
    with pytest.raises(tf.errors.InvalidArgumentError, match="replica_1_on_CPU_1/assert_positive"):
        tf.function(lambda x: cn.make_parallel(positive, 3, x=x))(x)


def test_print_says_which_device_spoke(capfd):
    def speak(x):
        tf.print("x is", x)
        return x

    original = tf.print
    cn.make_parallel(speak, 2, x=tf.constant([1.0, 2.0]))
    assert sorted(capfd.readouterr().err.splitlines()) == ["[CPU:0] x is [1]", "[CPU:1] x is [2]"]
    assert tf.print is original


def test_summaries_are_tagged_with_the_device(tmp_path):
    def note(x):
        tf.summary.scalar("level", tf.reduce_mean(x), step=0)
        return x

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default():
        cn.make_parallel(note, 2, x=tf.constant([1.0, 2.0]))
    writer.close()
    (path,) = tmp_path.glob("events*")
    events = [tf.compat.v1.Event.FromString(r.numpy()) for r in tf.data.TFRecordDataset(str(path))]
    tags = {
        value.tag: float(tf.make_ndarray(value.tensor)) for event in events for value in event.summary.value
    }
    assert tags == {"replica_0_on_CPU_0/level": 1.0, "replica_1_on_CPU_1/level": 2.0}


def test_a_mistake_in_the_function_keeps_its_own_error():
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        cn.make_parallel(lambda x: x @ tf.ones([7, 7]), 2, x=tf.ones([4, 2]))


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


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 200), devices=st.integers(1, 8), join=st.sampled_from(["mean", "sum"]))
def test_any_join_of_any_batch(rows, devices, join):
    """A loss over the whole batch, and its gradient; to the rounding of float64."""
    x = tf.constant(RNG.normal(size=(rows, 3)))
    w = tf.Variable(RNG.normal(size=3))
    reduced = {"mean": tf.reduce_mean, "sum": tf.reduce_sum}[join]

    def loss(x):
        return reduced(tf.linalg.matvec(x, w) ** 2)

    def run(call):
        with tf.GradientTape() as tape:
            value = call(x)
        return value, tape.gradient(value, w)

    for a, b in zip(run(cn.parallel(loss, devices=devices, join=join)), run(loss), strict=True):
        close(a, b, 1e-12)
