"""`cn.Checkpoint`: in which directory, how often and how many steps to save."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colonnade.errors import Problem, check, is_whole
from colonnade.run.data.iterator_state import CHOICES


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit is saved; the same program, run again, goes on from the last save.

    Args:
        directory: a directory for this training alone.
        every: steps between two saves; the end of a fit is saved in any case.
        keep: how many of the newest saves to keep; None keeps all.
        resume: False refuses a directory in which something is saved, in place of going on from it.
        data: how the data go on: `exact` saves the place in a `tf.data.Dataset`; `skip` goes through
            the batches that were seen again; `restart` begins with the first batch.

    Example:
        >>> import colonnade as cn, keras, tempfile, tensorflow as tf
        >>> folder = tempfile.mkdtemp()
        >>> x = tf.constant([[1.0], [2.0], [3.0]])
        >>> def run(steps):
        ...     w = tf.Variable([[0.0]], name="w")
        ...     loss = lambda x, y: tf.squeeze((x @ w - y) ** 2, axis=1)
        ...     trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1, name="sgd"), devices=2)
        ...     saved = cn.Checkpoint(folder, every=10)
        ...     return trainer.fit((x, 2 * x), batch_size=3, steps=steps, checkpoint=saved, progress=False)
        >>> run(steps=20).resumed, run(steps=50).resumed
        (None, 20)
    """

    directory: str | Path
    every: int = 1000
    keep: int | None = 3
    resume: bool = True
    data: str = "exact"

    def __post_init__(self) -> None:
        check("Checkpoint()", self._problems())

    def _problems(self) -> Iterator[Problem]:
        if not isinstance(self.directory, str | Path) or not str(self.directory):
            yield Problem("directory", self.directory, "must be a path", "Try 'runs/first'")
        if not is_whole(self.every, 1):
            yield Problem("every", self.every, "must be a number of steps from 1 up", "Try every=1000")
        if self.keep is not None and not is_whole(self.keep, 1):
            yield Problem("keep", self.keep, "must be a whole number from 1 up, or None", "Try keep=3")
        if not isinstance(self.resume, bool):
            yield Problem("resume", self.resume, "must be True or False", "Leave it out")
        if self.data not in CHOICES:
            yield Problem("data", self.data, f"must be one of {', '.join(CHOICES)}", "Leave it out")
