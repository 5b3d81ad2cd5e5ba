"""Profiles of Keras models that `cn.fit` trains."""

import keras
import numpy as np
import pytest

import colonnade as cn
from colonnade.hardware.profile import Recording

# Wide enough: of ops that take less than some microseconds TensorFlow tells nothing.
X = np.random.default_rng(0).normal(size=[96, 256]).astype("float32")


def compiled(**options):
    model = keras.Sequential(
        [keras.Input([256]), keras.layers.Dense(512, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "sync", [None, cn.LocalSGD(2), cn.Asynchronous()], ids=["lockstep", "local", "async"]
)
def test_steps_over_all_epochs(sync):
    seen = []
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(batch))
    options = {"sync": sync, "devices": 2, "verbose": 0, "callbacks": [callback]}
    history = cn.fit(compiled(), X, X[:, :1], batch_size=32, epochs=3, profile=range(3, 6), **options)
    assert len(seen) == 9
    assert history.timeline.steps == (3, 4, 5)
    kinds = {event.kind for event in history.timeline.events}
    assert kinds >= {"forward", "backward", "update"}
    assert not Recording.is_under_way()


@pytest.mark.parametrize(("asked", "recorded"), [(range(4, 5), (4, 5)), (range(5, 7), (4, 5, 6, 7, 8))])
def test_several_steps_per_execution_are_recorded_together(asked, recorded):
    """Of 5 batches, an epoch has executions of 3 and 2."""
    model, x = compiled(steps_per_execution=3), X[:80]
    history = cn.fit(model, x, x[:, :1], batch_size=16, epochs=2, devices=2, verbose=0, profile=asked)
    assert history.timeline.steps == recorded


def test_a_profile_that_never_happens_is_no_secret():
    with pytest.warns(UserWarning, match=r"profile=range\(9, 12\) recorded nothing: .* after 3 steps"):
        history = cn.fit(compiled(), X, X[:, :1], devices=2, verbose=0, profile=range(9, 12))
    assert history.timeline is None


def test_without_a_profile_there_is_none():
    history = cn.fit(compiled(), X, X[:, :1], devices=2, verbose=0)
    assert not hasattr(history, "timeline")
    with pytest.raises(cn.InvalidArgument, match=r"Try profile=range\(10, 15\)"):
        cn.fit(compiled(), X, X[:, :1], devices=2, verbose=0, profile=4)


def test_a_training_that_fails_ends_the_recording():
    def fail(batch, logs):
        raise RuntimeError("enough")

    callback = keras.callbacks.LambdaCallback(on_train_batch_begin=fail)
    with pytest.raises(RuntimeError, match="enough"):
        cn.fit(compiled(), X, X[:, :1], devices=2, verbose=0, profile=range(1, 3), callbacks=callback)
    assert not Recording.is_under_way()
