"""Where the time of a timeline went: by device and kind, what devices waited for, and what would help."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from colonnade.describe.device_order import in_order
from colonnade.describe.spans import Span, length, merged, without
from colonnade.describe.waits import BOUND, COMPUTE, HOST, OTHER_MACHINES, PROGRAM, blamed

if TYPE_CHECKING:
    from colonnade.describe.timeline import Event

# In the order in which a step has them. Where two run at once on a device, the first of WORK counts.
KINDS = ("input", "forward", "backward", "compute", "reduction", "update", "checkpoint", "waiting")
WORK = (*COMPUTE, "reduction", "update", "checkpoint", "input")
# A part of the time from which on something is worth a word.
MUCH = 0.1
# A device that takes so many times as long for a slice as others is slow.
SLOW = 1.25


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
    host: Mapping[str, float]  # of input, checkpoints and messages, whether or not anybody waited
    paces: Mapping[str, float]  # by device: seconds in which it computes a slice, undisturbed
    medians: Mapping[str, float]  # by device: seconds in which it computes half of its slices, or fewer

    @classmethod
    def of(cls, events: Iterable["Event"]) -> "Breakdown":
        events = list(events)
        begin = min((event.start for event in events), default=0.0)
        end = max((event.end for event in events), default=0.0)
        devices = [d for d in dict.fromkeys(event.device for event in events) if d != HOST]
        by_kind: dict[str, dict[str, list[Span]]] = {
            device: _spans(event for event in events if event.device == device) for device in (*devices, HOST)
        }
        busy = {device: merged(s for spans in by_kind[device].values() for s in spans) for device in devices}
        seconds, waited = {}, {}
        for device in devices:
            row: dict[str, float] = {}
            taken: list[Span] = []
            for kind in (*WORK, *(k for k in by_kind[device] if k not in WORK)):
                fresh = without(merged(by_kind[device].get(kind, ())), taken)
                row[kind], taken = length(fresh), merged([*taken, *fresh])
            idle = without([(begin, end)], busy[device])
            row["waiting"] = length(idle)
            seconds[device] = {kind: amount for kind, amount in row.items() if amount > 0}
            known = _known(event for event in events if event.device == device)
            blame = blamed(device, idle, by_kind, known)
            waited[device] = {cause: length(spans) for cause, spans in blame.items()}
        steps = {event.step for event in events if event.step is not None}
        host = {kind: length(merged(spans)) for kind, spans in by_kind[HOST].items()}
        staged = any(event.stage is not None for event in events)
        # What else a machine does makes some slices longer, and none shorter.
        paces = {device: _pace(by_kind[device], 0.25) for device in devices}
        medians = {device: _pace(by_kind[device], 0.5) for device in devices}
        return cls(end - begin, len(steps), seconds, waited, staged, host, paces, medians)

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
        """A device that computes much longer than most; none of a pipeline, whose stages differ."""
        return self._slow[0] if self._slow else None

    @property
    def _slow(self) -> tuple[str, float] | None:
        """The device, and how many times as long it takes.

        Where devices share cores, chance makes any of them slower for a while. So three quarters of its
        slices must have taken longer than half of those of each other device.
        """
        paces = {device: pace for device, pace in self.paces.items() if pace}
        if len(paces) < 2 or self.staged:
            return None
        slowest = max(paces, key=lambda device: paces[device])
        others = median(pace for device, pace in paces.items() if device != slowest)
        by_chance = paces[slowest] <= max(self.medians[device] for device in paces if device != slowest)
        if not others or by_chance or paces[slowest] <= SLOW * others:
            return None
        return slowest, paces[slowest] / others

    def advice(self) -> list[str]:
        """What would help, the largest matter first; nothing where no matter is large."""
        matters = [
            (self.waiting_for("input"), "input: {} of the time; prefetch, or cache behind the map"),
            (self.waiting_for("checkpoint"), "checkpoints: {} of the time; save less often"),
            (sum(self.waiting_for(device) for device in self.seconds), self._of_waiting()),
            (
                self.waiting_for(OTHER_MACHINES),
                "other machines: {} of the time; larger batches, or cn.LocalSGD(across='machines')",
            ),
            (
                self.waiting_for(BOUND),
                "staleness: {} of the time devices may not read yet; a larger max_staleness lets them",
            ),
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
                "between steps: {} of the time nothing runs; larger batches, or a larger log_every "
                "(of cn.fit: steps_per_execution)",
            ),
        ]
        worth = sorted((matter for matter in matters if matter[0] >= MUCH), reverse=True)
        return [words.format(f"{part:.0%}") for part, words in worth]

    def _of_waiting(self) -> str:
        if self.staged:
            return "stages wait for each other: {} of the time; more micro-batches, or a more even placement"
        if self.slow:
            words = "; cn.Synchronous(shares='measured') gives it smaller slices"
            slow = self.slow.replace("{", "{{").replace("}", "}}")
            return f"devices wait for {slow}: {{}} of the time{words}"
        return "devices wait for each other: {} of the time; with cn.Asynchronous they do not"

    def sentences(self) -> list[str]:
        """The breakdown in words."""
        if not self.seconds:
            return ["Nothing was recorded."]
        steps = f"{self.num_steps} steps" if self.num_steps > 1 else "One step"
        each = f", {_time(self.span / self.num_steps)} each" if self.num_steps > 1 else ""
        devices = f"{len(self.seconds)} device{'s' * (len(self.seconds) > 1)}"
        said = [f"{steps} in {_time(self.span)}{each}, on {devices}."]
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
        if self._slow:
            said.append(
                f"{self._slow[0]} is slow: it computes {self._slow[1]:.2g} times as long as the others."
            )
        return [*said, *(f"{words[0].upper()}{words[1:]}." for words in self.advice())]

    def __str__(self) -> str:
        """The table, and under it the words."""
        head = ["device", *self.kinds]
        rows = [
            [d, *(f"{self.seconds[d].get(k, 0.0) / self.span:.0%}" if self.span else "" for k in self.kinds)]
            for d in in_order(self.seconds)
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


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _spans(events: Iterable["Event"]) -> dict[str, list[Span]]:
    """By kind; a recorded wait is no work."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.kind != "waiting":
            spans[event.kind].append((event.start, event.end))
    return spans


def _pace(by_kind: Mapping[str, Iterable[Span]], part: float) -> float:
    """Seconds for a slice, there and back, in which this part of the slices was done, or less.

    Of a slice, because a slow device may have had fewer of them than others.
    """
    each = [sorted(end - start for start, end in by_kind.get(kind, ())) for kind in COMPUTE]
    return sum(seconds[int(len(seconds) * part)] for seconds in each if seconds)


def _known(events: Iterable["Event"]) -> dict[str, list[Span]]:
    """The waits that say what they are for."""
    known: dict[str, list[Span]] = defaultdict(list)
    for event in events:
        if event.kind == "waiting" and event.cause is not None:
            known[event.cause].append((event.start, event.end))
    return known
