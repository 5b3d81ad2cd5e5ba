"""The machines that train together, as an engine sees them: whose rows of a batch are whose, sums over all.

The slices of a batch are those of one machine that has all the devices; every machine takes those of its own.

    batch of 10 rows, a with 2 devices, b with 1:   rows 0-3 | 4-6 | 7-9
                                                         a:0 | a:1 | b:0
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware.clusters import joining
from colonnade.hardware.clusters.meeting import IN_STEPS, OTHERWISE, Meeting
from colonnade.hardware.clusters.ring import OutOfStep, Ring, RingBroken
from colonnade.hardware.clusters.whereabouts import DATA, Progress
from colonnade.hardware.placement import short
from colonnade.run.batch.split import sizes
from colonnade.run.machines.call_pace import FIRST_CALLS, CallPace
from colonnade.run.machines.collective import HOST, Collective, carried, packed

LAST_WORDS = 3.0
# How an op whose function raised these says so.
OUT_OF_STEP = re.compile(rf"{OutOfStep.__name__}: (.*)")
SAME_PROGRAM = "Run the same program, with the same data, on every machine"


@dataclass(frozen=True)
class Peers:
    """The machines of a training, each with its devices.

    Args:
        rank: which of them this is.
        devices: for each machine the devices that it trains on.
        names: of the machines.
        meeting, collective: how they speak to each other; None where there is one.
    """

    rank: int
    devices: tuple[tuple[str, ...], ...]
    names: tuple[str, ...] = ("",)
    meeting: Meeting | None = field(default=None, compare=False)
    collective: Collective | None = field(default=None, compare=False)
    # How often the cluster was started before; None of a program that was started as none.
    generation: int | None = None
    sharded: bool = False  # whether each brings data of its own, and does not read all of them
    apart: bool = False  # whether each trains by itself for some steps

    @property
    def several(self) -> bool:
        """Whether machines make every step together."""
        return len(self.devices) > 1 and not self.apart

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def total(self) -> int:
        """How many devices there are on all machines."""
        return sum(map(len, self.devices))

    @property
    def first(self) -> int:
        """The number of this machine's first device among those of all machines."""
        return sum(map(len, self.devices[: self.rank]))

    @property
    def offset(self) -> int:
        """The number of the first of the slices that this machine cuts a batch into."""
        return self.first if self.sharded or self.apart else 0

    def own(self, counts: Sequence[int]) -> Sequence[int]:
        """Of the sizes of all slices, those of this machine's; none, if there are more devices than rows."""
        if not self.several or self.sharded:  # they are those of this machine's rows
            return counts
        return counts[self.first : self.first + len(self.devices[self.rank])]

    def rows(self, total: int) -> list[int]:
        """Of a batch that all machines have, the rows of each."""
        counts = sizes(total, self.total)
        ends = [sum(map(len, self.devices[:m])) for m in range(len(self.devices) + 1)]
        return [sum(counts[begin:end]) for begin, end in pairwise(ends)]

    def with_own_data(self) -> "Peers":
        """The same, where each machine brings data of its own."""
        return replace(self, sharded=True)

    def by_themselves(self) -> "Peers":
        """The same, where each machine makes its steps by itself: sums and rows are its own."""
        return replace(self, apart=True)

    def own_log(self, logdir: str | Path | None) -> str | Path | None:
        """Where this machine writes its log: the first one where it is asked to, the others beside it."""
        return logdir if logdir is None or self.is_first else Path(logdir) / f"machine-{self.rank}"

    def every_device(self) -> tuple[str, ...]:
        """The devices of all machines, each with the name of its machine, if there are several."""
        if not self.several:
            return self.devices[0]
        pairs = zip(self.names, self.devices, strict=True)
        return tuple(f"{name} {short(device)}" for name, own in pairs for device in own)

    def sum(self, tensors: Sequence[Any]) -> list[Any]:
        """Each tensor summed over the machines: one message for all of a dtype. Shapes are static."""
        assert self.collective is not None
        sent = [carried(tensor) for tensor in tensors]
        totals: dict[int, Any] = {}
        with tf.device(HOST):
            for places in packed(sent).values():
                sizes = [sent[i].shape.num_elements() for i in places]
                flat = tf.concat([tf.reshape(sent[i], [-1]) for i in places], axis=0)
                parts = tf.split(self.collective.sum(flat), sizes)
                for i, part in zip(places, parts, strict=True):
                    totals[i] = tf.cast(tf.reshape(part, sent[i].shape), tensors[i].dtype)
        return [totals[i] for i in range(len(tensors))]

    def row(self, values: Any) -> Any:
        """A table with a row for each machine: in this one's the values, in the others' zeros."""
        return tf.stack(
            [values if m == self.rank else tf.zeros_like(values) for m in range(len(self.devices))]
        )

    def placed(self, rows: Any, num_rows: int) -> Any:
        """A table with a row for each slice of a batch: those of this machine, and zeros.

        Summed over the machines it has the rows of all.
        """
        if not rows.shape[0]:
            return tf.zeros([num_rows, *rows.shape[1:]], rows.dtype)
        beside = [self.first, num_rows - self.first - rows.shape[0]]
        return tf.pad(rows, [beside, *[[0, 0]] * (rows.shape.rank - 1)])

    def gathered(self, slices: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Sparse gradients with the rows of all machines, one after the other."""
        assert self.collective is not None
        return [
            tf.IndexedSlices(self.collective.rows(o.values), self.collective.rows(o.indices), o.dense_shape)
            for o in slices
        ]

    def agree(self, where: str, facts: Mapping[str, Any], fix: str = SAME_PROGRAM) -> None:
        """See that all machines have the same facts; raise on every machine what differs, and where."""
        if self.meeting is not None:
            self.meeting.agree(where, facts, fix)

    def exchange(self, topic: str, value: Any) -> list[Any]:
        """The values of all machines, by rank."""
        return [value] if self.meeting is None else self.meeting.exchange(topic, value)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """While steps are made that all machines make together."""
        if self.meeting is None:
            yield
            return
        try:
            yield
        except tf.errors.OpError as error:
            if (mismatch := OUT_OF_STEP.search(str(error.message))) is not None:
                own = self.names[self.rank]
                wrong = Problem("machine", own, mismatch[1], SAME_PROGRAM)
                raise InvalidArgument("steps on several machines", [wrong]) from None
            if is_loss(error):
                time.sleep(LAST_WORDS)  # who sees that a machine is gone knows more, and ends this process
                self.meeting.lost(
                    f"what all machines do together failed ({error.message.partition(chr(10))[0]})"
                )
            raise

    @contextmanager
    def fitting(self) -> Iterator[None]:
        """Around a fit: after it, a machine may be busy with other things for longer."""
        if self.meeting is None:
            yield
            return
        self.meeting.fitting = True
        try:
            yield
        finally:
            self.meeting.fitting, self.meeting.silence = False, OTHERWISE

    def rest(self) -> None:
        """Until the next step a machine may be busy with what holds Python up, such as writing files."""
        if self.meeting is not None:
            self.meeting.silence = OTHERWISE

    def fetching(self) -> AbstractContextManager[None]:
        """While data are waited for outside of a call: the other machines know of it, and not for ever."""
        if self.meeting is None:
            return nullcontext()
        return self.meeting.call(lambda: (0, True), DATA)

    def fetched(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The same batches, each fetched so."""
        end = object()
        while True:
            with self.fetching():
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    def calling(self, progress: Progress, pace: CallPace) -> AbstractContextManager[None]:
        """Around a call of steps: how far it is, and how long it may stand still, is told to all machines.

        In a fit, who is silent is soon missed, once it is known how long steps take.
        """
        if self.meeting is None:
            return nullcontext()
        if self.meeting.fitting and pace.longest:
            self.meeting.silence = max(IN_STEPS, 3 * pace.longest)
        return self.meeting.call(progress, FIRST_CALLS if self.apart else pace.patience)

    def back(self, seconds_per_step: float, early: str | None) -> None:
        """Tell that this machine has made its steps; `early` says why they are fewer than asked for."""
        if self.meeting is not None:
            self.meeting.back(patience=max(IN_STEPS, 3 * seconds_per_step), early=early)


ALONE = Peers(0, ((),))
_COLLECTIVES: dict[Ring, Collective] = {}  # one for all trainings of the process: they share the order


def peers_of(devices: Sequence[str], where: str) -> Peers:
    """The machines that train together, given the devices that this one trains on.

    All machines must call it for the same training.
    """
    cluster = joining.joined()
    if cluster is None:
        return Peers(0, (tuple(devices),), generation=joining.left_alone())
    if cluster.ring not in _COLLECTIVES:
        _COLLECTIVES[cluster.ring] = Collective(cluster.ring)
    collective = _COLLECTIVES[cluster.ring]
    every = cluster.meeting.exchange(where, [short(device) for device in devices])
    names = tuple(tuple(own) for own in every)
    here = cluster.cluster
    return Peers(here.rank, names, here.names, cluster.meeting, collective, here.generation)


def is_loss(error: tf.errors.OpError) -> bool:
    """Whether a step failed because another machine is gone."""
    return isinstance(error, tf.errors.UnknownError) and RingBroken.__name__ in str(error.message)


def outside() -> list[Problem]:
    """What is wrong where the program was started as one of several machines, and did not join them."""
    cluster = joining.unjoined()
    if cluster is None:
        return []
    rule = f"says that this program is machine {cluster.rank} of {cluster.size}, and it has not joined them"
    fix = "Call cn.setup() right after the imports; to train alone, take it out of the environment"
    return [Problem(cluster.source, f"{cluster.size} machines", rule, fix)]
