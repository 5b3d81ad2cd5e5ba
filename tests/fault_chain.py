"""A training on machines of a LAN that meets one fault after the other, in one folder of checkpoints.

After each it goes on, started anew by the same launcher or by the next one, or not ended at all, and meets
the next fault some steps later. Whatever step a machine tells of, in whichever start: its parameters must be
those after this step of a training that nothing happens to.
"""

import random
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from lan import Lan
from machine_hunt import PROGRAM, Hunt, Writers

MANY = 2000  # steps; a training of which so many are asked is ended by the test
EVERY = 10  # steps between saves of the program
# Steps after which a silent machine is missed in five seconds: it takes two to know how long one takes.
STEADY = 4
BALLAST = "ballast"
SECONDS = 0.03  # of a callback in each step


class FaultChain:
    """Leave the `with` block, and all is held against the unbroken training, and nothing of it is left.

    Args:
        lan: two machines.
        folder: on the small disk of the machines.
        draw: when faults come.
        unbroken: by step, the checksum of the parameters.
    """

    def __init__(self, lan: Lan, folder: Path, draw: random.Random, unbroken: Mapping[int, str]) -> None:
        self.lan, self.folder, self.draw, self._unbroken = lan, folder, draw, unbroken
        self.hunts: list[Hunt] = []
        self.cut_off: set[int] = set()  # machines that were at the last start
        self.furthest = 0  # step that was ever made
        self.times: dict[str, dict[str, float]] = {}  # by fault, seconds after it
        self._writers = Writers(lan, folder)

    def __enter__(self) -> "FaultChain":
        self._writers.__enter__()
        self.onward(self.launch())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._end()
        finally:
            self._writers.__exit__()
            self.hunt.process.kill()
            self.lan.mend_all()
            left(self.lan, within=40)
            (self.lan.disk / BALLAST).unlink(missing_ok=True)
            shutil.rmtree(self.folder)

    def _end(self) -> None:
        (self.folder / "enough").touch()
        assert self.hunt.end() == 0, self.hunt.text()
        assert left(self.lan, within=1) == []
        assert {step.machine for step in self.hunt.final} == set(self.present)
        assert self._writers.most == 1
        for hunt in self.hunts:
            for step in (*hunt.made, *hunt.final):
                assert step.checksum == self._unbroken[step.number], step

    @property
    def hunt(self) -> Hunt:
        """The launcher of now."""
        return self.hunts[-1]

    @property
    def present(self) -> list[int]:
        """The machines that take part."""
        return [i for i in range(self.lan.count) if i not in self.cut_off]

    def program(self, i: int) -> psutil.Process:
        (process,) = self.lan.programs(i, PROGRAM)
        return process

    def launch(self) -> float:
        """Start a launcher; when that was."""
        self.cut_off.clear()
        self.hunts.append(Hunt(self.lan, self.folder, MANY, SECONDS).start())
        return time.monotonic()

    def meet(self, name: str, fault: Callable[["FaultChain"], dict[str, float]]) -> None:
        """Let something happen, and wait until the training has gone on for a while.

        The fault tells how many seconds after it what was, and since when the training is to go on.
        """
        begun = time.monotonic()
        noted = fault(self)
        on = self.onward(noted.pop("since"))
        noted.setdefault("training", on - begun)
        self.times[name] = {what: round(seconds, 2) for what, seconds in noted.items()}

    def onward(self, since: float) -> float:
        """Wait for steps since then on all machines that take part, beyond all that were made before.

        When the first of them was made.
        """
        wanted = self.furthest + self.draw.randint(1, EVERY)

        def far() -> float | None:
            made = [self.hunt.steps_since(since, i) for i in self.present]
            if any(len(own) < STEADY or own[-1].number < wanted for own in made):
                return None
            return min(own[0].when for own in made)

        on = self.hunt.wait_until(far, f"machines {self.present} at step {wanted}")
        steps = [step.number for i in self.present for step in self.hunt.steps_since(since, i)]
        # A save is on disk before the next one is begun, and what is on disk is not lost.
        assert min(steps) > self.furthest - 2 * EVERY
        self.furthest = max(steps)
        return on

    def restarted(self, do: Callable[[], Any], limit: float) -> dict[str, float]:
        """Do something after which all are ended, and started anew. Who misses a machine says so in time."""
        begun = time.monotonic()
        do()
        again = self.hunt.wait_for("starting again", begun)
        self.cut_off.clear()
        noticed = min(self.hunt.said("start all machines again", begun) or again, again) - begun
        assert noticed < limit, noticed
        return {"noticed": noticed, "ended": again - begun, "since": again}


def left(lan: Lan, *machines: int, within: float) -> list[psutil.Process]:
    """What is left of a training after so many seconds, on these machines or on all."""
    deadline, where = time.monotonic() + within, machines or range(lan.count)
    while found := [p for i in where for word in (PROGRAM, "far_end") for p in lan.programs(i, word)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return found


def fill(disk: Path) -> Path:
    """Let no room be on a disk; the file to remove for some."""
    ballast = disk / BALLAST
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], capture_output=True)
    return ballast
