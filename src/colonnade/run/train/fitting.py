"""The loop of `Trainer.fit`: steps, log lines, callbacks and saves, from the first to the last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from colonnade.describe.timeline import Timeline
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.no_saver import NEVER, NoSaver
from colonnade.run.checkpoint.saver import Saver
from colonnade.run.engine.graph_loop import GraphStream
from colonnade.run.engine.history import History, Record
from colonnade.run.engine.protocols import Chunk, Engine, Stream
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.record.profiling import Profiling
from colonnade.run.record.progress import Progress
from colonnade.run.record.run_log import RunLog
from colonnade.run.sync.same_training import unequal_batches, unequal_steps
from colonnade.run.train.counts import Counts
from colonnade.run.train.signals import Interruption

# A call into the graph runs steps for about this long, so that Ctrl-C and the bar are answered.
SECONDS_PER_CALL = 0.5


def ends_fit(engine: Engine, callbacks: Sequence[Callable[[Record], Any]], record: Record) -> bool:
    """Whether a callback ends the fit; callbacks may look at variables, and assign to them."""
    if not callbacks:
        return False
    engine.leave()
    answers = [callback(record) for callback in callbacks]
    engine.enter()
    engine.traces.warn_of_freezing()
    return True in answers


@dataclass(kw_only=True)
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
        self.interrupted.known = not self.peers.several

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
        self._heard_of_all(self.peers.exchange("the end of the fit", self.interrupted.told()))
        self.log.advance(self.counts.step, 0, self.saver.saves)
        self.log.interrupted = self.interrupted.ends
        self._keep(self.profiling.end(self._done))
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

    def _steps_of_next_call(self) -> int:
        """How many steps to make before anything else is done: the same on all machines, 0 to end."""
        if self.peers.several:
            return self._agreed()
        waited = self.interrupted.seconds if self.interrupted.is_set() else None
        return 0 if self._ends_here(waited) else self._wanted()

    def _ends_here(self, waited: float | None) -> bool:
        """Whether the fit ends now; if it was told to, so many seconds ago."""
        may_end = waited is not None and self.saver.can_end(self.counts.step, waited)
        return self.stopped or self._left <= 0 or may_end

    def _heard_of_all(self, every: Sequence[Any]) -> float | None:
        """Take over what signals any machine has had; how long ago the first was, if there was one."""
        return self.interrupted.hear(every) if self.peers.several else None

    def _agreed(self) -> int:
        """What all machines want of the next call: as many steps as the least of them, or none.

        Nothing counts but what was exchanged, so that all decide alike: what comes to one machine meanwhile,
        such as a signal, waits for the next time.
        """
        if isinstance(self.stream, GraphStream):
            self.stream.check()  # or the others would wait for a machine that has only to say why it failed
        own = [self._wanted(), self.interrupted.told(), self.stopped, self._at_hand()]
        every = self.peers.exchange("the next steps", own)
        waited = self._heard_of_all([one[1] for one in every])
        self.stopped = any(one[2] for one in every)
        if self._ends_here(waited):
            return 0
        batches = [one[3] for one in every]
        if not self.peers.sharded:
            check("fit()", unequal_batches(self.peers.names, batches))
            return min(one[0] for one in every)
        self.rows_of_all = [rows for rows, *_ in batches]
        # By the kind: a batch without a row is a mistake, and no end.
        ended = [name for name, (_, kind) in zip(self.peers.names, batches, strict=True) if not kind]
        if ended and len(ended) < len(every):
            self.shown.say(f"the data of {', '.join(ended)} have ended; the other machines have some left")
        return 0 if ended else 1

    def _at_hand(self) -> list[int]:
        """The batch that comes next: its rows, its kind, and where steps do not tell of it its digest."""
        if not isinstance(self.stream, GraphStream):
            return [0, 0]
        digest = self.stream.digest_at_hand() if self.apart else []
        return [self.stream.rows_at_hand, self.stream.kind_at_hand(), *digest]

    def _taken(self, wanted: int) -> Chunk | None:
        with self.peers.stepping():
            chunk = self.stream.take(wanted)
        if self.peers.several and not self._failed:
            early = self._early(chunk, wanted)
            self.peers.back(chunk.seconds / chunk.steps if chunk else self.seconds_per_step, early)
        if isinstance(self.stream, GraphStream):
            with self.peers.fetching():
                self.stream.next_pass()
        if self.peers.sharded and chunk is not None:
            chunk = replace(chunk, examples=sum(self.rows_of_all))
        if self.apart and self.peers.several and chunk is not None and not self._failed:
            chunk = self._of_all(chunk)
        return chunk

    @property
    def _failed(self) -> bool:
        """Whether a step or the data have failed on this machine, and maybe on no other."""
        return isinstance(self.stream, GraphStream) and self.stream.failed

    def _early(self, chunk: Chunk | None, wanted: int) -> str | None:
        """Why there are fewer steps than asked for, if there are."""
        if chunk is None:
            return "has come to the end of its data"
        if chunk.steps == wanted:
            return None
        at_end = isinstance(self.stream, GraphStream) and not self.stream.rows_at_hand
        then = "the end of its data" if at_end else "another size of batch"
        return f"made {chunk.steps} of {wanted} steps, and then came to {then}"

    def _of_all(self, chunk: Chunk) -> Chunk:
        """What the machines tell of the same steps, each of its own rows: averaged by how many they are."""
        every = self.peers.exchange("losses", [chunk.losses, chunk.metrics, chunk.replicas])
        check("fit()", unequal_steps(self.peers.names, [len(one[0]) for one in every]))
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
        self.history.waited += chunk.waited
        self.history.examples += chunk.examples
        self.latest = self.counts.add(
            chunk.steps, chunk.examples, chunk.losses[-1], chunk.metrics, chunk.skipped, chunk.ages
        )
        return self.latest

    def _closed(self) -> History:
        """The history, with the last step in it."""
        history = self.history
        if not history.losses and history.resumed is None and not self.interrupted.ends:
            raise InvalidArgument(
                "fit()", [Problem("data", "a dataset", "gave no batch", "Pass at least one batch")]
            )
        if history.losses and (not history.records or history.records[-1].step != self.counts.step):
            history.records.append(self.latest)
        return history
