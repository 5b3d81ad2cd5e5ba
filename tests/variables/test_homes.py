"""Where variables live, and what each replica reads and writes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.trace.traced import trace
from colonnade.run.variables.aggregation import mean_by
from colonnade.run.variables.homes import Homes, copy_of, owners_of

DEVICES = ["/device:CPU:0", "/device:CPU:1", "/device:CPU:2"]


def variables():
    return tf.Variable([1.0, 2.0], name="w"), tf.Variable([0.0], trainable=False, name="count")


def settled(mode):
    """Homes of a parameter and a counter, and the trace that uses them."""
    w, count = variables()
    traced = trace(lambda x: tf.reduce_sum(w) * x + count.assign_add([1.0]), tf.TensorSpec([1]))
    housed = Homes(mode, DEVICES, [w], [])
    if mode == "partitioned":
        housed.deal({w.ref(): 2}, DEVICES)
    return w, count, traced, housed


@pytest.mark.parametrize(
    ("mode", "homes"), [("shared", [0, 0, 0]), ("mirrored", [0, 1, 2]), ("partitioned", [2, 2, 2])]
)
def test_where_replicas_have_a_parameter(mode, homes):
    w, _, _, housed = settled(mode)
    assert [housed.own(i, [w])[0].device[-5:] for i in range(3)] == [f"CPU:{home}" for home in homes]
    housed.enter()
    assert [housed.own(i, [w])[0].numpy().tolist() for i in range(3)] == [[1.0, 2.0]] * 3


@pytest.mark.parametrize("mode", ["shared", "mirrored", "partitioned"])
def test_replicas_read_the_parameters_and_count_apart(mode):
    w, count, traced, housed = settled(mode)
    called = [housed.bindings(i, traced.captures) for i in range(3)]
    housed.enter()
    x = tf.constant([10.0])
    results = [traced.on(d, [x], b)[0] for d, b in zip(DEVICES, called, strict=True)]
    assert [float(result[0]) for result in results] == [31.0] * 3
    assert count.numpy().tolist() == [0.0]  # the user's own takes the mean when the step is settled
    housed.settle_states(mean_by([2, 2, 2]))
    assert count.numpy().tolist() == [1.0]
    assert w.numpy().tolist() == [1.0, 2.0]


def test_handles_differ_so_that_replicas_do_not_wait_for_each_other():
    w, _, traced, housed = settled("shared")
    handles = [housed.bindings(i, traced.captures)[w.ref()] for i in range(3)]
    assert len({id(handle) for handle in handles}) == 3
    again = housed.bindings(1, traced.captures)[w.ref()]
    assert again is handles[1]


def test_what_partitioned_copies_hold_goes_back_to_the_user():
    w, _, _, housed = settled("partitioned")
    housed.enter()
    housed.current(w).assign([5.0, 6.0])
    assert w.numpy().tolist() == [1.0, 2.0]
    housed.leave()
    assert w.numpy().tolist() == [5.0, 6.0]
    assert housed.where()["w:0"].endswith("CPU:2")


def test_every_replica_draws_numbers_of_its_own():
    generator = tf.random.Generator.from_seed(3)
    traced = trace(lambda x: x + generator.uniform([2]), tf.TensorSpec([2]))
    housed = Homes("shared", DEVICES, [], [])
    drawn = [
        traced.on(device, [tf.zeros(2)], housed.bindings(i, traced.captures))[0].numpy().tobytes()
        for i, device in enumerate(DEVICES)
    ]
    assert len(set(drawn)) == 3
    assert [state.random for state in housed.states.values()] == [True]


def test_a_copy_has_name_value_and_dtype():
    copy = copy_of(tf.Variable([1, 2], dtype=tf.int64, name="ids"), "/device:CPU:4")
    assert (copy.name, copy.dtype, copy.numpy().tolist()) == ("ids:0", tf.int64, [1, 2])
    assert copy.device.endswith("CPU:4")


def test_parameters_are_dealt_by_their_bytes():
    sizes = {"a": (4, tf.float32), "b": (4, tf.float64), "c": (3, tf.float32)}
    parameters = [tf.Variable(tf.zeros([n], dtype), name=name) for name, (n, dtype) in sizes.items()]
    assert owners_of(parameters, DEVICES[:2]) == [DEVICES[1], DEVICES[0], DEVICES[1]]
    assert owners_of(parameters, DEVICES[:2], by="turn") == [DEVICES[0], DEVICES[1], DEVICES[0]]


# Loops inside a loss function, such as those of recurrent layers, which read variables at every turn.
RNG = np.random.default_rng(0)
X = RNG.normal(size=(11, 7, 3)).astype("float32")
Y = RNG.normal(size=(11, 2)).astype("float32")


def trained(devices, variables="auto"):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input([7, 3]), keras.layers.LSTM(4), keras.layers.Dense(2)])
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_sum((model(x) - y) ** 2, axis=1),
        keras.optimizers.SGD(0.1, momentum=0.9),
        devices=devices,
        variables=variables,
    )
    trainer.fit((X, Y), batch_size=11, steps=6, progress=False)
    return trainer, model.get_weights()


@pytest.mark.parametrize("variables", ["partitioned", *long("shared", "mirrored")])
@pytest.mark.long
def test_an_lstm_equals_one_device(variables):
    _, alone = trained(1)
    _, found = trained(3, variables)
    for one, other in zip(alone, found, strict=True):
        # Sums of float32 in another order, over 6 steps of numbers around 1.
        np.testing.assert_allclose(one, other, atol=2e-6)


def test_a_loop_reads_from_its_own_device():
    trainer, _ = trained(3, "shared")
    first, second, third = trainer._engine.housed._stand_ins
    # The first device has the variables themselves; the dense layer is in no loop.
    assert not first
    assert sorted(v.name for v in second.values()) == sorted(v.name for v in third.values())
    assert all("CPU:1" in v.device for v in second.values())
    assert len(second) in (2, 3)
