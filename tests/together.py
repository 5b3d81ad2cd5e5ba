"""Start a program on several machines, which are processes here, and take what each of them says."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fresh import QUIET, ROOT


@dataclass
class Ended:
    """How a machine ended."""

    code: int
    out: str
    err: str
    seconds: float = 0.0


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


class Together:
    """Processes that are machines of one cluster."""

    def __init__(self, commands, *, names=None, cwd=ROOT, **environment):
        addresses = [f"127.0.0.1:{port}" for port in free_ports(len(commands))]
        self.processes = []
        for rank, command in enumerate(commands):
            config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
            full = {
                **os.environ,
                **QUIET,
                "TF_CONFIG": json.dumps(config),
                "COLONNADE_MACHINES": ",".join(names or (f"m{i}" for i in range(len(commands)))),
                "COLONNADE_JOIN_SECONDS": "60",
                **environment,
            }
            full.pop("COLONNADE_JOINED", None)
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            self.processes.append(
                subprocess.Popen([sys.executable, *command], env=full, cwd=cwd, text=True, **pipes)
            )

    def wait(self, timeout=240):
        """How each of them ended."""
        begin, ended = time.monotonic(), []
        try:
            for process in self.processes:
                left = max(1.0, timeout - (time.monotonic() - begin))
                out, err = process.communicate(timeout=left)
                ended.append(Ended(process.returncode, out, err))
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
        return ended


def on_machines(cases, devices):
    """What each machine says of each case, by its name; machines have so many devices."""
    program = str(Path(__file__).with_name("machine_cases.py"))
    ended = Together([[program, ",".join(cases), str(count)] for count in devices]).wait()
    for one in ended:
        assert one.code == 0, one.err[-4000:]
    lines = [[line[5:] for line in one.out.splitlines() if line.startswith("CASE ")] for one in ended]
    return [dict(map(json.loads, each)) for each in lines]
