"""Finds TensorFlow's servers on this machine that other machines can reach: they ask nobody who he is."""

import contextlib
import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from colonnade.describe.clusters import fence
from colonnade.describe.clusters.address import is_loopback, parted
from colonnade.describe.clusters.cluster import Cluster
from colonnade.errors import ColonnadeError
from colonnade.hardware.doctors.finding import Finding

# How a client of HTTP/2, which gRPC is, begins: its preface, and an empty frame of settings.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
SETTINGS = 4  # the kind of frame with which a server of HTTP/2 answers
PATIENCE = 1.0
LONGEST = 60  # letters of a command that are shown


@dataclass(frozen=True)
class OpenPort:
    """A port of a TensorFlow server; `hosts` are the machines of its cluster, where its environment tells."""

    port: int
    pid: int
    command: str
    hosts: tuple[str, ...] = ()


def open_ports() -> tuple[tuple[OpenPort, ...], bool]:
    """TensorFlow's servers on other than loopback addresses; and whether some processes are hidden."""
    listening: dict[tuple[int, int], OpenPort] = {}
    hidden = False
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:  # as on macOS without root
        return (), True
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or not connection.laddr:
            continue
        pid, address, port = connection.pid, connection.laddr.ip, connection.laddr.port
        if is_loopback(address):
            continue
        if pid is None:
            hidden = True
        elif _has_tensorflow(pid) and _speaks_http2(address, port):
            listening[pid, port] = OpenPort(port, pid, _command(pid), _hosts(pid))
    return tuple(listening.values()), hidden


def reachable(ports: Sequence[OpenPort], hidden: bool) -> Finding:
    """Whether strangers may reach a TensorFlow server of this machine."""
    check = "open ports of TensorFlow"
    why = (
        "its server has no authentication: who reaches it runs any op as you, and reads and writes your files"
    )
    if not ports:
        beyond = "; other users' processes cannot be seen from here" if hidden else ""
        return Finding(check, "good", f"none that another machine could reach{beyond}", why)
    listed = "; ".join(f"port {one.port} of process {one.pid} ({one.command})" for one in ports)
    hosts = list(dict.fromkeys(host for one in ports for host in one.hosts if not is_loopback(host)))
    rules = fence.rules(hosts, ", ".join(map(str, sorted({one.port for one in ports}))))
    fenced = "\n".join(f"     {rule}" for rule in rules)
    remedy = f"End what is not needed, and fence the rest, as root, if nothing does yet:\n{fenced}"
    return Finding(check, "note", f"{listed}: on all interfaces", why, remedy)


def _has_tensorflow(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return any("tensorflow" in line for line in Path(f"/proc/{pid}/maps").read_text().splitlines())
    return False


def _speaks_http2(address: str, port: int) -> bool:
    """Whether a server of gRPC listens there, and not that of TensorBoard or of a notebook."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    with (
        contextlib.suppress(OSError),
        socket.create_connection((everywhere.get(address, address), port), PATIENCE) as s,
    ):
        s.settimeout(PATIENCE)
        s.sendall(PREFACE)
        answer = s.recv(9, socket.MSG_WAITALL)
        return len(answer) == 9 and answer[3] == SETTINGS
    return False


def _command(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        text = shlex.join(psutil.Process(pid).cmdline())
        return text if len(text) <= LONGEST else text[:LONGEST] + "..."
    return "?"


def _hosts(pid: int) -> tuple[str, ...]:
    """The machines of the cluster that a process was told of, if that can be seen and makes sense."""
    with contextlib.suppress(psutil.Error, ColonnadeError):
        cluster = Cluster.from_environment(psutil.Process(pid).environ())
        if cluster is not None:
            return tuple(dict.fromkeys(parted(address)[0] for address in cluster.addresses))
    return ()
