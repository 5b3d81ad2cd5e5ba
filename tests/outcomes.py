"""Outcomes that are made up, for tests of what is concluded from them."""

import numpy as np

from colonnade.experiment.design import Design
from colonnade.experiment.findings import Findings
from colonnade.experiment.outcome import TrialOutcome

DESIGN = Design(devices=(1, 2, 6), seeds=3, rates=(0.25, 0.5, 1.0, 2.0), steps=64, every=16)
JITTER = np.array([-0.001, 0.0, 0.001])  # by seed


def made_up(accuracy, noisy=None, best=lambda trial: 1.0):
    """Findings in which a trial at a rate has this test accuracy at the end, and its best rate is `best`."""
    noisy = noisy or (lambda trial, rate: accuracy(trial, rate) - 0.1)

    def outcome(trial):
        tests = [accuracy(trial, rate) + JITTER for rate in DESIGN.rates]
        curve = [[[test - 0.03, test - 0.02, test - 0.01, test] for test in row] for row in tests]
        validation = [[0.9 if rate == best(trial) else 0.8] * 3 for rate in DESIGN.rates]
        return TrialOutcome(
            trial=trial,
            curve=curve,
            train=[(row + 0.02).tolist() for row in tests],
            validation=validation,
            validation_loss=[[0.1] * 3 for _ in DESIGN.rates],
            noisy=[[[noisy(trial, rate) + j] * 4 for j in JITTER] for rate in DESIGN.rates],
            ages={0: 10, trial.num_devices - 1: 90},
            updates_per_step=float(trial.num_devices),
            numbers_per_example=100.0,
        )

    return Findings(DESIGN, {trial.stand_in: outcome(trial.stand_in) for trial in DESIGN.trials()})
