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

TURN = 0.02  # seconds, between looks at the door and at the next machine


def ring_of(cluster: Cluster, word: str, seconds: float) -> Ring:
    """The ring of machines that have met. All must call it, with the same word, which nobody else knows."""
    patience = Patience(time.monotonic() + seconds, seconds)
    with door_of(cluster, cluster.rank, patience) as door:
        onward, behind = _Onward(cluster, word), _Behind(cluster, word, door)
        while True:
            onward.look()
            behind.look()
            if onward.connection is not None and behind.connection is not None:
                behind.send_away()
                return Ring(cluster.rank, cluster.size, onward.connection, behind.connection)
            if patience.over:
                nobody_behind = behind.connection is None
                onward.send_away()
                behind.send_away(all_of_them=True)
                raise _missed(cluster, nobody_behind)
            time.sleep(TURN)


class _Onward:
    """The way to the next machine, which need not answer at once: it may wait for the one after it."""

    def __init__(self, cluster: Cluster, word: str) -> None:
        after = (cluster.rank + 1) % cluster.size
        self._place = parted(cluster.addresses[after])
        self._knock = _proof(word, f"{cluster.rank} knocks at {after}")
        self._answer = _proof(word, f"{after} lets {cluster.rank} in")
        self._waiting: socket.socket | None = None
        self.connection: socket.socket | None = None

    def look(self) -> None:
        """Knock, or see whether there is an answer."""
        if self.connection is not None:
            return
        try:
            if self._waiting is None:
                self._waiting = socket.create_connection(self._place, BREATH)
                self._waiting.sendall(self._knock)
                self._waiting.setblocking(False)
            said = _says(self._waiting, self._answer)
        except OSError:  # it is not there yet, or gone again
            said = False
        if said:
            self.connection, self._waiting = self._waiting, None
        elif said is False:  # it is not the machine that was looked for
            self.send_away()

    def send_away(self) -> None:
        """End what is no connection with the next machine, or will be none."""
        for connection in (self._waiting, self.connection):
            if connection is not None:
                connection.close()
        self._waiting = self.connection = None


class _Behind:
    """Who knocks at the door: the machine before this one, and perhaps others, who are not let in."""

    def __init__(self, cluster: Cluster, word: str, door: socket.socket) -> None:
        before = (cluster.rank - 1) % cluster.size
        self._knock = _proof(word, f"{before} knocks at {cluster.rank}")
        self._answer = _proof(word, f"{cluster.rank} lets {before} in")
        self._door = door
        self._guests: dict[socket.socket, float] = {}  # until when each may say who it is
        self.connection: socket.socket | None = None
        door.setblocking(False)

    def look(self) -> None:
        while self.connection is None:
            try:
                guest, _ = self._door.accept()
            except OSError:  # nobody is there, or is there no more
                break
            guest.setblocking(False)
            self._guests[guest] = time.monotonic() + PATIENCE
        for guest, deadline in list(self._guests.items()):
            try:
                said = _says(guest, self._knock) if self.connection is None else False
                if said:
                    guest.sendall(self._answer)  # the first that is sent there: it finds room
            except OSError:
                said = False
            if said:
                self.connection = guest
                del self._guests[guest]
            elif said is False or time.monotonic() > deadline:
                guest.close()
                del self._guests[guest]

    def send_away(self, *, all_of_them: bool = False) -> None:
        """End the connections with strangers, or with all."""
        for guest in (*self._guests, *([self.connection] if all_of_them and self.connection else [])):
            guest.close()
        self._guests.clear()


def _says(connection: socket.socket, words: bytes) -> bool | None:
    """Whether the other end says this; None while it has not said as much. Words are then read."""
    try:
        heard = connection.recv(len(words), socket.MSG_PEEK)
    except BlockingIOError:
        return None
    if 0 < len(heard) < len(words):
        return None
    return hmac.compare_digest(heard, words) and len(connection.recv(len(words))) == len(words)


def _proof(word: str, what: str) -> bytes:
    return hmac.digest(word.encode(), what.encode(), hashlib.sha256)


def _missed(cluster: Cluster, behind: bool) -> MissedMeeting:
    rank = (cluster.rank + (-1 if behind else 1)) % cluster.size
    rule = "did not come to the machine after it" if behind else f"cannot be reached from {cluster.name}"
    listening = cluster.addresses[cluster.rank if behind else rank]
    fix = f"Let every machine reach the next one; here, {listening}"
    return MissedMeeting(WHERE, [Problem("machine", cluster.names[rank], rule, fix)])
