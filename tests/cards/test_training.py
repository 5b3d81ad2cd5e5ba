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


def test_keras_fit():
    weights = []
    for devices in (CARDS[:1], CARDS[:4]):
        model = network()
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
        cn.fit(model, X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0, devices=devices)
        weights.append(model.get_weights())
    assert_equal(*weights)


def test_a_pipeline():
    def run(devices):
        model = network()
        stages = cn.Pipeline(model, devices, micro_batches=2) if devices else None
        call = stages or model
        trainer = cn.Trainer(
            lambda x, y: tf.reduce_mean((call(x) - y) ** 2, axis=1),
            keras.optimizers.Adam(0.01),
            devices=stages or CARDS[:1],
        )
        trainer.fit((X, Y), batch_size=24, steps=STEPS, progress=False)
        return model.get_weights()

    assert_equal(run(CARDS[:2]), run(None))


def test_width():
    wide = cn.width.Dense(8, devices=CARDS[:4])
    wide.build([None, 6])
    kernels = [v for v in wide.weights if len(v.shape) == 2]
    assert [v.value.device.rpartition("device:")[2] for v in kernels] == [f"GPU:{i}" for i in range(4)]
    whole = np.concatenate([v.numpy() for v in kernels], axis=1)
    np.testing.assert_allclose(wide(X).numpy(), X @ whole, rtol=0, atol=1e-6)  # biases begin as zeros


def test_a_checkpoint_goes_on(tmp_path):
    def fit(steps):
        keras.backend.clear_session()  # as in a program that is started anew, names begin anew
        model = network()
        trainer = cn.Trainer(
            lambda x, y: tf.reduce_mean((model(x) - y) ** 2, axis=1),
            keras.optimizers.Adam(0.01),
            devices=CARDS[:4],
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
