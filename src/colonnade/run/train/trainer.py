"""`cn.Trainer`: a loss function written for one device, trained on all of them."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.describe.plan import Plan
from colonnade.describe.timeline import Timeline
from colonnade.errors import check
from colonnade.run.batch.split import Arguments, parameter_names
from colonnade.run.checkpoint.checkpoint import Checkpoint
from colonnade.run.checkpoint.no_saver import NoSaver
from colonnade.run.checkpoint.saver import Saver
from colonnade.run.data.feed import feed
from colonnade.run.data.fit_data import FitData
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.history import History, Record
from colonnade.run.engine.protocols import Engine, Settings, Sync, home, sync_problems
from colonnade.run.machines.peers import ALONE, peers_of
from colonnade.run.memory.estimate import Memory
from colonnade.run.move.slices_ahead import HOST
from colonnade.run.parallel.compilation import Compilation
from colonnade.run.parallel.parallel import Devices
from colonnade.run.pipeline.evaluation import PipelineEvaluation
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.pipeline.rows import pipelined
from colonnade.run.prove.verdict import Prover, of_prove
from colonnade.run.record.profiling import Profiling, profile_problems
from colonnade.run.record.progress import Progress
from colonnade.run.record.run_facts import called, facts, peaks
from colonnade.run.record.run_log import RunLog
from colonnade.run.step.evaluation import Evaluation, averaged
from colonnade.run.sync.lockstep import Lockstep, Synchronous
from colonnade.run.sync.machine_joins import MachineJoins
from colonnade.run.sync.same_training import same_kind
from colonnade.run.train import by_plan, checks
from colonnade.run.train.counts import Counts
from colonnade.run.train.fitting import Fitting, ends_fit
from colonnade.run.train.forecast import Forecast, unforeseen
from colonnade.run.train.profiled import timeline_of, warm_and_profiled
from colonnade.run.train.signals import interruptible
from colonnade.run.variables.partitioned import Partitioned
from colonnade.run.variables.saved_state import Resumable


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
        reduce: how gradients are added up: `ring` gives every device an equal part of the sums, `tree` adds
            them on the first one; on cards also their own library. `auto` on cards is what the self-test of
            the machine found fastest, else `ring` (see `docs/cards.md`).
        compile: whether XLA compiles what a replica computes; `auto` tries both ways on the first steps
            and keeps the faster one. `history.compiled` says what became of it.
        plan: what `cn.plan` returned; it settles devices, sync and variables, and every fit is compared with
            what it predicts; without one, with what the first batch tells (`history.predicted`). Stages need
            `devices=cn.Pipeline(model, plan=plan)`.

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
        compile: bool | str = False,
        plan: Plan | None = None,
    ) -> None:
        against_plan = [] if plan is None else list(by_plan.problems(plan, devices, sync, variables))
        if plan is not None and not against_plan:
            settled = by_plan.settled(plan, devices)
            devices, sync, variables = settled.devices, settled.sync, settled.variables
        pipeline = devices if isinstance(devices, Pipeline) else None
        dealt = variables if isinstance(variables, Partitioned) else Partitioned()
        variables = "partitioned" if isinstance(variables, Partitioned) else variables
        self.devices, unknown = checks.resolved(devices)
        sync = Synchronous() if sync is None else sync
        amiss = [
            *checks.of_training(loss, optimizer),
            *against_plan,
            *unknown,
            *checks.of_pipeline(pipeline, sync, variables),
            *checks.of_machines(pipeline, sync),
            *sync_problems(sync, variables, len(self.devices) or 1),
            *checks.of_options(penalty, on_nan, reduce),
            *checks.of_compiling(compile, sync, pipeline),
        ]
        if not amiss:
            mode = home(sync, variables, self.devices)
            amiss += checks.of_reduce(reduce, self.devices, mode, sync, pipeline)
        check("Trainer()", amiss)
        # Of each finished fit the passes through its data, by the directory of its checkpoints.
        self._fits: defaultdict[Path, list[int]] = defaultdict(list)
        self._loss, self._names = loss, parameter_names(loss)
        self._estimate: Memory | None = None  # the last that was asked for
        self._name = getattr(loss, "__name__", type(loss).__name__)
        self._flagged = "training" in inspect.signature(loss).parameters
        self.optimizer, self._built_before = optimizer, optimizer.built
        self._pipeline = pipeline
        self._sync = "Pipeline" if pipeline is not None else called(sync)
        self._how = {"sync": type(sync).__name__, "variables": mode}
        self._compilation = Compilation(compile)
        self._engine: Engine
        self._evaluation: Evaluation
        self._peers = ALONE
        if pipeline is not None:
            self._engine = pipelined(pipeline, loss, optimizer, penalty=penalty, on_nan=on_nan)
            self._evaluation = PipelineEvaluation(pipeline, loss)
        else:
            self._peers = peers_of(self.devices, "Trainer()")
            settings = Settings(loss, optimizer, self.devices, mode, penalty, on_nan, dealt.by)
            settings = replace(settings, compilation=self._compilation, peers=self._peers, reduce=reduce)
            self._engine = sync.engine(settings)
            if isinstance(self._engine, Lockstep) and self._engine.peers.sharded:
                self._peers = self._engine.peers
            self._evaluation = Evaluation(loss, self.devices)
        self._measured = self._engine.shares if isinstance(self._engine, Lockstep) else None
        self._loop = self._engine.loop(
            lambda outcome, _: (outcome.loss, outcome.metrics, outcome.skipped, outcome.ages)
        )
        self._counts = Counts(self._loop)
        layout = partial(by_plan.plan_of, self.devices, sync, mode)
        self._forecast = Forecast(plan, layout, unforeseen(pipeline, self._peers, self._compilation))

    @property
    def step(self) -> int:
        """Steps made so far; with a checkpoint, since its first run began."""
        return self._counts.step

    @property
    def examples(self) -> int:
        """Examples trained on so far, each as often as it came."""
        return self._counts.examples

    @property
    def skipped(self) -> int:
        """Updates left out so far because a gradient was not finite."""
        return self._counts.skipped

    @property
    def staleness(self) -> Counter[int]:
        """How many gradients of each age were applied so far."""
        return self._counts.staleness

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
        shared = self._peers.several and not self._peers.sharded  # a batch is for all machines
        even = [1.0] * (self._peers.total if shared else len(devices))
        speeds = even if self._measured is None else self._measured.speeds
        own = speeds[self._peers.first if shared else 0 :]
        return {device: float(speed / sum(speeds)) for device, speed in zip(devices, own, strict=False)}

    def traffic(self) -> float:
        """Bytes that a step moves between the devices, on average, without the rows of sparse gradients."""
        return float(sum(self._engine.links().values()))

    def links(self) -> dict[tuple[str, str], float]:
        """The same by link: the bytes that a step moves from the first device of a pair to the second."""
        return self._engine.links()

    def memory(self, *batch: Any) -> Memory:
        """An estimate of what a step on such a batch takes on each device, as `cn.memory` gives it.

        What a join of local training keeps beside the replicas (the centre, an outer optimizer) is not in it.
        """
        self._estimate = self._engine.memory(Arguments(batch, self._mode(training=True), self._names))
        return self._estimate

    def _facts(self, steps: int | None, epochs: int | None, log_every: int) -> dict[str, Any]:
        """What a log says of this training."""
        how = {**self._how, "sync": self._sync, "batch": self._loop.rows}
        how |= {"steps": steps, "epochs": epochs, "log_every": log_every}
        seen = self.devices, self._estimate, self._forecast.prediction
        machines = {"names": self._peers.names, "rank": self._peers.rank}
        return {**facts(self._loss, self.optimizer, self._engine, how, *seen), "machines": machines}

    def train_on_batch(self, *batch: Any) -> Record:
        """One step on one global batch."""
        with tf.device(HOST):  # or arrays would go to the first card, and back
            arguments = Arguments(batch, self._mode(training=True), self._names)
        same_kind(self._peers, arguments, "train_on_batch()")
        with self._state(), self._peers.stepping():
            loss, metrics, skipped, ages = self._loop.once(arguments)
        size = arguments.size("train_on_batch()") or 0
        record = self._counts.add(1, size, float(loss), metrics, skipped, ages)
        # Where devices do not wait for each other, some of a step may be applied.
        self._counts.note_idle(self._loop.idle + 1 if int(skipped) and not ages else 0)
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
        profile: range | None = None,
        prove: bool | str = True,
    ) -> History:
        """Train on `data` for a number of steps or epochs, whichever ends first; one epoch by default.

        Args:
            data: a `tf.data.Dataset` of global batches, arrays with `batch_size`, or a list or a generator of
                global batches.
            steps: how many steps; arrays are repeated as often as it takes.
            epochs: how many times to go through the data.
            batch_size: the global batch size, for arrays.
            log_every: steps between log lines.
            callbacks: called with the `Record` of every log line; one that returns True ends the fit.
            logdir: where to write TensorBoard summaries and what `colonnade report` makes a page of.
            progress: whether to show a bar, or lines where there is no terminal.
            profile: steps of this fit, counted from 1, of which to record where the time goes, such as
                `range(10, 15)`; see `History.timeline`.
            checkpoint: where to save the training; run again, the program goes on from there. `steps` and
                `epochs` count from the start of the first run.
            prove: whether to hold the first batch against one device before anything is trained: loss,
                metrics and gradients must be equal to rounding. `"warn"` goes on where they are not.

        Returns:
            A `History`. Ctrl-C finishes the steps at hand, half a second of them, and returns what was
            reached; with a checkpoint, Ctrl-C, SIGTERM and SIGHUP finish them, save, and end the program with
            exit code 75.
        """
        amiss = [
            *checks.of_fit(data, steps, epochs, log_every, checkpoint),
            *checks.of_own_data(self._peers, checkpoint),
            *checks.of_callbacks(callbacks),
            *profile_problems(profile, steps),
            *of_prove(prove),
        ]
        check("fit()", amiss)
        epochs = 1 if steps is None and epochs is None else epochs
        said = {"steps": steps, "epochs": epochs, "log_every": log_every, "batch_size": batch_size}
        self._peers.agree("fit()", {**said, "checkpoint every": checkpoint and checkpoint.every})
        logdir = self._peers.own_log(logdir)
        exact = checkpoint is not None and checkpoint.data == "exact"
        mine = self._names, self._mode(training=True)
        batches = FitData.of(data, batch_size, epochs, *mine, exact=exact, watched=bool(callbacks))
        expected = batches.expected(steps)
        known = partial(self._facts, steps, epochs, log_every)
        progress = progress and self._peers.is_first
        devices = self._peers.every_device() if self._peers.several else self._engine.devices
        changing = self.shares if self._measured is not None else None
        with (
            RunLog(logdir, known, partial(peaks, self.devices)) as log,
            self._peers.fitting(),
            self._state(),
            interruptible(preemption=checkpoint is not None) as interrupted,
            Progress(expected, logdir, devices, show=progress, shares=changing) as shown,
            self._saver(checkpoint, epochs) as saver,
            closing(saver.stream(self._loop, batches, steps)) as stream,
            Profiling(profile, partial(timeline_of, self._engine, self._pipeline), self.devices) as profiling,
        ):
            self._compilation.say = shown.say
            log.predicted(by_plan.named_here(self._forecast.timeline))
            self._to_examine(Prover(prove, "fit()", shown.say), expected, log)
            fitting = Fitting(
                counts=self._counts,
                stream=stream,
                steps=steps,
                log_every=log_every,
                ends=partial(ends_fit, self._engine, callbacks),
                saver=saver,
                shown=shown,
                interrupted=interrupted,
                log=log,
                profiling=profiling,
                peers=self._peers,
                apart=isinstance(self._engine, MachineJoins),
            )
            try:
                history = fitting.run()
            finally:
                self._engine.examine = None  # of this fit: a later batch is none of its first
            if isinstance(self._engine, Lockstep):
                self._engine.end_fit()
        history.interrupted, history.stalled = interrupted.ends, saver.stalled
        history.logdir = None if logdir is None else Path(logdir)
        history.compiled = self._compilation.verdict
        self._forecast.compare(history, self._engine, fitting.seconds_per_step, show=progress)
        saver.ended(interrupted=history.interrupted)
        return history

    def profile(self, data: Any, steps: int = 5, *, batch_size: int | None = None) -> Timeline:
        """Train some steps, and record where their time goes.

        Before them it trains a few that are not recorded, in which TensorFlow traces and warms up.

        Args:
            data: as for `fit`.
            steps: how many to record.
            batch_size: the global batch size, for arrays.

        Returns:
            A `Timeline`: what each device did when, what it waited for. Its `summary()` says it in words.
        """
        return warm_and_profiled(self.fit, data, steps, batch_size)

    def _to_examine(self, prover: Prover, steps: int | None, log: RunLog) -> None:
        """Have the first batch proved, and timed for the forecast.

        Rows of a pipeline are not proved, nor are replicas that have batches of their own.
        """
        engine, looks = self._engine, list[Callable[[Arguments], Any]]()
        several = self._peers.several or len(self.devices) > 1
        if isinstance(engine, Lockstep) and self._pipeline is None and several and prover.wanted:
            looks.append(partial(prover.examine, engine, engine.traces.apart, self._name))
        if self._forecast.is_open(len(self.devices), steps, proves=prover.wanted):
            looks.append(partial(self._forecast.look, engine))
            looks.append(lambda _: log.predicted(by_plan.named_here(self._forecast.timeline)))
        engine.examine = (lambda batch: [look(batch) for look in looks]) if looks else None

    def _saver(self, checkpoint: Checkpoint | None, epochs: int | None) -> Saver | NoSaver:
        if checkpoint is None:
            return NoSaver()
        assert isinstance(self._engine, Resumable)
        directory = Path(checkpoint.directory).expanduser().resolve()
        return Saver(checkpoint, self._engine, self._how, self._fits[directory], epochs, peers=self._peers)

    def evaluate(self, data: Any, *, batch_size: int | None = None) -> Record:
        """Mean loss and metrics over `data`; every example counts exactly once.

        Where the optimizer keeps averaged weights (`use_ema=True`), those are used.
        """
        dataset = feed(data, batch_size, "evaluate()")
        if isinstance(self._engine, GraphEngine):
            self._evaluation.read_from(self._engine.lends())
        with averaged(self.optimizer, self.parameters, built_before=self._built_before):
            loss, metrics, examples = self._evaluation.run(
                dataset, self._names, self._mode(training=False), self._peers
            )
        return Record(loss, metrics, self.step, examples)

    def _mode(self, *, training: bool) -> dict[str, bool]:
        """A loss function with a parameter `training` is told whether it trains or evaluates."""
        return {"training": training} if self._flagged else {}

    @contextmanager
    def _state(self) -> Iterator[None]:
        """Around steps: copies take the user's values, the user's variables take the result."""
        if not self.parameters:
            self._built_before = self.optimizer.built
        self._engine.enter()
        self._engine.traces.warn_of_freezing()
        try:
            yield
        except tf.errors.OpError as error:
            raise self._engine.explained(error) from None
        finally:
            self._engine.leave()
