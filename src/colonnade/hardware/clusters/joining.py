"""Joins the machines of a cluster: their connections, a common seed; `cn.machines()`.

Every machine runs the same program. What would make them differ is compared before anything is started:
versions, and the file of the program.
"""

import atexit
import hashlib
import os
import platform
import random
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

import colonnade
from colonnade.describe.clusters.cluster import WHERE, Cluster
from colonnade.errors import RESUMABLE, AlreadyStarted, InvalidArgument, Problem
from colonnade.hardware.clusters.meeting import Meeting
from colonnade.hardware.clusters.neighbours import ring_of
from colonnade.hardware.clusters.program_end import ProgramEnd
from colonnade.hardware.clusters.rendezvous import JOIN_SECONDS, MissedMeeting, gathered
from colonnade.hardware.clusters.ring import Ring

SECONDS = 60.0
# In the environment of a process that has joined, for its children: which machine of which cluster it is.
# They are not that machine; but a launcher among them may make its programs machines of another cluster.
JOINED = "COLONNADE_JOINED"
SAME = "Install the same on every machine"
PROGRAM = "Copy the program to every machine"


@dataclass(frozen=True)
class Machines:
    """The machines that train together, as this one sees it.

    Args:
        rank: which of them this is, from 0.
        names: what they are called.
    """

    rank: int
    names: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.names)

    @property
    def name(self) -> str:
        """What this one is called."""
        return self.names[self.rank]

    @property
    def is_first(self) -> bool:
        """Whether this one writes what is written once: log lines, summaries, checkpoints."""
        return self.rank == 0


@dataclass(frozen=True)
class Joined:
    """A cluster that this process is part of."""

    cluster: Cluster
    meeting: Meeting
    ring: Ring


_joined: Joined | None = None


def machines() -> Machines:
    """The machines that train together; one, where the program runs alone.

    Example:
        >>> import colonnade as cn
        >>> cn.machines().rank, cn.machines().size, cn.machines().is_first
        (0, 1, True)
    """
    if _joined is None:
        return Machines(0, (socket.gethostname(),))
    return Machines(_joined.cluster.rank, _joined.cluster.names)


def joined() -> Joined | None:
    """The cluster that this process is part of, if it is of one."""
    return _joined


def unjoined(environment: Mapping[str, str] = os.environ) -> Cluster | None:
    """The cluster that the environment tells of, if it is of several and this process has not joined it."""
    if _joined is not None:
        return None
    cluster = Cluster.from_environment(environment)
    if cluster is None or cluster.size == 1 or environment.get(JOINED) == _mark(cluster):
        return None
    return cluster


def left_alone(environment: Mapping[str, str] = os.environ) -> int | None:
    """How often the cluster was started before of which this program is all, as where one machine is left."""
    cluster = Cluster.from_environment(environment)
    return cluster.generation if cluster is not None and cluster.size == 1 else None


def _mark(cluster: Cluster) -> str:
    return f"{cluster.digest}/{cluster.rank}"


def join(cluster: Cluster) -> None:
    """Be one of several machines from now on; TensorFlow must not have started, nor is it after an error."""
    global _joined
    cluster.check_private(os.environ)
    hello = {
        "versions": {
            "Colonnade": colonnade.__version__,
            "TensorFlow": tf.__version__,
            "Keras": keras.__version__,
            "Python": ".".join(platform.python_version_tuple()[:2]),
        },
        "program": _program(),
        "seed": secrets.randbits(31),
        "drawn": _random_states(),
        # The one that was set, or else the one that TensorFlow takes beside the seed of an op.
        "tensorflow": tf.compat.v1.get_seed(0)[0],
        "word": secrets.token_hex(32),  # by that of the first machine neighbours know each other
    }
    try:
        links, everyone = gathered(cluster, hello, _patience())
    except MissedMeeting as error:
        _leave_for_later(error)
    meeting = Meeting(cluster, links)
    try:
        _compare(meeting, everyone, cluster.rank)
    except InvalidArgument:
        meeting.close(failed="it is not like the others")
        raise
    _seed([one["drawn"] for one in everyone], int(everyone[0]["seed"]), int(everyone[0]["tensorflow"]))
    try:
        ring = ring_of(cluster, str(everyone[0]["word"]), _patience())
    except MissedMeeting as error:
        meeting.lost(str(error))
        raise
    except InvalidArgument as error:  # it would be so again
        meeting.close(failed=str(error))
        raise
    _joined = Joined(cluster, meeting, ring)
    os.environ[JOINED] = _mark(cluster)
    _leave_at_the_end(meeting)


def _leave_for_later(error: MissedMeeting) -> NoReturn:
    """Ask to be started again, unless somebody sits at a prompt."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        raise error
    print(f"colonnade: {error}", file=sys.stderr, flush=True)
    raise SystemExit(RESUMABLE) from error


def refuse_late(cluster: Cluster) -> None:
    """TensorFlow has started: it is too late to join."""
    raise AlreadyStarted(
        f"this program is machine {cluster.rank} of {cluster.size} ({cluster.source} says so), and "
        "TensorFlow has already started its devices.\n"
        "  fix:    call cn.setup() right after the imports, before the first tensor, model or dataset;\n"
        "          to train alone, take TF_CONFIG out of the environment"
    )


def _compare(meeting: Meeting, everyone: list[dict[str, Any]], rank: int) -> None:
    mine = everyone[rank]
    meeting.agree(WHERE, {f"version of {name}": v for name, v in mine["versions"].items()}, SAME)
    meeting.agree(WHERE, mine["program"], PROGRAM)


def _program() -> dict[str, str]:
    """The file that runs, by its name and what is in it."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    if path is None or not Path(path).is_file():
        return {"program": "no file"}
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    return {"program": f"{Path(path).name}, sha256 {digest[:16]}"}


def _random_states() -> str:
    """A digest of the states from which Python and NumPy draw numbers, and with them Keras."""
    states = repr(random.getstate()), repr(np.random.get_state())
    return hashlib.sha256("".join(states).encode()).hexdigest()


def _seed(drawn: list[str], seed: int, tensorflow: int) -> None:
    """Let all machines draw the same numbers.

    Else initial weights, and the order of shuffles without a seed, would be others on each. Python and NumPy
    are left alone where the program has seeded them alike. TensorFlow gets the seed of the first machine.
    Where none was set that is the one it takes anyway beside the seed of an op: so a shuffle with a seed has
    the order that it has on one machine, in every start; one without has the same in every start too.
    """
    if len(set(drawn)) > 1:
        random.seed(seed)
        np.random.seed(seed)
    tf.random.set_seed(tensorflow)


def _patience() -> float:
    text = os.environ.get(JOIN_SECONDS, str(SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        problem = Problem(
            JOIN_SECONDS, text, "must be a number of seconds above 0", f"Leave {JOIN_SECONDS} out"
        )
        raise InvalidArgument(WHERE, [problem])
    return seconds


def _leave_at_the_end(meeting: Meeting) -> None:
    """Say goodbye when the program ends, and whether that is because of an error."""
    failures: list[str] = []
    before, ending = sys.excepthook, ProgramEnd.watched()

    def note(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failures.append(f"{kind.__name__}: {str(error).partition(chr(10))[0]}")
        before(kind, error, trace)

    sys.excepthook = note
    atexit.register(lambda: meeting.close(failures[0] if failures else ending.failure))
