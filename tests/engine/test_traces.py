"""What every mode has in common: the guard against what is not finite, and batches without any weight."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept

import colonnade as cn
from colonnade.run.engine.traces import gradient_specs

MODES = {
    "shared": {"variables": "shared"},
    "mirrored": {"variables": "mirrored"},
    "partitioned": {"variables": "partitioned"},
    "local": {"sync": cn.LocalSGD(2)},
    "DiLoCo": {"sync": cn.DiLoCo(1)},
    "elastic": {"sync": cn.Elastic(1, 0.2)},
    "asynchronous": {"sync": cn.Asynchronous()},
}
ONES = np.ones((4, 2), "float32")


@pytest.fixture(params=kept(MODES, "mirrored", "elastic", "asynchronous"))
def mode(request):
    return MODES[request.param]


def penalised(mode, on_nan, optimizer=None):
    """The gradient of a norm at zero is not finite, though the norm itself is."""
    bias, w = tf.Variable(0.0, name="bias"), tf.Variable([0.0, 0.0], name="weights")
    trainer = cn.Trainer(
        lambda x: tf.reduce_sum(x * w, axis=1) + bias,
        optimizer or keras.optimizers.SGD(0.5, momentum=0.5),
        devices=2,
        penalty=lambda: tf.norm(w),
        on_nan=on_nan,
        **mode,
    )
    return bias, w, trainer


def test_a_penalty_that_is_not_finite_stops_and_is_named(mode):
    bias, w, trainer = penalised(mode, "stop")
    with pytest.raises(
        cn.NotFinite, match=r"the penalty, or its gradient, is not finite on .* at step 1"
    ) as e:
        trainer.train_on_batch(ONES)
    assert e.value.variable == "weights:0"
    assert w.numpy().tolist() == [0.0, 0.0]
    assert bias.numpy() == 0.0
    whole = "No update was applied." in str(e.value)
    assert whole == (mode != MODES["asynchronous"])
    w.assign([3.0, 4.0])
    assert np.isfinite(trainer.train_on_batch(ONES).loss)  # and it can go on


def test_a_penalty_that_is_not_finite_is_skipped(mode):
    bias, w, trainer = penalised(mode, "skip")
    record = trainer.train_on_batch(ONES)
    assert record.skipped == (2 if mode == MODES["asynchronous"] else 1)
    assert w.numpy().tolist() == [0.0, 0.0]
    assert bias.numpy() == 0.0


def test_loss_scaling_does_not_hide_the_penalty():
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    _, w, trainer = penalised(MODES["mirrored"], "stop", optimizer)
    with pytest.raises(cn.NotFinite, match="the penalty"):
        trainer.train_on_batch(ONES)
    assert w.numpy().tolist() == [0.0, 0.0]


def weighted(mode, **options):
    w = tf.Variable([1.0, 2.0])
    trainer = cn.Trainer(
        lambda x, m: (cn.Weighted(tf.reduce_sum(x * w, axis=1), m), {"one": tf.ones_like(m)}),
        keras.optimizers.SGD(0.25),
        devices=2,
        **mode,
        **options,
    )
    return w, trainer


def test_a_batch_without_any_weight_has_a_loss_and_a_gradient_of_zero(mode):
    w, trainer = weighted(mode)
    for _ in range(2):  # up to a join
        record = trainer.train_on_batch(ONES, np.zeros(4, "float32"))
    assert (record.loss, record.metrics, record.skipped) == (0.0, {"one": 0.0}, 0)
    assert w.numpy().tolist() == [1.0, 2.0]
    trainer.train_on_batch(ONES, np.ones(4, "float32"))
    assert (w.numpy() < [1.0, 2.0]).all()


def test_without_any_weight_the_penalty_still_counts(mode):
    _, trainer = weighted(mode, penalty=lambda: tf.constant(7.0))
    assert trainer.train_on_batch(ONES, np.zeros(4, "float32")).loss == 7.0


def test_momentum_without_any_weight_is_shown_before_a_join():
    w = tf.Variable([1.0, 2.0])
    trainer = cn.Trainer(
        lambda x, m: cn.Weighted(tf.reduce_sum(x * w, axis=1), m),
        keras.optimizers.SGD(0.25, momentum=0.5),
        devices=2,
        sync=cn.LocalSGD(2),
    )
    for weight in (1.0, 1.0, 0.0):  # the join is after the second; then replicas go on by momentum alone
        trainer.train_on_batch(ONES, np.full(4, weight, "float32"))
    assert w.numpy().tolist() == trainer.replicas()[0][0].tolist() == [1 - 0.8125, 2 - 0.8125]


def test_a_variable_that_only_slices_of_one_size_use_is_refused(mode):
    w, extra = tf.Variable(1.0, name="w"), tf.Variable(1.0, name="extra")

    def loss(x):
        return x[:, 0] * (w * extra if x.shape[0] == 2 else w)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2, **mode)
    with pytest.raises(cn.InvalidArgument, match=r"extra:0.*is trained by some batches or slices"):
        trainer.train_on_batch(np.ones((3, 1), "float32"))
    assert [w.numpy(), extra.numpy()] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["mirrored", "asynchronous"])
def test_a_penalty_of_some_rows_is_scaled_like_the_loss(name):
    """Its gradient is sparse, and the optimizer divides all gradients by the factor of the loss."""
    table = tf.Variable(tf.ones([4, 2]), name="table")
    trainer = cn.Trainer(
        lambda x: 0.0 * tf.reduce_sum(x * table[0], axis=1),
        keras.optimizers.SGD(0.5, loss_scale_factor=8.0),
        devices=1,
        **MODES[name],
        penalty=lambda: tf.reduce_sum(tf.gather(table, [1, 2])),
    )
    trainer.train_on_batch(ONES)
    np.testing.assert_allclose(table.numpy(), [[1, 1], [0.5, 0.5], [0.5, 0.5], [1, 1]])


class Counting(keras.optimizers.SGD):
    """Has a variable that it does not list, and that its updates depend on."""

    def build(self, variables):
        super().build(variables)
        self.count = tf.Variable(0.0)

    def apply(self, gradients, trainable_variables=None):
        self.count.assign_add(1.0)
        super().apply([g * self.count for g in gradients], trainable_variables)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["shared", "mirrored", "partitioned"])
@pytest.mark.parametrize(
    "make",
    [lambda: Counting(0.1), lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.1), 8.0)],
    ids=["own", "Nadam with a scale"],
)
def test_what_an_optimizer_does_not_list_is_written_once_a_step(mode, make):
    found = []
    for devices in (1, 3):
        w = tf.Variable([[1.0], [2.0]])
        options = {"variables": mode} if devices > 1 else {}
        trainer = cn.Trainer(lambda x, w=w: tf.squeeze(x @ w, 1) ** 2, make(), devices=devices, **options)
        for _ in range(3):
            trainer.train_on_batch(tf.constant([[1.0, 0.5], [0.2, 1.0], [2.0, 1.0]]))
        found.append(w.numpy())
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_specs_do_not_depend_on_where_a_gradient_comes_from():
    w = tf.Variable(tf.zeros([3, 1]))
    sparse = tf.IndexedSlices(tf.constant([[2.0], [4.0]]), tf.constant([0, 2]), tf.constant([3, 1]))
    fewer = tf.IndexedSlices(sparse.values[:1], sparse.indices[:1], sparse.dense_shape)
    assert gradient_specs([tf.ones([3, 1])], [w]) == [tf.TensorSpec([3, 1])]
    assert gradient_specs([fewer], [w]) == gradient_specs([sparse], [w])
    assert gradient_specs([None], [w]) == [None]


def test_layers_that_are_frozen_too_late_are_warned_of():
    model = keras.Sequential([keras.layers.Dense(3, name="first"), keras.layers.Dense(1)])
    x = np.ones((4, 2), "float32")
    model(x)
    trainer = cn.Trainer(lambda x: tf.squeeze(model(x), 1), keras.optimizers.SGD(0.1), devices=2)
    trainer.train_on_batch(x)
    model.layers[0].trainable = False
    with pytest.warns(UserWarning, match="trainable of .*first/kernel.* has no effect"):
        trainer.train_on_batch(x)
    model.layers[0].trainable = True
    with warnings.catch_warnings(action="error"):
        trainer.train_on_batch(x)
