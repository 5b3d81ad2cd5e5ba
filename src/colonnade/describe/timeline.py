"""`cn.Timeline`: what ran when on which device, of a real run or a simulated one, as plain data."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from colonnade.describe import fields
from colonnade.describe.breakdown import Breakdown
from colonnade.describe.device_order import in_order
from colonnade.describe.pictures.drawings import MOST_BOXES, boxes
from colonnade.describe.pictures.html import bars, paragraphs
from colonnade.describe.pictures.machine_map import MOST_DEVICES
from colonnade.describe.spans import merged
from colonnade.errors import Problem, check, is_whole

# Colours of Chrome's own palette, so that a trace reads like the picture.
_COLOURS = {"forward": "good", "backward": "bad"}
# What a trace tells of an event beside its times.
_TOLD = ("stage", "micro_batch", "replica", "bytes", "step", "bucket", "link", "cause")


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
    step: int | None = None
    bucket: int | None = None  # of a reduction: which of its messages
    link: str | None = None  # of what is moved: from where to where, such as CPU:1 -> CPU:0
    cause: str | None = None  # of waiting: what for, a device, a kind of work or a few words

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True, repr=False)
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
        return cls(tuple(replace(e, start=e.start - origin, end=e.end - origin) for e in known))

    @property
    def span(self) -> float:
        """Seconds from the first start to the last end."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(event.device for event in self.events))

    def busy(self, device: str) -> float:
        """Seconds in which a device was at work."""
        own = merged((e.start, e.end) for e in self.events if e.device == device and e.kind != "waiting")
        return sum(end - start for start, end in own)

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
        working = merged((e.start, e.end) for e in self.events if e.kind != "waiting")
        any_device = sum(end - start for start, end in working)
        return 1 - any_device / work if work else 0.0

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that it is of, as far as events say."""
        return tuple(sorted({event.step for event in self.events if event.step is not None}))

    def breakdown(self) -> Breakdown:
        """Where the time went, by device and kind; what devices waited for; what would help."""
        return Breakdown.of(self.events)

    def summary(self) -> str:
        """The same as a table and in words."""
        return str(self.breakdown())

    def _repr_html_(self) -> str:
        """In a notebook: the picture, the parts of the time, and the words."""
        breakdown, every = self.breakdown(), in_order(self.devices)
        devices = every[:MOST_DEVICES]
        rows = {device: breakdown.seconds[device] for device in devices if device in breakdown.seconds}
        events = [event for event in self.events if event.device in devices]
        left_out = [f"{len(every) - len(devices):,} more devices are not drawn."] * (every != devices)
        if len(events) > MOST_BOXES:
            left_out.append(f"{len(events) - MOST_BOXES:,} shorter events are not drawn.")
        picture = boxes(events, devices, self.span) + bars(rows, breakdown.span, breakdown.host)
        return picture + paragraphs([*left_out, *breakdown.sentences()])

    def __repr__(self) -> str:
        """Short, also inside of a history: the events are many."""
        return f"<Timeline: {len(self.events)} events, {len(self.devices)} lines, {self.span * 1e3:.4g} ms>"

    def to_json(self) -> str:
        """As JSON, for `from_json`."""
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
                "args": {name: value for name, value in asdict(event).items() if name in _TOLD},
                **({"cname": _COLOURS[event.kind]} if event.kind in _COLOURS else {}),
            }
            for event in self.events
        ]
        return json.dumps({"traceEvents": [*names, *tasks], "displayTimeUnit": "ms"})


def label(event: Event) -> str:
    """A short name: F3 for the forward pass of micro-batch 3, B3 for its backward pass.

    >>> label(Event("CPU:0", 0.0, 1.0, "backward", stage=1, micro_batch=3))
    'B3'
    """
    return event.kind if event.micro_batch is None else f"{event.kind[:1].upper()}{event.micro_batch}"


def _time(value: Any) -> bool:
    """Whether a number of seconds can be reckoned with."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return plain and fields.number(abs(value))


_FIX = "Pass what to_json() gave"
_WHOLE = fields.Rule(lambda v: is_whole(v, 0, 2**62), "must be a whole number from 0 up", _FIX)
_TIME = fields.Rule(_time, "must be a number of seconds", _FIX)
_TEXT = fields.Rule(fields.TEXT.holds, "must be text", _FIX)
_RULES = {
    "device": _TEXT,
    "start": _TIME,
    "end": _TIME,
    "kind": _TEXT,
    "stage": fields.optional(_WHOLE),
    "micro_batch": fields.optional(_WHOLE),
    "replica": _WHOLE,
    "bytes": fields.Rule(fields.number, "must be a number, 0 or more", _FIX),
    "step": fields.optional(_WHOLE),
    "bucket": fields.optional(_WHOLE),
    "link": fields.optional(_TEXT),
    "cause": fields.optional(_TEXT),
}


def _problems(data: Any) -> Iterator[Problem]:
    if not isinstance(data, dict) or not isinstance(data.get("events"), list):
        yield Problem("text", type(data).__name__, "must be an object with a list of events", _FIX)
        return
    for i, event in enumerate(data["events"]):
        at = f"events[{i}]."
        wrong = list(fields.strangers(Event, event, at)) or list(fields.amiss(_RULES, event, at))
        if not wrong and event["end"] < event["start"]:
            wrong.append(Problem(f"{at}end", event["end"], "must not be before start", _FIX))
        if wrong:  # one event is enough: there may be thousands
            yield from wrong
            return
