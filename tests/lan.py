"""Machines that are network namespaces of this one, joined by a bridge; each with a real sshd.

    launcher ── bridge ─┬─ m0   10.77.0.1
    10.77.0.254         ├─ m1   10.77.0.2
                        └─ ...

Files and processes are those of this machine. Links can be cut; one that is a wire can be made rough: then it
loses packets, and delays others.
Needs root.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

NEEDED = ("ip", "ssh", "sshd", "ssh-keygen")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
SSHD = """
Port 22
ListenAddress {address}
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
SetEnv PYTHONPATH={source}
"""
SSH = """
Host m*
  IdentityFile {folder}/key
  UserKnownHostsFile {folder}/known
  StrictHostKeyChecking accept-new
"""


_numbers = itertools.count()


def missing() -> str | None:
    """Why there can be no such machines here, if so."""
    absent = [name for name in NEEDED if not shutil.which(name, path=PATH)]
    if absent:
        return f"needs {', '.join(absent)}: apt-get install iproute2 openssh-server"
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    tried = ip("netns", "add", "colonnade-try", check=False)
    ip("netns", "del", "colonnade-try", check=False)
    return f"no network namespaces here: {tried.stderr.strip()}" if tried.returncode else None


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, env={**os.environ, "PATH": PATH})
    assert not check or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"
    return done


class Lan:
    """So many machines; leave the `with` block, and nothing of them is left."""

    def __init__(self, folder: Path, count: int, *, wires: frozenset[int] = frozenset()) -> None:
        self.folder, self.count, self._carried = folder, count, wires
        self._wires: dict[int, subprocess.Popen[bytes]] = {}
        number = next(_numbers)
        self.launcher = f"cn{os.getpid()}-{number}-l"
        self.spaces = [f"cn{os.getpid()}-{number}-{i}" for i in range(count)]
        self.disk = folder / "disk"  # a small one, which can be filled up
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "Lan":
        try:
            self._join()
            # Before anything is started on a machine: what is mounted later is not seen there.
            self.disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(self.disk)], check=True)
            self._serve()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for pid in [pid for space in (*self.spaces, self.launcher) for pid in self._pids(space)]:
            os.kill(pid, signal.SIGKILL)
        for daemon in self._daemons:
            daemon.kill()
            daemon.communicate()
        for space in (*self.spaces, self.launcher):
            ip("netns", "del", space, check=False)
        subprocess.run(["umount", "-l", str(self.disk)], capture_output=True)

    def _join(self) -> None:
        hub = self.launcher
        ip("netns", "add", hub)
        for words in (
            "link set lo up",
            "link add br0 type bridge",
            "addr add 10.77.0.254/24 dev br0",
            "link set br0 up",
        ):
            ip("-n", hub, *words.split())
        for i, space in enumerate(self.spaces):
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            if i in self._carried:
                self._wires[i] = self._wire(i, space)
            else:
                ip("-n", hub, "link", "add", f"p{i}", "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("-n", hub, "link", "set", f"p{i}", "master", "br0", "up")
            ip("-n", space, "addr", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")

    def _wire(self, i: int, space: str) -> subprocess.Popen[bytes]:
        wire = [
            sys.executable,
            str(Path(__file__).with_name("rough_wire.py")),
            f"p{i}",
            "eth0",
            "0.1",
            "0.05",
        ]
        daemon = subprocess.Popen(self.inside(self.launcher, *wire), stdout=subprocess.PIPE)
        self._daemons.append(daemon)
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == b"ready\n"
        ip("-n", self.launcher, "link", "set", "eth0", "netns", space)
        return daemon

    def _serve(self) -> None:
        """An sshd on each machine, and an `ssh` that knows them."""
        folder = self.folder
        for name in ("host", "key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True
            )
        Path("/run/sshd").mkdir(exist_ok=True)
        sshd = shutil.which("sshd", path=PATH)
        assert sshd is not None
        source = Path(__file__).parent.parent / "src"
        for i, space in enumerate(self.spaces):
            text = SSHD.format(address=f"10.77.0.{i + 1}", folder=folder, source=source)
            (folder / f"sshd-{i}").write_text(text)
            command = self.inside(space, sshd, "-D", "-e", "-f", str(folder / f"sshd-{i}"))
            self._daemons.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        hosts = "".join(f"Host m{i}\n  HostName 10.77.0.{i + 1}\n" for i in range(self.count))
        (folder / "config").write_text(hosts + SSH.format(folder=folder))
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n'
        )
        (folder / "bin" / "ssh").chmod(0o755)
        time.sleep(1)

    def inside(self, space: str, *command: str) -> list[str]:
        """A command that runs on a machine."""
        return ["ip", "netns", "exec", space, *command]

    @property
    def environment(self) -> dict[str, str]:
        """In which `ssh m0` reaches the first machine, from the launcher's."""
        return {**os.environ, "PATH": f"{self.folder / 'bin'}:{PATH}"}

    def cut(self, i: int) -> None:
        ip("-n", self.launcher, "link", "set", f"p{i}", "down")

    def mend(self, i: int) -> None:
        ip("-n", self.launcher, "link", "set", f"p{i}", "up")

    def roughen(self, i: int) -> None:
        """From now on 5% of the packets are lost, each way, and the others take 100 ms."""
        self._wires[i].send_signal(signal.SIGUSR1)

    def smooth(self, i: int) -> None:
        self._wires[i].send_signal(signal.SIGUSR2)

    def mend_all(self) -> None:
        for i in range(self.count):
            self.mend(i)
        for i in self._wires:
            self.smooth(i)

    def programs(self, i: int, word: str) -> list[psutil.Process]:
        """The processes on a machine whose command has this word."""
        found = []
        for pid in self._pids(self.spaces[i]):
            try:
                process = psutil.Process(pid)
                if any(word in part for part in process.cmdline()):
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def _pids(self, space: str) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", space, check=False).stdout.split()]
