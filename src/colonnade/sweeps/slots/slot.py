"""A slot as the sweep sees it: a keeper process with its lease, and the programs that run under it.

That a slot is over shows when its socket is closed at the other end. The supervisor of a program holds that
end too, so a killed keeper's slot is over only when the program is gone as well.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.errors import ColonnadeError

LARGEST = 2**16  # bytes of an answer
CLOSE = 5.0  # seconds in which a keeper without a program ends


@dataclass(frozen=True)
class SlotLease:
    """What each slot leases: how many cards, and how much of each; `virtual` ones, if there are such."""

    cards: int = 1
    memory: str = "1"
    virtual: int | None = None
    leases: Path | None = None
    share: bool = False


class Slot:
    """One keeper. `cards` is empty until it has its lease; `over` once it can run nothing more."""

    def __init__(self, share: SlotLease, command: Sequence[str], owner: int) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.setblocking(False)
        says = {
            "cards": share.cards,
            "memory": share.memory,
            "virtual": share.virtual,
            "leases": None if share.leases is None else str(share.leases),
            "share": share.share,
            "command": list(command),
            "owner": owner,
        }
        with theirs:
            started = [sys.executable, "-m", "colonnade.sweeps.slots.keeper"]
            # A session of its own: Ctrl-C in a terminal is for the sweep, which passes on what it wants.
            self._process = subprocess.Popen(
                [*started, str(theirs.fileno()), str(os.getpid()), json.dumps(says)],
                pass_fds=(theirs.fileno(), owner),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.cards: tuple[str, ...] = ()
        self.place = 0  # in the line
        self.dismissed = False  # by the sweep, which has another one in line
        self.over = False

    async def lease(self) -> bool:
        """Wait for cards; False if the slot came to its end instead."""
        while (answer := await self._receive()) is not None:
            if "refused" in answer:
                raise ColonnadeError(answer["refused"])
            self.place = answer.get("waiting", 0)
            if "leased" in answer:
                self.cards = tuple(answer["leased"])
                return True
        return False

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log: Path, channel: int | None
    ) -> None:
        """Start a program; it prints into `log`, and inherits `channel`."""
        order = json.dumps({"run": list(command), "environment": dict(environment)}).encode()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            passed = [descriptor] if channel is None else [descriptor, channel]
            # A keeper that is gone is found out by whoever waits for the end.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._socket, [order], passed)
        finally:
            os.close(descriptor)

    async def end(self) -> int | None:
        """Wait for the end of the program: its exit code, or None if the whole slot is over."""
        answer = await self._receive()
        if answer is None:
            return None
        code: int = answer["ended"]
        return code

    def terminate(self) -> None:
        """Ask the program to end (SIGTERM, which the keeper passes on)."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the slot: its supervisor then ends all that is left of the program."""
        self._signal(signal.SIGKILL)

    async def close(self) -> None:
        """Give the cards back; a program that still runs is ended."""
        if self.over:
            return
        self._socket.shutdown(socket.SHUT_WR)
        closing = asyncio.ensure_future(self._drain())
        done, _ = await asyncio.wait({closing}, timeout=CLOSE)
        if not done:
            self.kill()
        await closing

    async def _drain(self) -> None:
        while await self._receive() is not None:
            pass

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    async def _receive(self) -> dict[str, Any] | None:
        if self.over:
            return None
        try:
            text = await asyncio.get_running_loop().sock_recv(self._socket, LARGEST)
        except ConnectionResetError:
            text = b""
        if text:
            answer: dict[str, Any] = json.loads(text)
            return answer
        self.over = True
        self._socket.close()
        # Its end of the socket is closed, so it is about to end, if it has not.
        await asyncio.to_thread(self._process.wait)
        return None
