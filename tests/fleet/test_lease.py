import json
import os
import signal
import subprocess
import sys
import time

import pytest
from fresh import ROOT, run

import colonnade as cn
from colonnade.fleet import lease as module
from colonnade.fleet.lease import Pool, ask, claims

PAIR = Pool(("a", "b"))


class Other:
    """Another process that gets in line and stays there, until it is told otherwise."""

    CODE = """
import sys, time
from pathlib import Path
from colonnade.fleet.lease import Pool, ask
lease = ask(Pool(("a", "b")), int(sys.argv[2]), directory=Path(sys.argv[1]))
lease.take()
print(*lease.claim.slots, flush=True)
time.sleep(60)
"""

    def __init__(self, directory, count):
        command = [sys.executable, "-c", self.CODE, str(directory), str(count)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.has = tuple(self.process.stdout.readline().split())

    def __enter__(self):
        return self

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __exit__(self, *_):
        self.kill()
        self.process.stdout.close()


def test_a_lease_says_who_since_when_and_for_what(line):
    lease = line(count=2, command=["python", "train.py"], memory="0.5")
    assert lease.take() == 0
    (claim,) = claims(line.directory)
    assert (claim.slots, claim.memory, claim.pid) == (("a", "b"), "0.5", os.getpid())
    assert claim.command == ("python", "train.py")
    assert claim == lease.claim


def test_first_come_first_served(line):
    with ask(PAIR, 1, directory=line.directory) as holder:
        assert holder.take() == 0
        wants_both, wants_one = line(count=2), line(count=1)
        # One card is free, but who asked for two came first and must not be passed over.
        assert wants_one.take() == 2
        assert wants_both.take() == 1
    assert wants_one.take() == 2
    assert wants_both.take() == 0
    assert wants_one.take() == 1


def test_who_can_take_other_cards_does_not_wait(line):
    line(Pool(("a",))).take()
    behind = line(Pool(("a",)))
    assert behind.take() == 1
    assert line(Pool(("b",))).take() == 0
    assert behind.take() == 1


@pytest.mark.parametrize(
    ("memory", "fit"), [("1", 1), ("0.5", 2), ("0.51", 1), ("0.3", 3), ("0.1", 10), ("0.3333", 3)]
)
def test_shares_of_a_card_add_up_exactly(line, memory, fit):
    one = Pool(("a",))
    assert [line(one, memory=memory).take() for _ in range(fit + 1)] == [0] * fit + [1]


def test_a_divided_card_is_filled_before_a_whole_one(line):
    for expected in ("a", "a", "b"):
        lease = line(memory="0.5")
        lease.take()
        assert lease.claim.slots == (expected,)


def test_the_choice_is_among_the_free(line):
    seen = []

    def choose(free, count):
        seen.append(tuple(free))
        return free[-count:]

    four = Pool(("a", "b", "c", "d"), choose)
    line(Pool(("b",))).take()
    lease = line(four, 2)
    assert lease.take() == 0
    assert (seen, lease.claim.slots) == ([("a", "c", "d")], ("c", "d"))


def test_a_card_in_use_without_a_lease_is_busy_unless_shared(line):
    used = Pool(("a",), occupants=lambda: {"a": {os.getppid()}})
    with ask(used, 1, directory=line.directory) as waits:
        assert waits.take() == 1
    assert line(used, share=True).take() == 0


def test_the_processes_of_a_lessee_are_no_strangers(line):
    sleeper = subprocess.Popen(["sleep", "60"])  # a child of this process, which holds the first half
    try:
        used = Pool(("a",), occupants=lambda: {"a": {sleeper.pid, os.getpid()}})
        assert line(used, memory="0.5", share=True).take() == 0
        assert line(used, memory="0.5").take() == 0
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_hidden_process_counts_where_nobody_has_a_lease(line):
    hidden = Pool(("a",), occupants=lambda: {"a": {2**22 + 1}})  # above any process number
    with ask(hidden, 1, memory="0.5", directory=line.directory) as waits:
        assert waits.take() == 1
    line(hidden, memory="0.5", share=True).take()
    assert line(hidden, memory="0.5").take() == 0


def test_a_killed_owner_frees_its_cards(line):
    with Other(line.directory, 2) as other:
        assert other.has == ("a", "b")
        lease = line()
        assert lease.take() == 1
        other.kill()
        assert lease.take() == 0
    assert len(claims(line.directory)) == 1
    assert len(os.listdir(line.directory)) == 2  # and nothing is left of the dead


def test_a_killed_waiter_frees_its_place(line):
    line().take()
    with Other(line.directory, 2) as other:
        assert other.has == ()
        lease = line()
        assert lease.take() == 2
        other.kill()
        assert lease.take() == 0


def test_a_stopped_waiter_lets_others_pass(line):
    line().take()
    with Other(line.directory, 2) as other:
        lease = line()
        assert lease.take() == 2
        other.process.send_signal(signal.SIGSTOP)
        while not module._is_stopped(other.process.pid):
            time.sleep(0.01)
        assert lease.take() == 0


def test_waiting_ends_after_its_time_and_tells_the_place(line):
    line(count=2).take()
    places = []
    with pytest.raises(cn.LeaseTimeout, match="1 card did not come free in time") as caught:
        line().wait(0, places.append)
    assert places == [1]
    assert isinstance(caught.value, TimeoutError)


def test_waiting_ends_when_the_cards_come_free(line, monkeypatch):
    monkeypatch.setattr(module, "NEXT_LOOKS", 0.01)
    with Other(line.directory, 2) as other:
        lease, places = line(), []
        lease.wait(30, lambda place: (places.append(place), other.kill()))
        assert places == [1]
        assert lease.claim.slots == ("a",)


def damaged(path, says):
    if says is None:
        path.unlink()
    else:
        path.write_text(says)


@pytest.mark.parametrize(
    "says", [None, "nonsense", "[]", "{}", "[" * 10**5, '"text"', b"\xff".decode("latin1")]
)
def test_a_lease_that_cannot_be_read_keeps_every_card(line, says):
    with ask(PAIR, 1, directory=line.directory) as silent:
        assert silent.take() == 0
        damaged(line.directory / f"{silent.claim.number}.json", says)
        (claim,) = claims(line.directory)
        assert (claim.readable, claim.user) == (False, silent.claim.user)
        waits = line(Pool(("c",)))  # it may hold any card, also one of which we know nothing
        assert waits.take() == 1
    assert waits.take() == 0


def test_who_waits_writes_a_lost_record_again(line):
    with ask(PAIR, 2, directory=line.directory) as holder:
        assert holder.take() == 0
        first, second = line(), line()
        for lease in (first, second):
            (line.directory / f"{lease.claim.number}.json").unlink()
        assert (first.take(), second.take()) == (1, 2)
        assert claims(line.directory) == (holder.claim, first.claim, second.claim)
    assert (first.take(), second.take()) == (0, 0)


@pytest.mark.parametrize(
    "lie",
    [
        {"memory": "-5"},
        {"memory": "1/0"},
        {"memory": "1e-999999999"},
        {"pid": 10**30},
        {"pid": "one"},
        {"count": float("inf")},
        {"count": 0},
        {"since": "\x1b[2J"},
        {"slots": 3},
        {"command": None},
    ],
)
def test_a_claim_that_cannot_be_keeps_every_card(line, lie):
    liar = line()
    path = line.directory / f"{liar.claim.number}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **lie}))
    assert not claims(line.directory)[0].readable
    assert line().take() == 1


def test_a_long_command_is_kept_short(line):
    line(command=["python", "x" * 10**6, *["y"] * 10**5, "\udcff"]).take()
    (claim,) = claims(line.directory)
    assert claim.command[0] == "python"
    assert len(" ".join(claim.command)) < 1000
    assert line(count=2).take() == 1


def test_where_leases_are(monkeypatch, tmp_path):
    monkeypatch.setenv("COLONNADE_LEASES", str(tmp_path / "here"))
    assert module.shared_directory() == tmp_path / "here"
    assert claims() == ()
    assert not (tmp_path / "here").exists()  # looking makes nothing
    monkeypatch.delenv("COLONNADE_LEASES")
    assert module.shared_directory().name == "colonnade"


TWO_USERS = """
import json, os, signal, sys, time
from pathlib import Path
from colonnade.fleet.lease import Pool, ask, claims
folder, pool = Path(sys.argv[1]), Pool(("a", "b"))

def user(uid, do):
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, open(read)
    try:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        with open(write, "w") as out:
            do(lambda *said: print(*said, file=out, flush=True))
    finally:
        os._exit(0)

def hold(say):
    lease = ask(pool, 2, directory=folder)
    say(lease.take())
    time.sleep(60)

def wait(say):
    (claim,) = claims(folder)
    say(claim.user, len(claim.slots))
    try:
        os.unlink(folder / "1.lock")
    except PermissionError:
        say("not his to remove")
    with ask(pool, 1, directory=folder) as lease:
        say(lease.take())
        lease.wait(30)
        say(*lease.claim.slots)
    (folder / "9.json").write_text("{}")  # another's file, under a name that could come up

def again(say):
    with ask(pool, 2, directory=folder) as lease:
        say(lease.take())

first, heard = user(12345, hold)
print("first:", heard.readline().strip())
second, told = user(12346, wait)
print("second:", [told.readline().strip() for _ in range(3)])
os.kill(first, signal.SIGKILL)
print("second:", [told.readline().strip()])
os.waitpid(second, 0)
print("left:", sorted(os.listdir(folder)))
third, heard = user(12345, again)
print("first:", heard.readline().strip())
os.waitpid(third, 0)
print("left:", sorted(os.listdir(folder)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users(tmp_path):
    folder = tmp_path / "leases"
    folder.mkdir()
    folder.chmod(0o1777)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.name.startswith(("pytest", "popen", "test")):  # pytest keeps others out of its folders
            parent.chmod(0o755)
    done = run([sys.executable, "-c", TWO_USERS, str(folder)])
    assert done.stdout.splitlines() == [
        "first: 0",
        "second: ['12345 2', 'not his to remove', '1']",
        "second: ['a']",
        "left: ['1.json', '1.lock', '9.json']",  # the dead man's record is only his to remove
        "first: 0",
        "left: ['9.json']",
    ], done.stderr


def test_races(tmp_path):
    """A few of the races that tests/soak runs by the hundred."""
    done = run([sys.executable, str(ROOT / "tests" / "races.py"), str(tmp_path), "25", "7"])
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)
    assert total["races"] == 25
    assert total["leased"] + total["killed"] >= 25 * 8
