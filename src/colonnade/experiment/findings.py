"""What the trials of the experiment show: means and intervals, with one learning rate or the best of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from colonnade.experiment.design import Design, Trial
from colonnade.experiment.outcome import TrialOutcome
from colonnade.experiment.perceptron import Array

BYTES_PER_NUMBER = 4  # as float32, in which models are trained
# A difference counts from so many points on, if its interval leaves out 0. Less is a few images.
WORTH = 0.5

Verdict = Literal["lower", "higher", "no different"]


@dataclass(frozen=True)
class Difference:
    """Between two trials with the same seeds, in points of a percent, with a 95% interval.

    >>> difference = Difference.of(np.array([0.90, 0.92]), np.array([0.80, 0.81]))
    >>> f"{difference.mean:.1f} ({difference.low:.1f} to {difference.high:.1f}): {difference.verdict}"
    '10.5 (4.1 to 16.9): higher'
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, first: Array, second: Array) -> "Difference":
        from scipy.stats import t  # one of the packages that only the experiment needs

        points = 100 * (first - second)
        reach = t.ppf(0.975, len(points) - 1)  # of a 95% interval, in standard errors of the mean
        middle, half = points.mean(), reach * points.std(ddof=1) / np.sqrt(len(points))
        return cls(float(middle), float(middle - half), float(middle + half))

    @property
    def verdict(self) -> Verdict:
        if self.high < 0 and self.mean <= -WORTH:
            return "lower"
        if self.low > 0 and self.mean >= WORTH:
            return "higher"
        return "no different"


@dataclass(frozen=True)
class MeasuredTrial:
    """A trial at one rate; arrays are by seed."""

    trial: Trial
    rate: float
    curve: Array  # by seed and evaluation
    train: Array
    noisy: Array  # by seed and level of noise
    ages: dict[int, int]
    updates_per_step: float
    bytes_per_example: float

    @property
    def test(self) -> Array:
        return self.curve[:, -1]

    @property
    def gap(self) -> Array:
        """How much better it does on the images that it has learned from."""
        return self.train - self.test

    @property
    def robust(self) -> Array:
        """Accuracy with noise, averaged over the levels."""
        return self.noisy.mean(axis=1)


class Findings:
    """What the outcomes of a design say about each trial."""

    def __init__(self, design: Design, outcomes: Mapping[Trial, TrialOutcome]) -> None:
        self.design, self._outcomes = design, outcomes
        self.common_rate = self.best_rate(self.synchronous(design.devices[0]))

    @property
    def headline(self) -> int:
        """The number of devices that the answer is about: the article's six, or the most there are."""
        return 6 if 6 in self.design.devices else max(self.design.devices)

    def synchronous(self, num_devices: int) -> Trial:
        return Trial("synchronous", num_devices, "even")

    def best_rate(self, trial: Trial) -> float:
        """The rate with the best accuracy on the validation images; of equals, with the least loss."""
        outcome = self._outcomes[trial.stand_in]
        accuracy = np.mean(outcome.validation, axis=1)
        loss = np.mean(outcome.validation_loss, axis=1)
        best = max(range(len(accuracy)), key=lambda i: (accuracy[i], -loss[i]))
        return self.design.rates[best]

    def at_edge(self, trial: Trial) -> bool:
        """Whether a rate outside the grid might be better."""
        return self.best_rate(trial) in (self.design.rates[0], self.design.rates[-1])

    def measured(self, trial: Trial, *, tuned: bool) -> MeasuredTrial:
        rate = self.best_rate(trial) if tuned else self.common_rate
        i, outcome = self.design.rates.index(rate), self._outcomes[trial.stand_in]
        return MeasuredTrial(
            trial=trial,
            rate=rate,
            curve=np.array(outcome.curve[i]),
            train=np.array(outcome.train[i]),
            noisy=np.array(outcome.noisy[i]),
            ages=outcome.ages,
            updates_per_step=outcome.updates_per_step,
            bytes_per_example=outcome.numbers_per_example * BYTES_PER_NUMBER,
        )

    def against_synchronous(self, trial: Trial, *, tuned: bool, noisy: bool = False) -> Difference:
        """In accuracy on the test images, or on those with noise; synchronous with its best rate."""
        own = self.measured(trial, tuned=tuned)
        other = self.measured(self.synchronous(trial.num_devices), tuned=True)
        return Difference.of(own.robust, other.robust) if noisy else Difference.of(own.test, other.test)

    def by_rate(self, trial: Trial) -> Array:
        """Accuracy on the test images at the end, by rate and seed."""
        return np.array(self._outcomes[trial.stand_in].curve)[..., -1]

    def at_same_rates(self, trial: Trial) -> dict[float, Difference]:
        """Against synchronous training with the same rate, for each rate of the grid."""
        own, other = self.by_rate(trial), self.by_rate(self.synchronous(trial.num_devices))
        return {rate: Difference.of(*pair) for rate, *pair in zip(self.design.rates, own, other, strict=True)}

    def by_noise(self, trial: Trial) -> list[Difference]:
        """Against synchronous training, each with its best rate: without noise, and at each level of it."""
        own, other = (
            self.measured(each, tuned=True) for each in (trial, self.synchronous(trial.num_devices))
        )
        noisy = zip(own.noisy.T, other.noisy.T, strict=True)
        return [Difference.of(own.test, other.test), *(Difference.of(*pair) for pair in noisy)]

    def steps_to(self, measured: MeasuredTrial, accuracy: float) -> list[int | None]:
        """For each seed the steps after which the test accuracy was reached for the first time."""
        reached = measured.curve >= accuracy
        return [int(row.argmax() + 1) * self.design.every if row.any() else None for row in reached]
