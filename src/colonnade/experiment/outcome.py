"""One trial of the experiment, run with all seeds and rates, and what came of it."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from colonnade.experiment.design import MODES, Design, Trial
from colonnade.experiment.images import Images
from colonnade.experiment.numpy_modes import Batch, Task
from colonnade.experiment.perceptron import Array, Perceptron

NOISE_SEED = 1234


@dataclass(frozen=True)
class TrialOutcome:
    """What was measured; lists are by rate, then by seed, then by what `by` says."""

    trial: Trial
    curve: list[list[list[float]]]  # accuracy on the test images, by evaluation
    train: list[list[float]]  # accuracy at the end
    validation: list[list[float]]
    validation_loss: list[list[float]]
    noisy: list[list[list[float]]]  # accuracy on the test images with noise, by level
    ages: dict[int, int]
    updates_per_step: float
    numbers_per_example: float  # parameters and gradients that are sent between devices

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "TrialOutcome":
        plain = json.loads(text)
        ages = {int(age): count for age, count in plain["ages"].items()}
        return cls(**{**plain, "trial": Trial(**plain["trial"]), "ages": ages})


def run(trial: Trial, design: Design, images: Images) -> TrialOutcome:
    """Train and test. The same seeds give the same starts and batches to every trial."""
    from threadpoolctl import threadpool_limits

    # Threads that share out matrices as small as these take four times as long as one thread.
    with threadpool_limits(1):
        return _run(trial, design, images)


def _run(trial: Trial, design: Design, images: Images) -> TrialOutcome:
    net = Perceptron(images.train[0].shape[1], design.hidden, int(images.train[1].max()) + 1)
    rngs = [np.random.default_rng(seed) for seed in range(design.seeds)]
    starts = np.stack([net.start(rng) for rng in rngs])
    start = np.broadcast_to(starts, (len(design.rates), *starts.shape))
    rates = np.array(design.rates)[:, None, None]
    task = Task(net.gradient, start, rates, _batches(design, images, rngs))
    curve = []
    for k, step in enumerate(MODES[trial.mode].train(task, trial.seconds), start=1):
        if k % design.every == 0:
            curve.append(net.accuracy(step.parameters, *images.test))
    assert k == design.steps
    test, labels = images.test
    noise = np.random.default_rng(NOISE_SEED).normal(size=test.shape)
    noisy = [net.accuracy(step.parameters, test + level * noise, labels) for level in design.noise]
    return TrialOutcome(
        trial=trial,
        curve=_plain(np.stack(curve, axis=-1)),
        train=_plain(net.accuracy(step.parameters, *images.train)),
        validation=_plain(net.accuracy(step.parameters, *images.validation)),
        validation_loss=_plain(net.loss(step.parameters, *images.validation)),
        noisy=_plain(np.stack(noisy, axis=-1)),
        ages=dict(sorted(step.ages.items())),
        updates_per_step=step.updates / design.steps,
        numbers_per_example=step.moved * net.size / (design.steps * design.batch),
    )


def _batches(design: Design, images: Images, rngs: list[np.random.Generator]) -> Iterator[Batch]:
    """Global batches side by side, one per seed; an epoch is a new order of all images."""
    x, y = images.train
    needed = design.steps * design.batch
    epochs = -(-needed // len(x))
    rows = np.stack([np.concatenate([rng.permutation(len(x)) for _ in range(epochs)]) for rng in rngs])
    for start in range(0, needed, design.batch):
        at = rows[:, start : start + design.batch]
        yield x[at], y[at]


def _plain(values: Array) -> Any:
    """Five digits tell any two numbers of right answers apart."""
    return np.round(values, 5).tolist()
