"""Where the time of a timeline went: by device and kind, what devices waited for, and what would help."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colonnade.describe.timeline import Event

# In the order in which a step has them. Where two run at once on a device, the first of WORK counts.
KINDS = ("input", "forward", "backward", "compute", "reduction", "update", "checkpoint", "waiting")
COMPUTE = ("forward", "backward", "compute")  # the last where the two are not told apart
WORK = (*COMPUTE, "reduction", "update", "checkpoint", "input")
HOST = "host"  # what no device does: input and checkpoints
PROGRAM = "the program between steps"
# A part of the time from which on something is worth a word.
MUCH = 0.1
# A device that takes so many times as long as the median is slow.
SLOW = 1.15

Span = tuple[float, float]


@dataclass(frozen=True)
class Breakdown:
    """Seconds of each device by kind; what is no work is waiting.

    Example:
        >>> from colonnade.describe.timeline import Event
        >>> work = [Event("CPU:0", 0, 3, "forward"), Event("CPU:1", 0, 1, "forward")]
        >>> breakdown = Breakdown.of([*work, Event("CPU:0", 3, 4, "update")])
        >>> breakdown.seconds["CPU:1"]["waiting"], breakdown.waited_for["CPU:1"]
        (3, {'CPU:0': 2, 'update': 1})
    """

    span: float
    num_steps: int
    seconds: Mapping[str, Mapping[str, float]]  # by device and kind; each device's add up to the span
    waited_for: Mapping[str, Mapping[str, float]]  # by device: a device, a kind, or the program
    staged: bool  # whether it is of a pipeline
    host: Mapping[str, float]  # of input and checkpoints, whether or not anybody waited

    @classmethod
    def of(cls, events: Iterable["Event"]) -> "Breakdown":
        known = list(events)
        begin = min((event.start for event in known), default=0.0)
        end = max((event.end for event in known), default=0.0)
        devices = [d for d in dict.fromkeys(event.device for event in known) if d != HOST]
        by_kind: dict[str, dict[str, list[Span]]] = {
            device: _spans(event for event in known if event.device == device) for device in (*devices, HOST)
        }
        busy = {device: merged(s for spans in by_kind[device].values() for s in spans) for device in devices}
        seconds, waited = {}, {}
        for device in devices:
            row: dict[str, float] = {}
            taken: list[Span] = []
            for kind in (*WORK, *(k for k in by_kind[device] if k not in WORK)):
                fresh = without(merged(by_kind[device].get(kind, ())), taken)
                row[kind], taken = _length(fresh), merged([*taken, *fresh])
            idle = without([(begin, end)], busy[device])
            row["waiting"] = _length(idle)
            seconds[device] = {kind: amount for kind, amount in row.items() if amount > 0}
            waited[device] = _blamed(device, idle, by_kind, busy)
        steps = {event.step for event in known if event.step is not None}
        host = {kind: _length(merged(spans)) for kind, spans in by_kind[HOST].items()}
        staged = any(event.stage is not None for event in known)
        return cls(end - begin, len(steps), seconds, waited, staged, host)

    @property
    def kinds(self) -> list[str]:
        """The kinds that take any time, in the order of a step."""
        there = {kind for row in self.seconds.values() for kind in row}
        return [*(kind for kind in KINDS if kind in there), *sorted(there - set(KINDS))]

    def part(self, kind: str) -> float:
        """The part of all devices' time that goes into a kind."""
        total = self.span * len(self.seconds)
        return sum(row.get(kind, 0.0) for row in self.seconds.values()) / total if total else 0.0

    def waiting_for(self, what: str) -> float:
        """The part of all devices' time in which they waited for this."""
        total = self.span * len(self.seconds)
        return sum(row.get(what, 0.0) for row in self.waited_for.values()) / total if total else 0.0

    @property
    def slow(self) -> str | None:
        """A device that computes much longer than most."""
        work = {d: sum(row.get(kind, 0.0) for kind in COMPUTE) for d, row in self.seconds.items()}
        if len(work) < 2:
            return None
        slowest = max(work, key=lambda device: work[device])
        others = median(amount for device, amount in work.items() if device != slowest)
        return slowest if others and work[slowest] > SLOW * others else None

    def advice(self) -> list[str]:
        """What would help, the largest matter first; nothing where no matter is large."""
        matters = [
            (self.waiting_for("input"), "input: {} of the time; prefetch, or cache behind the map"),
            (self.waiting_for("checkpoint"), "checkpoints: {} of the time; save less often"),
            (sum(self.waiting_for(device) for device in self.seconds), self._of_waiting()),
            (
                self.part("reduction") + self.waiting_for("reduction"),
                "reduction: {} of the time; larger batches, or cn.LocalSGD, which reduces less often",
            ),
            (
                self.part("update") + self.waiting_for("update"),
                "update: {} of the time; larger batches make fewer of them",
            ),
            (
                self.waiting_for(PROGRAM),
                "between steps: {} of the time nothing runs; larger batches, or more steps per log line",
            ),
        ]
        worth = sorted((matter for matter in matters if matter[0] >= MUCH), reverse=True)
        return [words.format(f"{part:.0%}") for part, words in worth]

    def _of_waiting(self) -> str:
        if self.staged:
            return "stages wait for each other: {} of the time; more micro-batches, or a more even placement"
        if self.slow:
            words = "; cn.Synchronous(shares='measured') gives it smaller slices"
            return f"devices wait for {self.slow}: {{}} of the time{words}"
        return "devices wait for each other: {} of the time; cn.LocalSGD lets them go on by themselves"

    def sentences(self) -> list[str]:
        """The breakdown in words."""
        if not self.seconds:
            return ["Nothing was recorded."]
        steps = f"{self.num_steps} steps" if self.num_steps > 1 else "One step"
        each = f", {self.span / self.num_steps * 1e3:.3g} ms each" if self.num_steps > 1 else ""
        said = [f"{steps} in {self.span * 1e3:.3g} ms{each}, on {len(self.seconds)} devices."]
        parts = [(kind, self.part(kind)) for kind in self.kinds if self.part(kind) >= 0.005]
        said.append("Of the devices' time: " + ", ".join(f"{kind} {part:.0%}" for kind, part in parts) + ".")
        reasons: dict[str, float] = defaultdict(float)
        for row in self.waited_for.values():
            for what, amount in row.items():
                reasons[what] += amount / (self.span * len(self.seconds))
        most = sorted(reasons.items(), key=lambda reason: -reason[1])[:3]
        if most and most[0][1] >= 0.01:
            said.append(
                "They waited for " + ", ".join(f"{what} ({part:.0%})" for what, part in most if part >= 0.01)
            )
            said[-1] += "."
        return [*said, *(f"{words[0].upper()}{words[1:]}." for words in self.advice())]

    def __str__(self) -> str:
        """The table, and under it the words."""
        head = ["device", *self.kinds]
        rows = [
            [d, *(f"{row.get(k, 0.0) / self.span:.0%}" if self.span else "" for k in self.kinds)]
            for d, row in sorted(self.seconds.items())
        ]
        widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w)
                for i, (cell, w) in enumerate(zip(r, widths, strict=True))
            )
            for r in (head, *rows)
        ]
        return "\n".join([*lines, "", *self.sentences()])


def _spans(events: Iterable["Event"]) -> dict[str, list[Span]]:
    """By kind; a recorded wait is no work."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.kind != "waiting":
            spans[event.kind].append((event.start, event.end))
    return spans


def _blamed(
    device: str,
    idle: Sequence[Span],
    by_kind: Mapping[str, Mapping[str, Sequence[Span]]],
    busy: Mapping[str, Sequence[Span]],
) -> dict[str, float]:
    """What ran meanwhile: a save, another device that computes, a reduction, an update, the input."""
    others = [other for other in busy if other != device]

    def elsewhere(kinds: Sequence[str]) -> list[Span]:
        return merged(s for other in others for kind in kinds for s in by_kind[other].get(kind, ()))

    compute = {other: merged(s for kind in COMPUTE for s in by_kind[other].get(kind, ())) for other in others}
    # A slower device is waited for to its end, so it comes first where several compute.
    by_end = sorted(others, key=lambda other: -_length(compute[other]))
    reasons: list[tuple[str, list[Span]]] = [
        ("checkpoint", merged(by_kind[HOST].get("checkpoint", ()))),
        *((other, compute[other]) for other in by_end),
        ("reduction", elsewhere(["reduction"])),
        ("update", elsewhere(["update"])),
        ("input", merged(by_kind[HOST].get("input", ()))),
    ]
    blamed: dict[str, float] = {}
    left = list(idle)
    for what, spans in reasons:
        rest = without(left, spans)
        amount = _length(left) - _length(rest)
        if amount > 1e-12:
            blamed[what] = amount
        left = rest
    if _length(left) > 1e-12:
        blamed[PROGRAM] = _length(left)
    return blamed


def merged(spans: Iterable[Span]) -> list[Span]:
    """The times in which at least one of some spans ran, in order.

    >>> merged([(2, 3), (0, 1), (0.5, 2)])
    [(0, 3)]
    """
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def without(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """What is left of ordered spans when others, ordered too, are cut out.

    >>> without([(0, 10)], [(1, 2), (9, 12)])
    [(0, 1), (2, 9)]
    """
    left = []
    first = 0
    for start, end in spans:
        while first < len(taken) and taken[first][1] <= start:
            first += 1
        at = first
        while at < len(taken) and taken[at][0] < end:
            if taken[at][0] > start:
                left.append((start, taken[at][0]))
            start = max(start, taken[at][1])
            at += 1
        if start < end:
            left.append((start, end))
    return left


def _length(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)
