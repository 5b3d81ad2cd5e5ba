"""Which ops TensorFlow executed, when and for how long, from its own profiler.

The profiler writes an XSpace, a protocol buffer whose classes are private to TensorFlow. The few
fields needed here are read straight from the wire format:

    XSpace  1: planes        XPlane  3: lines, 4: names by id, 5: names of figures by id
    XLine   3: start in ns, 4: events
    XEvent  1: name id, 2: offset in ps, 3: duration in ps, 4: figures, 5: occurrences when aggregated
    XStat   1: name id, 3: unsigned, 4: signed, 7: id of a word

An op that runs by itself is an event called <node name>:<op type>. One that others do not wait for, such
as a compiled function, is two events, one at its start and one at its end, with a figure in common.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

Message = dict[int, list[Any]]

# What begins the names of events that Colonnade makes itself (see `mark`).
MARK = "colonnade "
BEGUN, DONE = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"
# A dataset's iterator that is asked for an element; the figure is the element's size in bytes.
FETCHES = ("IteratorGetNextAsOptionalOp::DoCompute", "IteratorGetNextOp::DoCompute")
FETCH = "Fetch"
# A thread that ran the last op may still be about to note that it has ended; seconds.
PAUSE = 0.02


@dataclass(frozen=True)
class ProfiledOp:
    """One execution of an op, in seconds since an arbitrary start."""

    name: str
    op: str  # its type; MARK for a mark, FETCH for an element of a dataset
    start: float
    end: float
    bytes: int = 0


class Recording:
    """What TensorFlow executes between `start` and `stop`; there is one at a time in a process."""

    _under_way = 0

    def start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        try:
            tf.profiler.experimental.start(self._folder.name)
        except tf.errors.AlreadyExistsError:
            self._folder.cleanup()
            raise
        Recording._under_way += 1

    def stop(self) -> tuple[ProfiledOp, ...]:
        """The ops, in order of start."""
        with self._folder as folder:
            Recording._under_way -= 1
            time.sleep(PAUSE)
            tf.profiler.experimental.stop()
            spaces = [path.read_bytes() for path in Path(folder).rglob("*.xplane.pb")]
        ops = [op for space in spaces for op in _ops(space)]
        return tuple(sorted(ops, key=lambda op: op.start))

    @classmethod
    def is_under_way(cls) -> bool:
        return cls._under_way > 0


def profile(run: Callable[[], Any]) -> tuple[ProfiledOp, ...]:
    """Call `run` under TensorFlow's profiler and return the ops that it executed, in order of start."""
    recording = Recording()
    recording.start()
    try:
        run()
    finally:
        ops = recording.stop()
    return tuple(op for op in ops if op.op not in (MARK, FETCH))


_NOTHING: AbstractContextManager[Any] = nullcontext()


def mark(words: str) -> AbstractContextManager[Any]:
    """Around some Python: while something is recorded, it is an event of this name."""
    if not Recording.is_under_way():
        return _NOTHING
    around: AbstractContextManager[Any] = tf.profiler.experimental.Trace(MARK + words)
    return around


def note(words: str, moment: Any) -> None:
    """While something is recorded: a moment that a graph noted, an event of this name (see `noted`)."""
    if Recording.is_under_way():
        with mark(f"{words} {float(moment)!r} {time.time()!r}"):
            pass


def noted(ops: Iterable[ProfiledOp]) -> list[tuple[str, float, ProfiledOp]]:
    """The words, the moment and the event of each note, the moment by the clock of the profiler.

    A note tells the time at which it was made, by the clock of the graph, and was recorded no sooner. So
    the least difference between its two times, of all notes, is that of the clocks.
    """
    notes = [(op.name.rsplit(" ", 2), op) for op in ops]
    ahead = min((op.start - float(made) for (_, _, made), op in notes), default=0.0)
    return [(words, float(moment) + ahead, op) for (words, moment, _), op in notes]


def _ops(space: bytes) -> Iterator[ProfiledOp]:
    for plane in map(_fields, _fields(space)[1]):
        names, figures = _names(plane[4]), _names(plane[5])
        begun: dict[Any, list[float]] = defaultdict(list)
        ended: list[tuple[Any, str, str, float]] = []
        for line in map(_fields, plane[3]):
            origin = line[3][0] / 1e9 if line[3] else 0.0
            for event in map(_fields, line[4]):
                name = names.get(event[1][0], "")
                start = origin + (event[2][0] if event[2] else 0) / 1e12
                end = start + (event[3][0] if event[3] else 0) / 1e12
                if name.startswith(MARK):
                    yield ProfiledOp(name.removeprefix(MARK), MARK, start, end)
                elif name in FETCHES:
                    yield ProfiledOp("", FETCH, start, end, _told(event, figures).get("element_size", 0))
                elif name == BEGUN:
                    begun[_told(event, figures).get("_p")].append(start)
                elif name == DONE:
                    facts = _told(event, figures)
                    ended.append((facts.get("_c"), facts.get("name", ""), facts.get("kernel_type", ""), end))
                else:
                    # Other events have no such name.
                    node, colon, op = name.rpartition(":")
                    if colon and op.isidentifier() and not node.endswith(":"):
                        yield ProfiledOp(node, op, start, end)
        for key, node, op, end in ended:
            # The figure is used again once an op has ended.
            before = [start for start in begun[key] if start <= end]
            if before:
                yield ProfiledOp(node, op, max(before), end)


def _names(entries: list[bytes]) -> dict[int, str]:
    """By id, of a map from ids to messages whose second field is the name."""
    names = {}
    for entry in entries:
        pair = _fields(entry)
        inner = _fields(pair[2][0])
        names[pair[1][0]] = inner[2][0].decode() if inner[2] else ""
    return names


def _told(event: Message, figures: dict[int, str]) -> dict[str, Any]:
    """The figures of an event: numbers, and words that are kept by id."""
    facts: dict[str, Any] = {}
    for figure in map(_fields, event[4]):
        name = figures.get(figure[1][0], "")
        if figure[7]:
            facts[name] = figures.get(figure[7][0], "")
        else:
            facts[name] = next((figure[kind][0] for kind in (3, 4) if figure[kind]), 0)
    return facts


def _fields(data: bytes) -> Message:
    """The fields of a protocol-buffer message: integers as int, everything else as bytes."""
    values: Message = defaultdict(list)
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value: int | bytes
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        values[key >> 3].append(value)
    return values


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
