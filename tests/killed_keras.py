"""A program that kills a Keras training with -9 at random moments, again and again, until it ends.

`killed_keras.py DIRECTORY KILLS SEED MODEL DATA` prints what happened as JSON; see kerasfits.py for the
models and data, and killed.py for how a training is a fork of a process that has imported everything.
"""

import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

import kerasfits
from killed import Killer, Timed, ended, fork, of_a_fork, points_in_a_save

import colonnade as cn


def train(folder: Path | None, model: str, data: str, at_batch: Any = lambda batch: None) -> str:
    cn.setup(virtual=2)
    return kerasfits.train(folder, model=model, data=data, at_batch=at_batch)


def random_kills(folder: Path, kills: int, seed: int, model: str, data: str) -> dict[str, Any]:
    chance, notes = random.Random(seed), folder / "notes"
    notes.mkdir(parents=True)
    # With a checkpoint too: arrays are shuffled in another way with one.
    began = time.monotonic()
    wanted = of_a_fork(notes, lambda: train(folder / "unbroken", model, data))
    whole = time.monotonic() - began
    total = {"kills": 0, "inside a save": 0, "between steps": 0, "at any time": 0}
    while True:
        where = chance.choice(("save", "step", "any")) if total["kills"] < kills else "nowhere"
        note, after = notes / f"{total['kills']}.point", chance.randint(0, 60)
        delay, early = chance.uniform(0, 0.3), chance.uniform(0.1, 0.6) * whole

        def body(where=where, note=note, after=after, delay=delay) -> str:
            if where == "save":
                points_in_a_save(Killer(note, after))
            timed = Timed(delay) if where == "step" else lambda: None
            return train(folder / "run", model, data, lambda batch: timed())

        pid = fork(notes, body)
        if where == "any":  # also while it starts, traces, validates, and goes on from what was saved
            time.sleep(early)
            os.kill(pid, signal.SIGKILL)
        code = ended(pid)
        if code == 0:
            break
        assert code == -signal.SIGKILL, f"exit code {code}\n{(notes / f'{pid}.err').read_text()}"
        total["kills"] += 1
        total[{"save": "inside a save", "step": "between steps", "any": "at any time"}[where]] += 1
    return {**total, "wanted": wanted, "found": (notes / f"{pid}.out").read_text()}


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    folder, kills, seed, model, data = sys.argv[1:]
    print(json.dumps(random_kills(Path(folder), int(kills), int(seed), model, data)))
