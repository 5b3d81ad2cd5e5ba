"""What a device waits for while it does nothing: told by what ran meanwhile on the others and on the host."""

from collections.abc import Mapping, Sequence

from colonnade.describe.spans import Span, common, length, merged, without

COMPUTE = ("forward", "backward", "compute")  # the last where the two are not told apart
HOST = "host"  # what no device does: input, checkpoints, messages between machines
# Causes that are neither a device nor a kind of work.
PROGRAM = "the program between steps"
OTHER_MACHINES = "other machines"
BOUND = "max_staleness"  # a device that may not read the parameters yet
EDGE = "the edges of the recording"  # before its first slice, and after its last

# By device and kind, when it was at work.
Work = Mapping[str, Mapping[str, Sequence[Span]]]


def blamed(
    device: str,
    idle: Sequence[Span],
    work: Work,
    known: Mapping[str, Sequence[Span]] | None = None,
    *,
    free: bool = False,
) -> dict[str, list[Span]]:
    """Parts of the time in which a device does nothing, by cause, each part once.

    Args:
        device: the one that does nothing.
        idle: when.
        work: of all devices, and of the host.
        known: spans whose cause is known; of all others the first counts of: a save, another device that
            computes, other machines, a reduction, an update, the input; and where there is none, the program.
        free: whether devices never wait for another one to compute.

    >>> blamed("CPU:1", [(1, 5)], {"CPU:0": {"forward": [(0, 3)], "update": [(3, 4)]}})
    {'CPU:0': [(1, 3)], 'update': [(3, 4)], 'the program between steps': [(4, 5)]}
    """
    others = [other for other in work if other not in (device, HOST)]
    host = work.get(HOST, {})

    def elsewhere(kind: str) -> list[Span]:
        return merged(span for other in others for span in work[other].get(kind, ()))

    compute = {other: merged(s for kind in COMPUTE for s in work[other].get(kind, ())) for other in others}
    # A slower device is waited for to its end, so it comes first where several compute.
    by_end = sorted(others, key=lambda other: -length(compute[other]))
    reasons = [
        ("checkpoint", merged(host.get("checkpoint", ()))),
        *((cause, merged(spans)) for cause, spans in (known or {}).items()),
        *((other, compute[other]) for other in by_end if not free),
        (OTHER_MACHINES, merged(host.get("reduction", ()))),
        ("reduction", elsewhere("reduction")),
        ("update", elsewhere("update")),
        ("input", merged(host.get("input", ()))),
    ]
    blame: dict[str, list[Span]] = {}
    left = list(idle)
    for cause, spans in (*reasons, (PROGRAM, left)):
        part = common(left, spans)
        if length(part) > 1e-12:
            blame[cause] = merged([*blame.get(cause, ()), *part])
        left = without(left, spans)
    return blame
