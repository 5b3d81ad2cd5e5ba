import errno
import hashlib
import os
import re
import threading
import time
from pathlib import Path

import pytest
from corruption import save

import colonnade as cn
from colonnade.run.checkpoint import directory as module
from colonnade.run.checkpoint.manifest import MANIFEST, SEAL, Flaw, examine
from colonnade.show.checkpoints import facts


def plain(name):
    """Without the digits by which a save that is under way is told from others."""
    return re.sub(r"(\.(new|old)-\d{12})-[0-9a-f]{4}\b", r"\1", name)


def names(archive):
    return sorted(plain(path.name) for path in archive.directory.iterdir())


def test_the_newest_is_the_highest_step_and_old_ones_go(archive):
    assert archive.newest() == (None, [])
    for step in (9, 10, 100, 1000):
        save(archive, step)
    archive.prune(3)
    assert [saved.step for saved in archive.saved()] == [10, 100, 1000]
    archive.prune(None)
    saved, damaged = archive.newest()
    assert (saved.step, damaged) == (1000, [])


def killed_at(point):
    """A save that dies there, in the way of a kill: nothing is cleaned up."""

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    return Killed, die


@pytest.mark.parametrize("name", ["sync", "_write", "digest"])
def test_a_save_that_never_finished_is_not_there(archive, monkeypatch, name):
    save(archive, 1)
    killed, die = killed_at(name)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, die)
        patch.setattr(module, "_remove", lambda path: None)
        with pytest.raises(killed):
            save(archive, 2)
    assert names(archive) == [".new-000000000002", "step-000000000001"]
    assert archive.newest()[0].step == 1
    archive.sweep()
    assert names(archive) == ["step-000000000001"]
    save(archive, 2)
    assert archive.newest()[0].step == 2


def test_a_removal_that_never_finished_is_not_there(archive, monkeypatch):
    save(archive, 1)
    save(archive, 2)
    killed, die = killed_at("_remove")
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "rmtree", die)
        with pytest.raises(killed):
            archive.prune(1)
    assert names(archive) == [".old-000000000001", "step-000000000002"]
    archive.sweep()
    assert names(archive) == ["step-000000000002"]


def test_a_save_that_fails_leaves_alone_what_another_program_writes_of_the_same_step(archive, monkeypatch):
    """One that has lost the directory and does not know it yet."""
    write = module._write

    def lost(path, text):
        raise OSError(errno.EIO, "lost")

    def meanwhile(path, text):
        if path.name == MANIFEST:  # its seal is written at the same time, and may be there already
            monkeypatch.setattr(module, "_write", lost)
            with pytest.raises(OSError, match="lost"):
                save(archive, 5)
            monkeypatch.setattr(module, "_write", write)
        write(path, text)

    monkeypatch.setattr(module, "_write", meanwhile)
    save(archive, 5)
    assert names(archive) == ["step-000000000005"]
    assert archive.newest()[0].step == 5


def test_what_was_left_before_names_had_digits_is_removed_too(archive):
    save(archive, 1)
    for name in (".new-000000000007", ".old-000000000003", ".new-000000000007-00ff"):
        (archive.directory / name).mkdir()
    archive.sweep()
    assert names(archive) == ["step-000000000001"]


def test_what_is_written_is_on_disk_before_it_has_its_name(archive, monkeypatch):
    """Files, what guards them, their directory, the name: so a crash of the machine is harmless too."""
    done = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor):
        name = plain(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        time.sleep(0.05 if name == "values.index" else 0.0)  # who does not wait for all of them is seen
        fsync(descriptor)
        done.append(name)

    def noted_rename(old, new):
        done.append(f"{plain(Path(old).name)} -> {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    save(archive, 3)
    files = ["data.data-00000-of-00001", "data.index", "values.data-00000-of-00001", "values.index"]
    assert [*sorted(done[:4]), *sorted(done[4:6]), *done[6:]] == [
        *files,
        MANIFEST,
        SEAL,
        ".new-000000000003",
        ".new-000000000003 -> step-000000000003",
        "run",
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_has_a_name_and_leaves_nothing(archive, monkeypatch, code):
    save(archive, 1)

    def full(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", full)
        with pytest.raises(cn.DiskFull, match="step 2 could not be saved"):
            save(archive, 2)
    assert names(archive) == ["step-000000000001"]


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EACCES, errno.ENOMEM])
def test_a_step_that_cannot_be_read_now_is_not_called_damaged(archive, monkeypatch, code):
    save(archive, 7)
    save(archive, 8)
    opened = os.open

    def refused(path, *rest, **options):
        if "step-000000000008" in str(path):
            raise OSError(code, os.strerror(code))
        return opened(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refused)
        with pytest.raises(
            cn.UnreadCheckpoint, match=f"step-000000000008.*{os.strerror(code)}.*may be whole"
        ):
            archive.newest()
        assert [one.flaw is None for one in archive.saved()] == [True, False]
    assert archive.newest()[0].step == 8


def test_what_the_disk_has_lost_is_damaged(archive, monkeypatch):
    save(archive, 7)
    save(archive, 8)
    whole, left = hashlib.file_digest, [1]

    def lost(file, kind):
        if left:
            left.pop()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return whole(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", lost)
    saved, (damaged,) = archive.newest()
    assert (saved.step, damaged.step) == (7, 8)
    assert "cannot be read (Input/output error)" in damaged.flaw


def test_steps_that_go_while_one_looks_are_no_false_alarm(archive):
    """As `colonnade checkpoints --verify` beside a training that saves and removes."""
    for step in (1, 2, 3):
        save(archive, step)
    over = threading.Event()

    def train():
        step = 4
        while not over.is_set():
            save(archive, step)
            archive.prune(3)
            step += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        looks = []
        while len(looks) < 60 or looks[-1][-1]["step"] <= 5:  # a busy machine saves slowly
            looks.append(facts(archive.saved(thorough=True), thorough=True))
    finally:
        over.set()
        thread.join()
    assert [one["flaw"] for look in looks for one in look if one["flaw"]] == []


def test_links_are_not_followed(archive, tmp_path):
    save(archive, 7)
    outside = tmp_path / "outside"
    (archive.directory / "step-000000000007").rename(outside)
    (archive.directory / "step-000000000007").symlink_to(outside)
    with pytest.raises(Flaw, match="is a link"):
        examine(archive.directory / "step-000000000007", thorough=True)
    save(archive, 8)
    archive.prune(1)  # the link goes, not what it leads to
    assert names(archive) == ["step-000000000008"]
    assert (outside / MANIFEST).exists()


def test_a_damaged_step_is_set_aside_so_that_it_can_be_saved_again(archive):
    save(archive, 1)
    save(archive, 2)
    (archive.directory / "step-000000000002" / "values.index").write_bytes(b"")
    _, (damaged,) = archive.newest()
    archive.set_aside(damaged)
    save(archive, 2)
    assert names(archive) == ["step-000000000001", "step-000000000002", "step-000000000002.damaged"]
    assert [(one.step, one.flaw is None) for one in archive.saved()] == [(1, True), (2, True), (2, False)]
