"""The update as one function: of other handles, and with the work for each parameter at its owner's."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.step.update import Update, as_divided, as_keras, inside

DEVICES = ["/device:CPU:0", "/device:CPU:1"]


def parameters():
    return [tf.Variable([1.0, -2.0], name="a"), tf.Variable([[3.0]], name="b")]


GRADIENTS = [np.array([0.3, 4.0], "float32"), np.array([[-2.0]], "float32")]


def clipped():
    return keras.optimizers.Adam(0.1, global_clipnorm=1.0, weight_decay=0.01)


def plain(steps=3):
    """Keras, without Colonnade."""
    variables, optimizer = parameters(), clipped()
    for _ in range(steps):
        optimizer.apply([tf.constant(g) for g in GRADIENTS], variables)
    return [v.numpy() for v in variables]


def updated(place=False, steps=3):
    variables, optimizer = parameters(), clipped()
    optimizer.build(variables)
    update = Update(optimizer, variables, [tf.TensorSpec(v.shape) for v in variables])
    if place:
        update.place(update.owners([1, 0]), DEVICES)
    for _ in range(steps):
        update.call([tf.constant(g) for g in GRADIENTS], [c.tensor for c in update.captures])
    return update, variables, optimizer


@pytest.mark.parametrize("place", [False, True])
def test_it_is_one_update_whoever_owns_the_parts(place):
    update, variables, optimizer = updated(place)
    assert int(optimizer.iterations) == 3
    for variable, expected in zip(variables, plain(), strict=True):
        np.testing.assert_allclose(variable, expected, rtol=1e-6)
    if place:
        where = {node.device for node in update.concrete.graph.as_graph_def().node if node.op == "Sqrt"}
        assert set(DEVICES) <= where


def test_slots_belong_to_the_owner_of_their_parameter():
    update, (a, b), optimizer = updated(steps=0)
    owners = {ref.deref().name: place for ref, place in update.owners([1, 0]).items()}
    assert (owners[a.name], owners[b.name]) == (1, 0)
    places = {v.name: owners[v.value.name] for v in optimizer.variables if v.value.name in owners}
    assert {place for name, place in places.items() if name.startswith("a_")} == {1}
    assert {place for name, place in places.items() if name.startswith("b_")} == {0}
    assert places["iteration"] == 0  # which serves both


def test_other_handles_are_other_variables():
    update, variables, _ = updated(steps=0)
    copies = {c.variable.ref(): tf.Variable(c.variable) for c in update.captures if c.variable is not None}
    handles = update.bound({ref: copy.handle for ref, copy in copies.items()})
    update.call([tf.constant(g) for g in GRADIENTS], handles)
    for variable, before, expected in zip(variables, parameters(), plain(1), strict=True):
        np.testing.assert_array_equal(variable, before)
        np.testing.assert_allclose(copies[variable.ref()], expected, rtol=1e-6)


def test_a_parameter_without_a_gradient_is_left_alone():
    a, b = parameters()
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([a, b])
    update = Update(optimizer, [a, b], [tf.TensorSpec([2]), None])
    update.call([tf.ones(2)], [c.tensor for c in update.captures])
    assert (a.numpy().tolist(), b.numpy().tolist()) == ([0.0, -3.0], [[3.0]])


def test_an_optimizer_of_other_variables_is_refused():
    optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([tf.Variable(1.0)])
    with pytest.raises(cn.InvalidArgument, match="is built for other variables"):
        Update(optimizer, parameters(), [tf.TensorSpec([2]), tf.TensorSpec([1, 1])])


def test_sparse_gradients_are_dense_where_they_are_divided():
    rows = tf.IndexedSlices(tf.ones([2, 1]), tf.constant([0, 0]), tf.constant([3, 1]))
    assert as_divided([rows], keras.optimizers.SGD(1.0)) == [rows]
    (dense,) = as_divided([rows], keras.optimizers.SGD(1.0, loss_scale_factor=2.0))
    assert dense.numpy().tolist() == [[2.0], [0.0], [0.0]]


def test_optimizers_inside_others_are_known():
    inner = keras.optimizers.SGD(1.0)
    outer = keras.optimizers.LossScaleOptimizer(inner)
    assert inside(outer) == [outer, inner]


def test_keras_variables_are_updated_as_such():
    """They know their constraint."""
    known, own = keras.Variable([1.0]), tf.Variable([1.0])
    assert as_keras([known.value, own]) == [known, own]


class Centralised(keras.optimizers.SGD):
    """Does something with gradients before it applies them, where Keras's own step hands them over."""

    def apply_gradients(self, grads_and_vars):
        return super().apply_gradients([(g - tf.reduce_mean(g), v) for g, v in grads_and_vars])


def test_an_apply_gradients_of_its_own_is_called_as_keras_calls_it():
    variables, optimizer = parameters(), Centralised(0.1)
    optimizer.build(variables)
    update = Update(optimizer, variables, [tf.TensorSpec(v.shape) for v in variables])
    update.call([tf.constant(g) for g in GRADIENTS], [c.tensor for c in update.captures])
    for variable, before, gradient in zip(variables, parameters(), GRADIENTS, strict=True):
        np.testing.assert_allclose(variable, before - 0.1 * (gradient - gradient.mean()), rtol=1e-6)


@pytest.mark.parametrize("home", ["shared", "partitioned"])
def test_several_optimizers_are_given_all_gradients_also_those_that_are_not_there(home):
    a, b, c = (keras.Variable(1.0, name=name) for name in "abc")
    kinds = [keras.optimizers.SGD(1.0), keras.optimizers.SGD(2.0)]
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: kinds[variable.path != "a"])
    trainer = cn.Trainer(
        lambda x: -(a.value + b.value + tf.stop_gradient(c.value + 0.0)) * x,
        optimizer,
        devices=2,
        variables=home,
    )
    with pytest.warns(UserWarning, match="Gradients do not exist"):  # Keras says so, as on one device
        trainer.train_on_batch(np.ones(2, "float32"))
    assert [float(v) for v in (a, b, c)] == [2.0, 3.0, 1.0]
