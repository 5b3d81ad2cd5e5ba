"""Runs programs as the machines of one cluster, each in a fork of this process, which knows TensorFlow.

`python machine_group.py SPEC`, with SPEC in JSON: the commands, what is added to their environment, and after
how many seconds who is left is killed. Prints, in JSON, how each ended, when, and what it said.
"""

import json
import os
import runpy
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path


def free_ports(count):
    """Ports that nobody listens at, just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def be_machine(command, environment, folder):
    """What `python COMMAND...` does, after its imports."""
    os.setpgid(0, 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(environment)
    sys.argv, sys.path[0] = command, os.path.dirname(command[0])
    runpy.run_path(command[0], run_name="__main__")


def started(spec, folder):
    """Fork for every command; None in the forks, at their end."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(len(spec["commands"]))]
    machines = {}
    for rank, command in enumerate(spec["commands"]):
        place = folder / str(rank)
        place.mkdir()
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        names = ",".join(f"m{i}" for i in range(len(addresses)))
        own = {"TF_CONFIG": json.dumps(config), "COLONNADE_MACHINES": names, **spec["environment"]}
        pid = os.fork()
        if pid == 0:
            be_machine(command, own, place)
            return None
        machines[pid] = rank
    return machines


def reaped(machines, seconds, patience):
    """How each ended: its exit code and when. Who outlives the first end by `patience` is killed."""
    ended, deadline = {}, time.monotonic() + seconds
    while len(ended) < len(machines):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ended[machines[pid]] = os.waitstatus_to_exitcode(status), time.time()
            deadline = min(deadline, time.monotonic() + patience)
        elif time.monotonic() > deadline:
            for other in [p for p, rank in machines.items() if rank not in ended]:
                os.kill(other, signal.SIGKILL)
            deadline = time.monotonic() + 60
        else:
            time.sleep(0.01)
    return ended


def main():
    spec = json.loads(sys.argv[1])
    folder = Path(tempfile.mkdtemp())
    machines = started(spec, folder)
    if machines is None:
        return
    ended = reaped(machines, spec["seconds"], spec["patience"])
    told = []
    for rank in range(len(machines)):
        code, when = ended[rank]
        said = {name: (folder / str(rank) / name).read_text(errors="replace") for name in ("out", "err")}
        told.append({"code": code, "when": when, **said})
    print(json.dumps(told))


if __name__ == "__main__":
    main()
