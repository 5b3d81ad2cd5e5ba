"""Moving averages on cards are settled when somebody looks: he sees what settling at every step shows."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.variables.late_states import LateStates

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 6)).astype("float32")
Y = RNG.normal(size=(48, 1)).astype("float32")


def network(dropout=0.0):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(momentum=0.8)]
    layers += [keras.layers.Dropout(dropout)] if dropout else []
    return keras.Sequential([keras.Input([6]), *layers, keras.layers.Dense(1)])


def trainer_of(model, devices, **options):
    return cn.Trainer(
        lambda x, y, training: tf.reduce_mean((model(x, training=training) - y) ** 2, axis=1),
        keras.optimizers.Adam(0.01),
        devices=devices,
        **options,
    )


@pytest.fixture
def at_every_step(monkeypatch):
    """Settle them at every step, as on other devices."""
    return lambda: monkeypatch.setattr(LateStates, "prepare", lambda self, traced: None)


def looks(devices, home):
    """What is seen on the way, by callbacks, between fits, by `evaluate`; with an assignment in between."""
    model = network()
    trainer = trainer_of(model, devices, variables=home)
    seen = []

    def look(_=None):
        seen.append([w.numpy() for w in model.weights])

    options = {"progress": False, "prove": False}
    trainer.fit((X, Y), batch_size=24, steps=7, log_every=3, callbacks=[look], **options)
    look()
    seen.append([trainer.evaluate((X, Y), batch_size=48).loss])
    trainer.fit((X[:25], Y[:25]), batch_size=23, epochs=1, **options)  # the second batch is of two rows
    look()
    model.layers[1].moving_variance.assign(np.arange(1.0, 9.0))
    trainer.train_on_batch(X[:24], Y[:24])
    look()
    return seen, len(trainer._engine.housed.late.kept)


@pytest.mark.parametrize(("number", "home"), [(2, "mirrored"), (4, "partitioned"), (4, "shared")])
def test_whoever_looks_sees_the_same(at_every_step, number, home):
    late, kept = looks(CARDS[:number], home)
    assert kept == 2
    at_every_step()
    settled, kept = looks(CARDS[:number], home)
    assert kept == 0
    for one, other in zip(late, settled, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_a_checkpoint_has_them_and_goes_on(tmp_path):
    """With dropout, whose streams are the cards' own."""

    def fit(steps, saved=True):
        keras.backend.clear_session()
        model = network(dropout=0.3)
        trainer = trainer_of(model, CARDS[:4])
        checkpoint = cn.Checkpoint(tmp_path, every=2) if saved else None
        trainer.fit((X, Y), batch_size=24, steps=steps, progress=False, checkpoint=checkpoint)
        return model.get_weights()

    fit(3)
    for one, other in zip(fit(6), fit(6, saved=False), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_keras_fit_shows_them_to_its_callbacks(at_every_step):
    def run():
        model, seen = network(), []
        model.compile(keras.optimizers.Adam(0.01), "mse")
        look = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: seen.append(model.layers[1].moving_mean.numpy())
        )
        options = {"validation_data": (X, Y), "callbacks": [look], "devices": CARDS[:4], "verbose": 0}
        history = cn.fit(model, X, Y, batch_size=16, epochs=2, shuffle=False, **options)
        return [*seen, np.array(history.history["val_loss"]), *model.get_weights()]

    late = run()
    at_every_step()
    for one, other in zip(late, run(), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("by_batch", [False, True])
def test_keras_fit_settles_them_when_somebody_looks(monkeypatch, tmp_path, by_batch, saved):
    """After each batch for a callback that hears of batches; else for the validation, and once at the end."""
    made, seen = [], []
    original = LateStates.settle
    monkeypatch.setattr(LateStates, "settle", lambda self: (made.append(1), original(self)))
    model = network()
    model.compile(keras.optimizers.Adam(0.01), "mse")

    def look(*_, **__):
        seen.append(model.layers[1].moving_mean.numpy())

    when = "on_train_batch_end" if by_batch else "on_epoch_end"
    options = {"callbacks": [keras.callbacks.LambdaCallback(**{when: look})], "verbose": 0}
    options |= {"checkpoint": cn.Checkpoint(tmp_path, every=100)} if saved else {}
    options |= {"validation_data": (X, Y), "devices": CARDS[:4], "shuffle": False, "prove": False}
    cn.fit(model, X, Y, batch_size=8, epochs=2, **options)
    look()
    if by_batch:
        assert len(made) >= 12
    else:  # for each validation, and for what is saved at the end
        assert len(made) == 2 or (saved and len(made) <= 4)
    shown = [*seen[5::6], seen[-1]] if by_batch else seen
    assert np.array_equal(shown[-1], shown[-2])
    assert not np.array_equal(shown[0], shown[1])
    assert all(np.any(value) for value in shown)


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_step_that_does_not_count_leaves_them_as_they_were(on_nan):
    model = network()
    trainer = trainer_of(model, CARDS[:4], on_nan=on_nan)
    trainer.train_on_batch(X, Y)
    before = model.get_weights()
    bad = X.copy()
    bad[20] = np.nan
    if on_nan == "stop":
        with pytest.raises(cn.NotFinite):
            trainer.train_on_batch(bad, Y)
    else:
        trainer.train_on_batch(bad, Y)
    for one, other in zip(model.get_weights(), before, strict=True):
        assert np.array_equal(one, other)
    trainer.train_on_batch(X, Y)
    assert all(np.isfinite(w).all() for w in model.get_weights())
