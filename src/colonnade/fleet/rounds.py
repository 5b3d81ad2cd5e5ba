"""Starts a program on several machines, sees how it ends, and starts it anew with the machines that answer.

One authority, the launcher, decides who takes part; a round is one start of all. At the end of one:

    all ended with 0                      done
    one ended with 75, was killed, lost   the others are ended; a new round
    one ended with another code           the others are ended; that code is the launcher's

A program that misses a machine of its cluster ends by itself with 75, so that code of some says nothing
against the code of another.
"""

import os
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from colonnade import __version__
from colonnade.describe.clusters.address import joined
from colonnade.describe.clusters.cluster import GENERATION, IDENTITY, MACHINES, Cluster
from colonnade.describe.clusters.tf_config import NAME as TF_CONFIG
from colonnade.errors import RESUMABLE, InvalidArgument, Problem
from colonnade.fleet import ports
from colonnade.fleet.far_end import REFUSED
from colonnade.fleet.heard import HeardSignals
from colonnade.fleet.printer import Printer
from colonnade.fleet.team import Team
from colonnade.fleet.worker import Place, Worker

ANSWER = 8.5  # seconds for a machine to answer
COMING_UP = 10.0  # before machines that are too few are looked for again
# How long the others may go on when one has ended: until they see it, and then while the first saves.
PATIENCE, SAVING, INTERRUPTED = 5.0, 10.0, 120.0


@dataclass(frozen=True)
class _Over:
    """The end of a round: the launcher's exit code, or None to start anew; and why."""

    code: int | None
    why: str = ""


def rounds(places: Sequence[Place], *, first: int, at_least: int, restarts: int) -> int:
    """Run to the end, and return the exit code.

    Args:
        places: where workers are started.
        first: how many of them must answer at the first start.
        at_least: how many must answer at each later one.
        restarts: how often to start anew.

    Returns:
        0 when all workers ended so; what one failed with; 75 when it can go on and no restarts are left, or
        somebody interrupted it; 128 + n when signal n came before the program was started; 141 when nobody
        reads what is printed any more.
    """
    try:
        return _rounds(places, first, at_least, restarts)
    except BrokenPipeError:  # nobody reads what we print, as after `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _rounds(places: Sequence[Place], first: int, at_least: int, restarts: int) -> int:
    identity = secrets.token_hex(8)
    with Printer() as printer, HeardSignals() as heard:
        for generation in range(restarts + 1):
            with Team(places, heard, printer) as team:
                needed = first if generation == 0 else at_least
                over = _round(team, identity, generation, needed)
            if over.code is not None:
                team.note(over.why)
                return over.code
            left = restarts - generation
            team.note(over.why + (f"; starting again ({left} left)" if left else "; no restarts are left"))
    return RESUMABLE


def _round(team: Team, identity: str, generation: int, needed: int) -> _Over:
    missing = _gather(team)
    if team.ending:
        return _Over(128 + team.ending[0])
    if len(team.workers) < needed:
        if generation == 0:
            raise InvalidArgument("run", missing.values())
        team.wait(lambda: bool(team.ending), COMING_UP)
        if team.ending:
            return _Over(128 + team.ending[0])
        return _Over(None, f"{', '.join(missing)} did not answer, and {needed} are needed")
    for name, problem in missing.items():
        team.note(f"going on without {name}: {problem.rule}")
    over = _prepare(team)
    if over is not None:
        return over
    _start(team, identity, generation)
    return _watch(team)


def _gather(team: Team) -> dict[str, Problem]:
    """Wait for an answer of each; those who gave none are dismissed, with the reason."""
    team.wait(lambda: bool(team.ending) or all(map(_answered, team.workers)), ANSWER)
    missing = {worker.place.name: why for worker in team.workers if (why := _silence(worker))}
    team.dismiss([worker for worker in team.workers if worker.place.name in missing], seconds=0.5)
    return missing


def _answered(worker: Worker) -> bool:
    return worker.over or "hello" in worker.said


def _silence(worker: Worker) -> Problem | None:
    """Why a machine cannot take part, if it cannot."""
    name, version = worker.place.name, worker.said.get("hello")
    if version == __version__ and not worker.over:
        return None
    if version is not None and not worker.over:
        rule = f"it has Colonnade {version}, and this is {__version__}"
        return Problem("--machines", name, rule, f"Install there what is here: {sys.executable}")
    if "refused" in worker.said:
        fix = "The same folders and programs must be there as here"
        return Problem("--machines", name, worker.said["refused"], fix)
    if worker.over:
        unsaid = f"it ended with exit code {worker.process.returncode} before it answered"
        rule = worker.lost_words.rstrip(".") or unsaid
    else:
        rule = f"it did not answer in {ANSWER:.0f} seconds"
    return Problem("--machines", name, rule, f"See what this says: ssh {name} {sys.executable} --version")


def _prepare(team: Team) -> _Over | None:
    """Let each lease its cards and choose a port; why that was the end, if it was.

    One after the other, in the same order for every launcher, so that no two wait for each other's cards.
    """
    for worker in sorted(team.workers, key=lambda worker: worker.place.name):
        worker.tell({"prepare": True})
        team.wait(lambda: bool(team.ending or team.finished or "port" in worker.said))  # noqa: B023
        if team.ending:
            return _Over(128 + team.ending[0])
        if "refused" in worker.said:
            return _Over(worker.code or REFUSED, f"{worker.place.name}: {worker.said['refused']}")
        if team.finished:
            return _judged(team)
    return None


def _start(team: Team, identity: str, generation: int) -> None:
    workers = team.workers
    here = ports.free(sum(worker.place.here for worker in workers))
    chosen = [here.pop() if worker.place.here else worker.said["port"] for worker in workers]
    addresses = tuple(joined(w.place.host, port) for w, port in zip(workers, chosen, strict=True))
    names = tuple(worker.place.name for worker in workers)
    for rank, worker in enumerate(workers):
        cluster = Cluster(addresses, rank, names, generation, "colonnade run")
        environment = {
            TF_CONFIG: cluster.tf_config,
            GENERATION: str(generation),
            MACHINES: ",".join(names),
            IDENTITY: identity,
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        }
        worker.tell({"start": environment})


def _watch(team: Team) -> _Over:
    """Wait for the end of all; when one fails, or all are told to end, they have some time for it."""

    def done() -> bool:
        return len(team.finished) == len(team.workers)

    def failed() -> bool:
        return any(worker.code != 0 for worker in team.finished)

    team.wait(lambda: done() or failed() or bool(team.ending))
    if not done():
        resumable = failed() and team.finished[-1].code == RESUMABLE
        saving = resumable and not team.workers[0].over
        team.wait(done, INTERRUPTED if team.ending else SAVING if saving else PATIENCE)
    return _judged(team)


def _judged(team: Team) -> _Over:
    """What the ends of those who ended by themselves say."""
    ended = [(worker.place.name, worker.code) for worker in team.finished]
    for name, code in ended:
        if code not in (None, 0, RESUMABLE) and not _killed(code):
            return _Over(code, f"{name} {_ending(code)}")
    failed = [(name, code) for name, code in ended if code != 0]
    if team.ending and len(ended) < len(team.workers):  # they did not end when they were told to
        failed.append(("", None))
    if not failed:
        return _Over(0)
    if team.ending:
        codes = [RESUMABLE if code is None else code for _, code in failed]
        return _Over(RESUMABLE if RESUMABLE in codes else codes[0])
    return _Over(None, ", ".join(f"{name} {_ending(code)}" for name, code in failed))


def _killed(code: int) -> bool:
    """Whether an exit code says that a signal ended the program."""
    return code - 128 in signal.valid_signals()


def _ending(code: int | None) -> str:
    if code is None:
        return "was lost"
    if _killed(code):
        return f"was killed by {signal.Signals(code - 128).name}"
    return f"ended with exit code {code}"
