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

import os
import select
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

# Bytes of a sum that is passed on as a whole.
SMALL = 2**15
# In front of what is sent in a turn: the number of the turn, and how many bytes follow.
HEAD = struct.Struct("!QQ")
# TensorFlow takes an array as it is where it begins at a multiple of so many bytes; else it copies it.
ALIGNED = 64
# Of a machine whose system does not answer for so many seconds nothing more is to come: it, or the network
# between, is gone. One whose program is busy, or stopped, answers.
CUT_OFF = 5
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
        self._spare: dict[tuple[int, int], list[Array]] = {}
        for connection in (onward, behind):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _noticing_silence(behind)

    def close(self) -> None:
        self._onward.close()
        self._behind.close()

    def sum(self, vector: Array) -> Array:
        """The sum over the machines of vectors of one size and dtype: the same bits on each machine."""
        with np.errstate(all="ignore"):  # what is not finite is looked for by whoever wants to know
            if self.size == 2:
                return self._sum_of_two(vector)
            if vector.nbytes <= SMALL:
                return np.add.reduce(self.every(vector, alike=True), axis=0, dtype=vector.dtype)
            return self._sum_in_parts(vector)

    def every(self, own: Array, *, alike: bool = False) -> list[Array]:
        """The arrays of all machines, by rank; their first dim may differ, unless they have to be alike."""
        own = np.ascontiguousarray(own)
        arrays = {self._rank: own}
        for turn in range(self.size - 1):
            passed = arrays[(self._rank - turn) % self.size]
            into = np.empty_like(own) if alike else None
            came = self._pass_on(_bytes(passed), None if into is None else _bytes(into))
            whole = np.frombuffer(came, own.dtype)
            arrays[(self._rank - turn - 1) % self.size] = whole.reshape(-1, *own.shape[1:])
        return [arrays[rank] for rank in range(self.size)]

    def _sum_of_two(self, vector: Array) -> Array:
        """Adds while it comes: what has just been received is still in the processor's cache."""
        coming, total = self._room(vector, 0), self._room(vector, 1)
        added = 0

        def add(arrived: int) -> None:
            nonlocal added
            whole = arrived // vector.itemsize
            np.add(vector[added:whole], coming[added:whole], out=total[added:whole])
            added = whole

        self._pass_on(_bytes(vector), _bytes(coming), add)
        return total

    def _sum_in_parts(self, vector: Array) -> Array:
        total = self._room(vector, 1)
        total[:] = vector
        parts = np.array_split(total, self.size)
        coming = self._room(parts[0], 0)
        for turn in range(self.size - 1):
            own = parts[(self._rank - turn - 1) % self.size]
            self._pass_on(_bytes(parts[(self._rank - turn) % self.size]), _bytes(coming[: len(own)]))
            own += coming[: len(own)]
        for turn in range(self.size - 1):
            into = parts[(self._rank - turn) % self.size]
            self._pass_on(_bytes(parts[(self._rank + 1 - turn) % self.size]), _bytes(into))
        return total

    def _room(self, like: Array, number: int) -> Array:
        """Room for an array of this size, which nobody uses any more.

        New memory costs as much as the sum itself. Who holds the array, or a part of it, holds a reference to
        the room that it is in; TensorFlow too, until it has freed the tensor.
        """
        spare = self._spare.setdefault((like.nbytes, number), [])
        for room in spare:
            if sys.getrefcount(room) == 3:  # that of the list, of this loop, and of the call
                break
        else:
            room = np.empty(like.nbytes + ALIGNED, np.uint8)
            spare.append(room)
        start = -room.ctypes.data % ALIGNED
        return room[start : start + like.nbytes].view(like.dtype)

    def _pass_on(
        self, out: memoryview, into: memoryview | None, arrived: Callable[[int], None] | None = None
    ) -> memoryview:
        """Send bytes on while those of the machine before come in; `arrived` is told how many are there.

        Args:
            into: where they go, if their number is known.
        """
        self._turn += 1
        sending: list[memoryview] = [memoryview(HEAD.pack(self._turn, len(out))), out]
        head = memoryview(bytearray(HEAD.size))
        reading, left = head, head
        try:
            while sending or left:
                moved = _send(self._onward, sending)
                if left and (count := _receive(self._behind, left)):
                    moved, left = True, left[count:]
                    if reading is head and not left:
                        reading = left = self._checked(head, into)
                    elif reading is not head and arrived is not None:
                        arrived(len(reading) - len(left))
                if not moved:
                    self._wait(bool(sending), bool(left))
        except OSError as error:
            self.close()  # so that all others know of it
            raise RingBroken(f"the connection to a neighbour has ended ({error.strerror})") from error
        except OutOfStep:
            self.close()
            raise
        return reading

    def _checked(self, head: memoryview, into: memoryview | None) -> memoryview:
        """Where to put what comes behind a head."""
        turn, size = HEAD.unpack(head)
        if turn != self._turn or (into is not None and size != len(into)):
            wanted = "" if into is None else f" of {len(into)} bytes"
            raise OutOfStep(
                f"is at message {self._turn}{wanted}, and the one before it sends message "
                f"{turn} of {size} bytes"
            )
        return memoryview(bytearray(size)) if into is None else into

    def _wait(self, to_send: bool, to_receive: bool) -> None:
        """Until something moves; the operating system ends the wait if a connection is lost."""
        poll = select.poll()
        if to_send:
            poll.register(self._onward, select.POLLOUT)
        if to_receive:
            poll.register(self._behind, select.POLLIN)
        poll.poll()


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
        raise ConnectionResetError(os.strerror(104))
    return count


def _noticing_silence(connection: socket.socket) -> None:
    """Let the operating system ask the other end every second, and end the connection if nobody answers.

    It asks where nothing is under way in this direction: so on the connection on which nothing is ever sent.
    """
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 1), ("TCP_KEEPINTVL", 1), ("TCP_KEEPCNT", CUT_OFF)):
        if hasattr(socket, option):  # not all systems have all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
