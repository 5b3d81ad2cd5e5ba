"""Joins the machines of a cluster: their connections, TensorFlow's server, a common seed; `cn.machines()`.

Every machine runs the same program. What would make them differ is compared before anything is started:
versions, and the file of the program.
"""

import atexit
import hashlib
import os
import platform
import random
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from colonnade.hardware.clusters.program_end import ProgramEnd
from colonnade.hardware.clusters.rendezvous import JOIN_SECONDS, MissedMeeting, gathered

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
    strategy: Any  # holds TensorFlow's server; nothing else is done with it


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
    spec = tf.train.ClusterSpec({"worker": list(cluster.addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, task_type="worker", task_id=cluster.rank, rpc_layer="grpc"
    )
    with _sigterm_kept(), _killed_after(_patience()):
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        except (tf.errors.OpError, RuntimeError) as error:
            # Its port is taken by now, or another machine is gone.
            words = str(error).partition(chr(10))[0]
            meeting.lost(f"TensorFlow's server of {cluster.name} did not start ({words})")
            raise
    meeting.listen_anew()
    _joined = Joined(cluster, meeting, strategy)
    os.environ[JOINED] = _mark(cluster)
    _leave_at_the_end(meeting)


def _leave_for_later(error: MissedMeeting) -> NoReturn:
    """Ask to be started again, unless somebody sits at a prompt."""
    if hasattr(sys, "ps1") or sys.flags.interactive:
        raise error
    print(f"colonnade: {error}", file=sys.stderr, flush=True)
    raise SystemExit(RESUMABLE) from error


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Around the start of TensorFlow's server, which takes SIGTERM for itself and does not end at it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None: it was not set by Python, which cannot set it again; nor can any other thread.
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _killed_after(seconds: float) -> Iterator[None]:
    """Around the start of TensorFlow's server, which waits an hour for those of machines that died meanwhile.

    It does so with Python locked, so that nobody here can do anything: the kernel ends the process. The exit
    code of a signal asks for another start, too.
    """
    main, begun = threading.current_thread() is threading.main_thread(), time.monotonic()
    handler = signal.getsignal(signal.SIGALRM)
    if main:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    elif handler is not signal.SIG_DFL:  # only the main thread can change that; Ray trains in another
        print(
            "colonnade: joining outside of the main thread, and SIGALRM has a handler: if a machine dies "
            "while TensorFlow's servers start, this program hangs, and must be killed",
            file=sys.stderr,
            flush=True,
        )
        yield
        return
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        after = max(left - (time.monotonic() - begun), 0.01) if left else 0.0
        signal.setitimer(signal.ITIMER_REAL, after, interval)
        if main and handler is not None:
            signal.signal(signal.SIGALRM, handler)


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
