"""The data of the seven models, for every framework: NumPy only, the same numbers from the same seed."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

BATCH = 256  # the global batch on any number of devices: 128 each on 2, 8 each on 32
BATCHES = 4  # different batches, gone through again and again
LEARNING_RATE, EPSILON = 1e-3, 1e-7  # of Adam, as Keras has it

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Task:
    """Examples of a model."""

    data: Callable[[np.random.Generator], Arrays]
    steps: int  # per call on two devices, so that a call takes some tenths of a second on two cores

    def per_call(self, devices: int) -> int:
        """Steps per call; fewer on many devices, whose steps take longer."""
        return min(self.steps, max(4, 2 * self.steps // devices))

    def batches(self) -> Arrays:
        """All batches, one after the other in the first dim."""
        x, y = self.data(np.random.default_rng(0))
        return x.reshape(BATCHES, BATCH, *x.shape[1:]), y.reshape(BATCHES, BATCH, *y.shape[1:])


def images(side: int, channels: int) -> Callable[[np.random.Generator], Arrays]:
    def data(rng: np.random.Generator) -> Arrays:
        x = rng.normal(size=(BATCH * BATCHES, side, side, channels)).astype("float32")
        return x, labels(rng)

    return data


def tokens(length: int, words: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: (rng.integers(0, words, (BATCH * BATCHES, length), np.int32), labels(rng))


def series(length: int, width: int) -> Callable[[np.random.Generator], Arrays]:
    return lambda rng: (rng.normal(size=(BATCH * BATCHES, length, width)).astype("float32"), labels(rng))


def labels(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 10, BATCH * BATCHES, np.int32)


def curve(rng: np.random.Generator) -> Arrays:
    x = rng.uniform(-1, 1, (BATCH * BATCHES, 1)).astype("float32")
    return x, 5 * x**2 + 3


TASKS = {
    "polynomial": Task(curve, steps=200),
    "mlp": Task(images(28, 1), steps=20),
    "cnn": Task(images(28, 1), steps=5),
    "cifar": Task(images(32, 3), steps=4),
    "lstm": Task(series(28, 28), steps=4),
    "embedding": Task(tokens(16, 50_000), steps=10),
    "transformer": Task(tokens(16, 5_000), steps=4),
}
