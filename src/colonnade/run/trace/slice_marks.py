"""Events of devices that do not wait for each other, from what their threads mark and their graphs note.

TensorFlow runs a slice in one thread and records none of its ops. So the threads mark what they do (see
`hardware.profile.mark`), and the graphs of slices and updates note a moment each (`note`):

    slice CPU:1 7           the gradient of a slice of step 7;  inside: turned CPU:1 ...   the loss is there
    update CPU:1 7 64       a push of 64 bytes;                 inside: arrived CPU:1 ...  all of it is there
    queue CPU:1             a thread that asks for a slice
    bound CPU:1             one that may not read the parameters yet
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from colonnade.describe.spans import Span, common, merged, without
from colonnade.describe.timeline import Event
from colonnade.describe.waits import BOUND, EDGE
from colonnade.hardware.profile import ProfiledOp, noted

Noted = Mapping[str, Sequence[tuple[float, ProfiledOp]]]


def slice_events(marks: Sequence[ProfiledOp], home: str) -> list[Event]:
    """What devices did; `home` is where the parameters are."""
    moments: dict[str, list[tuple[float, ProfiledOp]]] = defaultdict(list)
    for words, moment, op in noted(m for m in marks if m.name.startswith(("turned ", "arrived "))):
        moments[words].append((moment, op))
    return [event for mark in marks for event in _events(mark, moments, home)]


def _events(mark: ProfiledOp, moments: Noted, home: str) -> Iterable[Event]:
    kind, *words = mark.name.split(" ")
    if kind == "slice":
        device, step = words[0], int(words[1])
        turn = _inside(moments.get(f"turned {device}", ()), mark)
        if turn is None:  # the slice failed
            return [Event(device, mark.start, mark.end, "compute", step=step)]
        return [
            Event(device, mark.start, turn, "forward", step=step),
            Event(device, turn, mark.end, "backward", step=step),
        ]
    if kind == "update":
        device, step, sent = words[0], int(words[1]), int(words[2])
        arrived = _inside(moments.get(f"arrived {device}", ()), mark)
        if arrived is None or device == home:
            return [Event(device, mark.start, mark.end, "update", step=step)]
        link = f"{device} -> {home}"
        return [
            Event(device, mark.start, arrived, "reduction", bytes=sent, step=step, link=link),
            Event(device, arrived, mark.end, "update", step=step),
        ]
    return []


def _inside(moments: Iterable[tuple[float, ProfiledOp]], mark: ProfiledOp) -> float | None:
    """The moment that was noted while something was marked; clocks may differ by a little."""
    for moment, op in moments:
        if mark.start <= op.start <= mark.end:
            return min(max(moment, mark.start), mark.end)
    return None


def known_waits(
    marks: Iterable[ProfiledOp], device: str, busy: Sequence[Span], fetches: Sequence[Span], whole: Span
) -> dict[str, list[Span]]:
    """What a device is known to have waited for.

    Args:
        marks: of all threads.
        device: the one that waited.
        busy: when it was at work.
        fetches: when a batch was fetched.
        whole: the timeline, from its first event to its last.
    """
    waits: dict[str, list[Span]] = defaultdict(list)
    for mark in marks:
        kind, *words = mark.name.split(" ")
        if words[:1] == [device]:
            waits[kind].append((mark.start, mark.end))
    known = merged(fetches)
    begun, ended = (busy[0][0], busy[-1][1]) if busy else (whole[1], whole[1])
    edges = without([whole], [(begun, ended)])
    return {
        BOUND: merged(waits["bound"]),
        "input": common(merged(waits["queue"]), known),
        EDGE: without(edges, known),
    }
