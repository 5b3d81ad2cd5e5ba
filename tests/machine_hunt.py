"""A training on machines of a LAN, started by `colonnade run`, to which something happens on the way."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from fresh import COMMAND, QUIET, ROOT
from lan import Lan

STEPS = 80
PROGRAM = "machine_training.py"


@dataclass
class Hunt:
    """The launcher, what it prints, and when."""

    lan: Lan
    folder: Path
    machines: int = 2
    steps: int = STEPS
    lines: list[tuple[float, str]] = field(default_factory=list)

    def start(self) -> "Hunt":
        names = ",".join(f"m{i}" for i in range(self.machines))
        options = ["--machines", names, "--private-network", "--at-least", "1", "--restarts", "5"]
        program = [sys.executable, str(ROOT / "tests" / PROGRAM), str(self.folder), str(self.steps)]
        self.process = subprocess.Popen(
            self.lan.inside(self.lan.launcher, COMMAND, "run", *options, "--", *program),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.lan.environment, **QUIET, "COLONNADE_LEASES": str(self.lan.folder / "leases")},
            cwd=self.lan.folder,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        return self

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def wait_for(self, words: str, since: float = 0.0, seconds: float = 120.0) -> float:
        """When a line with these words came, after a moment."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for when, line in list(self.lines):
                if when > since and words in line:
                    return when
            assert self.process.poll() is None or self._reader.is_alive(), self.text()
            time.sleep(0.02)
        raise AssertionError(f"no line with {words!r} in {seconds} s:\n{self.text()}")

    def end(self, seconds: float = 240.0) -> int:
        code = self.process.wait(timeout=seconds)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def text(self) -> str:
        return "\n".join(line for _, line in self.lines if "oneDNN" not in line and "absl" not in line)[
            -6000:
        ]

    def final(self) -> list[str]:
        """What the first machine had learnt in the end."""
        found = [line.partition("| final ")[2] for _, line in self.lines if "| final " in line]
        assert found, self.text()
        assert len(set(found)) == 1, "machines differ"
        return found[0].split()


class Writers:
    """Looks, all the time, who has a file of the checkpoints open to write; there may be one at most."""

    def __init__(self, lan: Lan, folder: Path) -> None:
        self._lan, self._folder = lan, str(folder)
        self._done = threading.Event()
        self.most = 0
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Writers":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        programs: list[int] = []
        looked = 0.0
        while not self._done.wait(0.002):
            if time.monotonic() > looked + 1:
                looked = time.monotonic()
                programs = [p.pid for i in range(self._lan.count) for p in self._lan.programs(i, PROGRAM)]
            self.most = max(self.most, sum(map(self._writes, programs)))

    def _writes(self, pid: int) -> bool:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                path = os.readlink(f"/proc/{pid}/fd/{name}")
                if path.startswith(self._folder) and not path.endswith("lock"):
                    flags = Path(f"/proc/{pid}/fdinfo/{name}").read_text().split("flags:")[1].split()[0]
                    if int(flags, 8) & 3:
                        return True
        except OSError:
            return False
        return False
