"""Connects the machines of a cluster: all others come to the first, and say who they are.

The first one listens at its port, and closes that door when all are in. The connections stay (see `Meeting`).
"""

import contextlib
import errno
import json
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from colonnade.describe.clusters.address import is_loopback, parted
from colonnade.describe.clusters.cluster import WHERE, Cluster
from colonnade.errors import InvalidArgument, Problem

# Of a door that another program has just now, or had a moment ago.
TAKEN = errno.EADDRINUSE
STRANGERS = 64  # who may wait at a door, beside those who are to come
LONGEST = 2**28  # bytes of a message that are read
PATIENCE = 5.0  # seconds that a message may take to be sent
BREATH = 1.0  # seconds for which one waits before one looks around
JOIN_SECONDS = "COLONNADE_JOIN_SECONDS"
# Seconds after which it is said who is still waited for: a scheduler may start machines one by one, but who
# waits for a mistyped name should know soon.
TOLD = 8.0
# Where Linux has, in what it tells of a connection, the milliseconds since the other end answered.
LAST_ANSWER = 56
Said = dict[str, Any]


class MissedMeeting(InvalidArgument):
    """Machines did not come together; started again, they may: one was late, or died, or a port was taken."""


class MessageSocket:
    """Messages, which are JSON, over a connection. Any thread may send, one receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit = struct.pack("ll", int(PATIENCE), 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._connection = connection

    def send(self, message: Said) -> None:
        """Raises OSError if nobody takes it, and ends the connection: who got a half would not understand."""
        text = json.dumps(message).encode()
        try:
            self._connection.sendall(len(text).to_bytes(8, "big") + text)
        except OSError:
            self.close()
            raise

    def receive(self, heard: Callable[[], None] = lambda: None) -> Said | None:
        """The next message; None at the end of the connection.

        Args:
            heard: called whenever a part of it comes: over a slow network a long one takes its time.
        """
        try:
            size = int.from_bytes(self._read(8, heard), "big")
            said = json.loads(self._read(size, heard)) if size <= LONGEST else None
        except (OSError, ValueError):
            return None
        return said if isinstance(said, dict) else None

    def _read(self, size: int, heard: Callable[[], None]) -> bytes:
        """So many bytes; raises OSError if the connection ends before."""
        parts = bytearray()
        while len(parts) < size:
            part = self._connection.recv(min(size - len(parts), 2**20))
            if not part:
                raise ConnectionResetError
            heard()
            parts += part
        return bytes(parts)

    def receive_within(self, seconds: float) -> Said | None:
        """The next message, if it comes in time."""
        self._connection.settimeout(max(seconds, 0.01))
        try:
            return self.receive()
        finally:
            self._connection.setblocking(True)

    @property
    def ended(self) -> bool:
        """Whether the other end is gone, as far as one knows; nothing is read."""
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @property
    def unanswered(self) -> float:
        """Seconds since the system of the other end answered; 0 where that is not known.

        It answers whatever it is sent, also where its program is held up, or stopped: not to be answered is
        to be cut off from it.
        """
        if sys.platform != "linux":
            return 0.0
        try:
            facts = self._connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, LAST_ANSWER + 4)
        except OSError:  # it is closed
            return 0.0
        return int.from_bytes(facts[LAST_ANSWER:], sys.byteorder) / 1000

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


def gathered(cluster: Cluster, hello: Said, seconds: float) -> tuple[dict[int, MessageSocket], list[Said]]:
    """Connect the machines: by rank the connections of this one, and what every machine said of itself.

    Raises MissedMeeting, on every machine that is there, if one does not come in time.
    """
    deadline = time.monotonic() + seconds
    mine = {**hello, "rank": cluster.rank, "size": cluster.size, "generation": cluster.generation}
    mine["cluster"] = cluster.digest
    if cluster.rank == 0:
        return _receive_all(cluster, mine, deadline, seconds)
    return _go_to_first(cluster, mine, deadline, seconds)


def _receive_all(
    cluster: Cluster, mine: Said, deadline: float, seconds: float
) -> tuple[dict[int, MessageSocket], list[Said]]:
    links: dict[int, MessageSocket] = {}
    said = {0: mine}
    patience = Patience(deadline, seconds)
    with door_of(cluster, 0, patience) as door:
        while (left := deadline - time.monotonic()) > 0:
            _leave_out_ended(links, said)
            if len(said) == cluster.size:
                break
            door.settimeout(min(left, BREATH))
            try:
                connection, _ = door.accept()
            except TimeoutError:
                missing = [rank for rank in range(cluster.size) if rank not in said]
                words = patience.note(f"{_who(cluster, missing)} did not come yet")
                for link in links.values() if words else ():
                    with contextlib.suppress(OSError):  # seen at the next turn
                        link.send({"waiting": words})
                continue
            link = MessageSocket(connection)
            came = link.receive_within(min(PATIENCE, left))
            _leave_out_ended(links, said)
            wrong = "does not speak as Colonnade does" if came is None else _stranger(came, cluster, said)
            if came is None or wrong:
                of_another = came is not None and came.get("cluster") != mine["cluster"]
                with contextlib.suppress(OSError):
                    link.send({"refused": wrong, "again": of_another})
                link.close()
                continue
            links[came["rank"]], said[came["rank"]] = link, came
    missing = [rank for rank in range(cluster.size) if rank not in said]
    words = _absent(cluster, missing, seconds) if missing else None
    everyone = [said.get(rank, {}) for rank in range(cluster.size)]
    for link in links.values():
        with contextlib.suppress(OSError):  # who is gone by now is missed at the first exchange
            link.send({"refused": words, "missed": True} if words else {"everyone": everyone})
    if words:
        for link in links.values():
            link.close()
        raise MissedMeeting(WHERE, [_problem(cluster, missing, words)])
    return links, everyone


def _leave_out_ended(links: dict[int, MessageSocket], said: dict[int, Said]) -> None:
    """Who died while the others were waited for is not here, and may be started again."""
    for rank in [rank for rank, link in links.items() if link.ended]:
        links.pop(rank).close()
        del said[rank]


def _go_to_first(
    cluster: Cluster, mine: Said, deadline: float, seconds: float
) -> tuple[dict[int, MessageSocket], list[Said]]:
    patience = Patience(deadline, seconds)
    while (left := deadline - time.monotonic()) > 0:
        try:
            link = MessageSocket(socket.create_connection(parted(cluster.addresses[0]), min(left, BREATH)))
            link.send(mine)
        except OSError as error:  # it is not there yet
            patience.note(f"{_who(cluster, [0])} does not answer yet ({error.strerror or error})")
            time.sleep(0.05)
            continue
        # The first one gives up at a deadline of its own, which may be later.
        answer = _answer(link, deadline + seconds)
        if answer is not None and "everyone" in answer:
            return {0: link}, list(answer["everyone"])
        link.close()
        if answer is not None and not answer.get("again"):
            words = str(answer.get("refused"))
            kind = MissedMeeting if answer.get("missed") else InvalidArgument
            raise kind(WHERE, [Problem("machine", cluster.name, words, "Look at its log")])
        time.sleep(0.05)  # what listens there may be another cluster's, or a run's that ends
    words = _absent(cluster, [0], seconds)
    raise MissedMeeting(WHERE, [_problem(cluster, [0], words)])


def _answer(link: MessageSocket, deadline: float) -> Said | None:
    """What the first machine says at last; meanwhile it may say whom it waits for."""
    while (answer := link.receive_within(deadline - time.monotonic())) is not None and "waiting" in answer:
        _say(str(answer["waiting"]))
    return answer


class Patience:
    """How long the others are waited for; after some seconds it is said once for whom."""

    def __init__(self, deadline: float, seconds: float) -> None:
        self.deadline, self._seconds = deadline, seconds
        self._told_at = deadline - seconds + TOLD

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.deadline

    def note(self, words: str) -> str | None:
        """Say it, if it is time to and was not said yet; returns what was said."""
        if time.monotonic() < self._told_at or self.over:
            return None
        self._told_at = self.deadline
        words = f"{words}; waiting for up to {self._seconds:g} s in all ({JOIN_SECONDS})"
        _say(words)
        return words


def _say(words: str) -> None:
    print(f"colonnade: {words}", file=sys.stderr, flush=True)


def door_of(cluster: Cluster, rank: int, patience: Patience) -> socket.socket:
    """Where others knock; while another program has the port, or the name is not known, it is waited for.

    A machine's own name need not mean to itself what it means to others: Debian lets it be 127.0.1.1, and it
    may have addresses of both families. So the door is at all of its addresses; but that of machines which
    are all loopback is at theirs.
    """
    address, name = cluster.addresses[rank], "the first machine" if rank == 0 else "each machine"
    host, port = parted(address)
    inside = all(is_loopback(parted(address)[0]) for address in cluster.addresses)
    while True:
        try:
            places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            if inside:
                family, _, _, _, place = places[0]
                return _listening(family, place, cluster.size)
            if rank == 0:  # others may be behind something that hands on what comes to their addresses
                _check_own(places)
            return _listening_everywhere(port, cluster.size)
        except socket.gaierror as error:  # a name comes into DNS when it does, as that of a pod
            rule = f"its name is not known here ({error.strerror})"
            if not patience.over:
                patience.note(f"{address}: {rule}")
                time.sleep(0.2)
                continue
            fix = f"Give {name} a name that it knows itself by"
            raise MissedMeeting(WHERE, [Problem("address", address, rule, fix)]) from None
        except OSError as error:
            taken = error.errno == TAKEN
            if taken and not patience.over:
                patience.note(f"another program listens at {address}")
                time.sleep(0.05)
                continue
            why = "another program listens there" if taken else "it is no address of this machine"
            rule = f"cannot be listened at ({error.strerror or error}): {why}"
            fix = f"Give {name} its own address and a free port"
            wrong = MissedMeeting if taken else InvalidArgument
            raise wrong(WHERE, [Problem("address", address, rule, fix)]) from None


def _check_own(places: Iterable[Any]) -> None:
    """Raise OSError if none of these addresses is one of this machine."""
    amiss: OSError | None = None
    for family, kind, _, _, place in places:
        try:
            with socket.socket(family, kind) as probe:
                probe.bind((place[0], 0, *place[2:]))
                return
        except OSError as error:
            amiss = error
    if amiss is not None:
        raise amiss


def _listening_everywhere(port: int, size: int) -> socket.socket:
    """At all addresses of both families; of one, where this machine has no other."""
    try:
        return _listening(socket.AF_INET6, ("::", port), size)
    except OSError as error:
        if error.errno == TAKEN:
            raise
        return _listening(socket.AF_INET, ("0.0.0.0", port), size)


def _listening(family: int, place: Any, size: int) -> socket.socket:
    """A door. The next one here is to have the same port, while connections that came in by it stay.

    That takes SO_REUSEADDR. With SO_REUSEPORT, others could open a door of their own beside this one, and be
    given some of those who knock.
    """
    door = socket.socket(family, socket.SOCK_STREAM)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if place[0] == "::":
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        door.bind(place)
        door.listen(size + STRANGERS)
    except OSError:
        door.close()
        raise
    return door


def _stranger(came: Said, cluster: Cluster, said: Mapping[int, Said]) -> str | None:
    """Why a machine is not taken in, if it is not."""
    rank, first = came.get("rank"), said[0]
    if came.get("cluster") != first["cluster"]:
        return "is of another cluster, which has the same port"
    if came.get("size") != cluster.size or not isinstance(rank, int) or not 0 < rank < cluster.size:
        return f"says it is machine {rank} of {came.get('size')}, and this cluster has {cluster.size}"
    if rank in said:
        return f"says it is machine {rank}, which is here already: two programs have the same task"
    if came.get("generation") != first["generation"]:
        return f"is of start {came.get('generation')} of this cluster, the first one of {first['generation']}"
    return None


def _absent(cluster: Cluster, missing: list[int], seconds: float) -> str:
    return f"{_who(cluster, missing)} did not answer within {seconds:g} s"


def _who(cluster: Cluster, ranks: list[int]) -> str:
    return ", ".join(f"{cluster.names[rank]} ({cluster.addresses[rank]})" for rank in ranks)


def _problem(cluster: Cluster, missing: list[int], words: str) -> Problem:
    fix = (
        f"See that the program runs there and that {cluster.addresses[0]} can be reached from there; "
        f"to wait longer: {JOIN_SECONDS}=300"
    )
    return Problem("machine", ", ".join(cluster.names[rank] for rank in missing), words, fix)
