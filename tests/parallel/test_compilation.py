import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.parallel import compilation
from colonnade.run.parallel.compilation import TURN_STEPS, TURNS, Compilation, compile_problems


def raced(plain, compiled, rows=8):
    """A contest in which a step takes so long in each way, and the first steps of each an hour."""
    contest, said, ways, began = Compilation("auto"), [], [], set()
    contest.say = said.append
    while contest.undecided:
        ways.append(contest.on)
        first = contest.on not in began
        began.add(contest.on)
        seconds = 3600.0 if first else (compiled if contest.on else plain) * TURN_STEPS
        contest.note(rows, TURN_STEPS, seconds)
    return contest, said, ways


def test_the_faster_way_is_kept_and_said():
    for plain, compiled, on in ((0.002, 0.001, True), (0.001, 0.002, False), (0.001, 0.00099, False)):
        contest, said, ways = raced(plain, compiled)
        assert contest.on is on
        assert said == [contest.verdict]
        assert f"{compiled * 1000:.3g} ms per step compiled, {plain * 1000:.3g} as it is" in contest.verdict
        assert contest.verdict.startswith("compiled") is on
        assert [ways.count(way) for way in (False, True)] == [TURNS + 1, TURNS + 1]
        assert ways[2:] == [False, True] * TURNS  # in turn, so that a machine that gets busy hits both


def test_a_batch_of_another_size_is_not_compared():
    contest = Compilation("auto")
    contest.note(8, 1, 1.0)
    contest.note(8, 1, 1.0)
    contest.note(8, TURN_STEPS, 0.001)
    way = contest.on
    contest.note(5, TURN_STEPS, 100.0)
    assert contest.on is way
    assert contest.undecided


def test_what_was_asked_for_stays():
    for wanted in (True, False):
        contest = Compilation(wanted)
        for _ in range(50):
            contest.note(8, TURN_STEPS, 1.0)
        assert contest.on is wanted
    assert Compilation(False).verdict is None
    assert Compilation("auto").verdict.startswith("not decided")
    declined = Compilation("auto")
    declined.decline("it prints")
    assert (declined.on, declined.verdict) == (False, "not compiled by XLA: it prints")


@pytest.mark.parametrize("wanted", ["yes", 1.5, None, 2])
def test_another_value_is_refused(wanted):
    (problem,) = compile_problems(wanted, synchronous=True, pipelined=False)
    assert problem.argument == "compile"
    with pytest.raises(cn.InvalidArgument, match="compile="):
        cn.Trainer(lambda x: x, keras.optimizers.SGD(), compile=wanted)


def test_other_ways_of_training_are_refused():
    for options in ({"sync": cn.LocalSGD(4)}, {"sync": cn.Asynchronous()}):
        with pytest.raises(cn.InvalidArgument, match=r"is for cn\.Synchronous\(\) only"):
            cn.Trainer(lambda x: x, keras.optimizers.SGD(), devices=2, compile=True, **options)
    pipeline = cn.Pipeline([lambda x: x, lambda x: x], 2)
    with pytest.raises(cn.InvalidArgument, match="is not for pipelines"):
        cn.Trainer(lambda x: pipeline(x), keras.optimizers.SGD(), devices=pipeline, compile="auto")


ROWS = 22  # the last batch of six is of four


def trained(wanted, devices, variables="auto", epochs=2):
    """In float64, where both ways must agree to all but the last digits."""
    keras.utils.set_random_seed(3)
    random = np.random.default_rng(3)
    table = tf.Variable(random.normal(size=(7, 4)))
    kernel, bias = tf.Variable(random.normal(size=(4, 1))), tf.Variable(np.zeros(1))
    seen = tf.Variable(0.0, trainable=False, dtype=tf.float64, aggregation=tf.VariableAggregation.SUM)

    def loss(ids, y):
        seen.assign_add(tf.cast(tf.shape(ids)[0], tf.float64))
        hidden = tf.tanh(tf.gather(table, ids))
        return tf.squeeze((hidden @ kernel + bias - y) ** 2, axis=1)

    optimizer = keras.optimizers.AdamW(0.05, use_ema=True, ema_overwrite_frequency=3)
    trainer = cn.Trainer(loss, optimizer, devices=devices, variables=variables, compile=wanted)
    data = random.integers(0, 7, ROWS), random.normal(size=(ROWS, 1))
    history = trainer.fit(data, batch_size=6, epochs=epochs, progress=False)
    values = [v.numpy() for v in (table, kernel, bias, seen)]
    return [*values, *(np.asarray(v) for v in optimizer.variables), history.losses], history


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("devices", "variables"), [(1, "auto"), (2, "shared"), (3, "mirrored"), (2, "partitioned")]
)
def test_compiled_is_the_same_training(devices, variables):
    wanted, plain = trained(False, devices, variables)
    found, history = trained(True, devices, variables)
    assert (plain.compiled, history.compiled) == (None, "compiled by XLA, as asked for")
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # losses are kept as float32
    for one, other in zip(found[:4], wanted[:4], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


@pytest.mark.long
def test_every_step_of_a_contest_counts_once(monkeypatch):
    monkeypatch.setattr(compilation, "TURN_STEPS", 2)
    wanted, _ = trained(False, 2, epochs=12)
    found, history = trained("auto", 2, epochs=12)
    assert "ms per step compiled" in history.compiled
    assert float(found[3]) == 12 * ROWS
    for one, other in zip(found[:3], wanted[:3], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
