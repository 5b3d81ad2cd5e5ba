"""Leases of cards: who may use which, in what order, and how much of each.

A claim is a place in line until it names cards, and a lease from then on. It is a record that lives
as long as its owner (see records.py), so a killed owner's cards, and a killed waiter's place, come
free by themselves. All decisions are taken by the one who waits, while it is alone with the records.

First come, first served: a claim waits while an earlier one waits that could take some of the same
cards, even if enough are free for it now. So nobody who asks for much is passed over for ever.
"""

import contextlib
import fcntl
import os
import pwd
import re
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Self

import psutil

from colonnade.errors import InvalidArgument, LeaseTimeout, is_whole
from colonnade.fleet.records import LeaseRecord, alone

DIRECTORY = "COLONNADE_LEASES"  # the environment variable that names the directory of leases
COMMAND = 200  # arguments of a command that are kept, and letters of each
# How often a waiter looks, in seconds; whoever is next looks more often.
NEXT_LOOKS, OTHERS_LOOK = 0.1, 0.5


def first(free: Sequence[str], count: int) -> Sequence[str]:
    """The first `count` of the free cards."""
    return free[:count]


def nobody() -> Mapping[str, Collection[int]]:
    """No processes on any card."""
    return {}


@dataclass(frozen=True)
class Pool:
    """Cards that can be leased, by name.

    Args:
        slots: their names: UUIDs, or any other names that mean the same to every process.
        choose: takes the free ones and a count, and returns that many of them.
        occupants: tells which processes are on which card now, leased or not.
    """

    slots: tuple[str, ...]
    choose: Callable[[Sequence[str], int], Sequence[str]] = first
    occupants: Callable[[], Mapping[str, Collection[int]]] = nobody


@dataclass(frozen=True)
class LeaseClaim:
    """What one process asks for, and has once `slots` is not empty.

    `count` is 0 for a record that cannot be read: it may hold any card, so nobody gets one beside it.
    """

    among: tuple[str, ...]
    count: int
    memory: str  # the share of each card, as a decimal number
    command: tuple[str, ...]
    user: str
    pid: int
    host: str
    since: str  # when it asked; once it has cards, when it got them
    slots: tuple[str, ...] = ()
    number: int = 0

    @classmethod
    def read(cls, record: LeaseRecord) -> "LeaseClaim":
        """The claim that a live record states; an unreadable one where it states none that can be."""
        says, user = record.says or {}, _user(record.uid)
        try:
            return cls(
                among=tuple(map(str, says["among"])),
                count=_whole(says["count"]),
                memory=_share(says["memory"]),
                command=tuple(map(str, says["command"])),
                user=user,
                pid=_whole(says["pid"]),
                host=str(says["host"]),
                since=datetime.fromisoformat(says["since"]).isoformat(timespec="microseconds"),
                slots=tuple(map(str, says["slots"])),
                number=record.number,
            )
        except (KeyError, TypeError, ValueError):
            return cls((), 0, "1", (), user, 0, "", "", number=record.number)

    @property
    def readable(self) -> bool:
        return self.count > 0

    def blocks(self, other: "LeaseClaim") -> bool:
        """Whether it waits, was there first, and could take what the other could."""
        return not self.slots and self.number < other.number and not set(self.among).isdisjoint(other.among)


class Lease:
    """A place in line that becomes a lease; leave the `with` block, or die, to give it back."""

    def __init__(self, pool: Pool, claim: LeaseClaim, directory: Path, *, share: bool) -> None:
        self._pool = replace(pool, occupants=nobody) if share else pool
        self._directory = directory
        with alone(directory) as records:
            number, self.descriptor = records.add(asdict(claim))
        self.claim = replace(claim, number=number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            # Unlocking is what frees the cards; if the names cannot be removed now, others do it later.
            with contextlib.suppress(InvalidArgument), alone(self._directory) as records:
                records.remove(self.claim.number, self.descriptor)
        finally:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # also for those who inherited the descriptor
            os.close(self.descriptor)

    def take(self) -> int:
        """Take the cards if it is our turn and enough are free; else say our place in line, from 1 up."""
        present = self._pool.occupants()  # drivers can be slow, so not while all others wait for us
        with alone(self._directory) as records:
            everyone = [LeaseClaim.read(record) for record in records.live()]
            claims = [c for c in everyone if c.number != self.claim.number]
            if self.claim not in everyone:  # lost or damaged: two such waiters would wait for each other
                records.write(self.claim.number, asdict(self.claim))
            ahead = [c for c in claims if c.blocks(self.claim) and not _is_stopped(c.pid)]
            if ahead:
                return len(ahead) + 1
            free = _free(self.claim, claims, _strangers(present, claims))
            if len(free) < self.claim.count:
                return 1
            chosen = tuple(self._pool.choose(free, self.claim.count))
            assert set(chosen) <= set(free), "choose() picks among the free"
            assert len(set(chosen)) == len(chosen) == self.claim.count, "choose() picks as many as asked"
            leased = replace(self.claim, slots=chosen, since=_now())
            records.write(leased.number, asdict(leased))
            self.claim = leased
            return 0

    def wait(self, timeout: float | None = None, tell: Callable[[int], None] = lambda place: None) -> None:
        """Wait for our turn; `tell` is called with our place in line whenever it changes."""
        deadline = None if timeout is None else time.monotonic() + timeout
        last = None
        while place := self.take():
            if place != last:
                tell(place)
                last = place
            left = float("inf") if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise LeaseTimeout(self.claim.count, place)
            time.sleep(min(left, NEXT_LOOKS if place == 1 else OTHERS_LOOK))


def ask(
    pool: Pool,
    count: int,
    *,
    memory: str = "1",
    command: Sequence[str] = (),
    share: bool = False,
    directory: Path | None = None,
) -> Lease:
    """Get in line for `count` cards of a pool.

    Args:
        pool: the cards.
        count: how many.
        memory: the share of each, as a decimal number; shares of a card add up to at most 1.
        command: what they are for; everybody can read it.
        share: also take cards that somebody uses without a lease.
        directory: where the leases of the machine are.

    Example:
        >>> import tempfile, pathlib
        >>> with ask(Pool(("a", "b")), 1, directory=pathlib.Path(tempfile.mkdtemp())) as lease:
        ...     lease.wait()
        ...     lease.claim.slots
        ('a',)
    """
    claim = LeaseClaim(
        among=pool.slots,
        count=count,
        memory=memory,
        command=_brief(command),
        user=_user(os.geteuid()),
        pid=os.getpid(),
        host=socket.gethostname(),
        since=_now(),
    )
    return Lease(pool, claim, directory or shared_directory(), share=share)


def claims(directory: Path | None = None) -> tuple[LeaseClaim, ...]:
    """Every lease and every waiter of the machine, oldest first."""
    path = directory or shared_directory()
    with contextlib.suppress(PermissionError):  # which is told below
        if not path.exists():
            return ()
    with alone(path) as records:
        return tuple(map(LeaseClaim.read, records.live()))


def shared_directory() -> Path:
    """Where leases are: what COLONNADE_LEASES says, else the same place for every user of the machine."""
    named = os.environ.get(DIRECTORY)
    if named:
        return Path(named)
    system = Path("/run/lock")
    # Decided by what all users see alike, and not by what this one may do. Preferred to /tmp, which
    # some machines clean while programs run, and of which some services have a private one.
    with contextlib.suppress(OSError):
        if (system.stat().st_mode & 0o1002) == 0o1002 or (system / "colonnade").is_dir():
            return system / "colonnade"
    return Path("/tmp/colonnade")


def _free(claim: LeaseClaim, others: Sequence[LeaseClaim], strangers: Collection[str]) -> list[str]:
    """The cards that a claim can have now; those already divided first, so that whole ones stay whole."""
    if not all(other.readable for other in others):
        return []
    used = dict.fromkeys(claim.among, Fraction(0))
    for other in others:
        for slot in set(other.slots) & used.keys():
            used[slot] += Fraction(other.memory)
    room = [s for s in claim.among if used[s] + Fraction(claim.memory) <= 1 and s not in strangers]
    return sorted(room, key=lambda slot: -used[slot])


def _strangers(present: Mapping[str, Collection[int]], claims: Iterable[LeaseClaim]) -> set[str]:
    """The cards that somebody uses who has no lease of them."""
    holders: dict[str, set[int]] = {}
    for claim in claims:
        for slot in claim.slots:
            holders.setdefault(slot, set()).add(claim.pid)
    return {
        slot
        for slot, pids in present.items()
        if any(not _runs_under(pid, holders.get(slot, set())) for pid in pids)
    }


def is_share(text: str) -> bool:
    """Whether a text is a share of a card: a decimal number above 0 and at most 1."""
    return bool(re.fullmatch(r"\d{0,9}\.?\d{1,9}", text)) and 0 < Fraction(text) <= 1


def _share(says: object) -> str:
    if not is_share(str(says)):
        raise ValueError("not a share of a card")
    return str(says)


def _whole(says: object) -> int:
    if not is_whole(says, 1, 2**31 - 1):
        raise ValueError("not a count, nor the number of a process")
    return says


def _brief(command: Sequence[str]) -> tuple[str, ...]:
    """The beginning of a command, so that a record stays small; arguments can take megabytes."""
    text = [argument.encode(errors="replace").decode() for argument in command[:COMMAND]]
    kept = [argument if len(argument) <= COMMAND else f"{argument[:COMMAND]}…" for argument in text]
    return (*kept, "…") if len(command) > COMMAND else tuple(kept)


def _is_stopped(pid: int) -> bool:
    """Whether a waiter is stopped (Ctrl-Z): it could not take its turn, so it must not hold up the line."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _runs_under(pid: int, holders: Collection[int]) -> bool:
    """Whether a process is one of `holders` or descends from one."""
    try:
        process = psutil.Process(pid)
        return any(p.pid in holders for p in (process, *process.parents()))
    except psutil.Error:
        return bool(holders)  # hidden from us, or just gone: a leased card's process is its lessee's


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
