"""Time on the wall: the modes are those of the experiment, and each is measured in every round."""

import json
import sys

import pytest
import tensorflow as tf
from fresh import run

from colonnade.experiment import design, walltime


def test_modes_have_the_names_and_numbers_of_the_experiment():
    modes = walltime.modes(6)
    assert set(modes) < set(design.MODES)
    assert modes["local 8"].every == design.MODES["local 8"].every
    assert modes["DiLoCo 32"].every == design.MODES["DiLoCo 32"].every
    assert walltime.SLOWNESS == design.SLOWNESS


def test_the_slow_device_does_more_work_for_the_same_loss():
    calls = []

    def loss(x, y):
        calls.append(1)
        return tf.reduce_sum(x, axis=1)

    slowed = walltime._slowed(loss, 1)
    losses = []
    for device, times in ((0, 1), (1, walltime.SLOWNESS)):
        calls.clear()
        with tf.Graph().as_default(), tf.name_scope(f"replica_{device}_on_CPU_{device}"):
            slowed(tf.ones([2, 3]), tf.constant([0, 1]))
        assert len(calls) == times
        losses.append(slowed(tf.ones([2, 3]), tf.constant([0, 1])).numpy())
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.long
def test_every_mode_is_measured_in_every_round():
    done = run([sys.executable, "-m", "colonnade.experiment.walltime", "2", "2", "0.1"])
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert set(measured) == set(design.PACES)
    for rates in measured.values():
        assert set(rates) == set(walltime.modes(2))
        assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in rates.values())
