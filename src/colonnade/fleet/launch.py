"""`colonnade run`: wait for cards, start a program on them, give them back when it ends.

What the program finds in its environment:

    with cards      CUDA_VISIBLE_DEVICES   the UUIDs of the leased cards
                    CUDA_DEVICE_ORDER      PCI_BUS_ID
                    COLONNADE_MEMORY       the share of each card, if less than all; read by `cn.setup()`
    with --virtual  CUDA_VISIBLE_DEVICES   -1: the CPU is divided, on any machine
                    COLONNADE_VIRTUAL      the number of leased virtual cards; read by `cn.setup()`
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import psutil

from colonnade.errors import RESUMABLE, InvalidArgument, LeaseTimeout, Problem, check
from colonnade.fleet.lease import Lease, Pool, ask, claims, is_share
from colonnade.fleet.supervise import supervise
from colonnade.hardware import gpu
from colonnade.hardware.cards import Process, detect, is_mps_server

TIMED_OUT = 124  # as timeout(1) says it
INTERRUPTED = 130  # by Ctrl-C before the program started
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def run(
    command: Sequence[str],
    *,
    cards: int | None = None,
    memory: str | None = None,
    timeout: str | None = None,
    share: bool = False,
    retries: int = 0,
    virtual: int | None = None,
    directory: Path | None = None,
) -> int:
    """Lease cards, run a command on them, and return its exit code.

    Args:
        command: the program and its arguments; no shell is involved.
        cards: how many cards; 1 by default, and with `virtual` all of those.
        memory: the share of each card, such as 0.5; all of it by default.
        timeout: how long to wait for cards, such as 90s, 30m, 1h30m; for ever by default.
        share: also take cards that somebody uses without a lease.
        retries: how often to start the command again when it ends with exit code 75.
        virtual: lease from this many virtual cards in place of real ones.
        directory: where the leases of the machine are.

    Returns:
        The exit code of the command, 128 + n if signal n ended it; 124 if no cards came free in time.
    """
    try:
        with leased(
            command,
            cards=cards,
            memory=memory,
            timeout=timeout,
            share=share,
            virtual=virtual,
            directory=directory,
            amiss=tuple(_no_retries(retries)),
        ) as lease:
            return _run(command, environment(os.environ, lease, virtual is not None), lease, retries)
    except LeaseTimeout as error:
        print(f"colonnade: {error}", file=sys.stderr)
        return TIMED_OUT
    except KeyboardInterrupt:
        return INTERRUPTED


@contextmanager
def leased(
    command: Sequence[str],
    *,
    cards: int | None = None,
    memory: str | None = None,
    timeout: str | None = None,
    share: bool = False,
    virtual: int | None = None,
    directory: Path | None = None,
    amiss: Sequence[Problem] = (),
) -> Iterator[Lease]:
    """Wait for cards, as `run` does, and give them back at the end; `amiss` is what else is wrong."""
    count = cards if cards is not None else virtual or 1
    pool = pool_of(count, virtual)
    check("run", [*_problems(command, count, memory, timeout, pool, virtual), *amiss])
    part = memory or "1"
    check("run", waits_for_itself(pool, count, part, directory))
    with ask(pool, count, memory=part, command=command, share=share, directory=directory) as lease:
        lease.wait(None if timeout is None else seconds(timeout), lambda place: _show(place, lease))
        yield lease


def environment(outside: Mapping[str, str], lease: Lease, virtual: bool) -> dict[str, str]:
    """What a program finds in its environment when it runs under a lease."""
    return on_cards(outside, lease.claim.slots, lease.claim.memory, virtual)


def on_cards(outside: Mapping[str, str], slots: Sequence[str], memory: str, virtual: bool) -> dict[str, str]:
    """What a program finds in its environment that has these cards, or so many virtual ones."""
    inside = {k: v for k, v in outside.items() if k not in (gpu.SETUP_VIRTUAL, gpu.SETUP_MEMORY)}
    inside[gpu.ORDER] = "PCI_BUS_ID"
    if virtual:
        return inside | {gpu.VISIBLE: "-1", gpu.SETUP_VIRTUAL: str(len(slots))}
    inside[gpu.VISIBLE] = ",".join(slots)
    if Fraction(memory) < 1:
        inside[gpu.SETUP_MEMORY] = memory
    return inside


def seconds(text: str) -> float:
    """A time span such as 45, 90s, 30m or 1h30m in seconds.

    Example:
        >>> seconds("1h30m")
        5400.0
    """
    parts = re.fullmatch(r"\d+|(\d+(\.\d+)?[smhd])+", text)
    if not parts:
        raise ValueError(f"{text!r} is not a time span")
    amounts: list[tuple[str, str]] = re.findall(r"([\d.]+)([smhd]?)", text)
    return sum(float(number) * UNITS[unit] for number, unit in amounts)


def pool_of(count: int, virtual: int | None) -> Pool:
    """What `count` cards are taken from: so many virtual ones, or the real ones of this machine."""
    return _virtual_cards(virtual) if virtual is not None else _cards(count)


def _cards(count: int) -> Pool:
    """The cards that this process may use; of the free ones, those with the best links between them.

    A program can use one MIG instance, and nothing beside it; so who asks for more gets whole cards.
    """
    machine = detect()
    uuids = [card.uuid for card in machine.cards]

    def best(free: Sequence[str], count: int) -> Sequence[str]:
        if count == 1:
            return free[:1]  # the first is one that is divided already, if there is such a one
        return [uuids[i] for i in machine.topology.best(count, among=[uuids.index(uuid) for uuid in free])]

    rows = [row for row in gpu.names(machine.cards, os.environ) if row.listed]
    slots = tuple(row.uuid for row in rows if count == 1 or row.instance is None)
    return Pool(slots, choose=best, occupants=_occupants)


def _occupants() -> dict[str, set[int]]:
    """The processes that compute on each card and on each MIG instance now, leased or not.

    A display server, and the server of MPS, do not keep anybody from computing.
    """
    occupants = {}
    for card in detect().cards:
        parts = {part.uuid: _computing(part.processes) for part in card.instances}
        everywhere = _computing(card.processes).difference(*parts.values())
        occupants[card.uuid] = everywhere
        # What the driver does not assign to an instance may be on any of them.
        occupants.update({uuid: pids | everywhere for uuid, pids in parts.items()})
    return occupants


def _computing(processes: Sequence[Process]) -> set[int]:
    return {process.pid for process in processes if process.computes and not is_mps_server(process.pid)}


def _virtual_cards(count: int) -> Pool:
    return Pool(tuple(f"virtual:{i}" for i in range(count)))


def _run(command: Sequence[str], inside: Mapping[str, str], lease: Lease, retries: int) -> int:
    for left in range(retries, -1, -1):
        try:
            outcome = supervise(command, inside, lease.descriptor)
        except OSError as error:
            rule = f"cannot be started ({error.strerror})"
            raise InvalidArgument("run", [_bad_command(command, rule)]) from None
        # Whoever interrupts a program that can be resumed wants it to end, not to start again.
        if outcome.code != RESUMABLE or outcome.interrupted or not left:
            break
        print(f"colonnade: exit code {RESUMABLE}, starting again ({left} left)", file=sys.stderr)
    return outcome.code


def _show(place: int, lease: Lease) -> None:
    claim = lease.claim
    what = f"{claim.count} of {len(claim.among)} card{'s' if len(claim.among) > 1 else ''}"
    line = "next in line" if place == 1 else f"number {place} in line"
    print(f"colonnade: waiting for {what}, {line}", file=sys.stderr, flush=True)


def _bad_command(command: Sequence[str], rule: str) -> Problem:
    return Problem("command", " ".join(command), rule, "Write it as in: colonnade run -- python train.py")


def _problems(
    command: Sequence[str],
    count: int,
    memory: str | None,
    timeout: str | None,
    pool: Pool,
    virtual: int | None,
) -> Iterator[Problem]:
    if sys.platform != "linux":
        yield Problem("platform", sys.platform, "run needs Linux to end what it started", "Start it directly")
    if not command:
        yield _bad_command(command, "names no program")
    elif not shutil.which(command[0]):
        yield _bad_command(command, f"there is no program {command[0]!r} that can be executed")
    if virtual is not None and virtual < 1:
        yield Problem("--virtual", virtual, "must be a whole number from 1 up", "Try --virtual 4")
    elif count < 1:
        yield Problem("--cards", count, "must be a whole number from 1 up", "Try --cards 1")
    elif count > len(pool.slots):
        have = len(pool.slots)
        fix = f"Ask for {have} or fewer" if have else "Run: colonnade devices"
        if virtual is None:
            fix += f", or try virtual ones: --virtual {count}"
        whole = "whole cards" if count > 1 and virtual is None else "cards"
        yield Problem("--cards", count, f"there are not that many {whole} here, only {have}", fix)
    if memory is not None and not is_share(memory):
        yield Problem("--memory", memory, "must be above 0 and at most 1, the share of a card", "Try 0.5")
    if timeout is not None:
        try:
            seconds(timeout)
        except ValueError:
            yield Problem(
                "--timeout", timeout, "must be a time span with units s, m, h or d", "Try 90s or 1h30m"
            )


def _no_retries(retries: int) -> Iterator[Problem]:
    if retries < 0:
        yield Problem("--retries", retries, "must be a whole number from 0 up", "Leave it out for none")


def waits_for_itself(pool: Pool, count: int, part: str, directory: Path | None) -> Iterator[Problem]:
    """Under a lease, a second run may need cards that come free only when it has ended."""
    above = {process.pid for process in psutil.Process().parents()}
    ours = [c for c in claims(directory) if c.pid in above and Fraction(c.memory) + Fraction(part) > 1]
    kept = {slot for claim in ours for slot in claim.slots}.intersection(pool.slots)
    if count > len(pool.slots) - len(kept):
        rule = f"it runs under a lease of {', '.join(sorted(kept))} itself, and would wait for its own end"
        yield Problem("--cards", count, rule, "Start the program without colonnade run")
