"""The trainer: a loss function written for one device, trained on all of them."""

import inspect
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.engine import Chunk, Settings, Stream, Sync, home, sync_problems
from colonnade.run.evaluation import Evaluation
from colonnade.run.feed import feed
from colonnade.run.lockstep import Synchronous
from colonnade.run.parallel import Devices
from colonnade.run.progress import Progress
from colonnade.run.split import Arguments, parameter_names

# A call into the graph runs steps for about this long, so that Ctrl-C and the bar are answered.
SECONDS_PER_CALL = 0.5
# With on_nan="skip", this many steps in a row without an update end the training.
MOST_SKIPPED = 20


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

    @property
    def examples_per_second(self) -> float:
        return self.examples / self.seconds if self.seconds else 0.0


class Trainer:
    """Trains on several devices what is written for one.

    Args:
        loss: a function of a batch that returns one loss per example (see `docs/trainer.md`); its
            variables are found by tracing it.
        optimizer: any Keras 3 optimizer; it is applied to the gradient of the global batch.
        devices: how many devices, or which; all by default.
        sync: how replicas work together: `cn.Synchronous()` by default; see `docs/modes.md`.
        variables: where variables live: `shared`, `mirrored` or `partitioned`; `auto` is shared on
            virtual CPU devices and mirrored on cards.
        penalty: a function without arguments whose value is added to the loss once.
        on_nan: `stop` raises when a gradient is not finite, before anything is applied; `skip` leaves
            that update out and counts it.
        reduce: the order in which gradients are added: `auto` follows the topology.

    Example:
        >>> import colonnade as cn, keras
        >>> w = tf.Variable([[0.0]])
        >>> def loss(x, y):
        ...     return tf.squeeze((x @ w - y) ** 2, axis=1)
        >>> trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2)
        >>> x = tf.constant([[1.0], [2.0], [3.0]])
        >>> history = trainer.fit((x, 2 * x), batch_size=3, steps=50, progress=False)
        >>> round(float(w[0, 0]), 3)
        2.0
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        optimizer: Any,
        *,
        devices: Devices = None,
        sync: Sync | None = None,
        variables: str = "auto",
        penalty: Callable[[], Any] | None = None,
        on_nan: str = "stop",
        reduce: str = "auto",
    ) -> None:
        self.devices = hardware.resolve(devices, "Trainer()")
        sync = Synchronous() if sync is None else sync
        amiss = [*sync_problems(sync, variables, len(self.devices))]
        check("Trainer()", [*_problems(loss, optimizer), *amiss, *_options(penalty, on_nan, reduce)])
        self.step = self.examples = self.skipped = 0
        self.staleness: Counter[int] = Counter()
        self._names = parameter_names(loss)
        self._flagged = "training" in inspect.signature(loss).parameters
        self.optimizer = optimizer
        mode = home(sync, variables, self.devices)
        self._engine = sync.engine(Settings(loss, optimizer, self.devices, mode, penalty, on_nan))
        self._loop = self._engine.loop(
            lambda found, _: (found.loss, found.metrics, found.skipped, found.ages)
        )
        self._evaluation = Evaluation(loss, self.devices)

    @property
    def parameters(self) -> list[tf.Variable]:
        """The variables that are trained; empty before the first step."""
        return list(self._engine.parameters)

    def homes(self) -> dict[str, str]:
        """Where each parameter and each variable of the optimizer lives; empty before the first step."""
        return self._engine.homes()

    def replicas(self) -> list[list[Any]]:
        """For each device the values that it reads as the parameters; they differ where training is local."""
        return [[variable.numpy() for variable in own] for own in self._engine.replicas()]

    def traffic(self) -> float:
        """Bytes that a step moves between the devices, on average, without the rows of sparse gradients."""
        return self._engine.traffic()

    def train_on_batch(self, *batch: Any) -> Record:
        """One step on one global batch."""
        arguments = Arguments(batch, self._mode(training=True), self._names)
        with self._state():
            loss, metrics, skipped, ages = self._loop.once(arguments)
        size = arguments.size("train_on_batch()") or 0
        return self._advance(1, size, float(loss), metrics, skipped, ages)

    def fit(
        self,
        data: Any,
        *,
        steps: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        log_every: int = 10,
        callbacks: Sequence[Callable[[Record], Any]] = (),
        logdir: str | Path | None = None,
        progress: bool = True,
    ) -> History:
        """Train on `data` for a number of steps or epochs, whichever ends first; one epoch by default.

        Args:
            data: a `tf.data.Dataset` of global batches, arrays with `batch_size`, or a generator.
            steps: how many steps; arrays are repeated as often as it takes.
            epochs: how many times to go through the data.
            batch_size: the global batch size, for arrays.
            log_every: steps between log lines.
            callbacks: called with the `Record` of every log line; one that returns True ends the fit.
            logdir: where to write TensorBoard summaries and `metrics.jsonl`.
            progress: whether to show a bar, or lines where there is no terminal.

        Returns:
            A `History`. Ctrl-C finishes the step at hand and returns what was reached.
        """
        check("fit()", _fit_problems(steps, epochs, log_every))
        dataset = feed(data, batch_size, "fit()")
        if steps is None and epochs is None:
            epochs = 1
        if epochs is None and not isinstance(data, tf.data.Dataset) and batch_size is not None:
            dataset = dataset.repeat()
        elif epochs is not None:
            dataset = dataset.repeat(epochs)
        history = History()
        with (
            self._state(),
            _interruptible() as interrupted,
            Progress(self._expected(dataset, steps), logdir, self.devices, show=progress) as shown,
            closing(self._loop.stream(dataset, self._names, self._mode(training=True), steps)) as stream,
        ):
            self._run(stream, steps, log_every, callbacks, history, interrupted, shown)
        history.interrupted = interrupted.is_set()
        return history

    def _run(
        self,
        stream: Stream,
        steps: int | None,
        log_every: int,
        callbacks: Sequence[Callable[[Record], Any]],
        history: History,
        interrupted: threading.Event,
        shown: Progress,
    ) -> None:
        begin, per_step, done, skipped_in_a_row = self.step, 0.0, 0, 0
        while not interrupted.is_set() and (steps is None or done < steps):
            # Up to the next log line, in calls short enough to be interrupted.
            to_log = log_every - done % log_every
            fitting = max(1, int(SECONDS_PER_CALL / per_step)) if per_step else 1
            wanted = min(to_log, fitting, (steps - done) if steps is not None else to_log)
            chunk = stream.take(wanted)
            if chunk is None:
                break
            per_step = chunk.seconds / chunk.steps
            record = self._count(chunk, history)
            done = self.step - begin
            skipped_in_a_row = 0 if chunk.updates else skipped_in_a_row + chunk.steps
            if skipped_in_a_row >= MOST_SKIPPED:
                raise NotFinite(f"{skipped_in_a_row} steps in a row were skipped: no gradient was finite")
            logged = done % log_every == 0
            shown.advance(record, chunk, logged=logged)
            if logged:
                history.records.append(record)
                if callbacks and self._ends(record, callbacks):
                    break
        begun = stream.settle()
        if begun is not None:
            record = self._count(begun, history)
            shown.advance(record, begun, logged=False)
        if not history.losses:
            raise InvalidArgument(
                "fit()", [Problem("data", "a dataset", "gave no batch", "Pass at least one batch")]
            )
        if not history.records or history.records[-1].step != self.step:
            history.records.append(record)

    def _count(self, chunk: Chunk, history: History) -> Record:
        history.losses += chunk.losses
        history.seconds += chunk.seconds
        history.examples += chunk.examples
        return self._advance(
            chunk.steps, chunk.examples, chunk.losses[-1], chunk.metrics, chunk.skipped, chunk.ages
        )

    def _ends(self, record: Record, callbacks: Sequence[Callable[[Record], Any]]) -> bool:
        """Whether a callback ends the fit; callbacks may look at variables, and assign to them."""
        self._engine.leave()
        said = [callback(record) for callback in callbacks]
        self._engine.enter()
        return True in said

    def evaluate(self, data: Any, *, batch_size: int | None = None) -> Record:
        """Mean loss and metrics over `data`; every example counts exactly once.

        Where the optimizer keeps averaged weights (`use_ema=True`), those are used.
        """
        dataset = feed(data, batch_size, "evaluate()")
        with _averaged(self.optimizer, self.parameters):
            loss, metrics, examples = self._evaluation.run(dataset, self._names, self._mode(training=False))
        return Record(loss, metrics, self.step, examples)

    def _mode(self, *, training: bool) -> dict[str, bool]:
        """A loss function with a parameter `training` is told whether it trains or evaluates."""
        return {"training": training} if self._flagged else {}

    def _advance(
        self,
        steps: int,
        examples: int,
        loss: float,
        metrics: dict[str, Any],
        skipped: int,
        ages: dict[int, int],
    ) -> Record:
        self.step += steps
        self.examples += examples
        self.skipped += int(skipped)
        self.staleness.update(ages)
        return Record(
            float(loss),
            {name: float(value) for name, value in metrics.items()},
            self.step,
            self.examples,
            self.skipped,
            dict(sorted(self.staleness.items())),
        )

    @contextmanager
    def _state(self) -> Iterator[None]:
        """Around steps: copies take the user's values, the user's variables take the result."""
        self._engine.enter()
        try:
            yield
        except tf.errors.InvalidArgumentError as error:
            found = self._engine.explained(error)
            if isinstance(found, NotFinite):
                # The steps before the bad one were made in the same call and count.
                done = found.step - 1 - self.step
                self.step += done
                self.examples += done * self._loop.rows
            raise found from None
        finally:
            self._engine.leave()

    def _expected(self, dataset: tf.data.Dataset, steps: int | None) -> int | None:
        """How many steps there will be, as far as one can tell."""
        known = int(dataset.cardinality())
        return min((n for n in (steps, known if known >= 0 else None) if n is not None), default=None)


@contextmanager
def _averaged(optimizer: Any, parameters: Sequence[tf.Variable]) -> Iterator[None]:
    """Put the averaged weights in place for a while, if the optimizer keeps them."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if not getattr(inner, "use_ema", False) or not parameters:
        yield
        return
    before = [parameter.numpy() for parameter in parameters]
    inner.finalize_variable_values(parameters)
    try:
        yield
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.assign(value)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, so that a step is never cut in two; a second Ctrl-C raises."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(*_: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _problems(loss: Any, optimizer: Any) -> Iterator[Problem]:
    if not callable(loss):
        yield Problem(
            "loss", loss, "must be a function of a batch", "Pass the function itself, not its value"
        )
    if not all(hasattr(optimizer, name) for name in ("apply", "build", "scale_loss")):
        yield Problem("optimizer", optimizer, "must be a Keras 3 optimizer", "Try keras.optimizers.Adam()")


def _options(penalty: Any, on_nan: Any, reduce: Any) -> Iterator[Problem]:
    if penalty is not None and not callable(penalty):
        yield Problem("penalty", penalty, "must be a function without arguments", "Wrap it: lambda: ...")
    if on_nan not in ("stop", "skip"):
        yield Problem("on_nan", on_nan, "must be stop or skip", "Leave it out to stop")
    if reduce != "auto":
        yield Problem("reduce", reduce, "must be auto", "Leave it out")


def _fit_problems(steps: Any, epochs: Any, log_every: Any) -> Iterator[Problem]:
    for name, value, optional in (
        ("steps", steps, True),
        ("epochs", epochs, True),
        ("log_every", log_every, False),
    ):
        whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if not whole and not (optional and value is None):
            yield Problem(name, value, "must be a whole number from 1 up", f"Try {name}=10")
