"""What `fit(logdir=)` leaves in a folder, read back as plain data; what is broken is left out and named.

run.json        what ran where; written as a whole, so it is there or it is not
metrics.jsonl   a line per log line of the fit
progress.jsonl  a line per beginning, save, skipped update and end
timeline.json   where the time of some steps went, if they were profiled; predicted.json: as simulated
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from colonnade.describe.timeline import Timeline
from colonnade.errors import ColonnadeError, InvalidArgument, Problem

RUN, METRICS, PROGRESS = "run.json", "metrics.jsonl", "progress.jsonl"
TIMELINE, PREDICTED = "timeline.json", "predicted.json"
FORMAT = 1  # of run.json, counted up when an older Colonnade could not read it
# What a line of metrics.jsonl has beside the user's own metrics.
FIGURES = (
    "time",
    "step",
    "examples",
    "loss",
    "loss_min",
    "loss_max",
    "examples_per_second",
    "seconds_per_batch",
    "skipped",
    "replicas",
    "shares",
    "staleness",
)

Line = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """A training as its folder tells it."""

    path: Path
    facts: Line  # of run.json
    lines: tuple[Line, ...]  # of metrics.jsonl, one after the other in steps
    progress: tuple[Line, ...]
    timeline: Timeline | None = None
    predicted: Timeline | None = None
    flaws: tuple[str, ...] = ()  # what is missing or broken, in words
    called: str = ""  # the name, where that of the folder would not do

    @property
    def name(self) -> str:
        return self.called or self.path.resolve().name

    @property
    def metrics(self) -> list[str]:
        """The user's own metrics."""
        names = {name: None for line in self.lines for name in line if name not in FIGURES}
        return [name for name in names if any(number(line.get(name)) is not None for line in self.lines)]

    def column(self, name: str) -> list[float | None]:
        """A figure at every line; None where it is missing or not finite."""
        return [number(line.get(name)) for line in self.lines]

    def happened(self, kind: str) -> list[Line]:
        """The lines of progress.jsonl of this kind: begin, save, skipped, end."""
        return [line for line in self.progress if line.get("event") == kind]


def number(value: Any) -> float | None:
    """A finite number, or None.

    >>> number(2), number("2"), number(float("nan")), number(True)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        real = float(value)
    except OverflowError:
        return None
    return real if real - real == 0 else None


def inner(outer: Any, name: str) -> dict[str, Any]:
    """What is under a name, if it is a dict; else an empty one: files may hold anything.

    >>> inner({"a": {"b": 1}}, "a"), inner({"a": 3}, "a"), inner(None, "a")
    ({'b': 1}, {}, {})
    """
    value = outer.get(name) if isinstance(outer, dict) else None
    return value if isinstance(value, dict) else {}


def read_run(path: str | Path, where: str = "report()") -> Run:
    """Read the folder of a run.

    Raises:
        InvalidArgument: it is no folder, may not be read, holds no run, or one of another format.
    """
    folder = Path(path)
    names = _names(folder, where)
    if not {RUN, METRICS} & names:
        raise InvalidArgument(where, [_no_run(folder)])
    flaws: list[str] = []
    facts = _facts(folder, names, where, flaws)
    read_lines = _lines(folder, METRICS, names, flaws)
    dated = [line for line in read_lines if number(line.get("step")) is not None]
    if len(dated) < len(read_lines):
        flaws.append(f"{METRICS}: {len(read_lines) - len(dated)} lines without a step are left out")
    lines, repeated = _latest(dated)
    if repeated:
        flaws.append(f"{METRICS}: {repeated} lines are of steps that were made again later, and are left out")
    progress = _lines(folder, PROGRESS, names, flaws)
    timeline, predicted = (_timeline(folder, name, names, flaws) for name in (TIMELINE, PREDICTED))
    return Run(folder, facts, tuple(lines), tuple(progress), timeline, predicted, tuple(flaws))


def told_apart(runs: Sequence[Run]) -> list[Run]:
    """The runs with names that differ: as much of the end of a path as no other one has.

    A folder that is there twice has one name.
    """
    paths = [run.path.resolve() for run in runs]
    return [replace(run, called=_own_end(path, paths)) for run, path in zip(runs, paths, strict=True)]


def _own_end(path: Path, paths: Sequence[Path]) -> str:
    """The shortest end of a path that no other one has.

    >>> _own_end(Path("/a/run"), [Path("/a/run"), Path("/b/run")])
    'a/run'
    """
    others = [other.parts for other in paths if other != path]
    count = 1
    while any(path.parts[-count:] == other[-count:] for other in others):
        count += 1
    return str(Path(*path.parts[-count:]))


def is_run(folder: Path) -> bool:
    """Whether a folder looks like that of a run."""
    return any((folder / name).is_file() for name in (RUN, METRICS))


def _names(folder: Path, where: str) -> set[str]:
    fix = "Name the directory that was given to fit(..., logdir=)"
    try:
        return set(os.listdir(folder))
    except FileNotFoundError:
        problem = Problem("DIR", str(folder), "there is no such directory", fix)
    except NotADirectoryError:
        problem = Problem("DIR", str(folder), "is a file and no directory", fix)
    except OSError as error:
        problem = Problem("DIR", str(folder), f"cannot be read ({error.strerror})", "Ask its owner for it")
    except ValueError:  # a NUL byte
        problem = Problem("DIR", str(folder), "is no path that a system can have", fix)
    raise InvalidArgument(where, [problem])


def _no_run(folder: Path) -> Problem:
    try:
        inside = sorted(one.name for one in folder.iterdir() if is_run(one))
    except OSError:  # one that may not be looked into
        inside = []
    fix = "Train with fit(..., logdir=DIR) first, and name that directory"
    if inside:
        few = ", ".join(str(folder / name) for name in inside[:3])
        fix = f"It has runs inside: {few}{' and more' if len(inside) > 3 else ''}"
    return Problem("DIR", str(folder), f"holds no run: neither {RUN} nor {METRICS}", fix)


def _facts(folder: Path, names: set[str], where: str, flaws: list[str]) -> Line:
    if RUN not in names:
        flaws.append(f"{RUN} is missing: what ran where is not known")
        return {}
    text = _text(folder / RUN, flaws)
    try:
        facts = json.loads(text) if text is not None else {}
    except (ValueError, RecursionError):
        flaws.append(f"{RUN} is damaged: what ran where is not known")
        return {}
    if not isinstance(facts, dict):
        flaws.append(f"{RUN} is damaged: what ran where is not known")
        return {}
    written = facts.get("format", FORMAT)
    if written != FORMAT:
        maker = facts.get("versions", {})
        version = maker.get("colonnade", "unknown") if isinstance(maker, dict) else "unknown"
        rule = f"was written by Colonnade {version} in format {written!r}, and this one reads format {FORMAT}"
        fix = "Make the page with the Colonnade that wrote it"
        raise InvalidArgument(where, [Problem("DIR", str(folder), rule, fix)])
    return facts


def _text(path: Path, flaws: list[str]) -> str | None:
    try:
        if not (path.is_file() or path.is_dir()) and path.exists():
            # Whoever reads a pipe waits for somebody to write into it.
            flaws.append(f"{path.name} cannot be read (it is no regular file)")
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        flaws.append(f"{path.name} cannot be read ({error.strerror})")
        return None


def _lines(folder: Path, name: str, names: set[str], flaws: list[str]) -> list[Line]:
    """The lines of a file that are whole; the last one may be half written."""
    if name not in names:
        flaws.append(f"{name} is missing")
        return []
    text = _text(folder / name, flaws)
    if text is None:
        return []
    whole: list[Line] = []
    broken = []
    for i, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            whole.append(value)
        else:
            broken.append(i)
    if broken:
        which = ", ".join(map(str, broken[:5])) + (" and more" if len(broken) > 5 else "")
        flaws.append(f"{name}: {len(broken)} broken line{'s' * (len(broken) > 1)} left out ({which})")
    if not whole:
        flaws.append(f"{name} holds nothing yet")
    return whole


def _latest(lines: Sequence[Line]) -> tuple[list[Line], int]:
    """Lines with rising steps: where a run went back to a saved step, what was made again counts.

    >>> _latest([{"step": 1}, {"step": 2}, {"step": 3}, {"step": 2, "loss": 1.0}])
    ([{'step': 1}, {'step': 2, 'loss': 1.0}], 2)
    """
    kept: list[Line] = []
    repeated = 0
    for line in lines:
        while kept and kept[-1]["step"] >= line["step"]:
            kept.pop()
            repeated += 1
        kept.append(line)
    return kept, repeated


def _timeline(folder: Path, name: str, names: set[str], flaws: list[str]) -> Timeline | None:
    if name not in names:
        return None
    text = _text(folder / name, flaws)
    try:
        return None if text is None else Timeline.from_json(text)
    except (ColonnadeError, ValueError, TypeError, RecursionError):
        flaws.append(f"{name} is damaged and left out")
        return None


def sessions(run: Run) -> Iterator[tuple[Line, Line | None]]:
    """Each beginning of a fit with its end; None where it was killed, or runs still."""
    begun: Line | None = None
    for line in run.progress:
        if line.get("event") == "begin":
            if begun is not None:
                yield begun, None
            begun = line
        elif line.get("event") == "end" and begun is not None:
            yield begun, line
            begun = None
    if begun is not None:
        yield begun, None
