"""Batches that cannot be cut: on one device as Keras, on several the mean over as many batches."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from keras import ops

import colonnade as cn

pytestmark = pytest.mark.usefixtures("double")

RNG = np.random.default_rng(0)


class Graph(keras.Model):
    """Messages along edges, and one answer for the whole graph: nodes, edges and targets differ in number."""

    def __init__(self, *more):
        super().__init__()
        self.table = keras.layers.Embedding(5, 4)
        self.message, self.answer = keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)
        self.more = list(more)

    def call(self, inputs, training=False):
        nodes = self.table(inputs["nodes"])
        sent = ops.take(self.message(nodes), inputs["edges"][:, 0], axis=0)
        heard = ops.segment_sum(sent, inputs["edges"][:, 1], ops.shape(nodes)[0])
        whole = ops.mean(nodes + heard, axis=0, keepdims=True)
        for layer in self.more:
            whole = layer(whole, training=training)
        return self.answer(whole)


def batches(count):
    rng = np.random.default_rng(3)
    for _ in range(count):
        num_nodes, num_edges = int(rng.integers(2, 6)), int(rng.integers(1, 9))
        edges = rng.integers(0, num_nodes, (num_edges, 2))
        yield (
            {"nodes": rng.integers(0, 5, num_nodes), "edges": edges},
            rng.normal(size=(1, 1)).astype(keras.config.floatx()),
        )


def dataset(count=7):
    kind = {"nodes": tf.TensorSpec([None], "int64"), "edges": tf.TensorSpec([None, 2], "int64")}
    target = tf.TensorSpec([1, 1], keras.config.floatx())
    data = tf.data.Dataset.from_generator(lambda: batches(count), output_signature=(kind, target))
    return data.apply(tf.data.experimental.assert_cardinality(count))


def made(kind=Graph, **options):
    keras.utils.set_random_seed(0)
    model = kind()
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"], **options)
    return model


def close(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("validation", [None, *long(3)])
def test_on_one_device_it_is_the_training_of_keras(validation):
    both = []
    for fit in (keras.Model.fit, lambda model, *a, **b: cn.fit(model, *a, devices=1, **b)):
        model = made()
        history = fit(
            model,
            dataset(),
            validation_data=validation and dataset(validation),
            epochs=2,
            shuffle=False,
            verbose=0,
        ).history
        both.append([*history.values(), *model.get_weights()])
    close(*both)


def mean_of(gradients):
    """Adam makes another update of rows than of a table that is 0 elsewhere, so rows stay rows."""
    if not isinstance(gradients[0], tf.IndexedSlices):
        return sum(gradients) / len(gradients)
    values = tf.concat([g.values / len(gradients) for g in gradients], axis=0)
    indices = tf.concat([g.indices for g in gradients], axis=0)
    return tf.IndexedSlices(values, indices, gradients[0].dense_shape)


def averaged(model, group_size, epochs):
    """By hand: the mean of the gradients of some batches, one update, metrics of each batch in turn."""

    def update(group):
        gradients, losses, errors = [], [], []
        for x, y in group:
            with tf.GradientTape() as tape:
                prediction = model(x)
                loss = tf.reduce_mean((prediction - y) ** 2)
            gradients.append(tape.gradient(loss, model.trainable_variables))
            losses.append(loss)
            errors.append(tf.reduce_mean(abs(prediction - y)))
        mean = [mean_of(each) for each in zip(*gradients, strict=True)]
        model.optimizer.apply(mean, model.trainable_variables)
        return losses, errors

    history, data = {"loss": [], "mae": []}, list(batches(7))
    updates = {}
    # Keras weighs a loss by the rows of the first input, in the order of keys.
    weights = [len(x["edges"]) for x, _ in data]
    for _ in range(epochs):
        losses, errors = [], []
        for start in range(0, len(data), group_size):
            group = data[start : start + group_size]
            updates.setdefault(len(group), tf.function(update, reduce_retracing=True))
            for total, values in zip((losses, errors), updates[len(group)](group), strict=True):
                total += [float(value) for value in values]
        history["loss"].append(np.average(losses, weights=weights))
        history["mae"].append(np.mean(errors))
    return history


@pytest.mark.parametrize("devices", [3, *long(2, 4, 8)])
def test_several_devices_take_a_batch_each(devices):
    """Seven batches: the last group is smaller."""
    model, reference = made(), made()
    heard = []
    hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: heard.append(batch))
    options = {
        "epochs": 2,
        "shuffle": False,
        "verbose": 0,
        "callbacks": [hook],
        "validation_data": dataset(4),
    }
    found = cn.fit(model, dataset(), devices=devices, per_device=True, **options).history
    expected = averaged(reference, devices, 2)
    close([found["loss"], found["mae"]], [expected["loss"], expected["mae"]])
    close(model.get_weights(), reference.get_weights())
    assert int(model.optimizer.iterations) == 2 * -(-7 // devices)
    assert heard[: len(heard) // 2] == [
        min(i + devices, 7 if False else i + devices) - 1 for i in range(0, 7, devices)
    ]
    assert model.steps_per_execution == 1


@pytest.mark.long
def test_validation_of_several_batches_at_a_time_is_that_of_keras():
    model = made()
    options = {"shuffle": False, "verbose": 0, "validation_data": dataset(4)}
    found = cn.fit(model, dataset(), devices=3, per_device=True, **options).history
    keras_says = model.evaluate(dataset(4), verbose=0)
    np.testing.assert_allclose([found["val_loss"][0], found["val_mae"][0]], keras_says, atol=1e-9)
    ours = cn.evaluate(model, dataset(4), devices=3, per_device=True, verbose=0)
    np.testing.assert_allclose(ours, keras_says, atol=1e-9)


class OwnGraph(Graph):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"last": loss, **self.compute_metrics(x, y, self(x))}


@pytest.mark.long
def test_a_step_of_its_own_takes_a_batch_on_each_device():
    model, reference = made(OwnGraph), made()
    found = cn.fit(model, dataset(), devices=3, per_device=True, epochs=2, shuffle=False, verbose=0).history
    averaged(reference, 3, 2)
    close(model.get_weights(), reference.get_weights())
    assert set(found) == {"last", "loss", "mae"}


@pytest.mark.long
def test_widths_are_traced_once():
    model, traced = made(), []
    model.more.append(keras.layers.Lambda(lambda x: traced.append(1) or x, output_shape=lambda shape: shape))
    cn.fit(model, dataset(), devices=2, per_device=True, shuffle=False, verbose=0)
    before = len(traced)
    cn.fit(model, dataset(), devices=2, per_device=True, epochs=2, shuffle=False, verbose=0)
    assert len(traced) == before


def test_what_cannot_be_cut_is_refused_with_both_ways_out():
    with pytest.raises(cn.InvalidArgument, match=r"per_device=True.*split=\["):
        cn.fit(made(), dataset(), devices=2, shuffle=False, verbose=0)


def test_mistakes_are_told():
    for options, says in (
        ({"per_device": "yes"}, "must be True or False"),
        ({"per_device": True, "split": ["nodes"]}, "where nothing is cut"),
        ({"per_device": True, "sync": cn.LocalSGD(2)}, "one update is made over all batches"),
        ({"per_device": True, "variables": "partitioned"}, "every device has what it writes"),
    ):
        with pytest.raises(cn.InvalidArgument, match=says):
            cn.fit(made(), dataset(), devices=2, shuffle=False, verbose=0, **options)
