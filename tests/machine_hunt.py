"""A training on machines of a LAN, started by `colonnade run`: what it says while something happens to it."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fresh import COMMAND, QUIET, ROOT
from lan import Lan

PROGRAM = "machine_training.py"
SAID = re.compile(r"m(\d+) +\| (step|final) (\d+) (\w+)")


class Step(NamedTuple):
    """What a machine says after a step, and when it was heard."""

    when: float
    machine: int
    number: int
    checksum: str


@dataclass
class Hunt:
    """One launcher: what it prints, and when.

    Args:
        lan: the machines.
        folder: of the checkpoints.
        steps: after which the training ends.
        seconds: that a callback takes after each step.
        machines: which of the machines; all by default.
    """

    lan: Lan
    folder: Path
    steps: int
    seconds: float = 0.0
    machines: Sequence[int] = ()
    lines: list[tuple[float, str]] = field(default_factory=list)
    made: list[Step] = field(default_factory=list)
    final: list[Step] = field(default_factory=list)

    def start(self) -> "Hunt":
        names = ",".join(f"m{i}" for i in self.machines or range(self.lan.count))
        options = ["--machines", names, "--private-network", "--at-least", "1", "--restarts", "999"]
        file, arguments = ROOT / "tests" / PROGRAM, (self.folder, self.steps, self.seconds)
        program = [sys.executable, str(file), *map(str, arguments)]
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
            when = time.monotonic()
            self.lines.append((when, line.rstrip("\n")))
            if said := SAID.match(line):
                machine, what, number, checksum = said.groups()
                step = Step(when, int(machine), int(number), checksum)
                (self.made if what == "step" else self.final).append(step)

    def wait_until(self, look, why: str, seconds: float = 120.0):
        """What `look` finds at last, which is not None."""
        deadline = time.monotonic() + seconds
        while (found := look()) is None:
            assert time.monotonic() < deadline, f"not seen within {seconds} s: {why}\n{self.text()}"
            assert self.process.poll() is None or self._reader.is_alive(), f"{why}\n{self.text()}"
            time.sleep(0.02)
        return found

    def said(self, words: str, since: float = 0.0) -> float | None:
        """When a line with these words came first, after a moment."""
        return next((when for when, line in list(self.lines) if when > since and words in line), None)

    def wait_for(self, words: str, since: float = 0.0) -> float:
        return self.wait_until(lambda: self.said(words, since), f"a line with {words!r}")

    def steps_since(self, since: float, machine: int) -> list[Step]:
        return [step for step in list(self.made) if step.when > since and step.machine == machine]

    def end(self, seconds: float = 240.0) -> int:
        code = self.process.wait(timeout=seconds)
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def text(self) -> str:
        """The last that was printed, without all but the last of the steps."""
        told = [line for _, line in self.lines if "oneDNN" not in line and "absl" not in line]
        return "\n".join(line for i, line in enumerate(told) if i > len(told) - 9 or not SAID.match(line))[
            -6000:
        ]


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
        while not self._done.wait(0.005):
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
