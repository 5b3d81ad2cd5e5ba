"""What the launcher and its end on a machine say to each other, over the standard streams of that end.

    to the machine      lines of JSON; an empty line says that the launcher lives, the end that it does not
    from the machine    messages, marked, among the lines that the program prints

Nothing else is needed, so whatever carries two streams will do: ssh, or a pipe.
"""

import json
import os
from collections.abc import Iterator
from typing import Any

MARK = b"\0colonnade "
LONGEST = 2**20  # bytes of a line that are kept until its end comes


def told(message: dict[str, Any]) -> bytes:
    """A message to the machine."""
    return json.dumps(message).encode() + b"\n"


def say(message: dict[str, Any]) -> None:
    """Send a message to the launcher, on the standard output, that no line of a program can be mixed into."""
    rest = MARK + json.dumps(message).encode() + b"\n"
    while rest:
        rest = rest[os.write(1, rest) :]


class Lines:
    """Bytes as they come, made into lines; one that is longer than `longest` comes in pieces."""

    def __init__(self, longest: float = float("inf")) -> None:
        self._rest, self._longest = b"", longest

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that are whole now, without their ends; an empty chunk is the end of all."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        yield from lines
        if self._rest and (not chunk or len(self._rest) > self._longest):
            yield self._rest
            self._rest = b""


def parted(line: bytes) -> tuple[str | None, dict[str, Any] | None]:
    """What a line from a machine is: what a program printed, a message, or first one and then the other."""
    text, mark, message = line.partition(MARK)
    shown = _shown(text) if text or not mark else None
    if not mark:
        return shown, None
    try:
        says = json.loads(message)
    except ValueError:
        return _shown(line), None
    return (shown, says) if isinstance(says, dict) else (_shown(line), None)


def _shown(line: bytes) -> str:
    """A line as a terminal would show it in the end: a bar is drawn over and over."""
    return line.removesuffix(b"\r").rpartition(b"\r")[2].decode(errors="replace")
