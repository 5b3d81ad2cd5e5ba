"""Programs that train together, as one contender: they get the same orders, and each answers when it is done.

An order is a line on their input. An answer is a line of JSON; the first one says that a program is ready.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

WARM, COUNTED = 1, 2  # calls of a turn: not counted, and counted at least


class Lost(Exception):
    """A program ended, or does not answer."""


@dataclass(frozen=True)
class Setting:
    """How the programs of a group are started.

    Args:
        python, program, arguments: the command, to which rank and size are added.
        count: how many.
        addresses: by which they reach each other; this machine's loopback by default.
        inside: words in front of each command, such as those that enter a namespace.
        environment: what is added to each program's.
    """

    python: Path
    program: Path
    arguments: tuple[str, ...]
    count: int
    addresses: tuple[str, ...] = ()
    inside: tuple[tuple[str, ...], ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


class Group:
    """The programs at work; they end with it."""

    def __init__(self, setting: Setting, patience: float = 180) -> None:
        hosts = setting.addresses or ("127.0.0.1",) * setting.count
        places = [f"{host}:{port}" for host, port in zip(hosts, free_ports(setting.count), strict=True)]
        self._patience = patience
        self._errors = [tempfile.TemporaryFile("w+") for _ in hosts]  # noqa: SIM115 - open as long as they run
        self._processes: list[subprocess.Popen[str]] = []
        self._answers: list[queue.SimpleQueue[str | None]] = []
        for rank in range(setting.count):
            config = {"cluster": {"worker": places}, "task": {"type": "worker", "index": rank}}
            own = {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
            inside = setting.inside[rank] if setting.inside else ()
            process = subprocess.Popen(
                [*inside, setting.python, setting.program, *setting.arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors[rank],
                text=True,
                env={**os.environ, **own, **setting.environment},
                start_new_session=True,
            )
            answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
            threading.Thread(target=_listen, args=(process, answers), daemon=True).start()
            self._processes.append(process)
            self._answers.append(answers)
        try:
            self.ready = self._heard()
        except Lost:
            self.end()
            raise

    def call(self, order: str) -> tuple[float, list[dict[str, Any]]]:
        """Seconds until all have answered, and their answers."""
        start = time.perf_counter()
        for process in self._processes:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended: its answer says why
                process.stdin.write(order + "\n")
                process.stdin.flush()
        answers = self._heard()
        return time.perf_counter() - start, answers

    def turn(self, order: str, seconds: float) -> float:
        """Seconds of a call, in the middle of as many as there is time for."""
        taken: list[float] = []
        ending = time.perf_counter() + seconds
        while len(taken) < WARM + COUNTED or time.perf_counter() < ending:
            taken.append(self.call(order)[0])
        return median(taken[WARM:])

    def end(self) -> None:
        """Nothing of them is left."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for errors in self._errors:
            errors.close()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _heard(self) -> list[dict[str, Any]]:
        """An answer of each."""
        answers = []
        for rank, heard in enumerate(self._answers):
            try:
                line = heard.get(timeout=self._patience)
            except queue.Empty:
                raise Lost(f"program {rank} gave no answer within {self._patience:.0f} s") from None
            if line is None:
                self._errors[rank].seek(0)
                said = [text.strip() for text in self._errors[rank] if text.strip()]
                raise Lost(f"program {rank} ended: {' / '.join(said[-3:])[:500]}")
            answers.append(json.loads(line))
        return answers


def _listen(process: "subprocess.Popen[str]", answers: "queue.SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            answers.put(line)
    answers.put(None)


def free_ports(count: int) -> Sequence[int]:
    """Ports that nobody listens at, just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
