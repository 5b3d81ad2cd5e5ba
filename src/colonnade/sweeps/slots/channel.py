"""Messages between a sweep and the process of a trial: lines of JSON over a pair of sockets."""

import json
import os
import socket
from typing import Any

CHANNEL = "COLONNADE_CHANNEL"  # the environment variable that says which descriptor it is
# What a trial's process may ask of the trial.
METHODS = frozenset(
    {
        "suggest_float",
        "suggest_int",
        "suggest_categorical",
        "report",
        "should_prune",
        "set_user_attr",
        "set_constraint",
        "constraints",
        "params",
        "user_attrs",
        "distributions",
    }
)


class Channel:
    """The end of a trial's process. It is for that process alone, not for those that it forks."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._file = self._socket.makefile("rwb")
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that was started, and no fork of it."""
        return os.getpid() == self._pid

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, message: dict[str, Any]) -> None:
        assert self.is_ours, "two processes would write into each other's lines"
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when the sweep wants nothing more."""
        line = self._file.readline()
        if not line.endswith(b"\n"):
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the trial, which is in the sweep's process."""
        if not self.is_ours:
            raise RuntimeError("the trial is of use in the process of the objective only, not in its forks")
        self.send({"call": method, "args": args, "kwargs": kwargs})
        answer = self.receive()
        if answer is None:
            raise ConnectionError("the sweep is gone")
        if "error" in answer:
            kinds = {
                "ValueError": ValueError,
                "TypeError": TypeError,
                "NotImplementedError": NotImplementedError,
            }
            raise kinds.get(answer["error"], RuntimeError)(answer["message"])
        return answer["value"]
