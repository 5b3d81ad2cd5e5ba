"""What a fit is expected to take, and where the largest part of a difference lies, in a line.

A plan has its prediction with it. Without one the first batch tells: a device's slice of it and the update
are timed before anything is trained (see `prove.batch_pace`), and the simulator does the rest.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from colonnade.describe.plan import Plan, Prediction
from colonnade.describe.plan_text import duration
from colonnade.describe.timeline import Timeline
from colonnade.reason.simulator.simulate import simulate
from colonnade.run.batch.split import COMPOSITE, Arguments
from colonnade.run.engine.history import History
from colonnade.run.engine.protocols import Engine
from colonnade.run.machines.peers import Peers
from colonnade.run.parallel.compilation import Compilation
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.prove.batch_pace import batch_pace
from colonnade.run.prove.look import is_silent
from colonnade.run.train.devices_here import devices_here

# A step that takes longer or shorter than predicted by more than this part is told of.
QUARTER = 0.25
# What was timed by calls from Python says nothing of differences smaller than this, in seconds.
BLUR = 5e-4
# Steps on batches of other sizes are not comparable: so many of the examples may be missing, in last batches.
SMALLER = 0.1
# A fit on one device that is shorter than so many steps is over before it is worth timing one.
FEW = 20

UNSEEN = "the first batch was not looked at"


@dataclass
class Forecast:
    """What the steps of a trainer are expected to take.

    Args:
        plan: that the trainer was made with, if it was.
        layout: the trainer's way of training as a plan, for batches of so many rows; None if there is none.
        cannot: why no batch can tell, in words; None where one can.
    """

    plan: Plan | None
    layout: Callable[[int], Plan | None]
    cannot: str | None
    prediction: Prediction | None = None
    timeline: Timeline | None = None
    batch: int = 0  # examples of the batches that it is for
    why_not: str = UNSEEN  # there is no prediction
    _blur: float = 0.0

    def __post_init__(self) -> None:
        if self.plan is not None and self.plan.predicted is not None:
            self.prediction, self.batch = self.plan.predicted, self.plan.batch
            self.timeline = self.plan.timeline

    def is_open(self, num_devices: int, steps: int | None, *, proves: bool) -> bool:
        """Whether the first batch of a fit of so many steps is to be timed; if not, it is noted why."""
        if self.prediction is not None and self.timeline is not None:
            return False
        few = num_devices == 1 and steps is not None and steps < FEW
        reason = "prove=False" if not proves else f"a fit of {steps} steps is too short for it" if few else ""
        self.why_not = self.cannot or (f"{UNSEEN}: {reason}" if reason else UNSEEN)
        return self.cannot is None and not reason

    def look(self, engine: Engine, batch: Arguments) -> None:
        """Time the first batch, for which all is prepared, and predict its steps."""
        rows = batch.size("the batch") or 0
        layout = self.plan if self.plan is not None and self.plan.batch == rows else self.layout(rows)
        if layout is None:
            self.cannot = "the simulator does not know this way of training"
        elif reason := _untimed(engine, batch):
            self.cannot = reason
        else:
            try:
                work = batch_pace(engine, batch)
            except tf.errors.ResourceExhaustedError:
                self.cannot = "there is no room for copies of the variables, to time the update"
                return
            done = simulate(devices_here(), work, layout)
            self.timeline = done.timeline
            if self.prediction is None:
                alone = simulate(devices_here(), work, _alone(layout), events=False).step
                self.prediction, self.batch, self._blur = done.prediction(layout, alone), rows, BLUR

    def compare(self, history: History, engine: Any, latest: float, *, show: bool) -> None:
        """Keep the prediction with the history, and say in one line when steps took another time.

        `latest` are the seconds of a step in the last call.
        """
        predicted = history.predicted = self.prediction
        history.unpredicted = None if predicted is not None else self.cannot or self.why_not
        steps = len(history.losses)
        missing = 1 - history.examples / (self.batch * steps) if steps and self.batch else 1.0
        if predicted is None or not 0 <= missing <= SMALLER:
            return
        shares = getattr(engine, "shares", None)
        speeds = list(shares.speeds) if shares is not None else []
        contributions = {
            "waiting for data": history.waited / steps,
            "one slow device": slow_device(speeds, predicted.compute),
            "tracing and the first call": history.seconds_per_step - latest,
        }
        line = difference(predicted, history.seconds_per_step, contributions, self._blur)
        if show and line is not None:
            print(line, file=sys.stderr)


def unforeseen(pipeline: Pipeline | None, peers: Peers, compilation: Compilation) -> str | None:
    """Why the first batch of such a training cannot tell what its steps take; None where it can."""
    if pipeline is not None:
        return "the stages of a pipeline are timed by cn.plan(..., layers=model)"
    if peers.several:
        return "what the network between the machines does is not known"
    if compilation.on or compilation.undecided:
        return "what XLA makes of the loss is not timed beforehand"
    return None


def _untimed(engine: Engine, batch: Arguments) -> str | None:
    """Why a further call of the loss could be seen, or be another one than a step makes; None if neither."""
    traces, given = engine.traces.objectives, [leaf.value for leaf in batch.tensors]
    used = [capture for traced in traces for capture in traced.captures if capture.variable is None]
    if not all(is_silent(traced) for traced in traces):
        return "the loss prints, writes or calls Python"
    if any(capture.tensor.dtype == tf.resource for capture in used):
        return "the loss uses tables or other resources, which a further call could change"
    if any(traced.facts.compiles for traced in traces):
        return "a part of the loss is compiled by XLA"
    if any(isinstance(value, tf.TypeSpec) for value in given):
        return "devices fetch their slices themselves, so no batch is there before the first step"
    if any(isinstance(value, COMPOSITE) for value in given):
        return "batches that are ragged or sparse take other times"
    return None


def _alone(layout: Plan) -> Plan:
    return replace(layout, data=1, devices=layout.devices[:1], sync="synchronous", shares="even")


def difference(
    predicted: Prediction, seconds: float, contributions: dict[str, float], blur: float = 0.0
) -> str | None:
    """A line, where a step took another time than predicted by more than a quarter; else None.

    It is None too for a difference of at most `blur` seconds.

    `contributions` are the seconds of a step that the prediction does not have, by what they went into.

    >>> from colonnade.describe.plan import Prediction
    >>> expected = Prediction(0.01, 100.0, 1.0, 0, 0, 0)
    >>> difference(expected, 0.02, {"input": 0.008, "reduction": 0.001})
    'a step took 20 ms, 2 times the 10 ms that were predicted; most of the difference is input (8 ms a step)'
    >>> difference(expected, 0.02, {"input": 0.002}).partition("; ")[2]
    '2 ms of that is input, and nothing that was timed explains the rest'
    >>> difference(expected, 0.011, {}) is None
    True
    """
    off = abs(seconds - predicted.step)
    if predicted.step <= 0 or seconds <= 0 or off <= max(QUARTER * predicted.step, blur):
        return None
    ratio = seconds / predicted.step
    expected = duration(predicted.step)
    line = f"a step took {duration(seconds)}, {ratio:.2g} times the {expected} that were predicted"
    known = {name: took for name, took in contributions.items() if took > 0}
    if ratio < 1 or not known:
        return line
    most = max(known, key=lambda name: known[name])
    if known[most] < off / 2:
        return (
            f"{line}; {duration(known[most])} of that is {most}, and nothing that was timed explains the rest"
        )
    return f"{line}; most of the difference is {most} ({duration(known[most])} a step)"


def slow_device(speeds: Sequence[float], compute: float) -> float:
    """Seconds by which the slowest device makes a step longer than the mean one would.

    >>> slow_device([1.0, 1.0, 0.5], 0.3)
    0.2
    """
    known = [speed for speed in speeds if speed > 0]
    if not known:
        return 0.0
    mean = sum(known) / len(known)
    return round(max(0.0, compute * (mean / min(known) - 1)), 9)
