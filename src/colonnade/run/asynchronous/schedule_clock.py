"""Lets a learning-rate schedule count steps where an asynchronous step makes several updates."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from colonnade.run.step.update import inside


class GlobalStepSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that is asked about a global step, whatever the optimizer counts."""

    def __init__(self, schedule: Any, step: Any) -> None:
        self._schedule, self._step = schedule, step

    def __call__(self, step: Any) -> Any:
        return self._schedule(tf.cast(self._step, step.dtype))

    def get_config(self) -> dict[str, Any]:
        return self._schedule.get_config()


@contextmanager
def by_global_step(optimizer: Any, step: Any) -> Iterator[None]:
    """While the update is traced, let the optimizer's schedule follow global steps.

    Asynchronously it makes an update per slice and counts those, which is right for what it keeps
    count of itself, such as the bias of moments.
    """
    with ExitStack() as stack:
        for one in inside(optimizer):
            stack.enter_context(_paced(one, step))
        yield


@contextmanager
def _paced(inner: Any, step: Any) -> Iterator[None]:
    kind = keras.optimizers.schedules.LearningRateSchedule
    schedule = next((value for value in vars(inner).values() if isinstance(value, kind)), None)
    if schedule is None:
        yield
        return
    inner.learning_rate = GlobalStepSchedule(schedule, step)
    try:
        yield
    finally:
        inner.learning_rate = schedule
