"""A wire between two network interfaces that delays what it carries, and loses some of it.

    rough_wire.py ONE OTHER SECONDS SHARE

Makes both interfaces, says `ready`, and carries Ethernet frames between them until it is killed. In place of
`tc netem`, which not every kernel has.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

MAKE, TAP_WITHOUT_HEADER = 0x400454CA, 0x0002 | 0x1000  # TUNSETIFF; IFF_TAP, IFF_NO_PI


def made(name: str) -> int:
    tap = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tap, MAKE, struct.pack("16sH", name.encode(), TAP_WITHOUT_HEADER))
    return tap


def carry(ends: tuple[int, int], seconds: float, share: float) -> None:
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
            if draw.random() >= share:
                count += 1
                heapq.heappush(waiting, (time.monotonic() + seconds, count, across[end], frame))


def main() -> None:
    ends = (made(sys.argv[1]), made(sys.argv[2]))
    print("ready", flush=True)
    carry(ends, float(sys.argv[3]), float(sys.argv[4]))


if __name__ == "__main__":
    main()
