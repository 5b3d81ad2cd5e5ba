import keras
import numpy as np
import pytest

import colonnade as cn
from colonnade.run.checkpoint.nest_tensors import from_tensors, to_tensors
from colonnade.run.keras_callbacks.callback_states import CallbackStates


class Counting(keras.callbacks.Callback):
    """Counts down from what it was made with."""

    def __init__(self, start):
        super().__init__()
        self.start, self.left = start, start
        self.lines, self.table = [], {}

    def on_train_begin(self, logs=None):
        self.left = 0


def begun(*callbacks):
    states = CallbackStates(callbacks)
    for callback in callbacks:
        callback.on_train_begin()
    states.note_begin()
    return states


def through_a_checkpoint(states):
    return from_tensors("x", to_tensors("x", states.get()))


def test_what_changed_is_put_back_and_what_is_configured_stays():
    first = Counting(100)
    states = begun(first)
    first.left, first.lines, first.table[3] = 7, [1, "a"], np.arange(3.0)
    saved = through_a_checkpoint(states)
    again = Counting(start=50)  # the user has changed his mind
    begun(again).set(saved, 9)
    assert (again.left, again.lines, again.start) == (7, [1, "a"], 50)
    assert again.table[3].tolist() == [0, 1, 2]


def test_a_value_that_came_back_to_its_first_is_kept_too():
    """`on_train_begin` sets out from another one."""
    first = Counting(100)
    states = begun(first)
    first.left = 100
    again = Counting(100)
    begun(again).set(through_a_checkpoint(states), 9)
    assert again.left == 100


class Other(Counting):
    pass


def test_one_of_several_machines_may_lack_some_and_takes_no_state_of_another():
    saved_ones = Counting(1), Counting(2), Other(3)
    states = begun(*saved_ones)
    for left, callback in enumerate(saved_ones, 10):
        callback.left = left
    saved = through_a_checkpoint(states)
    counting, other = Counting(2), Other(3)
    begun(counting, other).set(saved, 9, partly=True)
    assert (counting.left, other.left) == (0, 12)  # which of the two the first is, nobody knows
    with pytest.raises(cn.InvalidArgument, match="is not among the callbacks now"):
        begun(counting, other).set(saved, 9)


def test_what_was_put_back_is_not_shared():
    first = Counting(1)
    states = begun(first)
    first.lines.append("a")
    saved, again = through_a_checkpoint(states), Counting(1)
    other = begun(again)
    other.set(saved, 9)
    again.lines.append("b")
    other.set(saved, 9)  # once more, as at the begin of the epoch that was cut
    assert again.lines == ["a"]


def test_the_sign_of_min_delta_is_turned_once():
    first = keras.callbacks.EarlyStopping(monitor="loss", min_delta=0.5)
    states = begun(first)
    first.set_model(keras.Sequential([keras.layers.Dense(1)]))
    first.model.compile("sgd", "mse")
    first.on_epoch_end(0, {"loss": 1.0})
    again = keras.callbacks.EarlyStopping(monitor="loss", min_delta=0.5)
    begun(again).set(through_a_checkpoint(states), 9)
    again.set_model(first.model)
    for callback in (first, again):
        callback.on_epoch_end(1, {"loss": 0.8})
        assert (callback.best, callback.wait, callback.min_delta) == (1.0, 1, -0.5)


class Says(keras.callbacks.Callback):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_a_callback_may_say_itself_what_to_keep():
    states, other = begun(Says({"a": 1})), Says(None)
    begun(other).set(through_a_checkpoint(states), 9)
    assert other.state == {"a": 1}
    with pytest.raises(cn.InvalidArgument, match=r"Says\.get_state.*must return numbers"):
        begun(Says(object())).get()


def test_a_state_for_which_there_is_no_callback_is_an_error():
    first, second = Counting(1), Counting(2)
    states = begun(Says(1), first, second, keras.callbacks.Callback())
    first.left, second.left = 7, 8
    saved = states.get()
    with pytest.raises(cn.InvalidArgument, match=r"Counting.*had a state when step 9 was saved"):
        begun(Counting(1), Says(2)).set(saved, 9)
    others = Counting(1), Counting(2), Says(2), keras.callbacks.TerminateOnNaN()
    begun(*others).set(saved, 9)
    assert [others[0].left, others[1].left, others[2].state] == [7, 8, 1]
