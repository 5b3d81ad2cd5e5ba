"""A program of a group that sums over plain sockets in a ring, with NumPy: how fast bytes can go here.

Every program sends to the next. In n - 1 turns each part of the vector goes round and is added up, in n - 1
more the sums go round. Orders are `BYTES COUNT`.
"""

import socket
import threading
import time
from typing import Any

import numpy as np
from orders import obey, place

PATIENCE = 30  # seconds, until the neighbour listens


def connected(rank: int, addresses: list[str]) -> tuple[socket.socket, socket.socket]:
    """To the next program, and from the one before."""
    host, port = addresses[rank].split(":")
    listening = socket.create_server((host, int(port)))
    next_host, next_port = addresses[(rank + 1) % len(addresses)].split(":")
    ending = time.monotonic() + PATIENCE
    while True:
        try:
            onward = socket.create_connection((next_host, int(next_port)))
            break
        except ConnectionRefusedError:
            if time.monotonic() > ending:
                raise
            time.sleep(0.05)
    behind, _ = listening.accept()
    for one in (onward, behind):
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return onward, behind


def main() -> None:
    rank, addresses = place()
    size = len(addresses)
    onward, behind = connected(rank, addresses)

    def passed(part: np.ndarray, into: np.ndarray) -> None:
        """Send a part on while the one of the program before comes in."""
        sending = threading.Thread(target=onward.sendall, args=(memoryview(part).cast("B"),))
        sending.start()
        left = memoryview(into).cast("B")
        while left:
            left = left[behind.recv_into(left) :]
        sending.join()

    def summed(vector: np.ndarray) -> None:
        parts = np.array_split(vector, size)
        coming = np.empty_like(parts[0])
        for turn in range(size - 1):
            own = parts[(rank - turn - 1) % size]
            passed(parts[(rank - turn) % size], coming[: len(own)])
            own += coming[: len(own)]
        for turn in range(size - 1):
            passed(parts[(rank + 1 - turn) % size], parts[(rank - turn) % size])

    def many(num_bytes: str, count: str) -> dict[str, Any]:
        vector = np.ones(int(num_bytes) // 4, np.float32)
        for _ in range(int(count)):
            summed(vector)
            vector /= size
        return {"total": float(vector.sum())}

    obey(many)


if __name__ == "__main__":
    main()
