"""Whole sweeps: cards, Ctrl-C, going on, kills, a storage that is away."""

import asyncio
import json
import os
import signal
import sys
import threading
import time

import optuna
import pytest
from families import kept
from swept import main as hunt

import colonnade as cn
from colonnade.fleet.lease import Pool, ask, claims
from colonnade.show.sweep import exit_code
from colonnade.sweeps import storage as storing
from colonnade.sweeps import sweeper as sweeping


def begun(seen):
    return [number for what, number in seen.lines if what == "begun"]


def test_as_many_trials_at_once_as_there_are_cards(sweep, states):
    swept = sweep("hunted", trials=5, virtual=3)
    assert states(swept.study) == ["COMPLETE"] * 5
    assert max(running for running, _ in sweep.seen.boards) == 3
    assert not list(sweep.folder.parent.glob("twice-*"))
    assert claims(sweep.folder.parent / "leases") == ()


def test_shares_of_a_card(sweep, states, monkeypatch):
    monkeypatch.setenv("SECONDS", "0.5")
    swept = sweep("empty", trials=4, virtual=1, memory="0.5", reuse=True)
    assert states(swept.study) == ["COMPLETE"] * 4
    cards = {t.user_attrs["colonnade"]["cards"] for t in swept.study.trials}
    assert cards == {"virtual:0"}


def test_leases_of_others_are_respected(sweep, states, monkeypatch):
    """One of two cards is somebody else's; he gives it back in the middle."""
    monkeypatch.setattr(sweeping, "TICK", 0.05)
    leases = sweep.folder.parent / "leases"
    other = ask(Pool(("virtual:0", "virtual:1")), 1, directory=leases)
    other.wait()
    timer = threading.Timer(1.5, other.__exit__)
    timer.start()
    swept = sweep("hunted", trials=6, virtual=2)
    timer.join()
    assert states(swept.study) == ["COMPLETE"] * 6
    cards = [t.user_attrs["colonnade"]["cards"] for t in swept.study.trials]
    assert cards[0] == "virtual:1"
    assert "virtual:0" in cards
    assert {slots for _, slots in sweep.seen.boards} >= {1, 2}


@pytest.mark.parametrize("reuse", kept([True, False], True))
def test_cards_are_given_back_to_who_waits(sweep, states, reuse):
    """Somebody who wants all cards gets them after the trials at hand, and then the sweep goes on."""
    leases = sweep.folder.parent / "leases"
    ended = []

    def want():
        while ("begun", 2) not in sweep.seen.lines:
            time.sleep(0.02)
        with ask(Pool(("virtual:0", "virtual:1")), 2, directory=leases) as lease:
            lease.wait(20)
            ended.append(sum(what == "complete" for what, _ in sweep.seen.lines))

    thread = threading.Thread(target=want)
    thread.start()
    swept = sweep("slow", trials=10, virtual=2, reuse=reuse)
    thread.join()
    assert states(swept.study) == ["COMPLETE"] * 10
    assert 2 < ended[0] < 10, "in the middle of it"


@pytest.mark.parametrize("number", kept([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_ctrl_c_lets_trials_save_and_the_same_goes_on(sweep, states, number):
    folder = sweep.folder / "objectives-saving" / "trials"

    def interrupt():
        while len(list(folder.glob("*/ready"))) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    first = sweep("saving", trials=3)
    thread.join()
    assert (first.stopped_by, exit_code(first)) == (number.name, 75)
    assert states(first.study) == ["WAITING"] * 2
    second = sweep("saving", trials=2)
    assert (states(second.study), exit_code(second)) == (["COMPLETE"] * 2, 0)
    ends = [[a["end"] for a in json.loads(f.read_text())["attempts"]] for f in folder.glob("*/trial.json")]
    assert ends == [["cut", "complete"]] * 2


POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for step in range(10_000 if not sys.argv[1:] else 1):
    print(f"loss={100 - step}", flush=True)
    time.sleep(0.05)
"""


def test_what_a_program_had_printed_when_it_was_told_to_end_is_not_its_result(sweep, states, tmp_path):
    program = tmp_path / "polite.py"
    program.write_text(POLITE)
    options = {"command": (sys.executable, str(program)), "grid": ("rate=1,2",), "study": "polite"}

    def interrupt():
        while len([f for f in tmp_path.rglob("log.txt") if "loss" in f.read_text()]) < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    stopped = sweep(**options)
    thread.join()
    assert exit_code(stopped) == 75
    assert states(stopped.study) == ["WAITING"] * 2


@pytest.mark.long
def test_a_few_kills(tmp_path):
    """Some of what `make soak` does."""
    total = hunt(tmp_path / "hunt", 3, 1, trials=6)
    assert total["kills"] >= 3
    assert total["complete"] + total.get("failed", 0) == total["trials"]


def test_trials_go_on_while_the_storage_is_away(sweep, states, monkeypatch):
    """The whole folder is gone for a while, and comes back."""
    folder = sweep.folder / "objectives-hunted"
    away = sweep.folder / "away"
    monkeypatch.setattr(storing, "LONGEST_PAUSE", 0.2)

    def take_away():
        while not (folder / "trials" / "0001").exists():
            time.sleep(0.02)
        time.sleep(0.3)
        folder.rename(away)
        time.sleep(2.0)
        away.rename(folder)

    thread = threading.Thread(target=take_away)
    thread.start()
    swept = sweep("hunted", trials=4, retries=3)
    thread.join()
    assert states(swept.study) == ["COMPLETE"] * 4
    notes = [text for what, text in sweep.seen.lines if what == "noted"]
    assert any("does not answer" in text for text in notes)
    assert any("answers again" in text for text in notes)


def test_a_full_disk_is_waited_for(sweep, states, monkeypatch):
    """Every write to the journal fails for a second."""
    from colonnade.sweeps import journal

    real, since = journal.os.write, []

    def full(file, text):
        since.append(time.monotonic())
        if 0.1 < since[-1] - since[0] < 1.2:
            real(file, text[: len(text) // 2])
            raise OSError(28, "No space left on device")
        return real(file, text)

    monkeypatch.setattr(journal, "_write", lambda file, text: full(file, text))
    swept = sweep("empty", trials=6, reuse=True)
    assert states(swept.study) == ["COMPLETE"] * 6
    reread = optuna.load_study(
        study_name="objectives-empty", storage=storing.open_storage(None, swept.folder)
    )
    assert states(reread) == ["COMPLETE"] * 6


def test_keepers_that_do_not_start(sweep, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(cn.ColonnadeError, match="ended one after another before they had any"):
        sweep(command=("echo", "a={a}"), grid=("a=1,2",), study="none")


def test_the_time_is_over(sweep, states):
    swept = sweep("saving", trials=2, timeout="1s")
    assert "time given is over" in swept.stopped_by
    assert set(states(swept.study)) == {"WAITING"}


def test_in_a_notebook_where_a_loop_runs_already(sweep, states):
    async def cell():
        return sweep("empty", trials=2, reuse=True)

    assert states(asyncio.run(cell()).study) == ["COMPLETE"] * 2
