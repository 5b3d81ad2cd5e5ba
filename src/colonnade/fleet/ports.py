"""Ports for the machines of a cluster: free ones, all from one range, so that one rule can fence them."""

import random
import socket
from contextlib import ExitStack

from colonnade.describe.clusters.slurm_step import PORTS


def free(count: int = 1) -> list[int]:
    """So many ports of this machine that nobody listens on.

    At random, because between this moment and the start of a program another launcher may look as well.
    """
    ports: list[int] = []
    with ExitStack() as held:  # until all are found, so that none is found twice
        for port in random.sample(PORTS, len(PORTS)):
            if len(ports) == count:
                return ports
            try:
                held.enter_context(_bound(port))
            except OSError:
                continue
            ports.append(port)
    raise OSError(f"of the ports {PORTS.start} to {PORTS.stop - 1}, only {len(ports)} are free")


def _bound(port: int) -> socket.socket:
    """A socket on all interfaces, as the door of a machine will be."""
    six = socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if six:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
    except OSError:
        listener.close()
        raise
    return listener
