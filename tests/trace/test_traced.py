"""A function that is traced once: what it captures, where it is called, and how its replicas differ."""

import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.trace.traced import trace


def test_variables_read_and_written():
    w, count = tf.Variable([2.0], name="w"), tf.Variable(0.0, trainable=False, name="count")

    @tf.function
    def nested(x):
        if tf.reduce_sum(x) > 0:
            count.assign_add(1.0)
        return x * w

    traced = trace(lambda x: nested(x) + w, tf.TensorSpec([3]))
    assert {v.name for v in traced.variables} == {"w:0", "count:0"}
    assert [v.name for v in traced.written] == ["count:0"]


def test_a_read_in_a_loop_is_no_write():
    w = tf.Variable([2.0])

    def f(x):
        for _ in tf.range(3):
            x = x * w
        return x

    traced = trace(f, tf.TensorSpec([3]))
    assert traced.variables == (w,)
    assert traced.written == ()


def test_other_variables_take_the_place_of_the_captured_ones():
    w, other = tf.Variable([2.0]), tf.Variable([5.0])
    traced = trace(lambda x: {"y": x * w, "n": 7}, tf.TensorSpec([3]))

    @tf.function
    def both(x):
        shared = traced.on("/device:CPU:1", [x])
        rebound = traced.on("/device:CPU:2", [x], {w.ref(): other.handle}, replica=1)
        return traced.pack(shared)["y"], traced.pack(rebound)["y"]

    assert [y.numpy().tolist() for y in both(tf.ones(3))] == [[2.0] * 3, [5.0] * 3]


def test_a_write_goes_to_the_variable_that_was_put_in_place():
    count, mine = tf.Variable(0.0), tf.Variable(10.0)
    traced = trace(lambda x: x + count.assign_add(1.0), tf.TensorSpec([]))
    out = tf.function(lambda x: traced.on("/device:CPU:1", [x], {count.ref(): mine.handle}))(tf.constant(0.0))
    assert float(out[0]) == 11.0
    assert float(count) == 0.0
    assert float(mine) == 11.0


def test_the_line_of_a_node_inside_a_branch():
    def f(x):
        if tf.reduce_sum(x) > 0:
            x = tf.linalg.inv(x)
        return x

    traced = trace(f, tf.TensorSpec([2, 2]))
    conditional = next(op.name for op in traced.concrete.graph.get_operations() if "If" in op.type)
    assert "test_traced.py" in traced.line_of(f"{conditional}/deeper/node")
    assert traced.line_of("no_such_node") is None


def test_seeded_functions_are_recognised():
    tf.random.set_seed(1)
    seeded = trace(lambda x: x + tf.random.normal([3]), tf.TensorSpec([3]))
    assert seeded.facts.repeats
    assert not seeded.facts.speaks
    generator = tf.random.Generator.from_seed(1)
    assert not trace(lambda x: x + generator.normal([3]), tf.TensorSpec([3])).facts.repeats


def test_autograph_is_for_the_users_code():
    def f(x):
        total = tf.constant(0.0)
        for row in x:
            if tf.reduce_sum(row) > 0:
                total += tf.reduce_sum(row)
        return x + total

    traced = trace(f, tf.TensorSpec([3, 2]))
    np.testing.assert_array_equal(traced.on("/device:CPU:0", [tf.ones([3, 2])])[0], 7 * np.ones([3, 2]))


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
    assert "test_traced.py" in text
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
