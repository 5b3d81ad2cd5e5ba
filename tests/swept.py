"""Sweeps that are killed again and again, and what must hold in the end.

    swept.py FOLDER KILLS SEED     prints what happened, as JSON

A study of 24 trials is swept by one or two programs at a time while processes are killed at random: a sweep
itself, a keeper of cards, a supervisor, the process of a trial or a child of it. Sweeps that are gone are
started again, until the study is at its end; then comes the next study. In the end, of each study:

- every trial has ended in the storage, exactly once, as complete, pruned or failed; none is missing;
- no card was used by two trials at once: each trial locks a file of its card, which knows nothing of leases;
- no trial was begun again after it had ended;
- no process is left, and no lease.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from colonnade.fleet.lease import claims
from colonnade.show.sweep import exit_code
from colonnade.show.sweep_screen import SweepScreen
from colonnade.sweeps.settings import SweepSettings
from colonnade.sweeps.study import conduct

TESTS = Path(__file__).parent
TRIALS, CARDS, MOST_KILLS = 24, 4, 30
FINISHED = (1, 2, 3)  # as a journal writes complete, pruned and failed


class Hunt:
    def __init__(self, folder: Path, seed: int, trials: int) -> None:
        self.folder, self.random, self.kills = folder, random.Random(seed), Counter()
        self.trials = trials
        folder.mkdir(parents=True)
        self.leases = folder / "leases"
        self.environment = {**os.environ, "WITNESS": str(folder), "SECONDS": "0.4"}

    def sweep(self):
        """The sweep of the command line, without the page at its end."""
        options = {"trials": self.trials, "virtual": CARDS, "retries": 3, "study": "hunted"}
        places = {"folder": str(self.folder / "studies"), "leases": str(self.leases)}
        command = [sys.executable, __file__, json.dumps({**options, **places})]
        with (self.folder / "said.txt").open("a") as log:
            return subprocess.Popen(command, cwd=TESTS, env=self.environment, stdout=log, stderr=log)

    def run(self, kills: int, seconds: float = 300) -> None:
        """Kill until there were so many, or the study is at its end; then let it end."""
        deadline = time.monotonic() + seconds
        sweeps, most = [], self.random.choice((1, 2))
        while time.monotonic() < deadline:
            ended = [one for one in sweeps if one.poll() is not None]
            if any(one.returncode in (0, 1) for one in ended):
                break
            sweeps = [one for one in sweeps if one.returncode is None]
            while len(sweeps) < most:
                sweeps.append(self.sweep())
            time.sleep(self.random.uniform(0.05, 1.2))
            if self.kills.total() < kills:
                self.kill(self.random.choice(sweeps))
        for one in sweeps:
            one.wait(timeout=60)
        last = self.sweep()
        assert last.wait(timeout=120) in (0, 1), (self.folder / "said.txt").read_text()[-3000:]

    def kill(self, sweep: subprocess.Popen) -> None:
        try:
            parent = psutil.Process(sweep.pid)
            below = parent.children(recursive=True)
            starting = len(below) < 2
            if starting and self.random.random() < 0.95:
                return  # else most kills would be of sweeps that have not begun
            victim = parent if starting or self.random.random() < 0.2 else self.random.choice(below)
            kind = "sweep" if victim == parent else _kind(victim)
            victim.kill()
        except psutil.NoSuchProcess:
            return
        self.kills[kind] += 1

    def verdict(self) -> dict[str, int]:
        """What came of it; an error if anything is not as it must be."""
        assert _gone(self.folder), [process.cmdline() for process in _left(self.folder)]
        assert claims(self.leases) == ()
        assert not list(self.folder.glob("twice-*")), "a card was used twice"
        ends, states, completed = trials(self.folder / "studies" / "hunted" / "journal.log")
        assert len(states) == self.trials, f"{len(states)} trials"
        assert set(states.values()) <= set(FINISHED), states
        assert set(ends.values()) == {1}, f"ended more than once: {ends}"
        notes = [json.loads(line) for line in (self.folder / "notes.jsonl").read_text().splitlines()]
        begun = Counter(number for number, what, _, _ in notes if what == "begun")
        late = [n for n, what, _, when in notes if what == "begun" and when > completed[n] + 0.001]
        assert not late, f"begun again after their end: {late}"
        counts = Counter({1: "complete", 2: "pruned", 3: "failed"}[state] for state in states.values())
        return {"trials": self.trials, "begun": begun.total(), **counts}


def trials(journal: Path):
    """Of each trial: how often it ended, its state, and when it ended; by the lines of the journal."""
    ends, states, when, numbers = Counter(), {}, {}, 0
    for line in journal.read_text().splitlines():
        log = json.loads(line)
        if log["op_code"] == 4:  # a new trial
            states[numbers] = log.get("state", 0)
            numbers += 1
        elif log["op_code"] == 6:  # a state
            if log["state"] in FINISHED:
                ends[log["trial_id"]] += 1
                when[log["trial_id"]] = datetime.fromisoformat(log["datetime_complete"]).timestamp()
            states[log["trial_id"]] = log["state"]
    return ends, states, when


def _kind(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    for name, what in (("keeper", "keeper or supervisor"), ("--check", "check"), ("worker", "trial")):
        if name in line:
            return what
    return "other"


def _left(folder: Path) -> list[psutil.Process]:
    def is_of_it(process):
        try:
            return process.environ().get("WITNESS") == str(folder) and process.pid != os.getpid()
        except (psutil.Error, OSError):
            return False

    return [process for process in psutil.process_iter() if is_of_it(process)]


def _gone(folder: Path, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while _left(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def main(folder: Path, kills: int, seed: int, trials: int = TRIALS) -> dict[str, int]:
    total: Counter[str] = Counter()
    while total["kills"] < kills:
        hunt = Hunt(folder / str(total["studies"]), seed + total["studies"], trials)
        hunt.run(min(MOST_KILLS, kills - total["kills"]))
        total.update(hunt.verdict())
        total.update({f"kills of a {kind}": count for kind, count in hunt.kills.items()})
        total.update({"kills": hunt.kills.total(), "studies": 1})
        print(dict(total), file=sys.stderr, flush=True)
    return dict(total)


def swept(options: dict[str, Any]) -> int:
    places = {name: Path(options.pop(name)) for name in ("folder", "leases")}
    settings = SweepSettings(objective="objectives:hunted", **places, **options)
    with SweepScreen(Console()) as screen:
        return exit_code(conduct(settings, screen))


if __name__ == "__main__":
    if len(sys.argv) == 2:
        sys.exit(swept(json.loads(sys.argv[1])))
    print(json.dumps(main(Path(sys.argv[1]).resolve(), int(sys.argv[2]), int(sys.argv[3]))))
