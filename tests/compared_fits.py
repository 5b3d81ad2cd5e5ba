"""A small Keras program trained by Keras and by `cn.fit`, from the same start."""

import keras
import numpy as np

import colonnade as cn

RNG = np.random.default_rng(0)
X, Y = (RNG.normal(size=(16, 6)).astype("float32") for _ in range(2))


def dense(kind=keras.Sequential, *layers, rate=0.05, **compiled):
    """A model of a user's own class, with the layers before the last one."""
    made = kind([keras.Input([6]), *layers, keras.layers.Dense(6)])
    made.compile(keras.optimizers.SGD(rate), **compiled)
    return made


def assert_that_of_keras(make, *data, devices=2, callbacks=lambda made: [], tolerance=2e-5, **options):
    """History and weights."""
    options = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0, **options}
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": devices})):
        keras.utils.set_random_seed(0)
        made = make()
        history = fit(made, *(data or (X, Y)), callbacks=callbacks(made), **options, **more).history
        both.append([*map(np.asarray, history.values()), *made.get_weights()])
    assert len(both[0]) == len(both[1]) > 1
    for one, other in zip(*both, strict=True):
        scale = max(1.0, np.abs(one).max(initial=0.0))
        np.testing.assert_allclose(other, one, atol=tolerance * scale, rtol=0)
    return both[1]
