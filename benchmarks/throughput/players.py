"""The contest's side of a contender: a process that waits for its turns, and is ended if it hangs."""

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Lost(Exception):
    """A contender failed or hung; says how."""


@dataclass(frozen=True)
class Entry:
    """Who takes part, and with which program."""

    name: str
    python: Path
    program: Path
    arguments: tuple[str, ...]


class Player:
    """A contender at work; the group of its processes ends with it."""

    def __init__(self, entry: Entry) -> None:
        self.name = entry.name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process runs
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
        self._process = subprocess.Popen(
            [entry.python, entry.program, *entry.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, **quiet},
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def imported(self, patience: float) -> None:
        """Wait until it has imported what it needs."""
        self._answer(patience)

    def begin(self, patience: float) -> dict[str, Any]:
        """Let it make its first step, and choose its setting."""
        return self._told("begin", patience)

    def turn(self, seconds: float, patience: float) -> dict[str, Any]:
        """Let it train for so long."""
        return self._told(f"go {seconds}", patience)

    def _told(self, line: str, patience: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: the answer says why
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._answer(patience)

    def end(self, patience: float = 10) -> None:
        """Its processes are gone afterwards, whatever they were doing."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        ending = time.monotonic() + patience
        # Not taken off the table of processes yet, so that nobody else gets the number of its group.
        look = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while os.waitid(os.P_PID, self._process.pid, look) is None and time.monotonic() < ending:
            time.sleep(0.02)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._errors.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(line)
        self._lines.put(None)

    def _answer(self, patience: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=patience)
        except queue.Empty:
            self.end(0)
            raise Lost(f"hung: no answer within {patience:.0f} s") from None
        if line is None:
            self._errors.seek(0)
            said = [text.strip() for text in self._errors if text.strip()]
            # The first line that names an error; frames of a stack come behind it or before.
            named = [text for text in said if re.match(r"[\w.]+(Error|Exception)\b|F\d{4} ", text)]
            said = named[:1] or said
            self.end(0)
            raise Lost(f"failed: {said[-1][:200] if said else 'without a word'}")
        return json.loads(line)


def play(
    entries: list[Entry], rounds: int, seconds: float, patience: float, tell: Any = print
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str], dict[str, str]]:
    """Start all, let each make its first step, one after the other, and then take turns.

    The direction changes every round.

    Returns:
        What each measured, round by round; the setting of each; and of those that were lost, why.
    """
    players: dict[str, Player] = {}
    ready: dict[str, dict[str, Any]] = {}
    measured: dict[str, list[dict[str, Any]]] = {}
    settings: dict[str, str] = {}
    lost: dict[str, str] = {}

    def lose(name: str, why: Lost) -> None:
        lost[name] = str(why)
        tell(f"{name} {why}")
        del players[name]

    try:
        for entry in entries:
            players[entry.name] = Player(entry)
        # None begins before the last has imported, which takes the cores.
        for name, player in list(players.items()):
            try:
                player.imported(patience)
            except Lost as why:
                lose(name, why)
        for name, player in list(players.items()):
            try:
                ready[name] = player.begin(patience)
            except Lost as why:
                lose(name, why)
                continue
            settings[name] = ready[name].pop("setting")
            tell(f"{name}: {settings[name]}; {ready[name]}")
        for number in range(rounds):
            for name in list(players)[:: -1 if number % 2 else 1]:
                try:
                    figures = players[name].turn(seconds, patience)
                except Lost as why:
                    lose(name, why)
                    continue
                # The first step and the memory were measured once.
                known = ready[name] if number == 0 else {}
                measured.setdefault(name, []).append({**figures, **known})
            steps = {name: round(rows[-1]["step"], 3) for name, rows in measured.items() if name in players}
            tell(f"round {number + 1} of {rounds}, ms per step: {steps}")
    finally:
        for player in players.values():
            player.end()
    return {name: rows for name, rows in measured.items() if name not in lost}, settings, lost
