import errno
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from fresh import ROOT, run

import colonnade as cn
from colonnade.run.checkpoint import lock as module
from colonnade.run.checkpoint.directory import Archive
from colonnade.run.checkpoint.lock import FENCE, LOCK, OWNER, is_fenced_by, owned


def test_a_second_owner_is_told_of_the_first(tmp_path):
    me = f"process {os.getpid()} on {socket.gethostname()}"
    with owned(tmp_path):
        with pytest.raises(cn.CheckpointInUse, match=me) as refused, owned(tmp_path):
            pass
        assert (refused.value.pid, refused.value.host) == (os.getpid(), socket.gethostname())
    with owned(tmp_path):
        pass
    assert not (tmp_path / OWNER).exists()


def test_twenty_double_launches(tmp_path):
    """Two processes at the same moment: one is refused with the other's pid; some winners are killed."""
    done = run([sys.executable, str(ROOT / "tests" / "launches.py"), str(tmp_path), "20"])
    assert done.stdout.strip() == "20", done.stderr


def test_a_full_disk_has_a_name_and_leaves_nothing(tmp_path, monkeypatch):
    def full(path, *_, **__):
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(cn.DiskFull, match="nothing can be saved in"), owned(tmp_path):
            pass
    assert {path.name for path in tmp_path.iterdir()} <= {LOCK}
    (tmp_path / f"{OWNER}-0123abcd").touch()  # of one that was killed
    Archive(tmp_path).sweep()
    assert list(tmp_path.glob(f"{OWNER}*")) == []


def test_the_name_of_a_dead_owner_is_not_told(tmp_path):
    dead = subprocess.Popen(["true"])
    dead.wait()
    (tmp_path / OWNER).write_text(f'{{"pid": {dead.pid}, "host": "{socket.gethostname()}"}}')
    lock = FileLock(tmp_path / LOCK)
    with lock, pytest.raises(cn.CheckpointInUse, match="another process saves"), owned(tmp_path):
        pass


def test_an_owner_finds_out_that_his_lock_is_gone(tmp_path):
    """Another can have one of the same name then; what he writes beside it is left alone."""
    directory = tmp_path / "run"
    directory.mkdir()
    with owned(directory) as first:
        first.check(1)
        (directory / LOCK).unlink()
        with pytest.raises(cn.LostCheckpoint, match=r"step 7 could not be saved.*\.lock in it was removed"):
            first.check(7)
        with owned(directory) as second:
            second.check(7)
            with pytest.raises(cn.LostCheckpoint, match="another program may save there now"):
                first.check(7)
            signed = (directory / OWNER).read_text()
            directory.rename(tmp_path / "elsewhere")
            with pytest.raises(cn.LostCheckpoint, match="the directory was removed or moved"):
                second.check(8)
            (tmp_path / "elsewhere").rename(directory)
            second.check(8)
            assert (directory / OWNER).read_text() == signed
    assert not (directory / OWNER).exists()


def test_a_start_that_lost_its_lock_to_a_later_one_cannot_write(tmp_path):
    """As on storage whose locks end when a machine is cut off."""
    with owned(tmp_path, generation=3) as earlier:
        earlier.check(5)
        os.rename(tmp_path / LOCK, tmp_path / "lost")  # the lock is on the file, wherever it is
        with owned(tmp_path, generation=4) as later:
            later.check(6)
            os.rename(tmp_path / "lost", tmp_path / LOCK)  # even if it looks as if it were still there
            with pytest.raises(
                cn.LostCheckpoint, match=r"another start took it over \(start 4 of its machines\)"
            ):
                earlier.check(6)


@pytest.mark.parametrize("generation", [None, 0])
def test_a_machine_that_goes_on_alone_shuts_out_the_start_before(tmp_path, generation):
    with owned(tmp_path, generation) as earlier:
        os.rename(tmp_path / LOCK, tmp_path / "lost")
        with owned(tmp_path) as alone:
            alone.check(6)
            os.rename(tmp_path / "lost", tmp_path / LOCK)
            with pytest.raises(cn.LostCheckpoint, match=r"took it over \(a program alone\)"):
                earlier.check(6)


def test_a_fence_that_is_gone_guards_nobody(tmp_path):
    with owned(tmp_path) as alone:
        (tmp_path / FENCE).unlink()
        with pytest.raises(cn.LostCheckpoint, match=r"the file \.fence in it was removed"):
            alone.check(1)


def test_of_a_new_directory_in_its_place_the_missing_lock_is_told(tmp_path):
    """The fence is missing too; a user who looks for what was removed knows the lock."""
    directory = tmp_path / "run"
    directory.mkdir()
    with owned(directory) as alone:
        directory.rename(tmp_path / "elsewhere")
        directory.mkdir()
        with pytest.raises(cn.LostCheckpoint, match=r"the file \.lock in it was removed"):
            alone.check(1)
    assert list(directory.iterdir()) == []
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {LOCK, FENCE, OWNER}


def test_another_machine_knows_the_directory_by_the_token_of_its_owner(tmp_path, monkeypatch):
    """A directory of the same name on a disk of its own has another token, or none."""
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with owned(tmp_path, 0) as mine:
        assert is_fenced_by(tmp_path, mine.token)
        assert not is_fenced_by(elsewhere, mine.token)
        with owned(elsewhere, 0):
            assert not is_fenced_by(elsewhere, mine.token)


def test_a_new_cluster_goes_on_where_another_was_started_more_often(tmp_path):
    with owned(tmp_path, generation=4):
        pass
    with owned(tmp_path, generation=0) as again:
        again.check(1)


def test_two_clusters_cannot_both_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RESTARTED", 0.2)
    with owned(tmp_path, generation=2) as first:
        with pytest.raises(cn.CheckpointInUse), owned(tmp_path, generation=3):
            pass
        first.check(1)


def test_a_later_start_waits_for_the_lock_of_one_that_died_hard_and_a_first_one_does_not(tmp_path):
    """Shared storage keeps the lock of a machine that it does not hear of for a while."""
    lock = FileLock(tmp_path / LOCK, thread_local=False)
    lock.acquire()
    begin = time.monotonic()
    with pytest.raises(cn.CheckpointInUse), owned(tmp_path, generation=0):
        pass
    assert time.monotonic() - begin < module.PATIENCE + 3
    release = threading.Timer(0.5, lock.release)
    release.start()
    with owned(tmp_path, generation=1) as mine:
        mine.check(1)
    release.join()
