"""Makes a timeline of the ops that TensorFlow's profiler saw, by the names that Colonnade gives to its calls.

    replica_1_on_CPU_1/...                              a replica; backward from its first gradient on
    row_0_stage_1_F3/...                                a task of a pipeline: micro-batch 3, forward
    reduction_0_from_CPU_1_to_CPU_0_bytes_64/...        a message of a reduction
    update_0/..., update_0_sums_64/...                  an update; the second adds up the gradients itself
    machines_7_bytes_64                                 a message between machines, of which hosts take care

What happens in Python is marked there (`hardware.profile.mark`): `checkpoint 40` on the host, and what
devices do that do not wait for each other (see `slice_marks`).

All of that is for CPU devices: of ops on cards TensorFlow tells the host nothing. It records their kernels
elsewhere, which this does not read. Nor does it tell of ops that took it less than 8 000 cycles in the mean
of their last times (2.21, at every level of its profiler): about 3 microseconds.
"""

import re
import warnings
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from colonnade.describe.spans import Span, common, length, merged, without
from colonnade.describe.timeline import Event, Timeline
from colonnade.describe.waits import HOST, OTHER_MACHINES, blamed
from colonnade.hardware.profile import FETCH, MARK, ProfiledOp
from colonnade.run.trace.slice_marks import known_waits, slice_events

REPLICA = re.compile(r"(?:^|/)replica_(\d+)_on_(\w+?)_(\d+)(_grad)?(?=/|_)")
TASK = re.compile(r"(?:^|/)row_(\d+)_stage_(\d+)_([FB])(\d+)/")
REDUCTION = re.compile(r"(?:^|/)(reduction_(\d+)_from_([\w.]+)_to_(\w+)_bytes_(\d+))(?:_\d+)?(?=/)")
UPDATE = re.compile(r"(?:^|/)update_(\d+)(?:_sums_(\d+))?(?:_\d+)?/(?:.*?StatefulPartitionedCall/)?(.*)")
MACHINES = re.compile(r"(?:^|/)machines_(\d+)_bytes_(\d+)(?:_\d+)?$")
GRADIENT = re.compile(r"/(?:gradient_tape|health_of_gradients)/")
# Ops that run where a variable lives or a value leaves, and not where their replica computes.
PLUMBING = {
    "ReadVariableOp",
    "_Send",
    "_Recv",
    "_HostSend",
    "_HostRecv",
    "Identity",
    "NoOp",
    "Const",
    "VarHandleOp",
}
# A device that does nothing for shorter than this, in seconds, does not wait for anything.
SHORT = 2e-5
INFINITE = float("inf")
TOO_SHORT = (
    "The timeline lacks what {devices} computed: TensorFlow's profiler leaves out ops of less than about 3 "
    "microseconds. A larger batch or model has longer ones"
)


@dataclass(frozen=True)
class Places:
    """Which devices a step has, by the numbers that names of ops hold.

    Args:
        devices: of the replicas, in short.
        rows: of a pipeline: for each row the devices of its stages.
        updates: for each copy of the variables, and each op that works for one parameter alone, its device.
        free: whether devices never wait for another one to compute.
        dealt: whether every device computes in every step; else one may be quicker and take all of its work.
    """

    devices: Sequence[str]
    rows: Sequence[Sequence[str]] = ()
    updates: Mapping[tuple[int, str], str] | None = None
    free: bool = False
    dealt: bool = True


def op_timeline(ops: Iterable[ProfiledOp], places: Places, first: int = 1) -> Timeline:
    """A timeline of the steps that were recorded, of which the first has this number."""
    known = [op for op in ops if op.op not in PLUMBING]
    marks = [op for op in known if op.op == MARK]
    marked = slice_events(marks, places.devices[0])
    starts = _beginnings(known)
    usual = _usual(known)
    named = {
        _numbered(event, starts, first): usual[op.name]
        for op in known
        if op.op not in (MARK, FETCH)
        for event in _named(op, places)
    }
    work = [*marked, *_joined(named)]
    events = [*work, *_hosted(known, work)]
    every = dict.fromkeys([*places.devices, *(device for row in places.rows for device in row)])
    if work and places.dealt:
        _warn_of_silent(every, work)
    return Timeline.of([*events, *_waits(events, every, marks, places.free)])


def _named(op: ProfiledOp, places: Places) -> Iterator[Event]:
    """An op as an event, if its name says whose it is; what is inside a replica may bear any name."""
    if task := TASK.search(op.name):
        row, stage, micro_batch = int(task[1]), int(task[2]), int(task[4])
        kind = "backward" if task[3] == "B" else "forward"
        yield Event(places.rows[row][stage], op.start, op.end, kind, stage, micro_batch, row)
    elif replica := REPLICA.search(op.name):
        backward = replica[4] or GRADIENT.search(op.name)
        device, kind = f"{replica[2]}:{replica[3]}", "backward" if backward else "forward"
        yield Event(device, op.start, op.end, kind, replica=int(replica[1]))
    elif reduction := REDUCTION.search(op.name):
        sources, target = reduction[3].replace("_", ":"), reduction[4].replace("_", ":")
        link = f"{sources.replace('.', ', ')} -> {target}"
        moved, bucket = int(reduction[5]), int(reduction[2])
        yield Event(target, op.start, op.end, "reduction", bytes=moved, bucket=bucket, link=link)
    elif message := MACHINES.search(op.name):
        key, moved = int(message[1]), int(message[2])
        yield Event(HOST, op.start, op.end, "reduction", bytes=moved, bucket=key, link=OTHER_MACHINES)
    elif update := UPDATE.search(op.name):
        copy = int(update[1])
        device = (places.updates or {}).get((copy, update[3]), places.devices[copy % len(places.devices)])
        yield Event(device, op.start, op.end, "update", bytes=int(update[2] or 0), replica=copy)


def _numbered(event: Event, starts: Sequence[float], first: int) -> Event:
    """With its step, by the beginnings of steps."""
    return replace(event, step=first + max(0, bisect_right(starts, event.start) - 1))


def _beginnings(ops: Iterable[ProfiledOp]) -> list[float]:
    """When steps began: when the first of their ops did.

    Every step runs the same ops. So the number of times that most of them ran is that of the steps, and
    the k-th time that such an op ran is in step k. An op in a loop of the user's own runs more often.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for op in ops:
        call = REPLICA.search(op.name) or TASK.search(op.name)
        if call:
            times[op.name[call.start() :]].append(op.start)
    if not times:
        return []
    usual = Counter(map(len, times.values())).most_common(1)[0][0]
    columns = [sorted(starts) for starts in times.values() if len(starts) == usual]
    return [min(starts) for starts in zip(*columns, strict=True)]


def _usual(ops: Iterable[ProfiledOp]) -> dict[str, float]:
    """How long each op takes in the middle of its times: once it may be held up by other programs."""
    times: dict[str, list[float]] = defaultdict(list)
    for op in ops:
        times[op.name].append(op.end - op.start)
    return {name: median(seconds) for name, seconds in times.items()}


def _warn_of_silent(devices: Iterable[str], work: Iterable[Event]) -> None:
    """Of CPU devices on which nothing was seen to be computed; of cards it is known beforehand."""
    heard = {event.device for event in work if event.kind in ("forward", "backward")}
    silent = [device for device in devices if device.startswith("CPU") and device not in heard]
    if silent:
        warnings.warn(TOO_SHORT.format(devices=" and ".join(silent)), stacklevel=2)


def _joined(events: Mapping[Event, float]) -> Iterator[Event]:
    """One event for all ops of a device's pass, of a task, and of a message or an update while it goes on.

    Each of the events that come in is an op; with it comes how long the op usually takes.
    """
    groups: dict[tuple[object, ...], list[Event]] = defaultdict(list)
    for e in events:
        passes = e.kind in ("forward", "backward") and e.stage is None
        whole = (
            e.device,
            e.step,
            "pass" if passes else e.kind,
            e.stage,
            e.micro_batch,
            e.replica,
            e.bucket,
            e.link,
        )
        groups[(*whole, e.kind) if e.stage is not None else whole].append(e)
    computed: dict[str, list[Span]] = defaultdict(list)
    for members in groups.values():
        if members[0].kind not in ("forward", "backward"):
            continue
        begin, end = min(e.start for e in members), max(e.end for e in members)
        computed[members[0].device].append((begin, end))
        if members[0].stage is not None:
            yield replace(members[0], start=begin, end=end)
            continue
        turn = _turn(members, events)
        if begin < turn:
            yield replace(members[0], start=begin, end=turn, kind="forward")
        if turn < end:
            yield replace(members[0], start=turn, end=end, kind="backward")
    added = merged((e.start, e.end) for e in events if e.kind == "reduction")
    for members in groups.values():
        one = members[0]
        if one.kind not in ("forward", "backward"):
            needed = [span for device, spans in computed.items() if device != one.device for span in spans]
            *before, last = _pieces(members, merged([*needed, *(added if one.kind == "update" else ())]))
            yield from (replace(one, start=start, end=end, bytes=0) for start, end in before)
            yield replace(one, start=last[0], end=last[1], bytes=max(e.bytes for e in members))


def _pieces(members: Sequence[Event], needed: Sequence[Span]) -> Iterator[Span]:
    """When a message or an update was at work: not while what it needs next was still being computed."""
    (begin, end), *more = merged((e.start, e.end) for e in members)
    for start, stop in more:
        if start - end >= SHORT and length(common([(end, start)], needed)) >= SHORT:
            yield begin, end
            begin = start
        end = stop
    yield begin, end


def _turn(members: Sequence[Event], usual: Mapping[Event, float]) -> float:
    """Where the way back begins: as few seconds as can be of backward ops before it, of forward ops after it.

    Some ops of a gradient need nothing of the forward pass and come early, some of the forward pass are
    needed by nobody and come late; all of those are short.
    """
    order = sorted(members, key=lambda event: event.start)
    wrong = sum(usual[event] for event in order if event.kind == "forward")
    least, turn = wrong, order[0].start
    for i, event in enumerate(order):
        wrong += usual[event] if event.kind == "backward" else -usual[event]
        if wrong < least:
            least, turn = wrong, order[i + 1].start if i + 1 < len(order) else event.end
    return turn


def _hosted(ops: Iterable[ProfiledOp], numbered: Sequence[Event]) -> Iterator[Event]:
    """Input and checkpoints of the steps: what was fetched for the first one came before it."""
    begin = min((event.start for event in numbered), default=0.0)
    end = max((event.end for event in numbered), default=0.0)
    starts = sorted((event.start, event.step) for event in numbered if event.step is not None)

    def step(at: float) -> int | None:
        place = bisect_right(starts, (at, INFINITE)) - 1
        return starts[max(0, place)][1] if starts else None

    for op in ops:
        if op.op == FETCH and op.bytes and op.start < end:  # the end of data has no bytes
            yield Event(HOST, op.start, op.end, "input", bytes=op.bytes, step=step(op.start))
        elif op.op == MARK and op.name.startswith("checkpoint ") and begin < op.end and op.start < end:
            yield Event(HOST, op.start, op.end, "checkpoint", step=int(op.name.split(" ")[1]))


def _waits(
    events: Sequence[Event], devices: Iterable[str], marks: Sequence[ProfiledOp], free: bool
) -> Iterator[Event]:
    """The times in which a device does nothing, from the first event of all to the last, and what for."""
    begin = min((event.start for event in events), default=0.0)
    end = max((event.end for event in events if event.device != HOST), default=0.0)
    work: dict[str, dict[str, list[Span]]] = {device: defaultdict(list) for device in (*devices, HOST)}
    for event in events:
        work.setdefault(event.device, defaultdict(list))[event.kind].append((event.start, event.end))
    for device in [device for device in work if device != HOST]:
        numbers = sorted((e.start, e.step) for e in events if e.device == device and e.step is not None)
        busy = merged(span for spans in work[device].values() for span in spans)
        known = known_waits(marks, device, busy, work[HOST]["input"], (begin, end)) if free else {}
        idle = [span for span in without([(begin, end)], busy) if span[1] - span[0] >= SHORT]
        for cause, spans in blamed(device, idle, work, known, free=free).items():
            for start, stop in spans:
                before = bisect_right(numbers, (start, INFINITE)) - 1
                step = numbers[max(0, before)][1] if numbers else None
                yield Event(device, start, stop, "waiting", step=step, cause=cause)
