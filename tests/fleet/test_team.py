import os
import signal
import sys
import time

import psutil
import pytest

from colonnade.fleet import team as teams
from colonnade.fleet.heard import HeardSignals
from colonnade.fleet.team import Team
from colonnade.fleet.worker import Place

ECHO = "import sys\nfor line in sys.stdin: print(repr(line), flush=True)"
DEAF = "import time; time.sleep(100)"


@pytest.fixture
def started(monkeypatch):
    """Start workers that run these programs; signals are heard meanwhile."""
    with HeardSignals() as heard:

        def start(*programs):
            places = [
                Place(f"w{i}", "127.0.0.1", [sys.executable, "-c", program], {})
                for i, program in enumerate(programs)
            ]
            return Team(places, heard)

        yield start


def test_they_hear_that_we_live_and_are_told_of_signals(started, monkeypatch, capfd):
    monkeypatch.setattr(teams, "BEAT", 0.05)
    with started(ECHO, ECHO) as team:
        team.wait(lambda: False, 1)
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGTERM)
        assert team.wait(lambda: bool(team.ending), 10)
        assert team.ending == [signal.SIGTERM]
    lines = capfd.readouterr().out.splitlines()
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
    psutil.Process(int(capfd.readouterr().out.removeprefix("w0 | "))).kill()
