"""The guard that stops at a NaN: nothing is applied unless every loss and gradient of a step is finite."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import NotFinite
from colonnade.run.engine.protocols import Settings
from colonnade.run.engine.traces import Traces
from colonnade.run.step.objective import Share, miscounted, stacked, vital

# Begins the message of the assertion that guards an update.
NOT_FINITE = "colonnade: a loss or gradient is not finite"


class Guard:
    """Looks at what the replicas computed before an update is made, and says who had what is not finite."""

    def __init__(self, settings: Settings, traces: Traces) -> None:
        self._settings, self._traces = settings, traces
        with tf.device("/device:CPU:0"):
            self.made = tf.Variable(0, dtype=tf.int64, trainable=False, name="updates")

    def watched(self, shares: Sequence[Share], losses: Any, penalties: Sequence[Any]) -> Any:
        """A row per replica of what must be finite: its loss, numbers for its gradients and for its penalty.

        Where the penalty is computed once, for all replicas, it is in the row of the first.
        """
        return self.rows(tf.stack([self.health(share) for share in shares]), losses, penalties)

    def rows(self, health: Any, losses: Any, penalties: Sequence[Any]) -> Any:
        """The same from rows of `health`, those of replicas of other machines among them."""
        penalties = [*penalties, *[tf.zeros_like(penalties[0])] * (losses.shape[0] - len(penalties))]
        columns = [losses[:, None], health, tf.stack(penalties)]
        return tf.concat([tf.cast(column, losses.dtype) for column in columns], axis=1)

    def health(self, share: Share) -> Any:
        """A number for each gradient that must be finite."""
        return tf.zeros([0]) if self._looks_itself else share.health

    @property
    def _looks_itself(self) -> bool:
        """Whether the optimizer looks for infinities itself, for the scale of the loss."""
        return hasattr(self._settings.optimizer, "dynamic_scale")

    def of_sums(self, health: Any, gradients: Sequence[Any]) -> Any:
        """The rows of `health`, of which the first one tells of sums of gradients too.

        Half floats overflow where finite ones are added up: there before any slice, which has a part of it.
        """
        halves = [None if g is None or g.dtype.size >= 4 else vital(g) for g in gradients]
        if self._looks_itself or all(one is None for one in halves):
            return health
        return tf.concat([health[:1] + tf.cast(stacked(halves), health.dtype), health[1:]], axis=0)

    def guarded(self, watched: Any, write: Callable[[], Any], undo: Callable[[], Any] | None) -> Any:
        """Write, unless something is not finite: 1 if the update was left out, else 0.

        `undo` takes back what the replicas wrote already. It is needed to skip; without it the guard
        raises before anything is written.
        """
        on_nan = self._settings.on_nan
        if on_nan is None:
            return write()
        healthy = tf.reduce_all(tf.math.is_finite(watched))
        said = [NOT_FINITE, self.made.read_value(), tf.shape(watched), watched]
        if undo is None:
            with tf.control_dependencies([_asserted(healthy, said)]):
                return write()
        left_out = tf.cond(healthy, write, undo)
        if on_nan == "skip":
            return left_out
        with tf.control_dependencies([left_out]):
            asserted = _asserted(healthy, said)
        with tf.control_dependencies([asserted]):
            return tf.identity(left_out)

    def explained(self, error: tf.errors.OpError, culprit: Callable[[int, Sequence[str]], str]) -> Exception:
        """If the guard of the update spoke: which device, step and variable; else what `miscounted` says.

        `culprit` tells the device from the replica and the names of the variables with bad gradients.
        """
        words = re.search(rf"{NOT_FINITE}\] \[(\d+)\] \[(\d+) (\d+)\] \[(.*?)\]\s*\n", error.message, re.S)
        if not words:
            return miscounted(error)
        step, rows, columns = int(words[1]) + 1, int(words[2]), int(words[3])
        table = np.array([float(n) for n in re.findall(r"[-+.\w]+", words[4])]).reshape(rows, columns)
        replica = int(np.argwhere(~np.isfinite(table))[0][0])
        return self.not_finite(culprit(replica, self._bad(table[replica])), step, table[replica])

    def _bad(self, row: np.ndarray) -> list[str]:
        """The variables whose gradients are not finite in a row of `watched`."""
        penalized = self._traces.penalized
        own, penalty = np.split(row[1:], [len(row) - 1 - len(penalized)])
        names = [parameter.name for parameter in self._traces.parameters]
        columns = [*zip(names, own, strict=False), *zip(penalized[1:], penalty[1:], strict=True)]
        return [name for name, value in columns if not np.isfinite(value)]

    def not_finite(
        self, device: str, step: int, row: np.ndarray, applied: str = "No update was applied."
    ) -> NotFinite:
        """What to raise for a row of `watched` that is not finite; `applied` says what came of it."""
        bad = self._bad(row)
        first = f"; first bad gradient: {bad[0]}" if bad else ""
        what, look = "the loss", "the batch and the learning rate"
        if np.isfinite(row[0]):
            what = "a gradient"
        if np.isfinite(row[: len(row) - len(self._traces.penalized)]).all():
            what, look = "the penalty, or its gradient,", "what the penalty computes"
        return NotFinite(
            f"{what} is not finite on {device} at step {step}{first}. "
            f'{applied} Look at {look}, or choose on_nan="skip".',
            device=device,
            step=step,
            variable=bad[0] if bad else None,
        )


def _asserted(healthy: Any, said: Sequence[Any]) -> Any:
    """An assertion without the branch that TensorFlow's own has around numbers: these are on the host."""
    return tf.raw_ops.Assert(condition=healthy, data=said, summarize=-1)
