"""Faults of machines and of the network between them: after each, a training ends as if there had been none.

Machines are network namespaces with an sshd each (see lan.py), so a cut link cuts ssh too.
"""

import os
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest
from lan import Lan, missing
from machine_hunt import PROGRAM, STEPS, Hunt, Writers

pytestmark = pytest.mark.alone

SHARE = int(os.environ.get("COLONNADE_SOAK", "1"))
TIMES = max(1, 17 // SHARE)  # each of twelve faults: 204 in all
GONE = 15.0  # seconds until nothing is left of a training whose launcher was killed
# Until all have ended when one is cut off: the others notice after five, the launcher gives it ten, as it may
# be saving, and ten more to end what it started.
CUT_OFF = 5.0 + 1.5 + 10.0 + 10.0


@pytest.fixture(scope="module")
def lan(tmp_path_factory):
    why = missing()
    if why:
        pytest.skip(why)
    with Lan(tmp_path_factory.mktemp("lan"), 2) as made:
        yield made


@pytest.fixture(scope="module")
def unbroken(lan):
    """What a training learns that nothing happens to."""
    hunt = Hunt(lan, lan.folder / "unbroken").start()
    assert hunt.end() == 0, hunt.text()
    return hunt.final()


def same(found, expected):
    """To the last bit: machines and devices are as many, and a checkpoint has all of it."""
    assert found == expected


def close(found, expected):
    """On another number of machines sums are made in another order; float64, 80 steps."""
    numbers = [[float.fromhex(v) for v in values] for values in (found, expected)]
    np.testing.assert_allclose(*numbers, rtol=1e-9, atol=1e-11)


def left(lan):
    return [p for i in range(lan.count) for word in (PROGRAM, "far_end") for p in lan.programs(i, word)]


def nothing_left(lan, seconds):
    deadline = time.monotonic() + seconds
    while left(lan) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left(lan) == []


def program(lan, i):
    (process,) = lan.programs(i, PROGRAM)
    return process


def kill_worker(lan):
    program(lan, 1).kill()


def kill_first(lan):
    program(lan, 0).kill()


def stop_worker(lan):
    program(lan, 1).send_signal(signal.SIGSTOP)


def stop_first(lan):
    program(lan, 0).send_signal(signal.SIGSTOP)


RESTARTS = [kill_worker, kill_first, stop_worker, stop_first]


@pytest.mark.parametrize("fault", [f for f in RESTARTS for _ in range(TIMES)])
def test_a_machine_that_fails_is_noticed_and_all_start_anew(lan, unbroken, tmp_path, record_property, fault):
    with Writers(lan, tmp_path) as writers:
        hunt = Hunt(lan, tmp_path).start()
        hunt.wait_for(f"step {STEPS // 3}")
        begun = time.monotonic()
        fault(lan)
        again = hunt.wait_for("starting again", begun)
        on = hunt.wait_for("step ", again)
        assert hunt.end() == 0, hunt.text()
    same(hunt.final(), unbroken)
    assert writers.most == 1
    nothing_left(lan, 1)
    ended = [when for when, line in hunt.lines if when > begun and "start all machines again" in line]
    record_property("fault", fault.__name__)
    noticed = min([*ended, again]) - begun
    # A killed process within a second, a stopped one within five; then a beat, the look at it, and ssh.
    assert noticed < (1.0 if fault in (kill_worker, kill_first) else 5.0 + 1.5), noticed
    record_property("noticed", round(noticed, 2))
    record_property("ended", round(again - begun, 2))
    record_property("training", round(on - begun, 2))


@pytest.mark.parametrize("_", range(TIMES))
def test_a_link_that_is_down_for_three_seconds(lan, unbroken, tmp_path, _):
    """Shorter than anybody is taken for lost: it may go on, or start anew; it ends the same."""
    with Writers(lan, tmp_path) as writers:
        hunt = Hunt(lan, tmp_path).start()
        hunt.wait_for(f"step {STEPS // 3}")
        lan.cut(1)
        time.sleep(3)
        lan.mend(1)
        assert hunt.end() == 0, hunt.text()
    same(hunt.final(), unbroken)
    assert writers.most == 1
    nothing_left(lan, 1)


@pytest.mark.parametrize("who", [i for i in (0, 1) for _ in range(TIMES)])
def test_a_link_that_stays_down(lan, unbroken, tmp_path, record_property, who):
    """The other machine goes on alone, and the one that was cut off ends by itself, and cannot write."""
    with Writers(lan, tmp_path) as writers:
        hunt = Hunt(lan, tmp_path).start()
        hunt.wait_for(f"step {STEPS // 3}")
        begun = time.monotonic()
        lan.cut(who)
        try:
            again = hunt.wait_for("starting again", begun)
            on = hunt.wait_for("step ", again)
            assert hunt.end() == 0, hunt.text()
        finally:
            lan.mend(who)
    close(hunt.final(), unbroken)
    assert writers.most == 1
    nothing_left(lan, 40)
    assert f"going on without m{who}" in hunt.text()
    assert again - begun < CUT_OFF
    record_property("ended", round(again - begun, 2))
    record_property("training", round(on - begun, 2))


@pytest.mark.parametrize("_", range(TIMES))
def test_a_killed_launcher(lan, unbroken, tmp_path, record_property, _):
    hunt = Hunt(lan, tmp_path).start()
    hunt.wait_for(f"step {STEPS // 3}")
    begun = time.monotonic()
    hunt.process.kill()
    nothing_left(lan, GONE)
    record_property("ended", round(time.monotonic() - begun, 2))
    hunt.end()
    second = Hunt(lan, tmp_path).start()
    assert second.end() == 0, second.text()
    same(second.final(), unbroken)
    assert "| step 1\n" not in second.text()  # it went on


@pytest.mark.parametrize("_", range(TIMES))
def test_a_fault_while_it_starts_anew(lan, unbroken, tmp_path, _):
    hunt = Hunt(lan, tmp_path).start()
    hunt.wait_for(f"step {STEPS // 3}")
    begun = time.monotonic()
    kill_worker(lan)
    hunt.wait_for("starting again", begun)
    while not lan.programs(0, PROGRAM):
        time.sleep(0.05)
    time.sleep(1)
    again = time.monotonic()
    kill_first(lan)
    hunt.wait_for("starting again", again)
    assert hunt.end() == 0, hunt.text()
    same(hunt.final(), unbroken)
    nothing_left(lan, 1)


@pytest.mark.parametrize("time_", range(TIMES))
def test_a_full_disk(lan, unbroken, time_):
    """Nothing is started again, because it would not help; with room made, it goes on."""
    folder, ballast = lan.disk / f"run-{time_}", lan.disk / "ballast"
    hunt = Hunt(lan, folder).start()
    hunt.wait_for(f"step {STEPS // 3}")
    subprocess.run(["dd", "if=/dev/zero", f"of={ballast}", "bs=4k"], capture_output=True)
    assert hunt.end() not in (0, 75), hunt.text()
    assert "the disk is full" in hunt.text()
    nothing_left(lan, 1)
    ballast.unlink()
    second = Hunt(lan, folder).start()
    assert second.end() == 0, second.text()
    same(second.final(), unbroken)
    shutil.rmtree(folder)


@pytest.mark.parametrize("_", range(TIMES))
def test_of_two_launchers_one_wins(lan, tmp_path, _):
    with Writers(lan, tmp_path) as writers:
        hunt = Hunt(lan, tmp_path, steps=100_000).start()
        hunt.wait_for("step 5")
        second = Hunt(lan, tmp_path).start()
        assert second.end() not in (0, 75), second.text()
        assert "saves into" in second.text()
        assert "step " not in second.text()
        hunt.wait_for("step ", time.monotonic())  # the first goes on
        hunt.process.send_signal(signal.SIGTERM)
        assert hunt.end() == 75, hunt.text()
    assert writers.most == 1
    nothing_left(lan, 1)


@pytest.mark.parametrize("_", range(TIMES))
def test_a_link_that_loses_and_delays(unbroken, tmp_path, _):
    """5% of the packets, each way, and 100 ms."""
    folder = tmp_path / "rough"
    folder.mkdir()
    with Lan(folder, 2, rough=frozenset({1})) as rough:
        hunt = Hunt(rough, tmp_path / "run").start()
        assert hunt.end(400) == 0, hunt.text()
        same(hunt.final(), unbroken)
