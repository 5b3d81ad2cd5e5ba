"""Every way of training, on 2, 4 and 8 cards, is what one card makes of it.

Five steps of a small float32 model: 2e-5 is what the order of sums may do where Adam divides by small roots.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 6)).astype("float32")
Y = RNG.normal(size=(24, 1)).astype("float32")
STEPS, TOLERANCE = 5, 2e-5


def network(norm=False):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh")]
    layers += [keras.layers.BatchNormalization(synchronized=True)] if norm else []
    return keras.Sequential([keras.Input([6]), *layers, keras.layers.Dense(1)])


def trained(devices, batch=24, model=None, optimizer=None, steps=STEPS, **options):
    model = model or network()
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1),
        optimizer or keras.optimizers.Adam(0.01),
        devices=devices,
        **options,
    )
    trainer.fit((X[:batch], Y[:batch]), batch_size=batch, steps=steps, progress=False)
    return model.get_weights(), trainer


def assert_equal(actual, expected):
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)


def test_there_are_eight_cards():
    assert len(CARDS) == 8


@pytest.mark.parametrize("home", ["mirrored", "shared", "partitioned"])
@pytest.mark.parametrize("number", [2, 4, 8])
def test_synchronous(number, home):
    weights, trainer = trained(CARDS[:number], variables=home)
    assert_equal(weights, trained(CARDS[:1])[0])
    assert all(np.array_equal(own[0], trainer.replicas()[0][0]) for own in trainer.replicas())


@pytest.mark.parametrize("batch", [23, 3])
def test_uneven_batches_and_fewer_examples_than_cards(batch):
    assert_equal(trained(CARDS[:4], batch)[0], trained(CARDS[:1], batch)[0])


def test_cards_in_another_order_without_the_first():
    assert_equal(trained([CARDS[2], CARDS[1]])[0], trained(CARDS[:1])[0])


def test_shares_by_speed_and_no_op_where_it_has_no_kernel():
    """Times are taken on the host, and nothing is moved elsewhere in silence."""
    tf.config.set_soft_device_placement(False)
    try:
        weights, _ = trained(CARDS[:4], sync=cn.Synchronous(shares="measured"))
    finally:
        tf.config.set_soft_device_placement(True)
    assert_equal(weights, trained(CARDS[:1])[0])


def test_synchronised_batch_norm():
    assert_equal(
        trained(CARDS[:4], model=network(norm=True))[0], trained(CARDS[:1], model=network(norm=True))[0]
    )


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.SGD(0.01, momentum=0.9, use_ema=True, global_clipnorm=0.5),
        lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.01), initial_scale=8.0),
    ],
)
def test_optimizers(optimizer):
    assert_equal(trained(CARDS[:4], optimizer=optimizer())[0], trained(CARDS[:1], optimizer=optimizer())[0])


def test_asynchronous_in_a_fixed_order_of_one():
    weights, _ = trained(CARDS[:1], sync=cn.Asynchronous())
    assert_equal(weights, trained(CARDS[:1])[0])


@pytest.mark.parametrize("number", [2, 4, 8])
def test_evaluate(number):
    model = network()
    trainers = [
        cn.Trainer(
            lambda x, y: tf.reduce_mean((model(x) - y) ** 2, axis=1), keras.optimizers.SGD(0.1), devices=d
        )
        for d in (CARDS[:1], CARDS[:number])
    ]
    one, several = (t.evaluate((X[:23], Y[:23]), batch_size=10).loss for t in trainers)
    assert one == pytest.approx(several, abs=1e-6)


@pytest.mark.parametrize("number", [2, 4, 8])
def test_keras_fit(number):
    weights = []
    for devices in (CARDS[:1], CARDS[:number]):
        model = network()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        cn.fit(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, devices=devices)
        weights.append(model.get_weights())
    assert_equal(*weights)


def deep(layers):
    keras.utils.set_random_seed(1)
    stack = [keras.layers.Dense(8, "tanh") for _ in range(layers)]
    return keras.Sequential([keras.Input([6]), *stack, keras.layers.Dense(1)])


@pytest.mark.parametrize("number", [2, 4, 8])
def test_a_pipeline(number):
    def run(devices):
        model = deep(number)
        stages = cn.Pipeline(model, devices, micro_batches=2) if devices else None
        call = stages or model
        trainer = cn.Trainer(
            lambda x, y: tf.reduce_mean((call(x) - y) ** 2, axis=1),
            keras.optimizers.Adam(0.01),
            devices=stages or CARDS[:1],
        )
        trainer.fit((X, Y), batch_size=24, steps=STEPS, progress=False)
        return model.get_weights()

    assert_equal(run(CARDS[:number]), run(None))


@pytest.mark.parametrize("number", [2, 4, 8])
def test_width(number):
    wide = cn.width.Dense(8, devices=CARDS[:number])
    wide.build([None, 6])
    kernels = [v for v in wide.weights if len(v.shape) == 2]
    assert [v.value.device.rpartition("device:")[2] for v in kernels] == [f"GPU:{i}" for i in range(number)]
    whole = np.concatenate([v.numpy() for v in kernels], axis=1)
    np.testing.assert_allclose(wide(X).numpy(), X @ whole, rtol=0, atol=1e-6)  # biases begin as zeros


@pytest.fixture(scope="module")
def wide_model():
    """Trains a layer of so many parts; what becomes of it as a whole."""

    def run(parts, replicas):
        keras.utils.set_random_seed(1)
        first, last = cn.width.Dense(8, devices=CARDS[:parts]), keras.layers.Dense(1)
        first.build([None, 6])
        last.build([None, 8])
        rng = np.random.default_rng(2)
        kernel = rng.normal(size=(6, 8)).astype("float32")
        kernels = [v for v in first.weights if len(v.shape) == 2]
        for variable, part in zip(kernels, np.array_split(kernel, parts, axis=1), strict=True):
            variable.assign(part)
        last.kernel.assign(rng.normal(size=(8, 1)).astype("float32"))
        trainer = cn.Trainer(
            lambda x, y: tf.reduce_mean((last(tf.tanh(first(x))) - y) ** 2, axis=1),
            keras.optimizers.Adam(0.01),
            devices=CARDS[:replicas],
        )
        trainer.fit((X, Y), batch_size=24, steps=STEPS, progress=False)
        return [np.concatenate([v.numpy() for v in kernels], axis=1), last.kernel.numpy()]

    whole = run(1, 1)
    return run, whole


@pytest.mark.parametrize(("parts", "replicas"), [(2, 1), (4, 2), (8, 1), (8, 2)])
def test_width_is_trained_as_one_layer(wide_model, parts, replicas):
    """On one replica and on two, which share the parts."""
    run, whole = wide_model
    assert_equal(run(parts, replicas), whole)


class Own(keras.Model):
    """A step of the model's own, with what depends on the slice: moving averages."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm = keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization()
        self.last = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.norm(self.hidden(x), training=False))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.norm.moving_mean.assign(0.9 * self.norm.moving_mean + 0.1 * tf.reduce_mean(self.hidden(x), 0))
        return {"loss": loss}


@pytest.mark.parametrize("number", [2, 8])
def test_a_train_step_of_the_models_own_and_predictions_and_scores(number):
    found = []
    for devices in (CARDS[:1], CARDS[:number]):
        keras.utils.set_random_seed(1)
        model = Own()
        model(X)
        model.compile(keras.optimizers.Adam(0.01), "mse")
        options = {"batch_size": 23, "verbose": 0, "devices": devices}
        history = cn.fit(model, X, Y, epochs=3, shuffle=False, **options)
        scores = cn.evaluate(model, X, Y, return_dict=True, **options)
        model.hidden.bias.assign_add(tf.ones([8]))  # what is read on other cards is what was assigned
        predicted = cn.predict(model, X, **options)
        found.append([*model.get_weights(), predicted, *scores.values(), np.array(history.history["loss"])])
    assert_equal(*found)


@pytest.mark.parametrize("number", [2, 4, 8])
def test_a_checkpoint_goes_on(tmp_path, number):
    def fit(steps):
        keras.backend.clear_session()  # as in a program that is started anew, names begin anew
        model = network()
        trainer = cn.Trainer(
            lambda x, y: tf.reduce_mean((model(x) - y) ** 2, axis=1),
            keras.optimizers.Adam(0.01),
            devices=CARDS[:number],
        )
        saved = cn.Checkpoint(tmp_path, every=2) if steps else None
        trainer.fit((X, Y), batch_size=24, steps=steps or 6, progress=False, checkpoint=saved)
        return model.get_weights()

    fit(3)
    resumed = fit(6)
    assert_equal(resumed, fit(0))


def test_a_nan_stops_with_the_name_of_the_card():
    bad = X.copy()
    bad[13] = np.nan  # of the third card
    model = network()
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_mean((model(x) - y) ** 2, axis=1), keras.optimizers.SGD(0.1), devices=CARDS[:4]
    )
    before = model.get_weights()
    with pytest.raises(cn.NotFinite, match="GPU:2"):
        trainer.train_on_batch(bad, Y)
    assert_equal(model.get_weights(), before)


@pytest.mark.parametrize("number", [2, 8])
def test_ops_that_cards_do_not_have_run_on_the_host(number):
    """A step that looks up rows of strings: TensorFlow places such ops softly, as in a tf.function."""
    words = np.array([f"word {i % 7}" for i in range(24)])

    def end(devices, **options):
        table = tf.Variable(tf.ones([16, 1]))

        def loss(text):
            return tf.squeeze(tf.gather(table, tf.strings.to_hash_bucket_fast(text, 16)), 1) ** 2

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=devices, **options)
        trainer.fit((words,), batch_size=24, steps=STEPS, progress=False)
        return table.numpy()

    expected = end(CARDS[:1])
    assert expected.min() < 1
    assert_equal([end(CARDS[:number])], [expected])
    # Nothing is stale where one worker waits for its own update.
    assert_equal([end(CARDS[1:2], sync=cn.Asynchronous())], [expected])
    assert end(CARDS[:number], sync=cn.Asynchronous()).min() < 1
