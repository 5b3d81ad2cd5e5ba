"""The loop of `Trainer.fit`: steps, log lines, callbacks and saves, from the first to the last."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from colonnade.describe.timeline import Timeline
from colonnade.errors import InvalidArgument, Problem
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.no_saver import NEVER, NoSaver
from colonnade.run.checkpoint.saver import Saver
from colonnade.run.engine.graph_loop import GraphStream
from colonnade.run.engine.history import History, Record
from colonnade.run.engine.protocols import Chunk, Stream
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.record.profiling import Profiling
from colonnade.run.record.progress import Progress
from colonnade.run.record.run_log import RunLog
from colonnade.run.sync.over_machines import other_batch
from colonnade.run.train.counts import Counts
from colonnade.run.train.signals import Interruption

# A call into the graph runs steps for about this long, so that Ctrl-C and the bar are answered.
SECONDS_PER_CALL = 0.5


@dataclass
class Fitting:
    """One fit; `run` makes it."""

    counts: Counts  # of the trainer
    stream: Stream  # makes the steps
    steps: int | None  # how many at most
    log_every: int
    ends: Callable[[Record], bool]  # calls the callbacks of a log line; whether one ends the fit
    saver: Saver | NoSaver
    shown: Progress
    interrupted: Interruption
    log: RunLog
    profiling: Profiling
    peers: Peers = ALONE
    apart: bool = False  # whether each machine tells of its own rows, so that what they tell is averaged
    history: History = field(init=False, default_factory=History)
    begin: int = field(init=False)  # the step after which the fit began, maybe in an earlier run
    stopped: bool = field(init=False, default=False)  # by a callback, now or in an earlier run
    latest: Record = field(init=False)
    seconds_per_step: float = field(init=False, default=0.0)  # in the last call
    # Where each machine has data of its own: of each, the rows of the batch that comes next.
    rows_of_all: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.begin = self.counts.step

    def run(self) -> History:
        """Make the steps; what came of them."""
        saved = self.saver.start(self.counts.step)
        if saved is not None:
            self._go_on_from(saved)
        self.log.begin(self.counts.step, self.history.resumed)
        while (wanted := self._steps_of_next_call()) > 0:
            self.stream.hold(min(self._left, self._until_save, self.profiling.until(self._done)))
            self.profiling.before(self._done, self.counts.step)
            chunk = self._taken(wanted)
            if chunk is None:  # the data are at their end
                break
            self._after(chunk)
        while (begun := self.stream.settle()) is not None:
            record = self._add(begun)
            self.shown.advance(record, begun, logged=False)
            self.saver.after(record, resting=True, stopped=self.stopped)
        self.saver.finish(stopped=self.stopped)
        self.log.advance(self.counts.step, 0, self.saver.saves)
        self.log.interrupted = self.interrupted.is_set()
        self._keep(self.profiling.close())
        return self._closed()

    @property
    def _done(self) -> int:
        return self.counts.step - self.begin

    @property
    def _left(self) -> int:
        return NEVER if self.steps is None else self.steps - self._done

    @property
    def _until_save(self) -> int:
        return self.saver.until_save(self.counts.step)

    def _go_on_from(self, saved: Manifest) -> None:
        """An earlier run was cut: this one begins where that one saved."""
        self.begin, self.stopped = saved.begin, self.saver.over
        self.history.records.append(self.counts.go_on_from(saved))
        self.history.resumed = saved.step
        self.shown.begin_at(self.counts.step, self._done)

    def _interrupted_here(self) -> bool:
        return self.interrupted.is_set() and self.saver.can_end(self.counts.step, self.interrupted.seconds)

    def _steps_of_next_call(self) -> int:
        """How many steps to make before anything else is done: the same on all machines, 0 to end."""
        wanted = self._agreed() if self.peers.several else self._wanted()
        ends = self.stopped or self._left <= 0 or self._interrupted_here()
        return 0 if ends else wanted

    def _agreed(self) -> int:
        """What all machines want of the next call: as many steps as the least of them, or none."""
        heard = self.interrupted.told() if self.interrupted.is_set() else None
        rows = self.stream.rows_at_hand if isinstance(self.stream, GraphStream) else 0
        seen = self.stream.digest_at_hand() if self.apart and isinstance(self.stream, GraphStream) else []
        every = self.peers.exchange("the next steps", [self._wanted(), heard, self.stopped, rows, seen])
        if any(one[4] != seen for one in every):  # where steps do not tell of it themselves
            raise other_batch([one[3] for one in every])
        for signal in [one[1] for one in every if one[1] is not None]:
            self.interrupted.hear(*signal)
        self.stopped = any(one[2] for one in every)
        if not self.peers.sharded:
            return min(one[0] for one in every)
        self.rows_of_all = [one[3] for one in every]
        ended = [name for name, rows in zip(self.peers.names, self.rows_of_all, strict=True) if not rows]
        if ended and len(ended) < len(every):
            self.shown.say(f"the data of {', '.join(ended)} have ended; the other machines have some left")
        return 0 if ended else 1

    def _taken(self, wanted: int) -> Chunk | None:
        with self.peers.stepping(self.seconds_per_step):
            chunk = self.stream.take(wanted)
        if self.peers.sharded and chunk is not None:
            chunk = replace(chunk, examples=sum(self.rows_of_all))
        if self.apart and self.peers.several and chunk is not None:
            chunk = self._of_all(chunk)
        if self.peers.several:
            early = "has come to the end of its data" if chunk is None else None
            if chunk is not None and chunk.steps < wanted:
                early = f"made {chunk.steps} of {wanted} steps, and then came to another size of batch"
            self.peers.back(chunk.seconds / chunk.steps if chunk else self.seconds_per_step, early)
        return chunk

    def _of_all(self, chunk: Chunk) -> Chunk:
        """What the machines tell of the same steps, each of its own rows: averaged by how many they are."""
        every = self.peers.exchange("losses", [chunk.losses, chunk.metrics, chunk.replicas])
        weights = self.peers.rows(chunk.examples // chunk.steps)
        names = list(chunk.metrics)
        losses = np.average([one[0] for one in every], axis=0, weights=weights)
        means = {name: np.average([one[1][name] for one in every], weights=weights) for name in names}
        replicas = [loss for one in every for loss in one[2]]
        return replace(chunk, losses=losses.tolist(), metrics=means, replicas=replicas)

    def _wanted(self) -> int:
        """Steps up to the next log line or save, in calls short enough to be interrupted."""
        to_log = self.log_every - self._done % self.log_every
        in_time = max(1, int(SECONDS_PER_CALL / self.seconds_per_step)) if self.seconds_per_step else 1
        return min(to_log, in_time, self._left, self._until_save, self.profiling.until(self._done))

    def _after(self, chunk: Chunk) -> None:
        """Steps were made: count them, show them, log them, save them."""
        self.seconds_per_step = chunk.seconds / chunk.steps
        record = self._add(chunk)
        self.counts.note_idle(chunk.idle)
        logged = self._done % self.log_every == 0
        self.shown.advance(record, chunk, logged=logged)
        if logged:
            self.history.records.append(record)
            self.stopped = self.ends(record)
        self.saver.after(record, resting=self.stream.resting, stopped=self.stopped)
        self.log.advance(record.step, chunk.skipped, self.saver.saves)
        self._keep(self.profiling.after(self._done))

    def _keep(self, timeline: Timeline | None) -> None:
        if timeline is not None:
            self.history.timeline = timeline
            self.log.profiled(timeline)

    def _add(self, chunk: Chunk) -> Record:
        self.history.losses += chunk.losses
        self.history.seconds += chunk.seconds
        self.history.examples += chunk.examples
        self.latest = self.counts.add(
            chunk.steps, chunk.examples, chunk.losses[-1], chunk.metrics, chunk.skipped, chunk.ages
        )
        return self.latest

    def _closed(self) -> History:
        """The history, with the last step in it."""
        history = self.history
        if not history.losses and history.resumed is None and not self.interrupted.is_set():
            raise InvalidArgument(
                "fit()", [Problem("data", "a dataset", "gave no batch", "Pass at least one batch")]
            )
        if history.losses and (not history.records or history.records[-1].step != self.counts.step):
            history.records.append(self.latest)
        return history
