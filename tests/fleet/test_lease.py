import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest
from fresh import ROOT, run

import colonnade as cn
from colonnade.fleet import lease as module
from colonnade.fleet import records
from colonnade.fleet.lease import Pool, ask, claims

PAIR = Pool(("a", "b"))


@pytest.fixture
def line(tmp_path):
    """Get in line in one directory; everything is given back at the end."""
    with ExitStack() as stack:

        def join(pool=PAIR, count=1, **options):
            return stack.enter_context(ask(pool, count, directory=tmp_path / "leases", **options))

        join.directory = tmp_path / "leases"
        yield join


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


def test_no_lock_is_left_when_the_record_cannot_be_written(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.json, "dump", full)
    with pytest.raises(cn.InvalidArgument, match=r"cannot be written \(No space"):
        ask(PAIR, 1, directory=tmp_path)
    monkeypatch.undo()
    assert claims(tmp_path) == ()
    assert os.listdir(tmp_path) == []


def test_the_directory_is_for_every_user(tmp_path):
    before = os.umask(0o077)
    try:
        with ask(PAIR, 1, directory=tmp_path / "leases"):
            modes = {p.suffix: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "leases").iterdir()}
            assert modes == {".lock": 0o644, ".json": 0o644}
            assert stat.S_IMODE((tmp_path / "leases").stat().st_mode) == 0o1777
    finally:
        os.umask(before)


def test_no_file_is_opened_that_a_sticky_directory_would_refuse(line, monkeypatch):
    """With fs.protected_regular, O_CREAT on another user's file fails; with O_EXCL it is never another's."""
    real = os.open

    def strict(path, flags, *args, **kwargs):
        assert not flags & os.O_CREAT or flags & os.O_EXCL, path
        assert flags & os.O_NOFOLLOW, path
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", strict)
    assert line().take() == 0
    assert len(claims(line.directory)) == 1


def test_what_is_planted_in_the_directory_does_no_harm(line, tmp_path):
    line().take()
    precious = tmp_path / "precious"
    precious.write_text("keep")
    folder = line.directory
    (folder / "7.lock").symlink_to(precious)
    (folder / "7.json").symlink_to(precious)
    os.mkfifo(folder / "8.lock")
    (folder / "9.lock").write_text("nobody holds this")
    (folder / "10.json").write_text("{}")
    (folder / "planted.new").symlink_to(precious)
    (folder / "unrelated").mkdir()
    (folder / "11.lock").mkdir()
    lease = line()
    assert lease.take() == 0
    assert lease.claim.slots == ("b",)
    assert precious.read_text() == "keep"
    assert not (folder / "10.json").exists()  # of a process that died before it had its lock


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


def test_a_directory_that_cannot_be_used(tmp_path, monkeypatch):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("")
    for name, says in {
        "link": "not a link",
        "file": "must be a directory",
        "no/such": "cannot be made",
    }.items():
        with pytest.raises(cn.InvalidArgument, match=says):
            ask(PAIR, 1, directory=tmp_path / name)
    monkeypatch.setattr(records, "PATIENCE", 0.05)
    with (
        records.alone(tmp_path / "real"),
        pytest.raises(cn.InvalidArgument, match="kept it locked"),
        records.alone(tmp_path / "real"),
    ):
        pass


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


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_record_in_the_name_of_another_says_nothing(line):
    lease = line()
    assert lease.take() == 0
    os.chown(line.directory / f"{lease.claim.number}.json", 12345, 12345)
    (claim,) = claims(line.directory)
    assert not claim.readable
    assert line().take() == 1


OTHER_USER = """
import os, sys
from pathlib import Path
from colonnade.fleet.lease import Pool, ask, claims
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
folder = Path(sys.argv[1])
try:
    print([claim.readable for claim in claims(folder)])
    with ask(Pool(("a",)), 1, directory=folder) as lease:
        print(lease.take())
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("closed", "said"),
    [
        ("record", ["[False]", "1"]),  # a lock that cannot be opened may be a live one
        ("writing", ["cannot be written (Permission denied)", "chmod 1777"]),
        ("all", ["it is closed to this user"]),
        ("parent", ["it is closed to this user"]),
    ],
)
def test_what_is_closed_to_another_user(line, tmp_path, closed, said):
    for parent in (tmp_path, *tmp_path.parents):
        if parent.name.startswith(("pytest", "popen", "test")):
            parent.chmod(0o755)
    if closed == "record":
        (line.directory / f"{line().claim.number}.lock").chmod(0o600)
    else:
        line.directory.mkdir()
        line.directory.chmod({"writing": 0o755, "all": 0o700, "parent": 0o1777}[closed])
        tmp_path.chmod(0o700 if closed == "parent" else 0o755)
    done = run([sys.executable, "-c", OTHER_USER, str(line.directory)])
    assert done.stderr == ""
    assert all(part in done.stdout for part in said), done.stdout


def test_races(tmp_path):
    """A few of the races that tests/soak runs by the hundred."""
    done = run([sys.executable, str(ROOT / "tests" / "races.py"), str(tmp_path), "25", "7"])
    assert done.returncode == 0, done.stderr
    total = json.loads(done.stdout)
    assert total["races"] == 25
    assert total["leased"] + total["killed"] >= 25 * 8


def test_a_lease_of_another_in_a_new_directory_is_left_alone(tmp_path):
    folder = tmp_path / "leases"
    with ask(PAIR, 1, directory=folder) as first:
        assert first.take() == 0
        shutil.rmtree(folder)
        second = ask(PAIR, 1, directory=folder)
        assert second.take() == 0
        assert second.claim.number == first.claim.number
    assert [claim.number for claim in claims(folder)] == [second.claim.number]
    second.__exit__()
