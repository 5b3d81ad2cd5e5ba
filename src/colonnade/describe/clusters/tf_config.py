"""Reads TF_CONFIG, by which schedulers tell a program of the others: who they are, and which one it is.

    {"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}

A cluster's tasks are `chief`, at most one, and `worker`s; the chief goes first. Addresses come as a list, or
as an object from index to address.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from colonnade.describe.clusters.address import amiss, repeated
from colonnade.describe.fields import shown
from colonnade.errors import InvalidArgument, Problem

NAME = "TF_CONFIG"
WHERE = "joining other machines"
_JOBS = ("chief", "worker")
_EXAMPLE = '{"cluster": {"worker": ["a:2222", "b:2222"]}, "task": {"type": "worker", "index": 0}}'
_REFUSED = {
    "ps": "parameter servers hold variables for others, and here every machine trains",
    "evaluator": "an evaluator trains nothing, and here every machine trains",
    "master": "is the name of before TensorFlow 2",
}


def written(addresses: Sequence[str], rank: int) -> str:
    """TF_CONFIG of one of several workers."""
    return json.dumps({"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}})


def read(text: str, problems: list[Problem]) -> tuple[tuple[str, ...], int] | None:
    """The tasks' addresses and which one this is; None where TF_CONFIG names no cluster.

    What is wrong is added to `problems`; an error at once only where nothing more can be found out.
    """
    twice: set[str] = set()

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        twice.update(name for name in names if names.count(name) > 1)
        return dict(pairs)

    try:
        plain = json.loads(text, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(WHERE, [_problem("", text, f"is not JSON ({str(error)[:80]})")]) from None
    if not isinstance(plain, dict):
        raise InvalidArgument(WHERE, [_problem("", text, "must be an object of JSON")])
    # JSON's second would silently replace the first.
    problems.extend(_problem("", text, f"has {name!r} twice in one object") for name in sorted(twice))
    cluster, task = plain.get("cluster"), plain.get("task")
    if cluster in (None, {}) and task in (None, {}):
        return None
    tasks = _tasks(cluster, problems)
    return tuple(tasks.values()), _rank(task, tasks, problems)


def _tasks(cluster: object, problems: list[Problem]) -> dict[tuple[str, int], str]:
    """The address of every task, the chief's first; what is wrong is added to `problems`."""
    if not isinstance(cluster, dict) or not cluster:
        problems.append(_problem(".cluster", cluster, "must be an object with the addresses of every job"))
        return {}
    for job in cluster:
        if job not in _JOBS:
            why = _REFUSED.get(job, "is no kind of task that trains")
            problems.append(
                Problem(f"{NAME}.cluster.{job}", shown(cluster[job]), why, "Use chief and worker alone")
            )
    tasks = {}
    for job in _JOBS:
        for index, address in _indexed(job, cluster.get(job, []), problems):
            tasks[job, index] = address
            problems.extend(amiss(f"{NAME}.cluster.{job}[{index}]", address))
    problems.extend(repeated({f"{NAME}.cluster.{job}[{i}]": tasks[job, i] for job, i in tasks}))
    if sum(job == "chief" for job, _ in tasks) > 1:
        problems.append(_problem(".cluster.chief", cluster["chief"], "there can be one chief only"))
    return tasks


def _indexed(job: str, addresses: object, problems: list[Problem]) -> Iterator[tuple[int, str]]:
    at = f".cluster.{job}"
    if isinstance(addresses, list):
        yield from enumerate(addresses)
    elif isinstance(addresses, dict):
        addressed: dict[int, str] = {}
        for key, address in addresses.items():
            index = _whole(key)
            if index is None:
                problems.append(_problem(at, key, "an index of a task must be a whole number from 0 up"))
            elif index in addressed:
                problems.append(_problem(at, key, f"the task with index {index} is there twice"))
            else:
                addressed[index] = address
        if set(addressed) != set(range(len(addressed))):
            listed = ", ".join(map(str, sorted(addressed)))
            problems.append(
                _problem(at, listed, f"the indices of {len(addressed)} tasks must be 0 and up, without gaps")
            )
        yield from sorted(addressed.items())
    else:
        problems.append(_problem(at, addresses, "must be a list of addresses"))


def _rank(task: object, tasks: dict[tuple[str, int], str], problems: list[Problem]) -> int:
    """Which of the tasks this program is."""
    if not isinstance(task, dict) or not {"type", "index"} <= task.keys():
        problems.append(_problem(".task", task, "does not say which task this is, by type and index"))
        return 0
    job, index = task["type"], _whole(task["index"])
    if job not in _JOBS:
        why = (
            _REFUSED.get(job, "is no kind of task that trains") if isinstance(job, str) else "must be a name"
        )
        problems.append(Problem(f"{NAME}.task.type", shown(job), why, "Use chief or worker"))
    elif index is None:
        problems.append(_problem(".task.index", task["index"], "must be a whole number from 0 up"))
    elif tasks and (job, index) not in tasks:
        there = ", ".join(f"{j} {i}" for j, i in list(tasks)[:8])
        rule = (
            f"there is no {job} {index} in the cluster, which has {there}{' ...' if len(tasks) > 8 else ''}"
        )
        problems.append(_problem(".task.index", index, rule))
    else:
        return list(tasks).index((job, index)) if tasks else 0
    return 0


def _whole(value: object) -> int | None:
    """An index, as a number or in digits: keys of JSON are text, and some schedulers write them so."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return (
        int(value)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 9
        else None
    )


def _problem(at: str, value: object, rule: str) -> Problem:
    return Problem(f"{NAME}{at}", shown(value), rule, f"Write it as in {_EXAMPLE}")
