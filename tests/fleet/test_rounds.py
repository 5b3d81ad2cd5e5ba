"""How the ends of the workers are judged; tests of whole runs are in test_machines.py."""

import os
import signal
import sys
import threading
import time

import pytest

from colonnade.errors import InvalidArgument
from colonnade.fleet import rounds as module
from colonnade.fleet.rounds import rounds
from colonnade.fleet.worker import Place

# An end of ours that starts no program: it says what it is told to say.
PLAYS = """
import json, sys, time
from pathlib import Path
def say(**message): print("\\0colonnade " + json.dumps(message), flush=True)
plays = json.loads(input())["plays"]
say(hello={version!r})
input()
say(port=20000 + plays["number"])
while "start" not in (line := input()):
    pass
generation = int(json.loads(line)["start"]["COLONNADE_GENERATION"])
code = plays["codes"][generation]
time.sleep(plays["seconds"])
if code == "hangs":
    sys.stdin.read()
    code = 0
elif code != "lost":
    say(ended=code)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name in ("PATIENCE", "SAVING", "COMING_UP"):
        monkeypatch.setattr(module, name, 0.5)


def play(*codes, restarts=0, seconds=(0, 0, 0)):
    """Run workers whose programs end with these codes, a list each: one code per start."""
    program = PLAYS.replace("{version!r}", repr(module.__version__))
    places = [
        Place(
            f"w{i}",
            "127.0.0.1",
            [sys.executable, "-S", "-c", program],
            {"plays": {"codes": own, "number": i, "seconds": seconds[i]}},
        )
        for i, own in enumerate(codes)
    ]
    return rounds(places, first=len(places), at_least=1, restarts=restarts)


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        (([0], [0]), 0),
        (([75], [0]), 75),
        (([0], ["lost"]), 75),
        (([137], [75]), 75),
        (([75], [1]), 1),  # the first is a victim of the second
        ((["hangs"], [4]), 4),
        ((["hangs"], [75]), 75),
        (([139], ["lost"]), 75),
        (([255], [75]), 255),
    ],
)
def test_the_exit_code(codes, code):
    assert play(*codes) == code


def test_a_round_per_start(capfd):
    assert play([75, 0], ["lost", 0], restarts=3) == 0
    assert capfd.readouterr().err.count("starting again") == 1


def test_programs_that_do_not_end_when_they_are_told_to_are_ended(monkeypatch):
    monkeypatch.setattr(module, "INTERRUPTED", 0.5)
    threading.Timer(2.0, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
    assert play(["hangs"], ["hangs"]) == 75


def test_only_the_first_worker_is_waited_for_as_long_as_a_save_takes(monkeypatch):
    monkeypatch.setattr(module, "SAVING", 60.0)
    begun = time.monotonic()
    assert play([75], ["hangs"]) == 75
    assert time.monotonic() - begun < 30


def test_no_more_starts_than_allowed(capfd):
    assert play([75, 75, 75, 0], restarts=2) == 75
    assert "no restarts are left" in capfd.readouterr().err


def test_two_at_one_address(monkeypatch):
    """It cannot be, unless two names are of one machine; then it is told."""
    monkeypatch.setattr(module, "joined", lambda host, port: f"{host}:1")
    with pytest.raises(InvalidArgument, match="is the address of"):
        play([0], [0])
