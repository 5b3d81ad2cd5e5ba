"""Connects each machine of a cluster to the next one, which makes a ring of them.

Each listens at its own port until the machine before it has come, and no longer. Both ends show that they
know a word which the first machine has drawn for this start, so nobody else is taken for a neighbour.
"""

import hashlib
import hmac
import socket
import time

from colonnade.describe.clusters.address import parted
from colonnade.describe.clusters.cluster import WHERE, Cluster
from colonnade.errors import Problem
from colonnade.hardware.clusters.rendezvous import BREATH, PATIENCE, MissedMeeting, Patience, door_of
from colonnade.hardware.clusters.ring import Ring

TURN = 0.05  # seconds, between looks at the door and at the next machine


def ring_of(cluster: Cluster, word: str, seconds: float) -> Ring:
    """The ring of machines that have met. All must call it, with the same word, which nobody else knows."""
    patience = Patience(time.monotonic() + seconds, seconds)
    onward, behind = _Onward(cluster, word), None
    with door_of(cluster, cluster.rank, patience) as door:
        door.settimeout(TURN)
        while not onward.answered or behind is None:
            if patience.over:
                onward.drop()
                if behind is not None:
                    behind.close()
                raise _missed(cluster, behind is None)
            onward.look()
            if behind is None:
                behind = _let_in(door, word)
            elif not onward.answered:
                time.sleep(TURN)
    assert onward.connection is not None
    return Ring(cluster.rank, cluster.size, onward.connection, behind)


class _Onward:
    """The way to the next machine. It does not wait: that one may wait for the one after it."""

    def __init__(self, cluster: Cluster, word: str) -> None:
        self._place = parted(cluster.addresses[(cluster.rank + 1) % cluster.size])
        self._word = word
        self.connection: socket.socket | None = None
        self.answered = False

    def look(self) -> None:
        """Knock, or see whether there is an answer."""
        if self.answered:
            return
        try:
            if self.connection is None:
                self.connection = socket.create_connection(self._place, BREATH)
                self.connection.sendall(_proof(self._word, "knock"))
                self.connection.setblocking(False)
            wanted = _proof(self._word, "come in")
            heard = self.connection.recv(len(wanted), socket.MSG_PEEK)
            if heard and len(heard) < len(wanted):
                return
            if hmac.compare_digest(heard, wanted):
                self.answered = bool(self.connection.recv(len(wanted)))
                return
        except BlockingIOError:
            return
        except OSError:  # it is not there yet, or not the machine that was looked for
            pass
        self.drop()

    def drop(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None


def _let_in(door: socket.socket, word: str) -> socket.socket | None:
    """The machine before this one, if it is who knocks."""
    try:
        connection, _ = door.accept()
    except TimeoutError:
        return None
    try:
        connection.settimeout(PATIENCE)
        knock = _proof(word, "knock")
        if hmac.compare_digest(connection.recv(len(knock), socket.MSG_WAITALL), knock):
            connection.sendall(_proof(word, "come in"))
            return connection
    except OSError:  # who is gone again, or says nothing, is no neighbour
        pass
    connection.close()
    return None


def _proof(word: str, what: str) -> bytes:
    return hmac.digest(word.encode(), what.encode(), hashlib.sha256)


def _missed(cluster: Cluster, behind: bool) -> MissedMeeting:
    rank = (cluster.rank + (-1 if behind else 1)) % cluster.size
    rule = "did not come to the machine after it" if behind else f"cannot be reached from {cluster.name}"
    listening = cluster.addresses[cluster.rank if behind else rank]
    fix = f"Let every machine reach the next one; here, {listening}"
    return MissedMeeting(WHERE, [Problem("machine", cluster.names[rank], rule, fix)])
