"""`cn.Trainer`: a loss function written for one device, trained on all of them."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem, check
from colonnade.run.batch.split import Arguments, parameter_names
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.saver import Keeper
from colonnade.run.data.batches import Batches
from colonnade.run.data.feed import feed
from colonnade.run.engine.history import History, Record
from colonnade.run.engine.protocols import (
    MOST_SKIPPED,
    Chunk,
    Engine,
    Settings,
    Stream,
    Sync,
    home,
    sync_problems,
)
from colonnade.run.memory.estimate import Memory
from colonnade.run.parallel.parallel import Devices
from colonnade.run.pipeline.evaluation import PipelineEvaluation
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.pipeline.rows import pipelined
from colonnade.run.step.evaluation import Evaluation, averaged
from colonnade.run.sync.lockstep import Lockstep, Synchronous
from colonnade.run.train import checks
from colonnade.run.train.progress import Progress
from colonnade.run.train.signals import Interruption, interactive, interruptible, leave
from colonnade.run.variables.partitioned import Partitioned
from colonnade.run.variables.saved_state import Resumable

# A call into the graph runs steps for about this long, so that Ctrl-C and the bar are answered.
SECONDS_PER_CALL = 0.5


class Trainer:
    """Trains on several devices what is written for one.

    Args:
        loss: a function of a batch that returns one loss per example (see `docs/trainer.md`); its
            variables are found by tracing it.
        optimizer: any Keras 3 optimizer; it is applied to the gradient of the global batch.
        devices: how many devices, or which; all by default. Or a `cn.Pipeline` that the loss calls.
        sync: how replicas work together: `cn.Synchronous()` by default; see `docs/modes.md`.
        variables: where variables live: `shared`, `mirrored` or `partitioned`; `auto` is shared on
            virtual CPU devices and mirrored on cards. `cn.Partitioned(by="turn")` says how to deal them.
        penalty: a function without arguments whose value is added to the loss once.
        on_nan: `stop` raises when a gradient is not finite, before anything is applied; `skip` leaves
            that update out and counts it.
        reduce: the order in which gradients are added: `auto` follows the topology.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
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
        devices: Devices | Pipeline = None,
        sync: Sync | None = None,
        variables: str | Partitioned = "auto",
        penalty: Callable[[], Any] | None = None,
        on_nan: str = "stop",
        reduce: str = "auto",
    ) -> None:
        pipeline = devices if isinstance(devices, Pipeline) else None
        dealt = variables if isinstance(variables, Partitioned) else Partitioned()
        variables = "partitioned" if isinstance(variables, Partitioned) else variables
        self.devices, unknown = checks.resolved(devices)
        sync = Synchronous() if sync is None else sync
        amiss = [
            *checks.of_training(loss, optimizer),
            *unknown,
            *checks.of_pipeline(pipeline, sync, variables),
            *sync_problems(sync, variables, len(self.devices) or 1),
            *checks.of_options(penalty, on_nan, reduce),
        ]
        check("Trainer()", amiss)
        self.step = self.examples = self.skipped = 0
        self.staleness: Counter[int] = Counter()
        # Of each finished fit the passes through its data, by the directory of its checkpoints.
        self._fits: dict[Path, list[int]] = {}
        self._names = parameter_names(loss)
        self._flagged = "training" in inspect.signature(loss).parameters
        self.optimizer, self._built_before = optimizer, optimizer.built
        mode = home(sync, variables, self.devices)
        self._how = {"sync": type(sync).__name__, "variables": mode}
        self._engine: Engine
        self._evaluation: Evaluation
        if pipeline is not None:
            self._engine = pipelined(pipeline, loss, optimizer, penalty=penalty, on_nan=on_nan)
            self._evaluation = PipelineEvaluation(pipeline, loss)
        else:
            settings = Settings(loss, optimizer, self.devices, mode, penalty, on_nan, dealt.by)
            self._engine = sync.engine(settings)
            self._evaluation = Evaluation(loss, self.devices)
        self._loop = self._engine.loop(
            lambda found, _: (found.loss, found.metrics, found.skipped, found.ages)
        )

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

    def shares(self) -> dict[str, float]:
        """The part of a batch that each device gets; only `cn.Synchronous(shares="measured")` changes it."""
        devices = self._engine.devices
        even = [1.0] * len(devices)
        speeds = self._engine.shares.speeds if isinstance(self._engine, Lockstep) else even
        return {device: float(speed / sum(speeds)) for device, speed in zip(devices, speeds, strict=True)}

    def traffic(self) -> float:
        """Bytes that a step moves between the devices, on average, without the rows of sparse gradients."""
        return self._engine.traffic()

    def memory(self, *batch: Any) -> Memory:
        """An estimate of what a step on such a batch takes on each device, as `cn.memory` gives it.

        What a join of local training keeps beside the replicas (the centre, an outer optimizer) is not in it.
        """
        return self._engine.memory(Arguments(batch, self._mode(training=True), self._names))

    def train_on_batch(self, *batch: Any) -> Record:
        """One step on one global batch."""
        arguments = Arguments(batch, self._mode(training=True), self._names)
        with self._state():
            loss, metrics, skipped, ages = self._loop.once(arguments)
        size = arguments.size("train_on_batch()") or 0
        record = self._advance(1, size, float(loss), metrics, skipped, ages)
        # Where devices do not wait for each other, some of a step may be applied.
        self._idle(self._loop.idle + 1 if int(skipped) and not ages else 0)
        return record

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
        checkpoint: Checkpoint | None = None,
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
            checkpoint: where to save the training; run again, the program goes on from there. `steps` and
                `epochs` count from the start of the first run.

        Returns:
            A `History`. Ctrl-C finishes the steps at hand, half a second of them, and returns what was
            reached; with a checkpoint, Ctrl-C and SIGTERM finish them, save, and end the program with exit
            code 75.
        """
        amiss = [
            *checks.of_fit(data, steps, epochs, log_every, checkpoint),
            *checks.of_callbacks(callbacks),
        ]
        check("fit()", amiss)
        dataset = feed(data, batch_size, "fit()")
        if steps is None and epochs is None:
            epochs = 1
        # An iterator for each epoch, where its state is saved: see `Stream`.
        exact = checkpoint is not None and checkpoint.data == "exact"
        passes = epochs if exact and epochs is not None and isinstance(data, tf.data.Dataset) else 1
        if epochs is None and not isinstance(data, tf.data.Dataset) and batch_size is not None:
            dataset = dataset.repeat()
        elif epochs is not None and passes == 1:
            dataset = dataset.repeat(epochs)
        history = History()
        expected = self._expected(dataset, steps, passes)
        with (
            self._state(),
            interruptible(preemption=checkpoint is not None) as interrupted,
            Progress(expected, logdir, self._engine.devices, show=progress) as shown,
            self._keeper(checkpoint, epochs) as keeper,
            closing(self._stream(dataset, steps, keeper, passes)) as stream,
        ):
            self._run(stream, steps, log_every, callbacks, history, interrupted, shown, keeper)
        history.interrupted = interrupted.is_set()
        if keeper is not None:
            history.stalled = keeper.stalled
            if interrupted.is_set() and not interactive():
                leave(keeper.saved_step, keeper.directory)
            if not interrupted.is_set():
                self._fits.setdefault(keeper.directory, []).append(keeper.batches.begun)
        return history

    def _keeper(
        self, checkpoint: Checkpoint | None, epochs: int | None
    ) -> AbstractContextManager[Keeper | None]:
        if checkpoint is None:
            return nullcontext()
        assert isinstance(self._engine, Resumable)
        finished = self._fits.get(Path(checkpoint.directory).expanduser().resolve(), [])
        return Keeper(checkpoint, self._engine, self._how, finished, epochs)

    def _stream(
        self, dataset: tf.data.Dataset, steps: int | None, keeper: Keeper | None, passes: int
    ) -> Stream:
        names, keywords = self._names, self._mode(training=True)
        if keeper is None:
            return self._loop.stream(dataset, names, keywords, steps)
        data = keeper.arranged(dataset)
        batches = Batches(data, names, keywords, passes, exact=keeper.exact, ahead=not keeper.seeks)
        return self._loop.along(keeper.follow(batches))

    def _run(
        self,
        stream: Stream,
        steps: int | None,
        log_every: int,
        callbacks: Sequence[Callable[[Record], Any]],
        history: History,
        interrupted: Interruption,
        shown: Progress,
        keeper: Keeper | None,
    ) -> None:
        begin, per_step, done, stopped = self.step, 0.0, 0, False
        if keeper is not None:
            keeper.start(self.step)
            if keeper.found is not None and keeper.batches.like() is not None:
                begin, stopped = self._resumed(keeper.found, history), keeper.over
                done = self.step - begin
                shown.begin_at(self.step, done)
        while not stopped and (steps is None or done < steps):
            if interrupted.is_set() and (keeper is None or keeper.can_end(self.step, interrupted.seconds)):
                break
            # Up to the next log line, in calls short enough to be interrupted.
            to_log = log_every - done % log_every
            fitting = max(1, int(SECONDS_PER_CALL / per_step)) if per_step else 1
            wanted = min(to_log, fitting, (steps - done) if steps is not None else to_log)
            if keeper is not None:
                until_save = keeper.until_save(self.step)
                stream.hold(until_save if steps is None else min(until_save, steps - done))
                wanted = min(wanted, until_save)
            chunk = stream.take(wanted)
            if chunk is None:
                break
            per_step = chunk.seconds / chunk.steps
            record = self._count(chunk, history)
            done = self.step - begin
            self._idle(chunk.idle)
            logged = done % log_every == 0
            shown.advance(record, chunk, logged=logged)
            if logged:
                history.records.append(record)
                stopped = bool(callbacks) and self._ends(record, callbacks)
            if keeper is not None:
                keeper.after(record, resting=stream.resting, stopped=stopped)
        while (begun := stream.settle()) is not None:
            record = self._count(begun, history)
            shown.advance(record, begun, logged=False)
            if keeper is not None:
                keeper.after(record, resting=True, stopped=stopped)
        if keeper is not None:
            keeper.finish(stopped=stopped)
        if not history.losses and history.resumed is None and not interrupted.is_set():
            raise InvalidArgument(
                "fit()", [Problem("data", "a dataset", "gave no batch", "Pass at least one batch")]
            )
        if history.losses and (not history.records or history.records[-1].step != self.step):
            history.records.append(record)

    def _resumed(self, found: Manifest, history: History) -> int:
        """Take over the counts of a saved step; the step at which its fit began."""
        self.step, self.examples, self.skipped = found.step, found.examples, found.skipped
        history.resumed = found.step
        self.staleness = Counter({int(age): count for age, count in found.staleness.items()})
        counts = (found.step, found.examples, found.skipped, dict(self.staleness))
        history.records.append(Record(found.loss, found.metrics, *counts))
        return found.begin

    def _count(self, chunk: Chunk, history: History) -> Record:
        history.losses += chunk.losses
        history.seconds += chunk.seconds
        history.examples += chunk.examples
        return self._advance(
            chunk.steps, chunk.examples, chunk.losses[-1], chunk.metrics, chunk.skipped, chunk.ages
        )

    def _idle(self, steps: int) -> None:
        """So many steps in a row made no update: too many end the training."""
        self._loop.idle = steps
        if steps >= MOST_SKIPPED:
            self._loop.idle = 0  # who trains on nevertheless may try as long again
            raise NotFinite(f"{steps} steps in a row were skipped: no gradient was finite")

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
        with averaged(self.optimizer, self.parameters, built_before=self._built_before):
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
        if not self.parameters:
            self._built_before = self.optimizer.built
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

    def _expected(self, dataset: tf.data.Dataset, steps: int | None, passes: int) -> int | None:
        """How many steps there will be, as far as one can tell."""
        known = int(dataset.cardinality()) * passes
        return min((n for n in (steps, known if known >= 0 else None) if n is not None), default=None)
