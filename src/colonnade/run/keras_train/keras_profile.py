"""Records some steps of a Keras model's training, as a Keras callback."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from colonnade.describe.timeline import Timeline
from colonnade.hardware.placement import short
from colonnade.hardware.profile import ProfiledOp
from colonnade.run.record.profiling import Profiling
from colonnade.run.trace.op_timeline import Places, op_timeline


class ProfileSteps(keras.callbacks.Callback):
    """Records the batches of a range, counted from 1 over all epochs; what came of it is in `timeline`.

    Args:
        steps: which.
        converted: makes a timeline of what was recorded, given the number of the first step.
    """

    def __init__(self, steps: range, converted: Callable[[tuple[ProfiledOp, ...], int], Timeline]) -> None:
        super().__init__()
        self._profiling, self._done = Profiling(steps, converted), 0

    @property
    def timeline(self) -> Timeline | None:
        return self._profiling.timeline

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._profiling.before(self._done, self._done)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # With several steps per execution, `batch` is the last of them.
        steps = max(1, getattr(self.model, "steps_per_execution", 1) or 1)
        self._done += steps
        self._profiling.after(self._done)

    def on_train_end(self, logs: Any = None) -> None:
        self._profiling.close()

    def abandon(self) -> None:
        """The training failed: record nothing more."""
        self._profiling.__exit__()


def profiled_by(
    steps: range | None, devices: Sequence[str], arguments: dict[str, Any]
) -> ProfileSteps | None:
    """A callback that records these steps, put behind the others that `model.fit` is called with."""
    if steps is None:
        return None
    places = Places([short(device) for device in devices])
    callback = ProfileSteps(steps, lambda ops, first: op_timeline(ops, places, first))
    given = arguments.get("callbacks") or []
    arguments["callbacks"] = [*(given if isinstance(given, list | tuple) else [given]), callback]
    return callback
