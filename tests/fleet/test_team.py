import os
import signal
import sys
import threading
import time

import psutil
import pytest

from colonnade.fleet import team as teams
from colonnade.fleet.heard import HeardSignals
from colonnade.fleet.printer import Printer
from colonnade.fleet.team import Team
from colonnade.fleet.worker import Place

ECHO = "import sys\nfor line in sys.stdin: print(repr(line), flush=True)"
DEAF = "import time; time.sleep(100)"


@pytest.fixture
def started(monkeypatch):
    """Start workers that run these programs; signals are heard meanwhile."""
    with Printer() as printer, HeardSignals() as heard:

        def start(*programs):
            places = [
                Place(f"w{i}", "127.0.0.1", [sys.executable, "-c", program], {})
                for i, program in enumerate(programs)
            ]
            return Team(places, heard, printer)

        yield start


def test_they_hear_that_we_live_and_are_told_of_signals(started, monkeypatch, capfd):
    monkeypatch.setattr(teams, "BEAT", 0.05)
    with started(ECHO, ECHO) as team:
        team.wait(lambda: False, 1)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert team.wait(lambda: bool(team.ending), 10)
        assert team.ending == [signal.SIGTERM]
    lines = printed(capfd, lambda text: text.count('"signal": 15') == 2).splitlines()
    for name in ("w0", "w1"):
        heard = [line.removeprefix(f"{name} | ") for line in lines if line.startswith(name)]
        assert heard.count(repr("\n")) >= 3
        assert heard.count(repr('{"signal": 10}\n')) == heard.count(repr('{"signal": 15}\n')) == 1


def test_none_is_left_behind(started, monkeypatch):
    """One ends when we hang up; the other does not listen, and its connection is given up."""
    monkeypatch.setattr(teams, "LAST_WORDS", 0.5)
    with started(ECHO, DEAF) as team:
        pids = [worker.process.pid for worker in team.workers]
    assert not any(map(psutil.pid_exists, pids))


def test_some_can_be_dismissed_and_the_others_go_on(started):
    with started(ECHO, ECHO, "") as team:
        first, second, third = team.workers
        team.wait(lambda: third in team.finished, 20)
        team.dismiss([first, third])
        assert team.workers == [second]
        assert team.finished == []
        assert second.process.poll() is None


def test_a_wait_ends_with_its_time(started):
    with started(ECHO) as team:
        begun = time.monotonic()
        assert not team.wait(lambda: False, 0.2)
        assert 0.2 <= time.monotonic() - begun < 2


def test_a_stream_that_somebody_else_holds_open_does_not_keep_it_waiting(started, capfd):
    """As a shared connection of ssh does, which lives on in the background."""
    program = "import subprocess; print(subprocess.Popen(['sleep', '100']).pid, flush=True)"
    with started(program) as team:
        (worker,) = team.workers
        assert team.wait(lambda: worker.over, 10)
    psutil.Process(int(printed(capfd, lambda text: "\n" in text).removeprefix("w0 | "))).kill()


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_output_that_nobody_reads_takes_nobody_for_dead(monkeypatch, name, tmp_path):
    """As of a terminal that is stopped, or a pager: they hear that we live, and signals reach them."""
    monkeypatch.setattr(teams, "BEAT", 0.05)
    heard, (read, write) = tmp_path / "heard", os.pipe()
    program = f"""
import sys
for _ in range(3000): print("x" * 99, file=sys.{name}, flush=True)
for count, line in enumerate(sys.stdin): print(count, line, file=open({str(heard)!r}, "a"), flush=True)
"""
    place = Place("w", "127.0.0.1", [sys.executable, "-c", program], {})
    with open(read, "rb") as source, open(write, "w") as blocked:
        monkeypatch.setattr(sys, name, blocked)
        with Printer() as printer, HeardSignals() as signals, Team([place], signals, printer) as team:
            assert team.wait(lambda: heard.exists() and heard.read_text().count("\n") > 20, 20)
            os.kill(os.getpid(), signal.SIGTERM)
            assert team.wait(lambda: '"signal": 15' in heard.read_text(), 10)
            threading.Thread(target=source.read, daemon=True).start()


def printed(capfd, enough, seconds=10.0):
    """What is there when it is enough: it is printed by another thread."""
    deadline, text = time.monotonic() + seconds, ""
    while not enough(text) and time.monotonic() < deadline:
        text += capfd.readouterr().out
        time.sleep(0.01)
    return text
