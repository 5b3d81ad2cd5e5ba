"""Records some steps of a Keras model's training, as a Keras callback."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from colonnade.describe.timeline import Timeline
from colonnade.hardware.placement import short
from colonnade.hardware.profile import ProfiledOp
from colonnade.run.asynchronous.asynchronous import Asynchronous
from colonnade.run.engine.protocols import Sync
from colonnade.run.record.profiling import Profiling
from colonnade.run.trace.op_timeline import Places, op_timeline


class ProfileSteps(keras.callbacks.Callback):
    """Records the batches of a range, counted from 1 over all epochs; what came of it is in `timeline`.

    Several steps per execution are recorded together if one of them is to be.

    Args:
        steps: which.
        converted: makes a timeline of what was recorded, given the number of the first step.
        devices: those that are trained on.
    """

    def __init__(
        self,
        steps: range,
        converted: Callable[[tuple[ProfiledOp, ...], int], Timeline],
        devices: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self._profiling = Profiling(steps, converted, devices)
        self._done = self._begun = 0  # batches of this fit, and of the epoch

    @property
    def timeline(self) -> Timeline | None:
        return self._profiling.timeline

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = batch
        self._profiling.before(self._done, self._done, self.model.steps_per_execution)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps per execution, `batch` is the last of them; the end of the data may cut it off.
        self._done += min(batch + 1, self.params.get("steps") or batch + 1) - self._begun
        self._profiling.after(self._done)

    def on_train_end(self, logs: Any = None) -> None:
        self._profiling.end(self._done)

    def abandon(self) -> None:
        """The training failed: record nothing more."""
        self._profiling.__exit__()


def profiled_by(
    steps: range | None, devices: Sequence[str], sync: Sync, arguments: dict[str, Any]
) -> ProfileSteps | None:
    """A callback that records these steps, put behind the others that `model.fit` is called with."""
    if steps is None:
        return None
    dealt = not isinstance(sync, Asynchronous)
    places = Places([short(device) for device in devices], dealt=dealt)
    callback = ProfileSteps(steps, lambda ops, first: op_timeline(ops, places, first), devices)
    given = arguments.get("callbacks") or []
    arguments["callbacks"] = [*(given if isinstance(given, list | tuple) else [given]), callback]
    return callback
