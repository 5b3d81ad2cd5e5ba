"""Who is taken for somebody that looks at a model after every batch; what he sees is in tests/cards."""

import keras
import numpy as np
import pytest

import colonnade as cn
from colonnade.hardware import devices as hardware
from colonnade.run.keras_callbacks.onlookers import Showing, shows_late, unseen
from colonnade.run.keras_steps.keras_step import KerasStep

CALLBACKS = keras.callbacks
X = np.ones([4, 2], "float32")


class Own(CALLBACKS.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        pass


class Safe(Own):
    async_safe = True


@pytest.fixture
def step():
    step = object.__new__(KerasStep)
    step.devices = ("/device:GPU:0", "/device:GPU:1")
    return step


@pytest.mark.parametrize(
    ("callbacks", "late"),
    [
        (None, True),
        ([CALLBACKS.EarlyStopping(), CALLBACKS.LambdaCallback(on_epoch_end=print)], True),
        (Safe(), True),
        ([Own()], False),
        (CALLBACKS.LambdaCallback(on_train_batch_end=print), False),
        ([CALLBACKS.CallbackList([])], False),
    ],
)
def test_callbacks_that_hear_of_batches(monkeypatch, step, callbacks, late):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    assert shows_late(step, cn.Synchronous(), X, callbacks) is late


def test_on_other_devices_and_with_data_of_python_code_it_is_shown_after_every_batch(monkeypatch, step):
    assert not shows_late(step, cn.Synchronous(), X, None)  # there are no such cards
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    assert not shows_late(step, cn.LocalSGD(2), X, None)
    assert not shows_late(object(), cn.Synchronous(), X, None)
    assert not shows_late(step, cn.Synchronous(), iter([X]), None)


def test_it_is_shown_when_something_is_told_and_at_the_end():
    class Step:
        looked_at, shown = True, 0

        def show(self):
            self.shown += 1

    step = Step()
    with unseen(step, late=False) as first:
        assert not first
    assert step.shown == 0
    with unseen(step, late=True) as (showing,):
        assert isinstance(showing, Showing)
        assert not step.looked_at
        showing.on_epoch_end(0)
        showing.on_test_begin()
        showing.on_predict_begin()
        showing.on_train_end()
    assert step.looked_at
    assert step.shown == 5
