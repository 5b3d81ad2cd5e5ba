"""A trace cut into the legs of a pipeline."""

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.batch.split import Arguments
from colonnade.run.step.objective import Objective
from colonnade.run.trace_cut.stage_cut import StageCut, untied

X = np.array([[1.0, -2.0], [0.5, 3.0]])


def crossing(value, source, target, num_stages=2):
    return tf.distribute.get_replica_context().stage_marks.cross(value, source, target, num_stages)


def traced(loss):
    def entered(x):
        tf.distribute.get_replica_context().stage_marks.enter("pipeline", 2)
        return loss(x)

    batch = Arguments((tf.constant(X),), {}, ["x"]).prefixed(tf.constant(0.5, tf.float64))
    return Objective(entered, batch, lambda value: value)


@pytest.fixture(scope="module")
def two_stages():
    v, w = tf.Variable([[1.0], [2.0]], dtype=tf.float64), tf.Variable([3.0], dtype=tf.float64)

    def loss(x):
        hidden = crossing(tf.tanh(x @ v), 0, 1)
        return tf.squeeze(hidden * w, axis=1) ** 2

    objective = traced(loss)
    return v, w, objective, StageCut(objective, 2)


def test_every_stage_has_a_leg_there_and_one_back(two_stages):
    _, _, _, legs = two_stages
    assert sorted(legs.parts) == [0, 1, 2, 3]
    assert all(part.stamped for part in legs.parts.values())


def test_variables_are_used_by_their_own_stage_only(two_stages):
    v, w, _, legs = two_stages
    assert legs.users == {v.ref(): {0}, w.ref(): {1}}
    assert list(untied(legs, set())) == []


def test_legs_one_after_the_other_give_loss_and_gradients(two_stages):
    v, w, objective, legs = two_stages
    captured = {id(variable.handle): variable.handle for variable in (v, w)}
    values = {}
    given = [tf.constant(0.5, tf.float64), tf.constant(X)]
    handles = [captured[id(tensor)] for tensor in objective.concrete.captured_inputs]
    for tensor, value in zip(objective.concrete.inputs, [*given, *handles], strict=True):
        values[tensor.name] = value
    for leg in sorted(legs.parts):
        part = legs.parts[leg]
        _, _, *results = part.function(*[values[name] for name in part.inputs])
        values |= dict(zip(part.outputs, results, strict=True))
    share = objective.pack(objective.leaves([values[t.name] for t in objective.concrete.outputs]))
    with tf.GradientTape() as tape:
        expected = tf.reduce_mean(tf.squeeze(tf.tanh(X @ v) * w, axis=1) ** 2)
    assert float(share.loss) == pytest.approx(float(expected), rel=1e-12)
    wanted = dict(zip([v.ref(), w.ref()], tape.gradient(expected, [v, w]), strict=True))
    for parameter, gradient in zip(objective.parameters, share.gradients, strict=True):
        np.testing.assert_allclose(gradient, wanted[parameter.ref()], rtol=1e-12)


def test_a_variable_of_two_stages_must_be_tied():
    w = tf.Variable(2.0, dtype=tf.float64, name="both")
    legs = StageCut(traced(lambda x: tf.reduce_sum(crossing(x * w, 0, 1) * w, axis=1)), 2)
    assert legs.users == {w.ref(): {0, 1}}
    (problem,) = untied(legs, set())
    assert (problem.value, problem.rule) == ("both:0", "is used by stages 0, 1, and is not declared tied")
    assert list(untied(legs, {w.ref()})) == []
