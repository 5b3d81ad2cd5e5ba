"""`cn.Record` of a step (loss, metrics, speed) and `cn.History` of a fit."""

from dataclasses import dataclass, field

from colonnade.describe.plan import Prediction


@dataclass(frozen=True)
class Record:
    """What is known after a step: means over the global batch, counted since the trainer was made.

    `staleness` says how many of the gradients that were applied had each age: the number of updates
    between the reading of the parameters and the update (asynchronous training only).
    """

    loss: float
    metrics: dict[str, float]
    step: int
    examples: int
    skipped: int = 0
    staleness: dict[int, int] = field(default_factory=dict)


@dataclass
class History:
    """What `fit` returns: a record per log line, the loss of every step, and how it ended."""

    records: list[Record] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    examples: int = 0
    interrupted: bool = False
    resumed: int | None = None  # the saved step from which the fit went on
    stalled: float = 0.0  # seconds that steps waited for checkpoints; the last save is not waited for by any
    predicted: Prediction | None = None  # of the plan, where the trainer was made with one

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds if self.seconds else 0.0

    @property
    def seconds_per_step(self) -> float:
        """What a step took, beside `predicted.step`."""
        return self.seconds / len(self.losses) if self.losses else 0.0
