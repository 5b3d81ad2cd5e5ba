"""What a fit is expected to take, and the line where it took another time."""

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.describe.plan import Plan, Prediction
from colonnade.reason.simulator.staleness import ReadOrApply
from colonnade.run.engine.history import History
from colonnade.run.train import forecast
from colonnade.run.train.forecast import Forecast

PREDICTED = Prediction(0.010, 800.0, 1.0, 0, 0, 0, compute=0.009, reduction=0.001)
PLAN = Plan(batch=8, predicted=PREDICTED)


def history(seconds, *, steps=10, batch=8, waited=0.0):
    return History(losses=[1.0] * steps, seconds=seconds * steps, examples=batch * steps, waited=waited)


def compared(capsys, done, *, latest=None, engine=None, show=True):
    known = Forecast(PLAN, lambda rows: None, None)
    known.compare(done, engine, done.seconds_per_step if latest is None else latest, show=show)
    return capsys.readouterr().err


def test_a_prediction_that_came_true_is_kept_in_silence(capsys):
    done = history(0.012)
    assert compared(capsys, done) == ""
    assert done.predicted is PREDICTED
    assert done.unpredicted is None


def test_a_slow_input_is_named(capsys):
    line = compared(capsys, history(0.04, waited=0.3))
    assert line.startswith(
        "a step took 40 ms, 4 times the 10 ms that were predicted; most of the difference is waiting for data"
    )


def test_the_first_call_is_named(capsys):
    line = compared(capsys, history(0.04), latest=0.011)
    assert "tracing and the first call (29 ms a step)" in line


def test_a_slow_device_is_named_where_shares_are_measured(capsys):
    class Shares:
        speeds = np.array([4.0, 4.0, 4.0, 0.5])

    class Engine:
        shares = Shares()

    assert "one slow device" in compared(capsys, history(0.06), engine=Engine())


def test_a_step_that_was_faster_says_only_that(capsys):
    assert compared(capsys, history(0.005)) == "a step took 5 ms, 0.5 times the 10 ms that were predicted\n"


@pytest.mark.parametrize("done", [history(0.04, batch=16), history(0.04, batch=4), History()])
def test_steps_on_other_batches_and_no_steps_are_not_compared(capsys, done):
    assert compared(capsys, done) == ""
    assert done.predicted is PREDICTED


def test_a_smaller_batch_at_the_end_does_not_matter(capsys):
    done = replace(history(0.04), examples=78)
    assert "predicted" in compared(capsys, done)


def test_without_progress_nothing_is_printed(capsys):
    assert compared(capsys, history(0.04), show=False) == ""


def test_calls_from_python_say_nothing_of_small_differences():
    short = Prediction(1e-4, 1.0, 1.0, 0, 0, 0)
    assert forecast.difference(short, 4e-4, {}) is not None
    assert forecast.difference(short, 4e-4, {}, blur=5e-4) is None


def network():
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input([8]),
            keras.layers.Dense(16, "relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5, seed=3),
            keras.layers.Dense(1),
        ]
    )
    return model, lambda x: tf.squeeze(model(x, training=True), axis=1) ** 2


X = np.random.default_rng(0).normal(size=[64, 8]).astype("float32")
# Both devices read, then both apply; a list, which can be gone through for every training.
ROUND_ROBIN = [
    ReadOrApply(kind, device) for _ in range(40) for kind in ("read", "apply") for device in (0, 1)
]
MODES = {
    "one device": {"devices": 1},
    "synchronous": {"devices": 2},
    "mirrored": {"devices": 2, "variables": "mirrored"},
    "partitioned": {"devices": 2, "variables": "partitioned"},
    "measured shares": {"devices": 2, "sync": cn.Synchronous(shares="measured")},
    "local": {"devices": 2, "sync": cn.LocalSGD(4)},
    "elastic": {"devices": 2, "sync": cn.Elastic(4, 0.1)},
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("mode", MODES)
def test_every_fit_has_a_prediction_and_trains_as_without_one(mode, monkeypatch):
    weights = []
    for seen in (True, False):
        if not seen:
            monkeypatch.setattr(Forecast, "look", lambda *_: None)
        model, loss = network()
        trainer = cn.Trainer(loss, keras.optimizers.Adam(0.01), **MODES[mode])
        done = trainer.fit((X,), batch_size=16, steps=20, progress=False, prove="warn")
        weights.append([v.numpy() for v in model.variables])
        assert (done.predicted is not None) == seen
        assert (done.unpredicted is None) == seen
    if mode != "measured shares":  # which are other ones in every run
        for one, other in zip(*weights, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "fit", "said"),
    [
        ({"devices": 2}, {"prove": False, "steps": 3}, "prove=False"),
        ({"devices": 1}, {"steps": 3}, "too short"),
        ({"devices": 2, "compile": True}, {"steps": 3}, "XLA"),
        ({"devices": 2, "sync": cn.Asynchronous()}, {"steps": 3}, "fetch their slices"),
    ],
)
def test_a_fit_without_a_prediction_says_why(options, fit, said):
    _, loss = network()
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), **options)
    done = trainer.fit((X,), batch_size=16, progress=False, **fit)
    assert done.predicted is None
    assert said in done.unpredicted


def test_a_loss_that_speaks_is_not_called_once_more(capfd):
    w = tf.Variable(1.0)

    def loss(x):
        tf.print("seen")
        return w * tf.reduce_sum(x, axis=1)

    done = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=1).fit(
        (X,), batch_size=16, steps=20, progress=False
    )
    assert capfd.readouterr().err.count("seen") == 20
    assert "prints" in done.unpredicted


def test_what_a_further_call_could_change_or_another_size_could_tell_is_not_timed():
    w, initial = tf.Variable(1.0), tf.lookup.KeyValueTensorInitializer([1], [2.0], tf.int32)
    table = tf.lookup.StaticHashTable(initial, 0.0)
    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1.0], [2.0, 3.0]] * 8)).batch(4)
    for data, loss, said in (
        (ragged, lambda x: w * tf.reduce_sum(x, axis=1), "ragged"),
        (X, lambda x: w * table.lookup(tf.cast(x[:, 0], tf.int32)), "tables"),
        (X, tf.function(lambda x: w * x[:, 0], jit_compile=True), "XLA"),
    ):
        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=2, variables="mirrored")
        sized = {} if data is ragged else {"batch_size": 16}
        done = trainer.fit(data if data is ragged else (data,), steps=2, progress=False, **sized)
        assert done.predicted is None
        assert said in done.unpredicted


def test_a_batch_after_the_fit_is_not_looked_at():
    _, loss = network()
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=2)
    trainer.fit((X,), batch_size=16, steps=2, prove=False, progress=False)
    trainer.fit((X,), batch_size=16, steps=2, progress=False)  # of a known shape: nothing to examine
    assert trainer._engine.examine is None


def test_a_second_fit_keeps_what_the_first_was_told():
    _, loss = network()
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=2)
    first, second = (trainer.fit((X,), batch_size=16, steps=4, progress=False) for _ in range(2))
    assert first.predicted is second.predicted is not None


def test_a_plan_that_was_read_again_has_a_timeline_in_the_log(tmp_path):
    _, loss = network()
    plan = Plan.from_json(Plan(batch=16, data=2, variables="shared", predicted=PREDICTED).to_json())
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), plan=plan)
    done = trainer.fit((X,), batch_size=16, steps=4, progress=False, logdir=tmp_path)
    assert done.predicted == PREDICTED
    assert "CPU:1" in (tmp_path / "predicted.json").read_text()
