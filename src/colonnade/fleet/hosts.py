"""The machines that `--machines` names: [user@]host[:cards], with commas between them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from colonnade.describe.clusters.address import HOST, is_ip
from colonnade.describe.fields import shown
from colonnade.errors import InvalidArgument, Problem

_FORM = re.compile(
    r"(?:(?P<user>[^@\[\]:]*)@)?(?:\[(?P<six>[^\]]*)\]|(?P<host>[^@:\[\]]*))(?::(?P<cards>[0-9]{1,4}))?"
)
_FIX = "Write them as in --machines a,b,me@c:2"


@dataclass(frozen=True)
class Host:
    """A machine that ssh reaches, and how many of its cards to lease."""

    name: str
    user: str | None = None
    cards: int | None = None

    @property
    def target(self) -> str:
        """What ssh is asked for."""
        return self.name if self.user is None else f"{self.user}@{self.name}"


def hosts(text: str) -> tuple[Host, ...]:
    """The machines in a list; one error for all that is wrong with it.

    >>> [host.target for host in hosts("a,me@b:2,[fd00::1]:1")]
    ['a', 'me@b', 'fd00::1']
    """
    problems: list[Problem] = []
    named = [host for part in text.split(",") for host in _host(part.strip(), problems)]
    for name in dict.fromkeys(host.name for host in named):
        if sum(host.name == name for host in named) > 1:
            rule = f"{name} is there more than once"
            problems.append(Problem("--machines", shown(text), rule, "For several workers on one: --local 2"))
    if problems:
        raise InvalidArgument("run", problems)
    return tuple(named)


def _host(text: str, problems: list[Problem]) -> Iterator[Host]:
    """The machine that a part of the list names.

    A name must be one that cannot be mistaken: neither for an option, nor for a word that means more than
    itself to a shell or in ssh's own configuration.
    """
    match = _FORM.fullmatch(text)
    six, name = (match["six"], match["six"] or match["host"]) if match else (None, "")
    good = match is not None and (is_ip(name) if six is not None else HOST.fullmatch(name))
    if match is None or not good or (match["user"] is not None and not HOST.fullmatch(match["user"])):
        problems.append(Problem("--machines", shown(text), "is no machine: [user@]host[:cards]", _FIX))
        return
    cards = None if match["cards"] is None else int(match["cards"])
    yield Host(name, match["user"], cards)
