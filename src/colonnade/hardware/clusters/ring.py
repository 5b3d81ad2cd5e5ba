"""Machines in a ring: each sends to the next one and hears from the one before; so sums and rows go round.

Arrays travel as they are in memory, over connections of their own, and NumPy adds them. TensorFlow's own
collective takes two to four times as long (2.21, see benchmarks/machines), needs a server that does whatever
it is told by whoever reaches it, and after one failure none works in the same process any more.

A large sum over three machines or more goes round in parts, so that every machine sends and adds as much:

    turn    a sends   b sends   c sends
    0       part 0    part 1    part 2      what comes is added to one's own
    1       part 2    part 0    part 1      now a has the sum of part 1, b of 2, c of 0
    2       part 1    part 2    part 0      what comes is a sum, and is passed on
    3       part 0    part 1    part 2

A small one, and any between two machines, is quicker if everybody passes on all that there is, and adds it up
by itself, in the order of the machines: that is half the turns.
"""

import errno
import os
import select
import socket
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

# Bytes of a sum that is passed on as a whole.
SMALL = 2**15
# In front of what is sent in a turn: the number of the turn, how many bytes follow, and of what (`_kind`).
HEAD = struct.Struct("!QQI")
# TensorFlow takes an array as it is where it begins at a multiple of so many bytes; else it copies it.
ALIGNED = 64
# Of a machine whose system does not answer when it is asked so often, once a second, nothing more is to come:
# it, or the network between, is gone. One whose program is busy, or stopped, answers.
CUT_OFF = 4
# How many arrays of results are kept to be used again; a training has some sizes and dtypes, several of each.
ROOMS = 8
Array = np.ndarray[Any, Any]


class RingBroken(ConnectionError):
    """The machine before or behind this one is gone."""


class OutOfStep(ValueError):
    """The machines do not make the same sums."""


class Ring:
    """The connections of one machine.

    Args:
        rank: which one it is.
        size: how many there are.
        onward, behind: connections to the machine after it, and to the one before.
    """

    def __init__(self, rank: int, size: int, onward: socket.socket, behind: socket.socket) -> None:
        self._rank, self.size = rank, size
        self._onward, self._behind = onward, behind
        self._turn = 0
        self._rooms: list[Array] = []  # for results, those used last at the end
        self._coming = np.empty(0, np.uint8)  # for what is added up and forgotten
        self._busy = threading.Lock()
        for connection in (onward, behind):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _noticing_silence(behind)

    def close(self) -> None:
        self._onward.close()
        self._behind.close()

    def sum(self, vector: Array) -> Array:
        """The sum over the machines of vectors of one size and dtype: the same bits on each machine."""
        with self._message(), np.errstate(all="ignore"):  # what is not finite is looked for elsewhere
            if self.size == 2:
                return self._sum_of_two(vector)
            if vector.nbytes <= SMALL:
                return np.add.reduce(self._every(vector, alike=True), axis=0, dtype=vector.dtype)
            return self._sum_in_parts(vector)

    def every(self, own: Array) -> list[Array]:
        """The arrays of all machines, by rank; their first dim may differ."""
        with self._message():
            return self._every(own, alike=False)

    @contextmanager
    def _message(self) -> Iterator[None]:
        """Around what all machines do together. What is broken off in the middle cannot be taken up again."""
        if not self._busy.acquire(blocking=False):
            raise OutOfStep("trains in two threads at the same time, and there is one order of messages")
        try:
            yield
        except BaseException:
            self.close()  # so that all others know of it
            raise
        finally:
            self._busy.release()

    def _every(self, own: Array, *, alike: bool) -> list[Array]:
        own = np.ascontiguousarray(own)
        kind, arrays = _kind("sum" if alike else "rows", own), {self._rank: own}
        for turn in range(self.size - 1):
            passed = arrays[(self._rank - turn) % self.size]
            into = np.empty_like(own) if alike else None
            came = self._pass_on(kind, _bytes(passed), None if into is None else _bytes(into))
            whole = np.frombuffer(came, own.dtype)
            arrays[(self._rank - turn - 1) % self.size] = whole.reshape(-1, *own.shape[1:])
        return [arrays[rank] for rank in range(self.size)]

    def _sum_of_two(self, vector: Array) -> Array:
        """Adds while it comes: what has just been received is still in the processor's cache."""
        coming, total = self._scratch(vector), self._room(vector)
        # In the order of the machines: of two numbers that are none, the first one's bits are kept.
        terms = (vector, coming) if self._rank == 0 else (coming, vector)
        added = 0

        def add(arrived: int) -> None:
            nonlocal added
            there = slice(added, arrived // vector.itemsize)
            np.add(terms[0][there], terms[1][there], out=total[there])
            added = there.stop

        self._pass_on(_kind("sum", vector), _bytes(vector), _bytes(coming), add)
        return total

    def _sum_in_parts(self, vector: Array) -> Array:
        total, kind = self._room(vector), _kind("sum", vector)
        total[:] = vector
        parts = np.array_split(total, self.size)
        coming = self._scratch(parts[0])
        for turn in range(self.size - 1):
            own = parts[(self._rank - turn - 1) % self.size]
            out = parts[(self._rank - turn) % self.size]
            self._pass_on(kind, _bytes(out), _bytes(coming[: len(own)]))
            own += coming[: len(own)]
        for turn in range(self.size - 1):
            out, into = parts[(self._rank + 1 - turn) % self.size], parts[(self._rank - turn) % self.size]
            self._pass_on(kind, _bytes(out), _bytes(into))
        return total

    def _scratch(self, like: Array) -> Array:
        """Room for an array of this size until the next one is asked for."""
        if len(self._coming) < like.nbytes:
            self._coming = np.empty(like.nbytes, np.uint8)
        return self._coming[: like.nbytes].view(like.dtype)

    def _room(self, like: Array) -> Array:
        """Room for an array of this size, which nobody uses any more.

        New memory costs as much as the sum itself. Who holds the array, or a part of it, holds a reference to
        the room that it is in; TensorFlow too, until it has freed the tensor.
        """
        size = like.nbytes + ALIGNED
        for room in self._rooms:
            if len(room) == size and sys.getrefcount(room) == 3:  # of the list, of this loop, of the call
                self._rooms = [*(other for other in self._rooms if other is not room), room]
                break
        else:
            room = np.empty(size, np.uint8)
            self._rooms = [*self._rooms[1 - ROOMS :], room]
        start = -room.ctypes.data % ALIGNED
        return room[start : start + like.nbytes].view(like.dtype)

    def _pass_on(
        self,
        kind: int,
        out: memoryview,
        into: memoryview | None,
        arrived: Callable[[int], None] | None = None,
    ) -> memoryview:
        """Send bytes on while those of the machine before come in; `arrived` is told how many are there.

        Args:
            kind: what they are, which all machines must agree on.
            into: where they go, if their number is known.
        """
        self._turn += 1
        sending: list[memoryview] = [memoryview(HEAD.pack(self._turn, len(out), kind)), out]
        head = memoryview(bytearray(HEAD.size))
        reading, left = head, head
        try:
            while sending or left:
                moved = _send(self._onward, sending)
                if left and (count := _receive(self._behind, left)):
                    moved, left = True, left[count:]
                    if reading is head and not left:
                        reading = left = self._checked(head, kind, into)
                    elif reading is not head and arrived is not None:
                        arrived(len(reading) - len(left))
                if not moved:
                    self._wait(bool(sending), bool(left))
        except OSError as error:
            raise RingBroken(f"the connection to a neighbour has ended ({error.strerror})") from error
        return reading

    def _checked(self, head: memoryview, kind: int, into: memoryview | None) -> memoryview:
        """Where to put what comes behind a head."""
        turn, size, came = HEAD.unpack(head)
        if turn != self._turn or came != kind or (into is not None and size != len(into)):
            wanted = "" if into is None else f" of {len(into)} bytes"
            what = "other numbers" if came != kind else f"{size} bytes"
            raise OutOfStep(
                f"is at message {self._turn}{wanted}, and the one before it sends message {turn} of {what}"
            )
        return memoryview(bytearray(size)) if into is None else into

    def _wait(self, to_send: bool, to_receive: bool) -> None:
        """Until something moves, or a connection is lost."""
        poll = select.poll()
        if to_send:
            poll.register(self._onward, select.POLLOUT)
        if to_receive:  # else the one before may have come to its end, and rightly
            poll.register(self._behind, select.POLLIN)
        poll.poll()


def _kind(does: str, array: Array) -> int:
    """Tells what a message is for, and the dtype and shape of a row."""
    return zlib.crc32(f"{does} {array.dtype} {array.shape[1:]}".encode())


def _bytes(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _send(connection: socket.socket, parts: list[memoryview]) -> bool:
    """Send as much of this as goes at once, and take it out of the list; whether anything went."""
    if not parts:
        return False
    try:
        sent = connection.sendmsg(parts)
    except BlockingIOError:
        return False
    while parts and sent >= len(parts[0]):
        sent -= len(parts.pop(0))
    if parts:
        parts[0] = parts[0][sent:]
    return True


def _receive(connection: socket.socket, into: memoryview) -> int:
    """How many bytes there were; 0 where none has come yet."""
    try:
        count = connection.recv_into(into)
    except BlockingIOError:
        return 0
    if not count:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return count


def _noticing_silence(connection: socket.socket) -> None:
    """Let the operating system ask the other end every second, and end the connection if nobody answers.

    It asks where nothing is under way in this direction: so on the connection on which nothing is ever sent.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", CUT_OFF)):
        if hasattr(socket, option):  # not all systems have all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
