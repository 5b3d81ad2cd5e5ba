"""`cn.Timeline`: what ran when on which device, of a real run or a simulated one, as plain data."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from colonnade.errors import Problem, check

# Colours of Chrome's own palette, so that a trace reads like the picture.
_COLOURS = {"forward": "good", "backward": "bad"}


@dataclass(frozen=True)
class Event:
    """Something that took time on a device, in seconds since the start of the timeline."""

    device: str
    start: float
    end: float
    kind: str  # such as forward or backward
    stage: int | None = None
    micro_batch: int | None = None
    replica: int = 0
    bytes: int = 0  # moved

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """Events in the order of their start.

    Example:
        >>> from colonnade.describe.timeline import Event, Timeline
        >>> work = [Event("CPU:0", 0.0, 2.0, "forward"), Event("CPU:1", 1.0, 3.0, "forward")]
        >>> timeline = Timeline.of(work)
        >>> timeline.span, timeline.busy("CPU:0"), timeline.overlap
        (3.0, 2.0, 0.25)
    """

    events: tuple[Event, ...]

    @classmethod
    def of(cls, events: Iterable[Event]) -> "Timeline":
        """A timeline that begins at 0, whatever clock the events are from."""
        known = sorted(events, key=lambda event: (event.start, event.end))
        origin = known[0].start if known else 0.0
        return cls(
            tuple(
                Event(**{**asdict(event), "start": event.start - origin, "end": event.end - origin})
                for event in known
            )
        )

    @property
    def span(self) -> float:
        """Seconds from the first start to the last end."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.device for event in self.events))

    def busy(self, device: str) -> float:
        """Seconds in which a device was at work."""
        return sum(end - start for start, end in _merged(e for e in self.events if e.device == device))

    @property
    def slots(self) -> float:
        """The length in slots: what a stage takes on average for one micro-batch, there and back.

        A pipeline of s stages and m micro-batches takes about m + s - 1 of them if its stages work at
        once, and m x s if they do not.
        """
        pairs = {(e.replica, e.stage, e.micro_batch) for e in self.events if e.stage is not None}
        total = sum(event.seconds for event in self.events if event.stage is not None)
        return self.span * len(pairs) / total if total else 0.0

    @property
    def overlap(self) -> float:
        """The part of the work that cost no time, because another device was at work anyway."""
        work = sum(self.busy(device) for device in self.devices)
        any_device = sum(end - start for start, end in _merged(self.events))
        return 1 - any_device / work if work else 0.0

    def to_json(self) -> str:
        return json.dumps({"events": [asdict(event) for event in self.events]})

    @classmethod
    def from_json(cls, text: str) -> "Timeline":
        """What `to_json` wrote.

        >>> from colonnade.describe.timeline import Event, Timeline
        >>> timeline = Timeline.of([Event("CPU:0", 0.0, 1.5, "forward", stage=0, micro_batch=3)])
        >>> Timeline.from_json(timeline.to_json()) == timeline
        True
        """
        data = json.loads(text)
        check("Timeline.from_json()", _problems(data))
        return cls(tuple(Event(**event) for event in data["events"]))

    def to_chrome(self) -> str:
        """A trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a line per device, times in us."""
        lines = {device: i for i, device in enumerate(in_order(self.devices))}
        names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": line, "args": {"name": device}}
            for device, line in lines.items()
        ]
        tasks = [
            {
                "name": label(event),
                "cat": event.kind,
                "ph": "X",
                "pid": 0,
                "tid": lines[event.device],
                "ts": event.start * 1e6,
                "dur": event.seconds * 1e6,
                "args": {"stage": event.stage, "micro_batch": event.micro_batch, "replica": event.replica},
                **({"cname": _COLOURS[event.kind]} if event.kind in _COLOURS else {}),
            }
            for event in self.events
        ]
        return json.dumps({"traceEvents": [*names, *tasks], "displayTimeUnit": "ms"})


def in_order(devices: Iterable[str]) -> list[str]:
    """Devices by kind and number.

    >>> in_order(["CPU:10", "CPU:2"])
    ['CPU:2', 'CPU:10']
    """

    def parts(device: str) -> tuple[str, int]:
        kind, _, number = device.rpartition(":")
        return (kind, int(number)) if number.isdigit() else (device, -1)

    return sorted(devices, key=parts)


def label(event: Event) -> str:
    """A short name: F3 for the forward pass of micro-batch 3, B3 for its backward pass.

    >>> label(Event("CPU:0", 0.0, 1.0, "backward", stage=1, micro_batch=3))
    'B3'
    """
    return event.kind if event.micro_batch is None else f"{event.kind[:1].upper()}{event.micro_batch}"


def _merged(events: Iterable[Event]) -> list[tuple[float, float]]:
    """The times in which at least one of some events ran."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if spans and start <= spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((start, end))
    return spans


def _problems(data: Any) -> Iterator[Problem]:
    fix = "Pass what to_json() gave"
    if not isinstance(data, dict) or not isinstance(data.get("events"), list):
        yield Problem("text", type(data).__name__, "must be an object with a list of events", fix)
        return
    known = {field.name for field in fields(Event)}
    for i, event in enumerate(data["events"]):
        if not isinstance(event, dict) or not {"device", "start", "end", "kind"} <= event.keys() <= known:
            yield Problem(f"events[{i}]", event, f"must have fields among {', '.join(sorted(known))}", fix)
            return
