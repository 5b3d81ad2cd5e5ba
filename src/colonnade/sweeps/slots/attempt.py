"""One attempt at a trial: start a program in a slot, serve what it asks for, see how it ends."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from colonnade.sweeps import command as commands
from colonnade.sweeps.board import RunningTrial
from colonnade.sweeps.command import Command
from colonnade.sweeps.slots.channel import METHODS
from colonnade.sweeps.slots.ending import Ending, of_exit
from colonnade.sweeps.slots.slot import Slot
from colonnade.sweeps.trial_book import Taken
from colonnade.sweeps.trial_folder import TrialFolder

LOOK = 1.0  # seconds between two looks for signs of life
LAST_WORDS = 5.0  # seconds to read what a program that has ended had sent
EXIT = 20.0  # seconds that a process may take to end after its result
STALLED = 10.0  # seconds between asking a stalled program to end and killing it
LONGEST = 2**24  # bytes of a message

Call = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Stall:
    """How long a program may show no sign; None for ever."""

    seconds: float | None = None

    def is_over(self, since: float, folder: TrialFolder) -> bool:
        if self.seconds is None:
            return False
        return time.time() - max(since, folder.last_sign()) > self.seconds

    @property
    def ending(self) -> Ending:
        assert self.seconds is not None, "only who has a limit stalls"
        return Ending("failed", reason=f"no sign of life for {self.seconds:g} s", again=True)


class Runner(Protocol):
    """Makes attempts at trials, one after another, in one slot."""

    async def attempt(self, taken: Taken, shown: RunningTrial) -> Ending: ...

    async def settle(self) -> int | None:
        """After the result: wait until the cards are free for the next trial; the exit code, if any."""

    async def close(self) -> None:
        """There are no more trials for this slot."""


def environment(folder: TrialFolder) -> dict[str, str]:
    """What the program of a trial finds in its environment, beside its cards."""
    return {
        "COLONNADE_TRIAL": str(folder.path),
        "COLONNADE_CHECKPOINT": str(folder.checkpoint),
        "COLONNADE_RESULT": str(folder.result),
        "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),  # a log is read while it is written
    }


class CommandRunner:
    """Runs a command for each trial."""

    def __init__(self, slot: Slot, command: Command, stall: Stall) -> None:
        self._slot, self._command, self._stall = slot, command, stall
        self._code: int | None = None

    async def attempt(self, taken: Taken, shown: RunningTrial) -> Ending:
        folder, params = taken.folder, taken.params
        folder.result.unlink(missing_ok=True)
        begin = folder.log.stat().st_size
        inside = {**environment(folder), **self._command.environment(params)}
        self._slot.start(self._command.filled(params), inside, folder.log, None)
        since, stalled = time.time(), False
        end = asyncio.ensure_future(self._slot.end())
        while not end.done():
            await asyncio.wait({end}, timeout=LOOK)
            shown.step, shown.value = folder.last_report() or (None, None)
            if not end.done() and self._stall.is_over(since, folder):
                stalled = True
                await stop_stalled(self._slot, end)
        self._code = end.result()
        if stalled:
            return self._stall.ending
        return lost_slot() if self._code is None else commands.ending(self._code, folder, begin)

    async def settle(self) -> int | None:
        return self._code  # the program has ended

    async def close(self) -> None:
        pass  # and nothing is left of it


class ObjectiveRunner:
    """Runs an objective in a process that asks for parameters and reports values over a channel.

    A process for each trial, or with `reuse` one for all.
    """

    def __init__(
        self, slot: Slot, name: str, stall: Stall, call: Call, study: dict[str, Any], *, reuse: bool
    ):
        self._slot, self._name, self._stall, self._call = slot, name, stall, call
        self._study, self._reuse = study, reuse
        self._end: asyncio.Future[int | None] | None = None
        self._code: int | None = None
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def attempt(self, taken: Taken, shown: RunningTrial) -> Ending:
        if self._end is not None and self._end.done():
            await self._ended()  # it was killed after its last trial
        if self._end is None:
            await self._start(taken.folder)
        assert self._end is not None, "it was started"
        order = {
            **self._study,
            "number": taken.number,
            "folder": str(taken.folder.path),
            "environment": environment(taken.folder),
            "log": str(taken.folder.log) if self._reuse else None,
            "start": taken.start.isoformat(),
            "last": not self._reuse,
        }
        self._send(order)
        since, stalled = time.time(), False
        reading = asyncio.ensure_future(self._receive())
        try:
            while True:
                either: set[asyncio.Future[Any]] = {reading, self._end}
                await asyncio.wait(either, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    message = reading.result()
                    if message is None:
                        break
                    if "end" in message:
                        return Ending(message["end"], message.get("value"), message.get("reason", ""))
                    since = time.time()
                    self._send(await self._answer(taken, shown, message))
                    reading = asyncio.ensure_future(self._receive())
                elif self._end.done():  # there may be words of its on the way
                    await asyncio.wait({reading}, timeout=LAST_WORDS)
                    if not reading.done():
                        break
                elif self._stall.is_over(since, taken.folder):
                    stalled = True
                    await stop_stalled(self._slot, self._end)
        finally:
            reading.cancel()
        code = await self._finish()
        if stalled:
            return self._stall.ending
        return lost_slot() if code is None else of_exit(code) if code else _silent_exit()

    async def settle(self) -> int | None:
        """Without `reuse`, wait for the end of the process; kill one that does not end."""
        if self._end is None:
            return self._code
        if self._reuse and not self._end.done():
            return None
        return await self._finish()

    async def close(self) -> None:
        """A process that waits for another trial ends when the channel does."""
        if self._end is not None:
            self._writer.close()
            await self._finish()

    async def _finish(self) -> int | None:
        assert self._end is not None, "there is a process"
        done, _ = await asyncio.wait({self._end}, timeout=EXIT)
        if not done:
            self._slot.kill()
        return await self._ended()

    async def _start(self, folder: TrialFolder) -> None:
        ours, theirs = socket.socketpair()
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=LONGEST)
        with theirs:
            program = [sys.executable, "-m", "colonnade.sweeps.slots.worker", self._name]
            self._slot.start(program, environment(folder), folder.log, theirs.fileno())
        self._end = asyncio.ensure_future(self._slot.end())

    async def _ended(self) -> int | None:
        assert self._end is not None, "there is a process"
        self._code = await self._end
        self._end = None
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()
        return self._code

    def _send(self, message: dict[str, Any]) -> None:
        # Optuna answers now and then with numbers and truths of NumPy's.
        self._writer.write(json.dumps(message, default=lambda number: number.item()).encode() + b"\n")

    async def _receive(self) -> dict[str, Any] | None:
        """The next message; None when the process is gone, or says what nobody can read."""
        try:
            line = await self._reader.readline()
        except (ConnectionError, ValueError):
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    async def _answer(self, taken: Taken, shown: RunningTrial, message: dict[str, Any]) -> dict[str, Any]:
        method, args, kwargs = message["call"], message["args"], message["kwargs"]
        if method not in METHODS:
            return {"error": "ValueError", "message": f"a trial has no {method!r}"}
        try:
            answer = await self._call(taken, method, *args, **kwargs)
        except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
            return {"error": type(error).__name__, "message": str(error)}
        if method.startswith("suggest"):
            shown.params[args[0]] = answer
        elif method == "report":
            shown.value, shown.step = args
        if method == "suggest_categorical":
            answer = _position(answer, args[1])
        return {"value": answer}


def _position(choice: Any, choices: list[Any]) -> int:
    """Where a choice is in the list; True and 1 are two."""
    return next(i for i, one in enumerate(choices) if type(one) is type(choice) and one == choice)


async def stop_stalled(slot: Slot, end: asyncio.Future[int | None]) -> None:
    slot.terminate()
    done, _ = await asyncio.wait({end}, timeout=STALLED)
    if not done:
        slot.kill()
        await asyncio.wait({end})


def lost_slot() -> Ending:
    return Ending("failed", reason="the process that keeps its cards was killed", again=True)


def _silent_exit() -> Ending:
    return Ending("failed", reason="its process ended with exit code 0 and no result")
