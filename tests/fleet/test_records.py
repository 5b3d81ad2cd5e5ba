"""The directory of records, which users share who need not trust each other: planted, lost, closed files."""

import os
import shutil
import stat
import sys

import pytest
from fresh import run

import colonnade as cn
from colonnade.fleet import records
from colonnade.fleet.lease import Pool, ask, claims

PAIR = Pool(("a", "b"))


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
