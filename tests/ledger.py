"""The ledger of `make soak`: a line of JSON for every test that came to an end, beside its figures.

A line counts for the code it was made with. A program that is killed leaves at most a torn last line,
which says nothing and is passed over.
"""

import hashlib
import json
import os
import statistics
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
# What a result depends on; the pages that report it are not among it.
CODE = ("src", "tests", "examples", "benchmarks", "pyproject.toml")


def digest(root: Path = ROOT) -> str:
    """Of all files that git does not ignore, as they are on disk."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CODE]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True).stdout.split(b"\0")
    total = hashlib.sha256()
    for name in sorted(set(names) - {b""}):
        path = root / os.fsdecode(name)
        if path.is_file():  # and not removed
            total.update(name + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()[:12]


@dataclass(frozen=True)
class Entry:
    """The end of one test."""

    test: str
    code: str
    result: str
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    why: str = ""

    @property
    def good(self) -> bool:
        return self.result != "failed"


@dataclass(frozen=True)
class Work:
    """A choice of tests, sorted by what the ledger says of them."""

    done: list[str]
    failed: list[str]
    older: list[str]
    missing: list[str]
    seconds: float | None

    @property
    def to_do(self) -> list[str]:
        return self.failed + self.older + self.missing

    def __str__(self) -> str:
        lines = [f"{len(self.done)} done"]
        lines += [f"{len(self.failed)} failed: to be run again"] if self.failed else []
        if self.older:
            lines += [
                f"{len(self.older)} done with older code: to be run again (SOAK_ACCEPT_OLD=1 keeps them)"
            ]
        lines += [f"{len(self.missing)} not run yet"]
        text = "soak: " + ", ".join(lines)
        if self.to_do:
            guess = "not known yet" if self.seconds is None else f"about {self.seconds / 60:.0f} min of tests"
            text += f"\nsoak: still to do {len(self.to_do)}, {guess}"
        return text


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> list[Entry]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().splitlines(keepends=True)
        return [Entry(**json.loads(line)) for line in whole if line.endswith("}\n")]

    def append(self, entry: Entry) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                torn = file.read(1) != b"\n"
            else:
                torn = False
            file.write(b"\n" * torn + json.dumps(asdict(entry)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def work(self, tests: Iterable[str], code: str, *, accept_old: bool = False) -> Work:
        """The latest line counts: of this code, or else of any."""
        latest: dict[str, Entry] = {}
        now: dict[str, Entry] = {}
        for entry in self.entries():
            latest[entry.test] = entry
            if entry.code == code:
                now[entry.test] = entry
        lists: dict[str, list[str]] = {"done": [], "failed": [], "older": [], "missing": []}
        for test in tests:
            entry = now.get(test) or latest.get(test)
            if entry is None:
                lists["missing"].append(test)
            elif not entry.good:
                lists["failed"].append(test)
            elif entry.code == code or accept_old:
                lists["done"].append(test)
            else:
                lists["older"].append(test)
        to_do = lists["failed"] + lists["older"] + lists["missing"]
        return Work(**lists, seconds=_guess(to_do, latest))


def _guess(tests: list[str], known: dict[str, Entry]) -> float | None:
    """How long tests take: as last time, or else as those of the same file, or else as any."""
    of_files: dict[str, list[float]] = {}
    for entry in known.values():
        of_files.setdefault(entry.test.split("::")[0], []).append(entry.seconds)
    if not of_files:
        return None
    any_test = statistics.mean(s for file in of_files.values() for s in file)

    def seconds(test: str) -> float:
        if test in known:
            return known[test].seconds
        alike = of_files.get(test.split("::")[0])
        return statistics.mean(alike) if alike else any_test

    return sum(map(seconds, tests))
