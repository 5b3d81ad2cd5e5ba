"""A compiled Keras model, verified as it trains: loss, prediction and metrics of a batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn
from colonnade.run.model.training_step import TrainingStep, all_metrics

X = tf.constant(np.random.default_rng(0).normal(size=(13, 6)).astype("float32"))


Y = tf.constant(np.random.default_rng(3).integers(0, 3, 13))


def classifier(*layers, regularizer=None, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.layers.Dense(4, kernel_regularizer=regularizer), *layers, keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(**{"optimizer": "sgd", "loss": loss, "metrics": ["accuracy"], **options})
    return model


def test_a_compiled_model_is_verified_in_training():
    model = classifier(regularizer="l2")
    model.fit(X, Y, verbose=0)
    held = [*model.variables, *model.metrics_variables]
    before = [v.numpy() for v in held]
    report = cn.verify(model, X[:4], Y[:4], np.ones(4), devices=2)
    assert report
    leaves = {row.leaf for row in report.rows}
    assert {"output['loss']", "output['prediction']", "metric accuracy"} <= leaves
    assert sum(leaf.startswith("gradient of sequential") for leaf in leaves) == 4
    for variable, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "cause"),
    [
        (lambda: classifier(keras.layers.BatchNormalization()), "statistics"),
        *long((lambda: classifier(keras.layers.Dropout(0.5)), "randomness")),
        *long((lambda: classifier(loss=lambda y, p: tf.reduce_sum(p**2), metrics=[]), "sum")),
        *long(
            (lambda: classifier(loss=lambda y, p: tf.sqrt(tf.reduce_mean(p**2)), metrics=[]), "statistics")
        ),
    ],
)
def test_why_a_model_trains_otherwise(model, cause):
    report = cn.verify(model(), X[:4], Y[:4], devices=2)
    assert report.causes[0] == cause
    assert "parallel" not in report.causes


def test_a_model_that_is_not_compiled():
    model = keras.Sequential([keras.layers.Dense(3)])
    assert cn.verify(model, X, devices=2)
    with pytest.raises(cn.InvalidArgument, match="is not compiled, so it has no loss"):
        cn.verify(model, X, Y, devices=2)
    with pytest.raises(cn.InvalidArgument, match="join='sum': has no meaning for a training step"):
        cn.verify(classifier(), X, Y, devices=2, join="sum")


def test_a_step_is_that_of_keras_and_leaves_metrics_alone():
    weighted = keras.metrics.SparseCategoricalCrossentropy("weighted", from_logits=True)
    model = classifier(regularizer="l2", weighted_metrics=[weighted])
    weights = np.linspace(0.5, 2.0, 13).astype("float32")
    told = model.test_on_batch(X, Y, weights, return_dict=True)
    held = [variable for metric in all_metrics(model) for variable in metric.variables]
    before = [variable.numpy() for variable in held]
    step = TrainingStep(model)
    result = step(X, Y, weights)
    assert float(result["loss"]) == pytest.approx(told["loss"], rel=1e-6)
    np.testing.assert_array_equal(result["prediction"], model(X, training=True))
    metrics = {name: float(value) for name, value in step.metrics(result, X, Y, weights).items()}
    assert metrics == pytest.approx({name: told[name] for name in ("accuracy", "weighted")}, rel=1e-6)
    for variable, value in zip(held, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
