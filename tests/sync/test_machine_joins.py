"""Joins of machines, of which there is one here; several are in `machines/test_peers.py`."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.sync.machine_joins import MachineJoins


def rows(count=48):
    x = np.random.default_rng(1).normal(size=(count, 4))
    return x, x.sum(axis=1, keepdims=True)


def trained(sync, devices, steps=12, checkpoint=None, variables="auto"):
    start = np.random.default_rng(3).normal(size=(4, 3))
    w, b = tf.Variable(start, name="w"), tf.Variable(tf.zeros(3, tf.float64), name="b")

    def loss(x, y):
        return tf.reduce_mean((x @ w + b - y) ** 2, axis=1)

    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, name="sgd")
    trainer = cn.Trainer(loss, optimizer, devices=devices, sync=sync, variables=variables)
    history = trainer.fit(rows(), batch_size=8, steps=steps, progress=False, checkpoint=checkpoint)
    return trainer, history, [p.numpy() for p in trainer.parameters]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("variables", ["shared", "mirrored", "partitioned"])
def test_one_machine_that_joins_itself_is_synchronous(variables):
    _, one, joined = trained(cn.LocalSGD(4, across="machines"), 2, variables=variables)
    _, other, plain = trained(cn.Synchronous(), 2, variables=variables)
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-6)
    for mine, theirs in zip(joined, plain, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.long
def test_the_outer_optimizer_does_what_it_does_for_one_replica():
    _, _, joined = trained(cn.DiLoCo(4, across="machines"), 1)
    _, _, local = trained(cn.DiLoCo(4), 1)
    for mine, theirs in zip(joined, local, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12)


def test_a_fit_ends_with_a_join_and_a_join_is_not_made_twice():
    trainer, _, _ = trained(cn.DiLoCo(5, across="machines"), 1, steps=7)
    before = [p.numpy() for p in trainer.parameters]
    trainer._engine.join_now()
    for one, other in zip(before, trainer.parameters, strict=True):
        assert (one == other.numpy()).all()


@pytest.mark.long
def test_what_was_saved_goes_on_as_if_it_had_not_been_cut(tmp_path):
    sync = cn.DiLoCo(4, across="machines")
    _, _, whole = trained(sync, 2, checkpoint=cn.Checkpoint(tmp_path / "whole", every=4))
    trained(sync, 2, steps=8, checkpoint=cn.Checkpoint(tmp_path / "cut", every=4))
    _, history, cut = trained(sync, 2, checkpoint=cn.Checkpoint(tmp_path / "cut", every=4))
    assert history.resumed == 8
    for one, other in zip(whole, cut, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_what_another_mode_saved_is_refused(tmp_path):
    trained(cn.Synchronous(), 2, steps=4, checkpoint=cn.Checkpoint(tmp_path, every=4))
    with pytest.raises(cn.InvalidArgument, match="machine_joins/steps"):
        trained(cn.LocalSGD(4, across="machines"), 2, checkpoint=cn.Checkpoint(tmp_path, every=4))


def test_values_that_the_user_assigns_after_a_join_count():
    """The outer optimizer does not take them for a move."""
    trainer, _, _ = trained(cn.DiLoCo(4, across="machines"), 1, steps=8)
    trainer.optimizer.learning_rate = 0.0
    outer = trainer._engine._join.kept()[-2:]
    for momentum in outer:
        momentum.assign(tf.zeros_like(momentum))
    for parameter in trainer.parameters:
        parameter.assign(tf.fill(parameter.shape, tf.constant(2.0, tf.float64)))
    for slot in trainer.optimizer.variables:
        if "momentum" in slot.path:
            slot.assign(tf.zeros_like(slot))
    trainer.fit(rows(), batch_size=8, steps=4, progress=False)
    for parameter in trainer.parameters:
        np.testing.assert_allclose(parameter.numpy(), 2.0)


def test_joins_are_where_saves_are():
    engine = MachineJoins.__new__(MachineJoins)
    engine._every = 5
    assert [engine.next_join(step) for step in (0, 1, 5, 6)] == [0, 5, 5, 10]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"across": "planets"}, "across='planets'"),
        ({"compress": "zip", "across": "machines"}, "compress='zip'"),
        ({"compress": "int8"}, "is for what machines send"),
    ],
)
def test_options_that_have_no_meaning_are_refused(options, words):
    with pytest.raises(cn.InvalidArgument, match=words):
        cn.LocalSGD(4, **options)
    with pytest.raises(cn.InvalidArgument, match=words):
        cn.DiLoCo(4, **options)


def test_keras_is_told_to_use_the_trainer():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(cn.InvalidArgument, match="across='machines'"):
        cn.fit(model, np.ones((4, 2)), np.ones((4, 1)), sync=cn.DiLoCo(4, across="machines"))


def test_a_state_that_is_a_sum_is_refused():
    w = tf.Variable(1.0)
    count = tf.Variable(0.0, trainable=False, aggregation=tf.VariableAggregation.SUM)

    def loss(x):
        count.assign_add(1.0)
        return x * w

    trainer = cn.Trainer(loss, keras.optimizers.SGD(), devices=2, sync=cn.LocalSGD(2, across="machines"))
    with pytest.raises(cn.InvalidArgument, match="is a sum over replicas"):
        trainer.train_on_batch(np.ones(4, "float32"))
