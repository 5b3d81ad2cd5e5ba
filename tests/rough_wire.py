"""A wire between two network interfaces that can delay what it carries, and lose some of it.

    rough_wire.py ONE OTHER SECONDS SHARE

Makes both interfaces, says `ready`, and carries Ethernet frames between them until it is killed: at once, but
from a SIGUSR1 to a SIGUSR2 so many seconds later, and all but this share of them. In place of `tc netem`,
which not every kernel has.
"""

import fcntl
import heapq
import os
import random
import select
import signal
import struct
import sys
import time

MAKE, TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000  # TUNSETIFF; IFF_TAP, IFF_NO_PI


def made(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, MAKE, struct.pack("16sH", name.encode(), TAP_WITHOUT_HEADER))
    return tap


class Roughness:
    """How rough the wire is just now: by how many seconds it delays, and which share it loses."""

    def __init__(self, seconds: float, share: float) -> None:
        self.seconds = self.share = 0.0
        signal.signal(signal.SIGUSR1, lambda *_: self._become(seconds, share))
        signal.signal(signal.SIGUSR2, lambda *_: self._become(0.0, 0.0))

    def _become(self, seconds: float, share: float) -> None:
        self.seconds, self.share = seconds, share


def carry(ends: tuple[int, int], rough: Roughness) -> None:
    across = {ends[0]: ends[1], ends[1]: ends[0]}
    draw = random.Random(2026)
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, end, frame = heapq.heappop(waiting)
            try:
                os.write(end, frame)
            except OSError:
                continue  # an interface that is down
        ready, _, _ = select.select(ends, [], [], max(0.0, waiting[0][0] - now) if waiting else None)
        for end in ready:
            try:
                frame = os.read(end, 65536)
            except OSError:
                time.sleep(0.01)
                continue
            if draw.random() >= rough.share:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + rough.seconds, count, across[end], frame))


def main() -> None:
    ends = (made(sys.argv[1]), made(sys.argv[2]))
    rough = Roughness(float(sys.argv[3]), float(sys.argv[4]))
    print("ready", flush=True)
    carry(ends, rough)


if __name__ == "__main__":
    main()
