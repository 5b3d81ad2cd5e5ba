"""Which ops TensorFlow executed, when and for how long, from its own profiler.

The profiler writes an XSpace, a protocol buffer whose classes are private to TensorFlow. The few
fields needed here are read straight from the wire format:

    XSpace  1: planes        XPlane  3: lines, 4: names by id      XLine   3: start in ns, 4: events
    XEvent  1: name id, 2: offset in ps, 3: duration in ps, 5: occurrences when aggregated
"""

import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

Message = dict[int, list[Any]]


@dataclass(frozen=True)
class ProfiledOp:
    """One execution of an op, in seconds since an arbitrary start."""

    name: str
    op: str
    start: float
    end: float


def profile(run: Callable[[], Any]) -> tuple[ProfiledOp, ...]:
    """Call `run` under TensorFlow's profiler and return the ops that it executed, in order of start."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            run()
        finally:
            tf.profiler.experimental.stop()
        ops = [event for path in Path(folder).rglob("*.xplane.pb") for event in _events(path.read_bytes())]
    return tuple(sorted(ops, key=lambda event: event.start))


def _events(space: bytes) -> Iterator[ProfiledOp]:
    for plane in _messages(space, 1):
        names = {}
        for entry in plane[4]:
            pair = _fields(entry)
            names[pair[1][0]] = _fields(pair[2][0])[2][0].decode() if 2 in _fields(pair[2][0]) else ""
        for line in map(_fields, plane[3]):
            origin = line[3][0] / 1e9 if line[3] else 0.0
            for event in map(_fields, line[4]):
                # An op's event is called <node name>:<op type>; other events have no such name.
                name, colon, op = names.get(event[1][0], "").rpartition(":")
                if colon and op.isidentifier():
                    start = origin + (event[2][0] if event[2] else 0) / 1e12
                    yield ProfiledOp(name, op, start, start + (event[3][0] if event[3] else 0) / 1e12)


def _messages(data: bytes, field: int) -> Iterator[Message]:
    return map(_fields, _fields(data)[field])


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
