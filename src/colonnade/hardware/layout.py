"""From the arguments of `cn.setup()` to what TensorFlow is told; plain data, no TensorFlow."""

import math
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from colonnade.errors import Problem, check, is_whole
from colonnade.hardware.cards import Card
from colonnade.hardware.cores import cores
from colonnade.hardware.gpu import SETUP_MEMORY, SETUP_VIRTUAL

# A divided or shared card keeps the rest of its memory for CUDA itself, unless the user names a limit.
DIVIDED_FRACTION = 0.9
# CUDA's context and libraries take memory of a card (MiB) before TensorFlow takes any.
CONTEXT = 1024
# CUDA itself needs more than this on a card, so a smaller limit (MiB) is a mistake.
SMALLEST_LIMIT = 16


@dataclass(frozen=True)
class Request:
    """What the user asked of `setup`, as it was passed."""

    devices: Any = None
    virtual: Any = None
    memory: Any = None
    growth: Any = None
    soft_placement: Any = True
    threads: Any = None

    def __str__(self) -> str:
        given = [
            (f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) is not f.default
        ]
        return f"setup({', '.join(f'{name}={value!r}' for name, value in given)})"


@dataclass(frozen=True)
class Layout:
    """What TensorFlow is told: the physical devices it may use, how each is divided, its threads."""

    kind: str  # CPU or GPU
    visible: tuple[int, ...]  # positions in TensorFlow's list of physical devices of that kind
    parts: tuple[tuple[int | None, ...], ...]  # for each of them, the limit in MiB of each part
    growth: bool | None = None
    threads: tuple[int, int] | None = None  # inside an op, between ops; 0 is for TensorFlow to choose


def plan(request: Request, cards: Sequence[Card], processes: int = 1) -> Layout:
    """Check a request against the cards of the machine; all that is wrong comes in one error.

    Args:
        processes: how many train together on this machine.
    """
    check("setup()", _problems(request, cards))
    threads = _pair(request.threads)
    parts = int(request.virtual or 1)
    if not cards:
        if threads is None:
            threads = _share(parts, processes)
        limit = None if request.memory is None else int(request.memory)
        return Layout("CPU", (0,), ((limit,) * parts,), threads=threads)
    chosen = _chosen(request, cards)
    limits = tuple((_limit(request.memory, cards[i], request.virtual),) * parts for i in chosen)
    return Layout("GPU", chosen, limits, request.growth, threads)


def _share(parts: int, processes: int) -> tuple[int, int] | None:
    """Threads for the devices of the CPU, where others of the same training compute beside them.

    An op that spreads over all cores takes them from the other devices, and waits for all of them.
    """
    own = cores()
    if processes > 1:  # unless a scheduler has given each its own
        own = max(1, min(own, (os.cpu_count() or 1) // processes))
    if parts >= max(2, own) or (own <= 1 < cores()):
        return 1, 0
    return (own, 0) if own < cores() else None


def leased(request: Request, environment: Mapping[str, str], cards: Sequence[Card]) -> Request:
    """A request with what `colonnade run` leased in place of what the program left open."""
    problems: list[Problem] = []

    def read(variable: str, parse: Callable[[str], float], rule: str) -> float | None:
        text = environment.get(variable)
        try:
            value = None if text is None else parse(text)
        except ValueError:
            value = 0
        if value is not None and not value > 0:
            problems.append(Problem(variable, text, rule, "Unset it; colonnade run sets it"))
            return None
        return value

    if request.virtual is None:
        count = read(SETUP_VIRTUAL, int, "must be a whole number from 1 up")
        request = replace(request, virtual=None if count is None else int(count))
    if request.memory is None:
        share = read(SETUP_MEMORY, float, "must be a fraction of a card (0.9) or MiB (4096), and above 0")
        if share is not None and not cards:
            why = "TensorFlow sees no card here, and CPU devices have no memory limit"
            warnings.warn(f"{SETUP_MEMORY}={share:g} from colonnade run is not used: {why}", stacklevel=3)
        elif share is not None:
            # The share is one card's, whatever number of devices the program makes of it.
            parts = request.virtual if is_count(request.virtual) else 1
            request = replace(request, memory=(_beside_cuda(share, cards) if share <= 1 else share) / parts)
    check("the environment of setup()", problems)
    return request


def _beside_cuda(share: float, cards: Sequence[Card]) -> float:
    """What of a leased part of a card is for TensorFlow: CUDA's own memory must fit into it too.

    Others have leased the rest. Of a part that is hardly more than that, TensorFlow has half.
    """
    smallest = min((card.mib for card in cards if card.memory is not None), default=0)
    left = share - CONTEXT / smallest if smallest else share
    return max(share / 2, min(share * DIVIDED_FRACTION, left))


def listed(devices: Any) -> Any:
    """What a user passes as `devices=`: None, a count, or a tuple of positions and names."""
    if isinstance(devices, str):
        return (devices,)
    if is_whole(devices, numpy=True) or devices is None or not isinstance(devices, Iterable):
        return devices
    return tuple(operator.index(d) if is_whole(d, numpy=True) else d for d in devices)


def is_count(value: Any) -> bool:
    return is_whole(value, 1, numpy=True)


def _chosen(request: Request, cards: Sequence[Card]) -> tuple[int, ...]:
    devices = listed(request.devices)
    if devices is None:
        return (0,) if request.virtual else tuple(range(len(cards)))
    if is_whole(devices, numpy=True):
        return tuple(range(devices))
    return tuple(sorted(_position(d, cards) for d in devices))


def _position(device: Any, cards: Sequence[Card]) -> Any:
    """A card's position by its UUID; anything else as it is."""
    return next((i for i, card in enumerate(cards) if card.uuid == device), device)


def _limit(memory: Any, card: Card, virtual: Any) -> int | None:
    """The limit in MiB of one of so many virtual devices on a card, or of all of it.

    TensorFlow divides a card only if it is told the limits, also into one part.
    """
    if memory is None and virtual is None:
        return None
    if memory is None:
        return max(0, min(int(card.mib * DIVIDED_FRACTION), card.mib - CONTEXT)) // int(virtual)
    return int(card.mib * memory if memory <= 1 else memory)


def _pair(threads: Any) -> tuple[int, int] | None:
    if threads is None:
        return None
    inside, between = threads if isinstance(threads, tuple | list) else (threads, threads)
    return int(inside), int(between)


def _problems(request: Request, cards: Sequence[Card]) -> Iterator[Problem]:
    wrong_devices = list(_device_problems(request, cards))
    yield from wrong_devices
    if request.virtual is not None and not is_count(request.virtual):
        yield Problem("virtual", request.virtual, "must be a whole number from 1 up", "Try virtual=2")
    else:
        used = cards if wrong_devices or not cards else [cards[i] for i in _chosen(request, cards)]
        yield from _memory_problems(request, used)
    if request.growth is not None and not isinstance(request.growth, bool):
        yield Problem("growth", request.growth, "must be True, False or None", "Try growth=True")
    elif request.growth and not cards:
        yield Problem("growth", True, "is for cards, and this process sees none", "Leave it out")
    if not isinstance(request.soft_placement, bool):
        yield Problem("soft_placement", request.soft_placement, "must be True or False", "Leave it out")
    threads = request.threads
    pair = threads if isinstance(threads, tuple | list) else (threads, threads)
    if threads is not None and (len(pair) != 2 or not all(map(is_count, pair))):
        rule = "must be a whole number from 1 up, or a pair of them (inside an op, between ops)"
        yield Problem("threads", threads, rule, "Try threads=2 or threads=(1, 2)")


def _device_problems(request: Request, cards: Sequence[Card]) -> Iterator[Problem]:
    devices, count = listed(request.devices), len(cards) or 1
    if devices is None:
        return
    if isinstance(devices, tuple):
        yield from _name_problems(devices, cards)
        several = len(devices) > 1
    elif not is_count(devices):
        yield Problem(
            "devices", devices, "must be a count from 1 up, positions or UUIDs", "Leave it out for all"
        )
        return
    else:
        several = devices > 1
        if devices > count:
            fix = f"Ask for {count} or fewer" if cards else f"Leave it out, and ask for virtual={devices}"
            yield Problem("devices", devices, f"there are not that many: {_have(cards)}", fix)
    if cards and request.virtual is not None and several:
        rule = "virtual devices divide one card"
        yield Problem("devices", devices, rule, "Name one card, or leave devices or virtual out")


def _name_problems(devices: tuple[Any, ...], cards: Sequence[Card]) -> Iterator[Problem]:
    if not devices:
        yield Problem("devices", devices, "names no device", "Leave it out for all")
    positions = [_position(d, cards) for d in devices]
    if any(positions.count(p) > 1 for p in positions):
        yield Problem("devices", devices, "names a device twice", "Name each once")
    last = max(len(cards), 1) - 1
    for d in (d for i, d in enumerate(devices) if d not in devices[:i]):
        if isinstance(d, str) and _position(d, cards) == d:
            known = ", ".join(card.uuid for card in cards) or "none"
            rule = f"no visible card has this UUID; {_have(cards)}"
            yield Problem("devices", d, rule, f"Known UUIDs: {known}")
        elif not isinstance(d, str) and not is_whole(d, 0, last, numpy=True):
            yield Problem("devices", d, f"no such position; {_have(cards)}", f"Positions go from 0 to {last}")


def _memory_problems(request: Request, cards: Sequence[Card]) -> Iterator[Problem]:
    memory, parts = request.memory, int(request.virtual or 1)
    if memory is None:
        if request.virtual is None or not cards:
            return
        if cards[0].memory is None:
            yield _untold(memory, cards[0])
        elif (_limit(None, cards[0], parts) or 0) < SMALLEST_LIMIT:
            yield Problem(
                "virtual", parts, f"leaves less than {SMALLEST_LIMIT} MiB to each device", "Ask for fewer"
            )
        return
    numeric = isinstance(memory, int | float) and not isinstance(memory, bool)
    if not numeric or not memory > 0 or not math.isfinite(memory):
        rule = "must be a fraction of a card (0.9) or MiB (4096), and above 0"
        yield Problem("memory", memory, rule, "Try memory=0.9")
    elif not cards:
        if memory <= 1 or not float(memory).is_integer():
            rule = "a fraction is one of a card, and this process sees none"
            yield Problem("memory", memory, rule, "Name MiB, a whole number: memory=512")
    elif memory > 1 and not float(memory).is_integer():
        rule = "a fraction must be at most 1, and MiB a whole number"
        yield Problem("memory", memory, rule, "Try memory=0.9 or memory=4096")
    else:
        yield from (p for card in cards for p in _limit_problems(memory, card, parts))


def _limit_problems(memory: float, card: Card, parts: int) -> Iterator[Problem]:
    if memory <= 1 and card.memory is None:
        yield _untold(memory, card)
        return
    limit = _limit(memory, card, parts) or 0
    asked = f"{parts} x {limit}" if parts > 1 else f"{limit}"
    if card.memory is not None and limit * parts > card.mib:
        rule = f"{asked} MiB is more than card {card.index} ({card.name}) has, {card.mib} MiB"
        yield Problem("memory", memory, rule, f"Ask for at most {card.mib // parts}")
    elif limit < SMALLEST_LIMIT:
        yield Problem(
            "memory", memory, f"is {asked} MiB on card {card.index}, too little to start", "Ask for more"
        )


def _untold(memory: float | None, card: Card) -> Problem:
    rule = f"the driver does not tell how much memory card {card.index} has, to take a part of it"
    return Problem("memory", memory, rule, "Name MiB: memory=4096")


def _have(cards: Sequence[Card]) -> str:
    if not cards:
        return "this process sees no cards, only the CPU as one device"
    return f"this process sees {len(cards)} card{'s' if len(cards) > 1 else ''}"
