"""One way to run trials, in a process of its own: prints seconds as JSON.

contender.py colonnade COUNT WORKERS FOLDER     colonnade's sweep, --reuse
contender.py process COUNT WORKERS FOLDER       the same, a process for each trial
contender.py threads COUNT WORKERS URL          Optuna's own n_jobs, on a storage
contender.py hand COUNT WORKERS URL             a program for each trial, as a shell loop starts them
contender.py busy COUNT WORKERS FOLDER REUSE    trials of two seconds: how much of the time cards were busy
"""

import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median

import objectives
import optuna
from one_trial import open_study

from colonnade.sweeps.board import RunningTrial, Unwatched
from colonnade.sweeps.settings import SweepSettings
from colonnade.sweeps.slots.ending import Ending
from colonnade.sweeps.study import conduct

HERE = Path(__file__).parent
NAME = "benchmark"


class Clock(Unwatched):
    """Seconds of a trial, once every worker has made its first: so without the start of processes."""

    def __init__(self, workers: int) -> None:
        self._workers, self._ended, self._first, self._last = workers, 0, 0.0, 0.0

    def ended(self, trial: RunningTrial, ending: Ending) -> None:
        assert ending.kind == "complete", ending
        self._ended += 1
        self._last = time.perf_counter()
        if self._ended == self._workers:
            self._first = self._last

    @property
    def seconds(self) -> float:
        return (self._last - self._first) / (self._ended - self._workers)


def swept(name: str, count: int, workers: int, folder: Path, *, reuse: bool) -> float:
    """Seconds of a trial."""
    os.chdir(HERE)
    clock = Clock(workers)
    settings = SweepSettings(
        objective=f"objectives:{name}",
        trials=count,
        virtual=workers,
        reuse=reuse,
        folder=folder,
        leases=folder / "leases",
        study=NAME,
    )
    folder.mkdir(parents=True)
    conduct(settings, clock)
    return clock.seconds


def threads(count: int, workers: int, url: str) -> float:
    study = open_study(url)
    start = time.perf_counter()
    study.optimize(objectives.empty, n_trials=count, n_jobs=workers)
    return time.perf_counter() - start


def hand(count: int, workers: int, url: str) -> float:
    open_study(url)

    def one(_: int) -> None:
        subprocess.run([sys.executable, str(HERE / "one_trial.py"), url], check=True)

    start = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(one, range(count)))
    return time.perf_counter() - start


def busy(count: int, workers: int, folder: Path, *, reuse: bool) -> dict[str, float]:
    """The share of the time in which cards computed while there was work, and how long they were idle."""
    notes = folder.with_suffix(".jsonl")
    os.environ["BENCHMARK_NOTES"] = str(notes)
    swept("sleeping", count, workers, folder, reuse=reuse)
    spans = defaultdict(list)
    for line in notes.read_text().splitlines():
        card, *moments = json.loads(line)
        spans[card].append(moments)
    for own in spans.values():
        own.sort(key=lambda moments: moments[1])
    # From when the last card has begun to when the first one found no more work.
    start = max(own[0][1] for own in spans.values())
    stop = min(own[-1][2] for own in spans.values())
    pairs = [pair for own in spans.values() for pair in pairwise(own)]
    worked = sum(
        min(end, stop) - max(begin, start)
        for own in spans.values()
        for _, begin, end in own
        if end > start and begin < stop
    )
    return {
        "busy": worked / (len(spans) * (stop - start)),
        "gap": median(then[1] - before[2] for before, then in pairs),
        # Until there was a process for the next trial; the rest of the gap is its start.
        "idle": median(then[1 if reuse else 0] - before[2] for before, then in pairs),
        "cards": float(len(spans)),
    }


def main(arguments: Sequence[str]) -> None:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    kind, *rest = arguments
    count, workers, place = int(rest[0]), int(rest[1]), rest[2]
    if kind == "busy":
        print(json.dumps(busy(count, workers, Path(place), reuse=rest[3] == "reuse")))
        return
    ways = {"threads": threads, "hand": hand}
    if kind in ways:
        seconds = ways[kind](count, workers, place)
    else:
        seconds = count * swept("empty", count, workers, Path(place), reuse=kind == "colonnade")
    print(json.dumps({"trial": seconds / count}))


if __name__ == "__main__":
    main(sys.argv[1:])
