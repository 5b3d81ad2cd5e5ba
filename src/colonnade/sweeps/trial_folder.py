"""The folder of a trial: its log, the values that it reported, its checkpoints and how each attempt went.

log.txt         what it printed, all attempts after each other
metrics.jsonl   a line for each report: time, step, value
checkpoint/     for what the program saves; the next attempt finds it again
trial.json      for each attempt: host, cards, start, seconds, how it ended
"""

import contextlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL = 65_536  # bytes at the end of a log that are read
# What moves the cursor of a terminal or rings its bell; tabs and ends of lines stay.
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class TrialFolder:
    """`make()` it before a trial begins."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def make(self) -> None:
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        self.log.touch()

    def reported(self, step: int, value: float) -> None:
        line = {"time": time.time(), "step": step, "value": value}
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def last_report(self) -> tuple[int, float] | None:
        """The last line of metrics.jsonl that has a step and a value, whoever wrote it."""
        for line in reversed(_tail(self.metrics).splitlines()):
            try:
                says = json.loads(line)
                return int(says["step"]), float(says["value"])
            except (ValueError, TypeError, KeyError):
                continue
        return None

    def tail(self, lines: int = 10, begin: int = 0) -> list[str]:
        """The end of the log, fit for a terminal; of what is after `begin` bytes."""
        text = CONTROL.sub("", _tail(self.log, begin).replace("\r", "\n"))
        return [line for line in text.splitlines() if line.strip()][-lines:]

    def last_sign(self) -> float:
        """When the program last wrote something here, as a time since the epoch."""
        times = [0.0]
        for path in self._signs():
            with contextlib.suppress(FileNotFoundError):  # programs remove old checkpoints
                times.append(path.stat().st_mtime)
        return max(times)

    def _signs(self) -> Iterator[Path]:
        yield from (path for path in (self.log, self.metrics, self.checkpoint) if path.exists())
        yield from self.checkpoint.rglob("*")  # also what is written over in place

    def attempts(self) -> list[dict[str, Any]]:
        """What trial.json says of each attempt."""
        try:
            says: list[dict[str, Any]] = json.loads((self.path / "trial.json").read_text())["attempts"]
        except (OSError, ValueError, KeyError):
            return []
        return says

    def note(self, attempts: Sequence[Mapping[str, Any]], params: Mapping[str, Any]) -> None:
        """Write down the attempts so far."""
        whole = {"parameters": dict(params), "attempts": list(attempts)}
        new = self.path / "trial.json.new"
        new.write_text(json.dumps(whole, indent=2) + "\n")
        new.replace(self.path / "trial.json")


def _tail(path: Path, begin: int = 0) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(begin, os.fstat(file.fileno()).st_size - TAIL))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
