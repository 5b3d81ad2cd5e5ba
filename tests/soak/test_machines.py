"""Faults of machines and of the network between them: after each, a training goes on as if it had not been.

Machines are network namespaces with an sshd each (see lan.py), so a cut link cuts ssh too. One training meets
all faults, one after the other, in an order that is drawn by lot (see fault_chain.py).
"""

import os
import random
import signal
import time
from functools import partial
from itertools import pairwise

import pytest
from fault_chain import MANY, SECONDS, FaultChain, fill, left
from lan import Lan, missing
from machine_hunt import PROGRAM, Hunt

pytestmark = pytest.mark.alone

SHARE = int(os.environ.get("COLONNADE_SOAK", "1"))
TIMES = max(1, 17 // SHARE)  # each of twelve faults: 204 in all
# Seconds until somebody says that a machine is missing: a killed one, and one that is stopped, which takes
# a beat more, and the look at it.
KILLED, STOPPED = 1.0, 5.0 + 1.5
GONE = 15.0  # until nothing is left of a training whose launcher was killed
# Until all have ended when one is cut off: the others notice after five, the launcher gives it ten, as it may
# be saving, and ten more to end what it started.
CUT_OFF = 5.0 + 1.5 + 10.0 + 10.0
BACK = 40.0  # until one that was cut off has ended all of what it had


def kill(chain, who):
    return chain.restarted(chain.program(chain.present[who]).kill, KILLED)


def stop(chain, who):
    return chain.restarted(partial(chain.program(who).send_signal, signal.SIGSTOP), STOPPED)


def link_down_for_three_seconds(chain):
    """Shorter than anybody is taken for lost: it may go on, or start anew."""
    who = chain.draw.randrange(2)
    chain.lan.cut(who)
    time.sleep(3)
    chain.lan.mend(who)
    return {"since": time.monotonic()}


def link_down(chain, who):
    """The other one goes on alone. The one that is cut off ends by itself, and joins at the next start."""
    begun = time.monotonic()
    noted = chain.restarted(partial(chain.lan.cut, who), STOPPED)
    assert noted["ended"] < CUT_OFF
    chain.cut_off.add(who)
    training = chain.onward(noted["since"]) - begun
    assert chain.hunt.said(f"going on without m{who}", noted["since"])
    assert left(chain.lan, who, within=BACK) == []
    chain.lan.mend(who)
    return {**noted, "training": training, "since": time.monotonic()}


def kill_launcher(chain):
    begun = time.monotonic()
    chain.hunt.process.kill()
    assert left(chain.lan, within=GONE) == []
    ended = time.monotonic() - begun
    chain.hunt.end()
    return {"ended": ended, "since": chain.launch()}


def kill_while_starting_anew(chain):
    chain.restarted(chain.program(chain.present[-1]).kill, KILLED)
    who = chain.draw.randrange(2)
    while not chain.lan.programs(who, PROGRAM):
        time.sleep(0.05)
    time.sleep(chain.draw.uniform(0, 6))  # it is anywhere between its first import and its first step
    again = time.monotonic()
    chain.program(who).kill()
    return {"since": chain.hunt.wait_for("starting again", again)}


def full_disk(chain):
    """Nothing is started again, because it would not help; with room made, it goes on."""
    begun, ballast = time.monotonic(), fill(chain.lan.disk)
    assert chain.hunt.end() not in (0, 75), chain.hunt.text()
    ended = time.monotonic() - begun
    assert "the disk is full" in chain.hunt.text()
    assert left(chain.lan, within=1) == []
    ballast.unlink()
    return {"ended": ended, "since": chain.launch()}


def second_launcher(chain):
    """With the same checkpoints: it is told that they are in use, and the first one trains on."""
    machines = chain.draw.choice([(0,), (1,), (0, 1)])
    second = Hunt(chain.lan, chain.folder, MANY, SECONDS, machines).start()
    assert second.end() not in (0, 75), second.text()
    assert "saves into" in second.text()
    assert second.made == []
    return {"since": time.monotonic()}


def rough_link(chain):
    """5% of the packets are lost, each way, and the others take 100 ms."""
    chain.lan.roughen(1)
    chain.onward(time.monotonic())
    chain.lan.smooth(1)
    return {"since": time.monotonic()}


FAULTS = {
    "kill the second": partial(kill, who=1),
    "kill the first": partial(kill, who=0),
    "stop the second": partial(stop, who=1),
    "stop the first": partial(stop, who=0),
    "link down for 3 s": link_down_for_three_seconds,
    "the first's link down": partial(link_down, who=0),
    "the second's link down": partial(link_down, who=1),
    "kill the launcher": kill_launcher,
    "kill while starting anew": kill_while_starting_anew,
    "full disk": full_disk,
    "second launcher": second_launcher,
    "rough link": rough_link,
}
# What may come where one machine is left, and starts all anew.
OF_ONE = ("kill the first", "kill the launcher", "kill while starting anew", "full disk")


@pytest.fixture(scope="module")
def lan(tmp_path_factory):
    why = missing()
    if why:
        pytest.skip(why)
    with Lan(tmp_path_factory.mktemp("lan"), 2, wires=frozenset({1})) as made:
        yield made


@pytest.fixture(scope="module")
def unbroken(lan, tmp_path_factory):
    """By step, the checksum of the parameters in a training that nothing happens to."""
    hunt = Hunt(lan, tmp_path_factory.mktemp("unbroken"), MANY).start()
    assert hunt.end() == 0, hunt.text()
    assert {(step.machine, step.number) for step in hunt.final} == {(0, MANY), (1, MANY)}
    sums = {step.number: step.checksum for step in hunt.made}
    assert all(sums[step.number] == step.checksum for step in (*hunt.made, *hunt.final))
    assert len(set(sums.values())) == MANY
    return sums


def in_some_order(draw):
    """All faults. After one that leaves a machine out, one that starts all anew: there it joins."""
    names = list(FAULTS)
    while True:
        draw.shuffle(names)
        if all(then in OF_ONE for name, then in pairwise([*names, None]) if name.endswith("'s link down")):
            return names


@pytest.mark.parametrize("number", range(TIMES))
def test_a_training_survives_all_faults(lan, unbroken, record_property, number):
    draw = random.Random(2026 + number)
    with FaultChain(lan, lan.disk / f"run-{number}", draw, unbroken) as chain:
        for name in in_some_order(draw):
            chain.meet(name, FAULTS[name])
    for name, times in chain.times.items():
        record_property(name, times)


def test_a_training_over_a_link_that_loses_and_delays(lan, unbroken, tmp_path):
    """From its start to its end."""
    lan.roughen(1)
    try:
        hunt = Hunt(lan, tmp_path, 60).start()
        assert hunt.end(400) == 0, hunt.text()
    finally:
        lan.smooth(1)
    assert [step.checksum for step in hunt.final] == [unbroken[60]] * 2


def test_who_is_cut_off_where_nothing_is_trained_is_noticed_as_soon(lan, tmp_path, record_property):
    """A program that holds up Python has longer; but the system of its machine answers."""
    hunt = Hunt(lan, tmp_path, 0).start()
    try:
        for i in range(lan.count):
            hunt.wait_for(f"m{i} | joined")
        begun = time.monotonic()
        lan.cut(1)
        noticed = hunt.wait_for("m1 was not heard for", begun) - begun
    finally:
        hunt.process.kill()
        lan.mend_all()
        hunt.end()
        assert left(lan, within=BACK) == []
    record_property("noticed", round(noticed, 2))
    assert noticed < STOPPED
