"""Writes into `logdir=` what a page needs beside the metrics: what ran where, saves, restarts, the end.

A kill at any moment leaves files that can be read: `run.json` is replaced as a whole, `progress.jsonl`
only grows, by whole lines.
"""

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from colonnade.describe.run_folder import FORMAT, METRICS, PREDICTED, PROGRESS, RUN, TIMELINE
from colonnade.describe.timeline import Timeline
from colonnade.describe.whole_file import write_whole
from colonnade.errors import InvalidArgument, Problem

# Seconds between two looks at the memory in use.
PAUSE = 10.0


class RunLog:
    """The log of one fit; a context manager around it. Without a folder it writes nothing.

    Args:
        logdir: the folder.
        facts: tells what runs where; called after the first steps, when everything is known.
        memory: tells the most memory that was in use so far.
    """

    def __init__(
        self,
        logdir: str | Path | None,
        facts: Callable[[], Mapping[str, Any]],
        memory: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._folder = None if logdir is None else Path(logdir)
        self._facts, self._memory = facts, memory
        self._step, self._looked, self._described = 0, 0.0, False
        self._saves = 0
        self.interrupted = False

    def __enter__(self) -> "RunLog":
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                for name in (METRICS, PROGRESS):
                    end_last_line(self._folder / name)
                (self._folder / PROGRESS).touch()
            except OSError as error:
                rule, fix = f"cannot be written ({error.strerror})", "Name a directory of yours"
                raise InvalidArgument("fit()", [Problem("logdir", str(self._folder), rule, fix)]) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        how = "interrupted" if self.interrupted else "finished"
        if error is not None:
            lines = str(error).splitlines()
            how = f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
        self._note("end", step=self._step, how=how, memory=dict(self._memory()) if self._folder else {})

    def begin(self, step: int, resumed: int | None) -> None:
        """The fit begins after so many steps, or goes on from a saved one."""
        self._step = step
        if self._folder is not None and resumed is None:  # what an earlier fit profiled is not of this one
            (self._folder / TIMELINE).unlink(missing_ok=True)
        self._note("begin", step=step, resumed=resumed, process=os.getpid())

    def advance(self, step: int, skipped: int, saves: Any) -> None:
        """Steps were made up to this one; `saves` are all that were begun in this fit."""
        self._step = step
        if not self._described:
            self._described = True
            self._describe()
        if skipped:
            self._note("skipped", step=step, updates=skipped)
        for save in saves[self._saves :]:
            self._note("save", step=save.step, stalled=save.stalled, bytes=save.bytes)
        self._saves = len(saves)
        if self._folder is not None and time.monotonic() - self._looked > PAUSE:
            self._looked = time.monotonic()
            self._note("memory", step=step, memory=dict(self._memory()))

    def profiled(self, timeline: Timeline) -> None:
        """Some steps were profiled."""
        if self._folder is not None:
            write_whole(self._folder / TIMELINE, timeline.to_json())

    def predicted(self, timeline: Timeline | None) -> None:
        """A step as it was simulated, if it was; what an earlier fit had predicted is no longer said."""
        if self._folder is not None:
            if timeline is None:
                (self._folder / PREDICTED).unlink(missing_ok=True)
            else:
                write_whole(self._folder / PREDICTED, timeline.to_json())

    def _describe(self) -> None:
        if self._folder is not None:
            text = json.dumps({"format": FORMAT, **self._facts()}, indent=1)
            write_whole(self._folder / RUN, text + "\n")

    def _note(self, event: str, **figures: Any) -> None:
        if self._folder is None:
            return
        line = json.dumps({"time": time.time(), "event": event, **figures})
        with (self._folder / PROGRESS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def end_last_line(path: Path) -> None:
    """After a kill in the middle of a line: what is added from now on begins a line of its own."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
