"""Which steps are let see the batch that comes next; what they make of it is in tests/cards."""

import keras
import pytest
import tensorflow as tf

from colonnade.hardware import devices as hardware
from colonnade.run.data.coming_batches import KerasBatches
from colonnade.run.keras_callbacks.looking_ahead import looking_ahead
from colonnade.run.machines.peers import ALONE, Peers


class Step:
    devices = ("/device:GPU:0", "/device:GPU:1")

    def __init__(self):
        self.seen = []

    def __call__(self, iterator):
        (x, _), following = next(iterator), iterator.peek()
        self.seen.append((int(x[0, 0]), None if following is None else int(following[0][0, 0])))
        return {"loss": 0.0}


def fitted(step, monkeypatch, dataset, **options):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with looking_ahead(step, None, ALONE) as (train, callbacks):
        monkeypatch.undo()
        model.train_function = train
        model.fit(dataset, callbacks=[*callbacks], verbose=0, shuffle=False, **options)
    return step.seen


def numbers():
    ones = tf.ones([2, 1])
    return tf.data.Dataset.range(7).map(lambda n: (ones * tf.cast(n, tf.float32), ones))


def test_an_epoch_of_so_many_steps_leaves_the_rest_for_the_next(monkeypatch):
    seen = fitted(Step(), monkeypatch, numbers(), steps_per_epoch=3, epochs=2)
    assert seen == [(0, 1), (1, 2), (2, None), (3, 4), (4, 5), (5, None)]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_all_that_there_is(monkeypatch):
    assert fitted(Step(), monkeypatch, numbers())[-2:] == [(5, 6), (6, None)]
    unknown = numbers().filter(lambda x, y: True)
    assert fitted(Step(), monkeypatch, unknown, epochs=2)[6:8] == [(6, None), (0, 1)]


def test_elsewhere_with_a_fixed_list_or_with_other_machines_a_step_is_called_as_it_is(monkeypatch):
    step = Step()
    with looking_ahead(step, None, ALONE) as (train, callbacks):
        assert (train, callbacks) == (step, [])  # there are no such cards
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    with looking_ahead(step, keras.callbacks.CallbackList([]), ALONE) as (train, callbacks):
        assert (train, callbacks) == (step, [])
    two_machines = Peers(0, (step.devices, step.devices))
    with looking_ahead(step, None, two_machines) as (train, callbacks):
        assert (train, callbacks) == (step, [])


def test_whatever_happens_it_is_closed(monkeypatch):
    monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
    closed = []
    monkeypatch.setattr(KerasBatches, "close", lambda self: closed.append(1))
    with pytest.raises(RuntimeError), looking_ahead(Step(), [keras.callbacks.EarlyStopping()], ALONE):
        raise RuntimeError
    assert closed == [1]
