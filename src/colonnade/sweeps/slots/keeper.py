"""The program that keeps a slot: it waits for cards, holds their lease, and runs programs under it in turn.

One for each slot of a sweep, started by it as `python -m colonnade.sweeps.slots.keeper`. Around each program
is `fleet.supervise`, so nothing that a trial starts outlives it. The sweep killed: the kernel kills the
keeper, and the supervisor ends the rest within seconds. Orders and answers are messages over two sockets:

    {"waiting": place}                     not our turn yet
    {"leased": [card, ...]}                ours, until the keeper ends
    {"refused": text}                      the leases cannot be used
                  {"run": command, "environment": ...}  with the log, and the trial's channel if it has one
    {"ended": code}
"""

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from colonnade.errors import ColonnadeError
from colonnade.fleet.launch import environment, pool_of
from colonnade.fleet.lease import Lease, ask
from colonnade.fleet.supervise import die_with, supervise
from colonnade.sweeps.slots.channel import CHANNEL

CARDS = "COLONNADE_CARDS"  # the environment variable that names the leased cards
CANNOT_START = 127  # as a shell says it
LARGEST = 2**20  # bytes of an order


def main(control: int, parent: int, says: dict[str, Any]) -> None:
    """Keep a slot until the sweep hangs up."""
    die_with(parent)
    with socket.socket(fileno=control) as orders:
        try:
            _keep(orders, says)
        except ColonnadeError as error:
            _send(orders, {"refused": str(error)})
        except BrokenPipeError:
            pass  # the sweep has hung up, and is not interested any more


def _keep(orders: socket.socket, says: dict[str, Any]) -> None:
    directory = None if says["leases"] is None else Path(says["leases"])
    pool = pool_of(says["cards"], says["virtual"])
    with ask(
        pool,
        says["cards"],
        memory=says["memory"],
        command=says["command"],
        share=says["share"],
        directory=directory,
    ) as lease:
        lease.wait(tell=lambda place: _send(orders, {"waiting": place}))
        _send(orders, {"leased": lease.claim.slots})
        while True:
            text, descriptors, _, _ = socket.recv_fds(orders, LARGEST, 2)
            if not text:
                return
            code = _run(json.loads(text), descriptors, lease, [says["owner"]], says["virtual"] is not None)
            _send(orders, {"ended": code})


def _run(order: dict[str, Any], descriptors: list[int], lease: Lease, keep: list[int], virtual: bool) -> int:
    log, *channel = descriptors
    inside = {**environment(os.environ, lease, virtual), **order["environment"]}
    inside[CARDS] = ",".join(lease.claim.slots)
    if channel:
        inside[CHANNEL] = str(channel[0])
    mine = os.dup(2)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        return supervise(order["run"], inside, lease.descriptor, *keep, *channel).code
    except OSError as error:
        os.write(2, f"{order['run'][0]} cannot be started: {error.strerror}\n".encode())
        return CANNOT_START
    finally:
        os.dup2(mine, 1)
        os.dup2(mine, 2)
        for descriptor in (mine, *descriptors):
            os.close(descriptor)


def _send(orders: socket.socket, message: dict[str, Any]) -> None:
    orders.send(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
