"""What callbacks hear and do on one of two machines, the other of which says what a test has it say."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

import colonnade as cn
from colonnade.run.keras_callbacks.common_callbacks import common, uncommon
from colonnade.run.keras_callbacks.onlookers import hears_of_batches
from colonnade.run.machines.peers import ALONE

FILES = "the callbacks of fit()"


@dataclass
class SecondOfTwo:
    """The second machine; by topic what the first one says, else the same as this one."""

    first: dict[str, Any] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    rank, several, sharded, is_first = 1, True, False, False
    names = ("m0", "m1")

    def rest(self):
        self.topics.append("rest")

    def exchange(self, topic, value):
        self.topics.append(topic)
        return [self.first.get(topic, value), value]


class Clock(keras.callbacks.Callback):
    """Decides by itself, after a batch."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = True


def test_a_program_alone_has_its_own_callbacks():
    given = [Clock(), keras.callbacks.CSVLogger("log.csv")]
    assert common(ALONE, given) == ((), given, ())


def test_a_file_is_written_by_the_first_machine_that_names_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    same, own = keras.callbacks.CSVLogger("log.csv"), keras.callbacks.CSVLogger("m1.csv")
    weights = keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True)
    stop = keras.callbacks.EarlyStopping()
    written = [f"CSVLogger {tmp_path / 'log.csv'}", f"ModelCheckpoint {tmp_path / 'best.weights.h5'}"]
    peers = SecondOfTwo({FILES: [False, written]})
    assert common(peers, [same, own, weights, stop]).own == [own, stop]
    here = SecondOfTwo({FILES: [False, []]})
    assert common(here, [same, own, weights, stop]).own == [same, own, weights, stop]


@pytest.mark.parametrize(("here", "there"), [(True, False), (False, True)])
def test_machines_agree_after_every_batch_where_one_may_decide_something(here, there):
    front, _, behind = common(SecondOfTwo({FILES: [there, []]}), [Clock()] if here else None)
    assert all(map(hears_of_batches, [*front, *behind]))


def test_who_only_writes_after_batches_costs_the_others_nothing():
    """Keras would wait for the numbers of each batch."""
    board = keras.callbacks.TensorBoard("logs", update_freq=1)
    front, own, behind = common(SecondOfTwo({FILES: [False, []]}), [board])
    assert len(own) == 1
    assert not any(map(hears_of_batches, [*front, *behind]))


def test_all_hear_what_the_first_machine_found():
    end = "the end of epoch 3 of fit()"
    peers = SecondOfTwo({end: {"loss": float("nan"), "val_each": [0.25, 0.5]}})
    (numbers,), _, _ = common(peers, None)
    logs = {"loss": 1.0, "val_each": np.array([0.125, 0.5], "float32"), "more": 3.0}
    numbers.on_epoch_end(2, logs)
    assert list(logs) == ["loss", "val_each"]
    assert np.isnan(logs["loss"])
    np.testing.assert_array_equal(logs["val_each"], [0.25, 0.5])
    last = {"loss": 1.0}
    numbers.on_train_end(last)
    assert np.isnan(last["loss"])


def test_the_end_of_the_data_is_told_once_an_epoch():
    peers = SecondOfTwo()
    (numbers,), _, _ = common(peers, None)
    peers.first = {"the end of a validation of fit()": {}, "the end of epoch 1 of fit()": {}}
    for _ in range(2):
        numbers.on_epoch_begin(0)
        numbers.on_test_begin()
        numbers.on_test_end({})
        numbers.on_epoch_end(0, {})
    assert peers.topics.count("a batch of fit()") == peers.topics.count("rest") == 2


def test_data_that_end_on_one_machine_are_told():
    peers = SecondOfTwo({"a batch of fit()": [16, 77]})
    (numbers,), _, _ = common(peers, None)
    with pytest.raises(cn.InvalidArgument, match="m1 has come to the end of its data, and m0 trains on"):
        numbers.on_epoch_end(0, {})


def test_who_ends_the_training_ends_it_for_all():
    peers = SecondOfTwo({FILES: [True, []], "whether fit() ends": True})
    _, _, (end,) = common(peers, None)
    end.set_model(SimpleNamespace(stop_training=False))
    end.on_train_batch_end(0)
    assert end.model.stop_training is True


def test_what_is_for_one_machine_is_refused(tmp_path):
    assert list(uncommon(None)) == list(uncommon([Clock()])) == []
    (backup,) = uncommon(keras.callbacks.BackupAndRestore(tmp_path))
    assert "Use checkpoint=cn.Checkpoint" in str(backup)
    (listed,) = uncommon(keras.callbacks.CallbackList([Clock()]))
    assert "must be a list" in str(listed)
