"""Reads what `srun` tells each of its tasks: which hosts take part, how many tasks each has, which it is.

Nobody tells a port, so all tasks compute the same one from the numbers of the job, of its step, and of how
often the job was started. Two steps may come to the same one: then the one that finds it taken is put back
into the queue, and has another one at its next start.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import TypeVar

from colonnade.describe.clusters.address import HOST, joined
from colonnade.describe.fields import shown
from colonnade.errors import Problem

Item = TypeVar("Item")
PORT = "COLONNADE_PORT"
# Below those that Linux takes for the other end of connections (32768 and up).
PORTS = range(12000, 32000)
_TASKS, _NODES, _PER_NODE = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"
_NODE, _LOCAL, _JOB, _STEP = "SLURM_NODEID", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_STEP_ID"
_SRUN = "Start the program with srun, which sets it"
_RESTARTS = "SLURM_RESTART_COUNT"
MOST = 65_536  # hosts, or tasks; a longer list is a mistake


def read(environ: Mapping[str, str], problems: list[Problem]) -> tuple[tuple[str, ...], int] | None:
    """The tasks' addresses and which one this is; None outside a step, and in one of a single task.

    Tasks are counted host by host, whatever `srun --distribution` says, because only so every task can know
    the order without asking. For `block`, the default, that is the order of SLURM_PROCID. What is wrong is
    added to `problems`.
    """
    if environ.get(_TASKS, "1") == "1":
        return None
    before = len(problems)
    total, node, local, job = (_number(environ, name, problems) for name in (_TASKS, _NODE, _LOCAL, _JOB))
    step = _number(environ, _STEP, problems)
    hosts = _listed(environ, _NODES, nodes, problems)
    counts = _listed(environ, _PER_NODE, tasks_per_node, problems)
    base = _base(environ, f"{job}.{step}", max(counts, default=1), problems)
    if len(problems) == before:
        problems.extend(_disagreements(environ, hosts, counts, total, node, local))
    if len(problems) > before:
        return (), 0
    addresses = [joined(host, base + i) for host, n in zip(hosts, counts, strict=True) for i in range(n)]
    return tuple(addresses), sum(counts[:node]) + local


def identity(environ: Mapping[str, str]) -> str:
    """What no other step has at the same time."""
    return f"Slurm step {environ.get(_JOB)}.{environ.get(_STEP)}"


def nodes(text: str) -> list[str]:
    """The hosts in a list such as Slurm's.

    >>> nodes("n[01-03,7],m5")
    ['n01', 'n02', 'n03', 'n7', 'm5']
    """
    hosts: list[str] = []
    if not re.fullmatch(r"([^,\[\]]|\[[^\[\]]+\])+(,([^,\[\]]|\[[^\[\]]+\])+)*", text):
        raise ValueError("must be a list of hosts such as n[01-03,7],m5")
    for group in re.findall(r"(?:[^,\[\]]|\[[^\[\]]+\])+", text):
        parts = [
            _span(part) if part.startswith("[") else [part]
            for part in re.findall(r"\[[^\]]+\]|[^\[]+", group)
        ]
        for name in product(*parts):
            hosts.append("".join(name))
            if len(hosts) > MOST:
                raise ValueError(f"has more than {MOST} hosts")
    for host in hosts:
        if not HOST.fullmatch(host):
            raise ValueError(f"{shown(host)!r} is no name of a host")
    return hosts


def _span(brackets: str) -> list[str]:
    """The numbers in [01-03,7], with their zeros."""
    numbers: list[str] = []
    for part in brackets[1:-1].split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        if match is None:
            raise ValueError(f"{part!r} is no number and no range of numbers")
        first, last = match[1], match[2] or match[1]
        if int(last) < int(first) or int(last) - int(first) >= MOST:
            raise ValueError(f"{part!r} is no range of up to {MOST} numbers")
        numbers.extend(str(i).zfill(len(first)) for i in range(int(first), int(last) + 1))
    return numbers


def tasks_per_node(text: str) -> list[int]:
    """How many tasks each host has.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?", part)
        if match is None or len(counts) + int(match[2] or 1) > MOST:
            raise ValueError("must be numbers of tasks such as 2(x3),1")
        counts.extend([int(match[1])] * int(match[2] or 1))
    if sum(counts) > MOST:
        raise ValueError(f"is of more than {MOST} tasks")
    return counts


def _number(environ: Mapping[str, str], name: str, problems: list[Problem]) -> int:
    text = environ.get(name)
    if text is not None and re.fullmatch("[0-9]{1,12}", text):
        return int(text)
    rule = "is missing" if text is None else "must be a whole number"
    problems.append(Problem(name, shown(text), f"{rule}, in a step of several tasks", _SRUN))
    return 0


def _listed(
    environ: Mapping[str, str], name: str, reader: Callable[[str], list[Item]], problems: list[Problem]
) -> list[Item]:
    text = environ.get(name)
    if not text:
        problems.append(Problem(name, text, "is missing, in a step of several tasks", _SRUN))
        return []
    try:
        return reader(text)
    except ValueError as error:
        problems.append(Problem(name, shown(text), str(error), _SRUN))
        return []


def _base(environ: Mapping[str, str], step: str, most: int, problems: list[Problem]) -> int:
    """The port of the first task of every host; the others have those that follow."""
    text = environ.get(PORT)
    if text is None:
        start = f"{step}.{environ.get(_RESTARTS, '0')}"
        number = int.from_bytes(hashlib.sha256(start.encode()).digest()[:8], "big")
        return PORTS.start + number % (len(PORTS) - most)
    if re.fullmatch("[0-9]{1,5}", text) and 1 <= int(text) <= 65536 - most:
        return int(text)
    problems.append(
        Problem(PORT, shown(text), f"must be a port, with {most - 1} more after it", f"Try {PORT}=12000")
    )
    return PORTS.start


def _disagreements(
    environ: Mapping[str, str], hosts: list[str], counts: list[int], total: int, node: int, local: int
) -> Iterator[Problem]:
    """Where the variables, each good by itself, contradict each other: as when one was set by hand."""
    if len(hosts) != len(counts):
        rule = f"is of {len(counts)} hosts, but {_NODES} has {len(hosts)}"
        yield Problem(_PER_NODE, environ[_PER_NODE], rule, _SRUN)
    elif sum(counts) != total:
        yield Problem(
            _PER_NODE, environ[_PER_NODE], f"is of {sum(counts)} tasks, but {_TASKS} is {total}", _SRUN
        )
    elif node >= len(hosts):
        yield Problem(_NODE, node, f"there is no such host: {_NODES} has {len(hosts)}", _SRUN)
    elif local >= counts[node]:
        yield Problem(_LOCAL, local, f"there is no such task: {hosts[node]} has {counts[node]}", _SRUN)
