"""Races for cards between processes, some of which are killed; needs no TensorFlow, so a race is cheap.

Run as a program: `races.py DIRECTORY RACES SEED`, it prints what happened as JSON. Two witnesses that
know nothing of the leases tell whether a card has two owners and whether the order was fair:

- a file for each half of a card, which an owner locks; it must never have to wait for that;
- the clock: who had asked before another began to ask must have the smaller number, and of two who
  could take the same cards, the one with the smaller number must get them first.
"""

import fcntl
import json
import os
import random
import signal
import sys
import time
from itertools import permutations
from pathlib import Path

from colonnade.fleet.lease import Pool, ask, claims

CARDS = tuple(f"card-{i}" for i in range(4))
RACERS = 8
KILLED = 3  # at most, in each race


def race(folder: Path, chance: random.Random) -> dict[str, int]:
    """One race of eight processes; raises AssertionError if anything is wrong with it."""
    leases, notes = folder / "leases", folder / "notes"
    notes.mkdir(parents=True)
    go_read, go_write = os.pipe()
    racers = [_start(folder, number, chance.random(), go_read) for number in range(RACERS)]
    os.close(go_read)
    os.close(go_write)  # all see the end of the pipe at once, and go
    victims = chance.sample(racers, chance.randint(0, KILLED))
    for victim in victims:
        time.sleep(chance.uniform(0, 0.015))
        os.kill(victim, signal.SIGKILL)
    codes = {pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in racers}
    assert all(code == 0 or (pid in victims and code == -9) for pid, code in codes.items()), codes
    finished = [json.loads(path.read_text()) for path in notes.glob("*.json")]
    _check_order(finished)
    assert claims(leases) == ()
    with ask(Pool(CARDS), len(CARDS), directory=leases) as everything:
        assert everything.take() == 0, "a card was lost"
    killed = sum(code == -9 for code in codes.values())
    return {"killed": killed, "leased": len(finished), "waited": sum(note["waited"] for note in finished)}


def _start(folder: Path, number: int, seed: float, go: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.closerange(go + 1, go + 2)  # the writing end, or the pipe would never end
        os.read(go, 1)
        _racer(folder, number, random.Random(seed))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _racer(folder: Path, number: int, chance: random.Random) -> None:
    # Opened before the lease: a killed process closes its descriptors in order, and a witness that
    # is let go after the lease would accuse the next owner.
    halves = {card: [_open(folder / f"{card}.{half}") for half in range(2)] for card in CARDS}
    among = CARDS if chance.random() < 0.7 else CARDS[:2]
    memory = chance.choice(("1", "0.6", "0.5", "0.5"))
    began = time.monotonic_ns()
    with ask(Pool(among), chance.randint(1, len(among)), memory=memory, directory=folder / "leases") as lease:
        asked = time.monotonic_ns()
        waited = bool(place := lease.take())
        while place:
            time.sleep(0.001)
            place = lease.take()
        for card in lease.claim.slots:
            enough = any if memory == "0.5" else all  # with 0.6 leased, 0.5 is too much
            assert enough(map(_hold, halves[card])), f"{card} has two owners"
        time.sleep(chance.uniform(0, 0.004))
        released = time.monotonic_ns()
        for descriptor in (d for pair in halves.values() for d in pair):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    note = {
        "number": lease.claim.number,
        "began": began,
        "asked": asked,
        "among": among,
        "since": lease.claim.since,
        "released": released,
        "waited": waited,
    }
    temporary = folder / f"{number}.new"
    temporary.write_text(json.dumps(note))
    temporary.rename(folder / "notes" / f"{number}.json")


def _check_order(finished: list[dict]) -> None:
    for first, second in permutations(finished, 2):
        if set(first["among"]).isdisjoint(second["among"]):
            continue
        # Numbers begin again when nobody is there, so they tell the order of those who met only.
        met = first["asked"] < second["released"] and second["asked"] < first["released"]
        if first["asked"] < second["began"] or (met and first["number"] < second["number"]):
            assert first["since"] < second["since"], f"{second} was served before {first}"
        if met and first["asked"] < second["began"]:
            assert first["number"] < second["number"], f"{second} passed {first} in line"


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


def _hold(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(folder: str, races: str, seed: str) -> None:
    chance = random.Random(int(seed))
    total = {"races": 0, "killed": 0, "leased": 0, "waited": 0}
    for number in range(int(races)):
        for key, value in race(Path(folder) / str(number), chance).items():
            total[key] += value
        total["races"] += 1
    print(json.dumps(total))


if __name__ == "__main__":
    main(*sys.argv[1:])
