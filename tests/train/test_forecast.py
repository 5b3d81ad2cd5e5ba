import numpy as np
import pytest
import tensorflow as tf

from colonnade.describe.plan import Plan, Prediction
from colonnade.run.engine.history import History
from colonnade.run.train import forecast

PREDICTED = Prediction(0.010, 800.0, 1.0, 0, 0, 0, compute=0.009, reduction=0.001)
PLAN = Plan(batch=8, predicted=PREDICTED)


def history(seconds, *, steps=10, batch=8):
    return History(losses=[1.0] * steps, seconds=seconds * steps, examples=batch * steps)


def compared(capsys, done, *, dataset=None, latest=None, engine=None, show=True):
    forecast.compare(
        PLAN, done, engine, done.seconds_per_step if latest is None else latest, dataset, show=show
    )
    return capsys.readouterr().err


def test_a_prediction_that_came_true_is_kept_in_silence(capsys):
    done = history(0.012)
    assert compared(capsys, done) == ""
    assert done.predicted is PREDICTED


def test_a_slow_input_is_named(capsys):
    slow = tf.data.Dataset.range(100).map(
        lambda i: tf.py_function(lambda i: (__import__("time").sleep(0.03), i)[1], [i], tf.int64)
    )
    line = compared(capsys, history(0.04), dataset=slow)
    assert line.startswith(
        "a step took 40 ms, 4 times the 10 ms that were predicted; most of the difference is input"
    )


def test_the_first_call_is_named(capsys):
    line = compared(capsys, history(0.04), latest=0.011)
    assert "tracing and the first call (29 ms a step)" in line


def test_a_slow_device_is_named_where_shares_are_measured(capsys):
    class Shares:
        timed = True
        speeds = np.array([4.0, 4.0, 4.0, 0.5])

    class Engine:
        shares = Shares()

    assert "one slow device" in compared(capsys, history(0.06), engine=Engine())


def test_a_step_that_was_faster_says_only_that(capsys):
    assert compared(capsys, history(0.005)) == "a step took 5 ms, 0.5 times the 10 ms that were predicted\n"


@pytest.mark.parametrize("done", [history(0.04, batch=16), History()])
def test_steps_on_other_batches_and_no_steps_are_not_compared(capsys, done):
    assert compared(capsys, done) == ""
    assert done.predicted is PREDICTED


def test_without_progress_nothing_is_printed(capsys):
    assert compared(capsys, history(0.04), show=False) == ""


def test_an_input_at_its_end_takes_no_time():
    assert forecast.input_seconds(tf.data.Dataset.range(0)) == 0.0
    assert forecast.input_seconds(tf.data.Dataset.range(1)) == 0.0
