"""How far a training is: its steps, examples, skipped updates and the ages of its gradients."""

from collections import Counter
from typing import Any

from colonnade.errors import NotFinite
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.engine.history import Record
from colonnade.run.engine.protocols import MOST_SKIPPED, Steps


class Counts:
    """What was made since the trainer was made, or since the run that it goes on from began.

    Args:
        loop: makes the steps that are counted.
    """

    def __init__(self, loop: Steps) -> None:
        self._loop = loop
        self.step = self.examples = self.skipped = 0
        self.staleness: Counter[int] = Counter()

    def add(
        self,
        steps: int,
        examples: int,
        loss: float,
        metrics: dict[str, Any],
        skipped: int,
        ages: dict[int, int],
    ) -> Record:
        """Some steps were made, the last with this loss and these metrics."""
        self.step += steps
        self.examples += examples
        self.skipped += int(skipped)
        self.staleness.update(ages)
        return self._record(float(loss), {name: float(value) for name, value in metrics.items()})

    def go_on_from(self, saved: Manifest) -> Record:
        """Take over the counts of a saved step."""
        self.step, self.examples, self.skipped = saved.step, saved.examples, saved.skipped
        self.staleness = Counter({int(age): count for age, count in saved.staleness.items()})
        return self._record(saved.loss, saved.metrics)

    def note_idle(self, steps: int) -> None:
        """So many steps in a row made no update: too many end the training."""
        self._loop.idle = steps
        if steps >= MOST_SKIPPED:
            self._loop.idle = 0  # who trains on nevertheless may try as long again
            raise NotFinite(f"{steps} steps in a row were skipped: no gradient was finite")

    def _record(self, loss: float, metrics: dict[str, float]) -> Record:
        ages = dict(sorted(self.staleness.items()))
        return Record(loss, metrics, self.step, self.examples, self.skipped, ages)
