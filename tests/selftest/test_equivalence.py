"""Comparisons that compute fail when something is broken on purpose: one test per way to break it."""

import pytest
import tensorflow as tf
from examined import CHECKS, DEVICES, fails, outcome
from families import kept

from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.move.reduce import reduce, spread
from colonnade.run.parallel import parallel
from colonnade.run.selftest import equivalence, selftest
from colonnade.run.step import objective
from colonnade.run.sync import summation, workers
from colonnade.run.trace.traced import Traced
from colonnade.run.variables import homes


def test_set_up_fails_for_a_device_that_is_not_there():
    (result,) = selftest.examine((*DEVICES, "/device:CPU:99"), [CHECKS["set-up"]])
    assert result.state == "failed"
    assert "CPU:99" in result.words


def test_set_up_fails_for_two_names_of_one_device():
    (result,) = selftest.examine(("/device:CPU:1", "/device:CPU:1"), [CHECKS["set-up"]])
    assert result.state == "failed"


def test_set_up_fails_if_settings_may_change_later(monkeypatch):
    monkeypatch.setattr(hardware, "setup", lambda **settings: DEVICES)
    assert "not refused" in fails("set-up")


def test_split_fails_for_slices_in_another_order(monkeypatch):
    parts = Arguments.parts
    monkeypatch.setattr(Arguments, "parts", lambda self, counts: parts(self, counts)[::-1])
    fails("split")
    fails("int32 and string inputs")


def test_split_fails_for_other_sizes(monkeypatch):
    def last_is_larger(total, parts):
        return sizes(total, parts)[::-1]

    monkeypatch.setattr(parallel, "sizes", last_is_larger)
    assert "wrong for" in fails("split")


def without_gradient_of(replica):
    on = Traced.on

    def broken(self, device, components, variables=None, *, replica=0):
        leaves = on(self, device, components, variables, replica=replica)
        return [tf.stop_gradient(leaf) for leaf in leaves] if replica == lost else leaves

    lost = replica
    return broken


def test_gradients_fail_if_one_replica_is_lost(monkeypatch):
    monkeypatch.setattr(Traced, "on", without_gradient_of(2))
    assert "gradient" in fails("gradients")


@pytest.mark.long
def test_placement_fails_if_all_runs_on_one_device(monkeypatch):
    on = Traced.on

    def broken(self, device, components, variables=None, *, replica=0):
        return on(self, DEVICES[0], components, variables, replica=replica)

    monkeypatch.setattr(Traced, "on", broken)
    assert "ops ran elsewhere" in fails("placement")


TRAININGS = [
    *(f"variables: {mode}" for mode in homes.MODES),
    "mixed precision",
    "int32 and string inputs",
]


def lost(gradient):
    if gradient is None or isinstance(gradient, tf.IndexedSlices):
        return gradient and tf.IndexedSlices(0 * gradient.values, gradient.indices, gradient.dense_shape)
    return tf.zeros_like(gradient)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", kept(TRAININGS, "variables: mirrored", "int32 and string inputs"))
def test_trainings_fail_if_a_replicas_gradient_is_dropped(monkeypatch, name):
    def broken(gradients, devices, order, **options):
        dropped = [*gradients[:-1], [lost(gradient) for gradient in gradients[-1]]]
        return reduce(dropped, devices, order, **options)

    monkeypatch.setattr(summation, "reduce", broken)
    assert "largest difference" in fails(name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", kept(TRAININGS, "variables: partitioned", "mixed precision"))
def test_trainings_fail_for_the_mean_over_slices(monkeypatch, name):
    """The classic mistake: slices of different sizes counted alike."""

    def broken(batch, counts):
        each = [tf.constant(1.0 / (len(counts) * count), tf.float64) for count in counts]
        return [part.prefixed(factor) for factor, part in zip(each, batch.parts(counts), strict=True)]

    monkeypatch.setattr(workers, "slices", broken)
    fails(name)


@pytest.mark.long
def test_mirrored_fails_if_a_copy_gets_another_gradient(monkeypatch):
    def broken(values, devices, order):
        held = spread(values, devices, order)
        return [*held[:-1], [lost(value) for value in held[-1]]]

    monkeypatch.setattr(workers, "spread", broken)
    fails("variables: mirrored")
    assert outcome("variables: shared").state == "passed"


def test_partitioned_fails_if_the_result_stays_with_the_owners(monkeypatch):
    monkeypatch.setattr(homes.Homes, "leave", lambda self: None)
    fails("variables: partitioned")


@pytest.mark.long
def test_mixed_precision_fails_if_the_loss_is_not_scaled(monkeypatch):
    total = objective.Objective._total

    def broken(self, result, factor, rows):
        share, _ = total(self, result, factor, rows)
        return share, share.loss

    monkeypatch.setattr(objective.Objective, "_total", broken)
    assert "float16" in fails("mixed precision")


def test_mixed_precision_fails_if_nothing_is_in_half_precision(monkeypatch):
    network = equivalence.network
    monkeypatch.setattr(equivalence, "network", lambda dtype: network("float32"))
    assert "AssertionError" in fails("mixed precision")
