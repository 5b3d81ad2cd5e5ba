import numpy as np
import pytest

from colonnade.experiment.design import Design, Trial
from colonnade.experiment.images import load
from colonnade.experiment.outcome import TrialOutcome, run
from colonnade.experiment.perceptron import Perceptron

DESIGN = Design(devices=(1, 2), seeds=2, rates=(0.125, 0.5), steps=64, every=32)


@pytest.fixture(scope="module")
def outcomes():
    images = load("digits")
    trials = [Trial(mode, n, "even") for n in (1, 2) for mode in ("synchronous", "asynchronous", "elastic")]
    return {(trial.mode, trial.num_devices): run(trial, DESIGN, images) for trial in trials}


def test_it_learns_the_digits_and_repeats(outcomes):
    outcome = outcomes["asynchronous", 2]
    assert np.shape(outcome.curve) == (2, 2, 2)  # rates, seeds, evaluations
    assert np.shape(outcome.noisy) == (2, 2, 4)
    assert np.min(outcome.curve, axis=(1, 2))[1] > 0.6
    assert np.mean(outcome.noisy, axis=(0, 1))[0] > np.mean(outcome.noisy, axis=(0, 1))[-1]
    assert run(outcome.trial, DESIGN, load("digits")) == outcome
    assert TrialOutcome.from_json(outcome.to_json()) == outcome


def test_synchronous_training_is_the_same_on_any_number_of_devices(outcomes):
    one, two = outcomes["synchronous", 1], outcomes["synchronous", 2]
    assert one.curve == two.curve == outcomes["asynchronous", 1].curve
    size = Perceptron(64, 32, 10).size
    assert (one.numbers_per_example, two.numbers_per_example) == (0, 2 * size / 48)


def test_what_it_counts(outcomes):
    assert outcomes["synchronous", 2].updates_per_step == 1
    assert outcomes["asynchronous", 2].updates_per_step == 2
    assert outcomes["asynchronous", 2].ages == {0: 1, 1: 127}  # all but the very first
    assert outcomes["elastic", 2].numbers_per_example == outcomes["synchronous", 2].numbers_per_example / 8
