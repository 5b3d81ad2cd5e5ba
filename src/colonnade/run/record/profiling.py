"""Records some steps of a fit, and makes a timeline of them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.describe.timeline import Timeline
from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.profile import ProfiledOp, Recording
from colonnade.run.checkpoint.no_saver import NEVER

# Whatever level it is asked for (seen with 2.21): to the host they cost nothing, so it does not note them.
NOT_OF_CARDS = (
    "TensorFlow's profiler tells the host nothing of ops on cards, so the timeline lacks what cards compute. "
    "Their kernels are in a profile of TensorBoard's: tf.profiler.experimental.start(logdir)"
)

Converted = Callable[[tuple[ProfiledOp, ...], int], Timeline]


class Profiling:
    """The steps of one fit that are profiled, if any; nothing is done for others.

    Args:
        steps: which, counted from 1; None for none.
        converted: makes a timeline of what was recorded, given the number of the first step.
        devices: those that are trained on.
    """

    def __init__(self, steps: range | None, converted: Converted, devices: Sequence[str] = ()) -> None:
        self._steps, self._converted, self._devices = steps or range(0), converted, devices
        self._recording: Recording | None = None
        self._first = 0
        self.timeline: Timeline | None = None

    def until(self, done: int) -> int:
        """How many steps from here to where recording begins or ends: there, nothing may be under way."""
        ahead = [edge - 1 - done for edge in (self._steps.start, self._steps.stop) if edge - 1 > done]
        return min(ahead, default=NEVER)

    def before(self, done: int, step: int, most: int = 1) -> None:
        """Before more steps of a fit that has made so many; `step` is where the trainer is.

        Where up to `most` steps are one execution, all are recorded if one of them is to be.
        """
        wanted = done + 1 < self._steps.stop and done + most >= self._steps.start
        if self._recording is None and self.timeline is None and wanted:
            self._recording, self._first = started(self._devices), step + 1

    def after(self, done: int) -> Timeline | None:
        """After some steps: the timeline, if these were the last that it is to have."""
        if self._recording is None or done + 1 < self._steps.stop:
            return None
        return self.close()

    def end(self, done: int) -> Timeline | None:
        """The fit ends after so many steps: what was recorded so far; a warning where nothing ever was."""
        if self._steps and self._recording is None and self.timeline is None:
            warnings.warn(
                f"profile={self._steps} recorded nothing: the fit ended after {done} steps", stacklevel=2
            )
        return self.close()

    def close(self) -> Timeline | None:
        """What was recorded so far, and no more."""
        if self._recording is None:
            return None
        recording, self._recording = self._recording, None
        self.timeline = self._converted(recording.stop(), self._first)
        return self.timeline

    def __enter__(self) -> "Profiling":
        return self

    def __exit__(self, *error: object) -> None:
        if self._recording is not None:  # a step failed
            self._recording.stop()
            self._recording = None


def started(devices: Sequence[str]) -> Recording:
    """A recording that has begun, of a training on these devices."""
    if any(map(hardware.is_card, devices)):
        warnings.warn(NOT_OF_CARDS, stacklevel=2)
    recording = Recording()
    try:
        recording.start()
    except tf.errors.AlreadyExistsError:
        rule = "needs TensorFlow's profiler, which is at work already"
        fix = "End the other profile first, such as that of a TensorBoard callback"
        raise InvalidArgument("profile", [Problem("profile", "a second one", rule, fix)]) from None
    return recording


def profile_problems(profile: Any, steps: Any = None) -> Iterator[Problem]:
    """What is wrong with `profile=` of a fit that makes so many steps, if that is known."""
    if profile is None:
        return
    if not isinstance(profile, range) or profile.step != 1 or profile.start < 1 or not len(profile):
        rule = "must be a range of steps, counted from 1, without gaps"
        yield Problem("profile", profile, rule, "Try profile=range(10, 15)")
    elif isinstance(steps, int) and 0 < steps < profile.start:
        rule = f"begins after the last of steps={steps}"
        yield Problem("profile", profile, rule, f"Begin with one of the {steps} steps, or make more of them")
