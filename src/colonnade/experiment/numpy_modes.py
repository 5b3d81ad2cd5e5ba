"""The modes of training once more in NumPy, without TensorFlow and devices, for the experiment.

`Asynchronous` follows the same order of reads and updates that the engine can be given, so a
simulated training is the real one but for rounding; the tests hold each mode against its engine.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from colonnade.experiment.perceptron import Array
from colonnade.reason.simulator.staleness import Ledger, race

Batch = tuple[Array, Array]  # images [..., batch, inputs] and labels [..., batch]
Join = Callable[[list[Array]], tuple[list[Array], Array]]  # replicas -> replicas, and what is evaluated


@dataclass(frozen=True)
class Task:
    """What is trained, and on what: plain gradient descent on global batches."""

    gradient: Callable[[Array, Array, Array], Array]
    start: Array
    rate: float | Array
    batches: Iterable[Batch]


class Step(NamedTuple):
    """After a step, which is one global batch: what would be evaluated, and what it took so far."""

    parameters: Array
    updates: int  # one after the other; local steps at the same time count once
    moved: int  # copies of all parameters, or of a gradient, sent between devices
    ages: Counter[int]


class Mode(Protocol):
    """A way to train on several devices."""

    @property
    def name(self) -> str: ...

    @property
    def raced(self) -> bool:
        """Whether the order of updates follows from the speeds of the devices."""

    def train(self, task: Task, seconds: Sequence[float]) -> Iterator[Step]:
        """Train on devices that need so many seconds for a slice each."""


@dataclass(frozen=True)
class NumpySynchronous:
    """One update per step, with the gradient of the whole batch, whoever computes it."""

    name: str = "synchronous"
    raced: ClassVar[bool] = False

    def train(self, task: Task, seconds: Sequence[float]) -> Iterator[Step]:
        parameters, others = task.start, len(seconds) - 1
        for k, batch in enumerate(task.batches, start=1):
            parameters = parameters - task.rate * task.gradient(parameters, *batch)
            yield Step(parameters, k, 2 * others * k, Counter())


@dataclass(frozen=True)
class NumpyAsynchronous:
    """One update per slice, with the gradient at the parameters that its device had read."""

    name: str = "asynchronous"
    max_staleness: int | None = None
    damping: bool = False  # whether to divide a step by 1 + the age of its gradient
    raced: ClassVar[bool] = True

    def train(self, task: Task, seconds: Sequence[float]) -> Iterator[Step]:
        num_devices = len(seconds)
        slices = (piece for batch in task.batches for piece in sliced(batch, num_devices))
        ledger, ages = Ledger(self.max_staleness), Counter[int]()
        held: dict[int, tuple[Batch, Array]] = {}  # by device: its slice, and what it read
        parameters, moved, left = task.start, 0, True
        for kind, device in race(seconds, self.max_staleness):
            if kind == "read":
                piece = next(slices, None)
                left = piece is not None
                if piece is not None:
                    ledger.read(device)
                    held[device] = piece, parameters
                    moved += device != 0  # the parameters live with the first device
            elif device in held:
                piece, read = held.pop(device)
                age = ledger.applied(device)
                ages[age] += 1
                rate = task.rate / (1 + age) if self.damping else task.rate
                parameters = parameters - rate * task.gradient(read, *piece)
                moved += device != 0
                if ledger.updates % num_devices == 0:
                    yield Step(parameters, ledger.updates, moved, ages)
            if not left and not held:
                return


@dataclass(frozen=True)
class NumpyLocal:
    """`every` steps of each replica by itself, then the average: the replicas go on from there."""

    name: str
    every: int
    raced: ClassVar[bool] = False
    centred: ClassVar[bool] = False  # whether a centre is evaluated, and not the average

    def train(self, task: Task, seconds: Sequence[float]) -> Iterator[Step]:
        replicas, centre, others = [task.start] * len(seconds), task.start, len(seconds) - 1
        join = self.join(task.start)
        for k, batch in enumerate(task.batches, start=1):
            pieces = zip(replicas, sliced(batch, len(seconds)), strict=True)
            replicas = [own - task.rate * task.gradient(own, *piece) for own, piece in pieces]
            if k % self.every == 0:
                replicas, centre = join(replicas)
            shown = centre if self.centred or k % self.every == 0 else mean(replicas)
            yield Step(shown, k, 2 * others * (k // self.every), Counter())

    def join(self, start: Array) -> Join:
        def averaged(replicas: list[Array]) -> tuple[list[Array], Array]:
            average = mean(replicas)
            return [average] * len(replicas), average

        return averaged


@dataclass(frozen=True)
class NumpyDiLoCo(NumpyLocal):
    """Local steps, with Nesterov momentum on what the average has moved by."""

    rate: float = 0.7
    momentum: float = 0.9

    def join(self, start: Array) -> Join:
        anchor, velocity = start, np.zeros_like(start)

        def nesterov(replicas: list[Array]) -> tuple[list[Array], Array]:
            nonlocal anchor, velocity
            moved = anchor - mean(replicas)
            velocity = self.momentum * velocity + moved
            anchor = anchor - self.rate * (moved + self.momentum * velocity)
            return [anchor] * len(replicas), anchor

        return nesterov


@dataclass(frozen=True)
class NumpyElastic(NumpyLocal):
    """Local steps; replicas and a centre, which is what counts, pull at each other.

    A pull closes `pull` of the distance between the centre and the mean of the replicas, however
    many replicas there are: alpha is pull / (replicas + 1).
    """

    pull: float = 0.9
    centred: ClassVar[bool] = True

    def alpha(self, num_devices: int) -> float:
        return self.pull / (num_devices + 1)

    def join(self, start: Array) -> Join:
        centre = start

        def pulled(replicas: list[Array]) -> tuple[list[Array], Array]:
            nonlocal centre
            pulls = [self.alpha(len(replicas)) * (own - centre) for own in replicas]
            centre = centre + np.sum(pulls, axis=0)
            return [own - pull for own, pull in zip(replicas, pulls, strict=True)], centre

        return pulled


def sliced(batch: Batch, num_slices: int) -> Iterator[Batch]:
    """A batch cut into slices of one size, in order."""
    images, labels = batch
    size, rest = divmod(labels.shape[-1], num_slices)
    assert not rest, "slices must have one size, or an average would have to weigh them"
    for start in range(0, num_slices * size, size):
        yield images[..., start : start + size, :], labels[..., start : start + size]


def mean(replicas: Sequence[Array]) -> Array:
    return np.sum(replicas, axis=0) / len(replicas)
