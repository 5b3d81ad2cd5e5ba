"""Two network namespaces joined by a link of a given speed (`tc tbf`). Needs root."""

import os
import shutil
import subprocess
from types import TracebackType

ADDRESSES = ("10.78.0.1", "10.78.0.2")
ENDS = ("slow0", "slow1")
TOOLS = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}


def missing() -> str | None:
    """Why there can be no such link here, if so."""
    if os.geteuid() != 0:
        return "it needs root, for network namespaces"
    absent = [tool for tool in ("ip", "tc") if not shutil.which(tool, path=TOOLS["PATH"])]
    return f"it needs {' and '.join(absent)}: apt-get install iproute2" if absent else None


class SlowLink:
    """A link of so many megabits per second in each direction, while the `with` block runs."""

    def __init__(self, megabits: int) -> None:
        self._rate = f"{megabits}mbit"
        self.spaces = tuple(f"cnslow{os.getpid()}-{i}" for i in range(2))

    @property
    def inside(self) -> tuple[tuple[str, ...], ...]:
        """The words that run a command at each end."""
        return tuple(("ip", "netns", "exec", space) for space in self.spaces)

    def __enter__(self) -> "SlowLink":
        try:
            self._make()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _make(self) -> None:
        one, other = self.spaces
        for space in self.spaces:
            _tool("ip", "netns", "add", space)
        pair = ("type", "veth", "peer", "name", ENDS[1], "netns", other)
        _tool("ip", "link", "add", "name", ENDS[0], "netns", one, *pair)
        for space, end, address in zip(self.spaces, ENDS, ADDRESSES, strict=True):
            _tool("ip", "-n", space, "address", "add", f"{address}/24", "dev", end)
            _tool("ip", "-n", space, "link", "set", "lo", "up")
            _tool("ip", "-n", space, "link", "set", end, "up")
            shaped = ("tc", "qdisc", "add", "dev", end, "root", "tbf", "rate", self._rate)
            _tool("ip", "netns", "exec", space, *shaped, "burst", "64kb", "latency", "400ms")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, env=TOOLS, check=False)


def _tool(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, env=TOOLS)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
