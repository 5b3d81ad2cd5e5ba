from collections import Counter
from io import StringIO

from rich.console import Console

from colonnade.show.sweep_screen import SweepScreen, screen
from colonnade.sweeps.board import BestTrial, Board, RunningTrial
from colonnade.sweeps.slots.ending import Ending


def board():
    shown = Board("rates", 20, maximize=True, slots=2, in_line=1, counts=Counter(complete=3, failed=1))
    shown.best = BestTrial(2, 0.91, {"rate": 0.01})
    shown.lasted.append(8.0)
    for number in range(30):
        shown.running[number] = RunningTrial(number, ("virtual:0",), {"rate": 0.1}, step=7, value=0.5)
    return shown


def printed(show, **options):
    console = Console(file=StringIO(), width=110, **options)
    show(console)
    return console.file.getvalue()


def test_the_table():
    text = printed(lambda console: console.print(screen(board())))
    assert "4 of 20 finished: 3 complete, 0 pruned, 1 failed; 2 slots, another is number 1 in line" in text
    assert "about 1m04s left" in text
    assert "best: 0.91, trial 2, rate=0.01" in text
    assert "and 6 more" in text
    row = next(line for line in text.splitlines() if "virtual:0" in line)
    assert [part.strip() for part in row.strip("│ ").split("│")][:5] == [
        "0",
        "virtual:0",
        "rate=0.1",
        "7",
        "0.5",
    ]


def events(console):
    trial = RunningTrial(3, ("virtual:1",), {"rate": 0.1}, attempt=2)
    with SweepScreen(console) as watching:
        watching.begun(trial)
        watching.tick(board())
        watching.ended(trial, Ending("failed", reason="exit code 1"))
        watching.ended(trial, Ending("cut", reason="SIGINT"))
        watching.noted("the storage does not answer")


def test_lines_where_there_is_no_terminal():
    lines = printed(events).splitlines()
    assert lines[0] == "trial 3 begins on virtual:1, attempt 2, rate=0.1"
    assert lines[1].startswith("trial 3 failed after 0.0 s, rate=0.1: exit code 1")
    assert lines[2].startswith("trial 3 is to be run again after")
    assert lines[3:] == ["the storage does not answer"]


def test_a_terminal_has_the_table_and_what_has_ended():
    text = printed(events, force_terminal=True)
    assert "begins on" not in text
    assert "study rates" in text
    assert "exit code 1" in text
