"""cn.fit against model.fit on the same seeds; tolerances are those of float32 sums in another order."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 6)).astype("float32")
Y = RNG.integers(0, 3, 70)


def model(**options):
    keras.utils.set_random_seed(0)
    made = keras.Sequential(
        [keras.layers.Dense(8, activation="elu", kernel_regularizer="l2"), keras.layers.Dense(3)]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(
        **{
            "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
            "loss": loss,
            "metrics": ["accuracy"],
            **options,
        }
    )
    return made


def histories(fit_arguments, **arguments):
    both = []
    for fit in (lambda m: m.fit(X, Y, **arguments), lambda m: cn.fit(m, X, Y, **fit_arguments, **arguments)):
        made = model()
        keras.utils.set_random_seed(1)
        both.append((made, fit(made).history))
    return both


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_history_and_weights_are_those_of_keras(home):
    (one, expected), (many, found) = histories(
        {"devices": 3, "variables": home},
        batch_size=32,
        epochs=3,
        verbose=0,
        class_weight={0: 1.0, 1: 2.0, 2: 0.5},
        validation_split=0.2,
    )
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)
    for a, b in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize(
    ("sync", "devices"),
    [(cn.LocalSGD(1), 3), *long((cn.Asynchronous(), 1), (cn.Synchronous(shares="measured"), 2))],
    ids=["local after every step", "asynchronous on one device", "measured shares"],
)
def test_modes_that_are_equal_to_keras(sync, devices):
    # 56 rows in two batches that are split alike, so that replicas with momentum count alike in each.
    (one, expected), (many, found) = histories(
        {"devices": devices, "sync": sync}, batch_size=28, epochs=3, verbose=0, validation_split=0.2
    )
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, err_msg=name)
    for a, b in zip(many.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("sync", [*long(cn.LocalSGD(3), cn.DiLoCo(2), cn.Elastic(2, 0.2)), cn.Asynchronous()])
def test_every_mode_trains_a_keras_model(sync):
    made = model(optimizer=keras.optimizers.Adam(0.01))
    rates = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.02)
    history = cn.fit(
        made, X, Y, devices=3, sync=sync, batch_size=16, epochs=8, verbose=0, callbacks=[rates]
    ).history
    assert history["loss"][-1] < history["loss"][0]
    assert float(made.optimizer.learning_rate) == pytest.approx(0.02)
    assert int(made.optimizer.iterations) == 8 * 5
    tested = made.evaluate(X, Y, verbose=0, return_dict=True)
    assert np.isfinite(tested["loss"])


def test_sample_weights_datasets_and_callbacks(tmp_path):
    weights = RNG.uniform(size=70)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y, weights)).batch(20)
    path = str(tmp_path / "best.keras")
    found = []
    common = {"epochs": 8, "verbose": 0, "validation_data": (X, Y), "shuffle": False}
    for devices in (None, 2):
        made = model()
        callbacks = [
            keras.callbacks.EarlyStopping(monitor="val_loss", patience=0, min_delta=0.05),
            keras.callbacks.ModelCheckpoint(path, save_best_only=True),
        ]
        if devices is None:
            found.append(made.fit(dataset, callbacks=callbacks, **common).history)
        else:
            found.append(cn.fit(made, dataset, devices=devices, callbacks=callbacks, **common).history)
    assert 1 < len(found[1]["loss"]) < 8  # stopped early
    np.testing.assert_allclose(found[1]["loss"], found[0]["loss"], rtol=1e-5)
    saved = keras.models.load_model(path)
    assert saved(X).shape == (70, 3)


def test_the_model_is_keras_again_afterwards():
    made = model()
    cn.fit(made, X, Y, devices=2, verbose=0)
    made.fit(X, Y, verbose=0)
    assert "loss" in made.evaluate(X, Y, verbose=0, return_dict=True)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: 3, "must be a Keras model"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "is not compiled"),
        (lambda: model(run_eagerly=True), "run_eagerly"),
    ],
)
def test_what_cannot_be_honoured_is_refused(made, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.fit(made(), X, Y, devices=2)
    assert says in str(caught.value)


def test_a_mode_that_does_not_go_with_the_variables_is_refused():
    with pytest.raises(cn.InvalidArgument, match="has no meaning with Asynchronous"):
        cn.fit(model(), X, Y, devices=2, sync=cn.Asynchronous(), variables="mirrored")


IDS = np.array([[1, 2, 0, 0], [1, 2, 3, 4], [3, 0, 0, 0], [1, 1, 1, 0], [2, 2, 2, 2], [1, 0, 0, 0]])


def inside(*layers):
    """The layers, in a model inside a model, which `model.layers` does not show."""
    outer = keras.Sequential([keras.Sequential([keras.Input([4]), *layers]), keras.layers.Dense(2)])
    outer.compile(keras.optimizers.SGD(0.5), "mse")
    return outer


def weights_and_history(make, x, y, **arguments):
    """With Keras alone, and with `cn.fit` on two devices."""
    both = []
    for fit in (lambda m, **a: m.fit(x, y, **a), lambda m, **a: cn.fit(m, x, y, devices=2, **a)):
        keras.utils.set_random_seed(0)
        made = make()
        found = fit(made, verbose=0, shuffle=False, **{"batch_size": 8, "epochs": 2, **arguments}).history
        both.append((made.get_weights(), found))
    return both


def assert_equal_to_keras(*arguments, **options):
    (expected, of_keras), (weights, history) = weights_and_history(*arguments, **options)
    for a, b in zip(weights, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    assert history.keys() == of_keras.keys()
    for name in history:
        np.testing.assert_allclose(history[name], of_keras[name], rtol=1e-5, err_msg=name)


@pytest.mark.long
def test_a_mask_that_ends_inside_is_no_hindrance():
    layers = keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.LSTM(2)
    (start,) = [layer.get_config() for layer in layers[:1]]

    def make():
        return inside(keras.layers.Embedding.from_config(start), keras.layers.LSTM(2))

    assert_equal_to_keras(make, IDS, np.ones([6, 2]), batch_size=6)


class Plain(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.extra = keras.metrics.Mean(name="extra")
        self.compile(keras.optimizers.SGD(0.1), "mse")

    def call(self, x):
        return self.dense(x)


class WithoutTraining(Plain):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None):
        return keras.ops.mean((y - y_pred) ** 2)


class OwnMetrics(Plain):
    @property
    def metrics(self):
        return [self.extra]

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.extra.update_state(y_pred)
        return {"extra": self.extra.result()}


class OwnLossMetric(Plain):
    """As Keras documents it: a metric of its own called loss, updated by the loss."""

    def __init__(self):
        super().__init__()
        self.tracked = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.tracked]

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        loss = keras.ops.mean((y - y_pred) ** 2)
        self.tracked.update_state(loss, sample_weight=y.shape[0])
        return loss


TARGETS = RNG.normal(size=(70, 2)).astype("float32")


@pytest.mark.parametrize("make", [WithoutTraining, OwnMetrics, OwnLossMetric])
def test_overrides_that_keras_documents_train_and_count_as_with_keras(make):
    assert_equal_to_keras(make, X[:17], TARGETS[:17])


def two_outputs():
    given = keras.Input([6])
    made = keras.Model(given, [keras.layers.Dense(2, name=name)(given) for name in ("a", "b")])
    made.compile(keras.optimizers.SGD(0.1), ["mse", "mae"], metrics=[["mae"], ["mse"]])
    return made


@pytest.mark.long
def test_losses_of_several_outputs_where_a_batch_has_fewer_rows_than_devices():
    assert_equal_to_keras(two_outputs, X[:17], [TARGETS[:17], TARGETS[:17]])


@pytest.mark.parametrize("sync", [cn.LocalSGD(2), *long(cn.Asynchronous())])
def test_losses_of_several_outputs_add_up_in_every_mode(sync):
    made = two_outputs()
    history = cn.fit(
        made, X[:16], [TARGETS[:16]] * 2, devices=2, sync=sync, batch_size=8, epochs=1, verbose=0
    ).history
    total = history["a_loss"][0] + history["b_loss"][0]
    assert total == pytest.approx(history["loss"][0], rel=1e-5)  # 16 rows: all batches alike


def constrained():
    made = keras.Sequential(
        [keras.Input([6]), keras.layers.Dense(4, kernel_constraint="non_neg"), keras.layers.Dense(2)]
    )
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return made


@pytest.mark.parametrize("home", ["partitioned", *long("shared", "mirrored")])
def test_constraints_hold(home):
    def fit(made):
        return cn.fit(made, X, TARGETS, devices=2, variables=home, shuffle=False, epochs=2, verbose=0)

    keras.utils.set_random_seed(0)
    alone = constrained()
    alone.fit(X, TARGETS, shuffle=False, epochs=2, verbose=0)
    keras.utils.set_random_seed(0)
    made = constrained()
    fit(made)
    assert made.layers[0].kernel.numpy().min() == 0.0
    for a, b in zip(made.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.long
def test_the_last_execution_of_an_epoch_may_be_short():
    """5 batches in executions of 2 steps: batches are told to callbacks as Keras tells them."""
    seen = {}
    for name, train in (("keras", keras.Model.fit), ("colonnade", partial(cn.fit, devices=2))):
        ends = seen[name] = []
        noted = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs, e=ends: e.append(batch))
        train(model(steps_per_execution=2), X[:40], Y[:40], batch_size=8, verbose=0, callbacks=[noted])
    assert seen["colonnade"] == seen["keras"]


def test_losses_of_whole_batches_need_devices_that_work_together():
    made = keras.Sequential([keras.Input([6]), keras.layers.Dense(2, "sigmoid")])
    losses = {
        "with each other": keras.losses.Circle(),
        "quotient of sums": "dice",
        "reduction='sum'": keras.losses.MeanSquaredError(reduction="sum"),
        "ignore_class=-1": keras.losses.SparseCategoricalCrossentropy(ignore_class=-1),
    }
    for says, loss in losses.items():
        made.compile(keras.optimizers.SGD(0.1), loss)
        with pytest.raises(cn.InvalidArgument, match=says):
            cn.fit(made, X, TARGETS, devices=2, sync=cn.LocalSGD(2))


@pytest.mark.long
def test_backups_of_keras_go_on(tmp_path):
    """By epochs: a second call goes on after the first."""

    class Cut(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise InterruptedError

    def train(**options):
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
        x = np.arange(16, dtype="float32").reshape(8, 2) / 16
        cn.fit(model, x, x[:, :1], devices=2, epochs=4, batch_size=4, shuffle=False, verbose=0, **options)
        return model.get_weights()

    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(InterruptedError):
        train(callbacks=[backup, Cut()])
    resumed = train(callbacks=[keras.callbacks.BackupAndRestore(tmp_path / "backup")])
    for one, other in zip(resumed, train(), strict=True):
        np.testing.assert_array_equal(one, other)


class Counted(keras.layers.Layer):
    """Knows how often it was traced."""

    traces = 0

    def call(self, x):
        self.traces += 1
        return keras.ops.mean(x, axis=1, keepdims=True)


def counted():
    keras.utils.set_random_seed(0)
    layer = Counted()
    made = keras.Sequential([keras.Input([None]), layer, keras.layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return made, layer


def test_a_second_fit_traces_nothing_until_the_model_is_compiled_again():
    made, layer = counted()
    alone, _ = counted()
    alone.fit(X, TARGETS, batch_size=35, epochs=2, shuffle=False, verbose=0)
    cn.fit(made, X, TARGETS, devices=2, batch_size=35, shuffle=False, verbose=0)
    before = layer.traces
    cn.fit(made, X, TARGETS, devices=2, batch_size=35, shuffle=False, verbose=0)
    assert layer.traces == before
    for a, b in zip(made.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    made.compile(made.optimizer, "mae")
    cn.fit(made, X, TARGETS, devices=2, batch_size=35, shuffle=False, verbose=0)
    assert layer.traces > before


class Passes(Counted):
    """Hands on what it is given, with its mask."""

    supports_masking = True

    def call(self, x):
        self.traces += 1
        return x


class Calls(keras.Model):
    """Only a call tells that its output has a mask."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x):
        for layer in self.inner:
            x = layer(x)
        return x


def test_masked_batches_of_many_widths_are_traced_for_a_slice_and_for_the_batch():
    """Every device is given the whole batch there, which is as wide as its slices."""

    def traces(model):
        rng = np.random.default_rng(0)
        batches = [(rng.integers(0, 9, (8, w)), rng.integers(0, 3, (8, w))) for w in range(4, 8)]
        kind = tf.TensorSpec([None, None], "int64")
        data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=(kind, kind))
        layer = Passes()
        made = model([keras.layers.Embedding(9, 4, mask_zero=True), layer, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        made.compile(keras.optimizers.SGD(0.1), loss)
        data = data.apply(tf.data.experimental.assert_cardinality(len(batches)))
        cn.fit(made, data, devices=4, shuffle=False, verbose=0)
        return layer.traces

    # Keras calls it once to see shapes.
    known = traces(lambda inner: keras.Sequential([keras.Input([None], dtype="int64"), *inner]))
    assert known == 1 + 2
    # The first trace makes the variables; TensorFlow's second one ends where the mask is seen.
    assert traces(Calls) == 1 + 2 + 2


@pytest.mark.long
def test_widths_that_vary_are_traced_twice():
    batches = [(RNG.normal(size=[8, width]).astype("float32"), TARGETS[:8]) for width in (4, 6, 5, 7, 3)]
    both = []
    for fit in (keras.Model.fit, partial(cn.fit, devices=2)):
        made, layer = counted()
        for number, (x, y) in enumerate(batches):
            fit(made, x, y, batch_size=8, shuffle=False, verbose=0)
            if number == 1:
                traced = layer.traces
        both.append(made.get_weights())
        assert layer.traces == traced
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
