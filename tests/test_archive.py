import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from corruption import corrupt, manifest, save

import colonnade as cn
from colonnade.run import archive as module
from colonnade.run.archive import Archive
from colonnade.run.manifest import MANIFEST, SEAL, Flaw, Manifest, examine, seal


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "run")


def names(archive):
    return sorted(path.name for path in archive.directory.iterdir())


def test_two_hundred_flips_and_truncations_are_found(tmp_path):
    total = corrupt(tmp_path, 200, seed=5)
    assert sum(total.values()) == 200
    assert total["flip"] > 50
    assert total["truncate"] > 50


def test_a_manifest_survives_json():
    one = manifest(7)
    assert Manifest.from_json(one.to_json()) == one


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


def test_what_is_written_is_on_disk_before_it_has_its_name(archive, monkeypatch):
    """Files, then their directory, then the name: so a crash of the machine is harmless too."""
    done = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor):
        done.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def noted_rename(old, new):
        done.append(f"{Path(old).name} -> {Path(new).name}")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    save(archive, 3)
    assert done == [
        "data.index",
        "values.data-00000-of-00001",
        "values.index",
        MANIFEST,
        SEAL,
        ".new-000000000003",
        ".new-000000000003 -> step-000000000003",
        "run",
    ]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_a_name_and_leaves_nothing(archive, monkeypatch, code):
    save(archive, 1)

    def full(*_):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(module, "_write", full)
        with pytest.raises(cn.DiskFull, match="step 2 could not be saved"):
            save(archive, 2)
    assert names(archive) == ["step-000000000001"]


def sealed(folder, **changes):
    """Another manifest with the right checksum, as somebody with bad intentions would write it."""
    plain = json.loads((folder / MANIFEST).read_text()) | changes
    text = json.dumps(plain).encode()
    (folder / MANIFEST).write_bytes(text)
    (folder / SEAL).write_bytes(seal(text))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"files": {"../../outside": {"size": 4, "sha256": "0"}}}, "not a plain file name"),
        ({"files": {"/etc/hostname": {"size": 4, "sha256": "0"}}}, "not a plain file name"),
        ({"files": {"..": {"size": 4, "sha256": "0"}}}, "not a plain file name"),
        ({"files": {"values.index": {"size": 4}}}, "not a manifest"),
        ({"files": 3}, "not a manifest"),
        ({"format": 99}, "has format 99"),
        ({"step": -1}, "not a whole number"),
        ({"step": 8}, "that of step 8"),
    ],
)
def test_a_manifest_that_lies_is_refused(archive, tmp_path, changes, says):
    (tmp_path / "outside").write_text("safe")
    save(archive, 7)
    sealed(archive.directory / "step-000000000007", **changes)
    saved, (damaged,) = archive.newest()
    assert saved is None
    assert says in damaged.flaw


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


def test_the_manifest_tells_its_own_checksum_to_sha256sum(archive):
    save(archive, 1)
    folder = archive.directory / "step-000000000001"
    assert os.system(f"cd {folder} && sha256sum --quiet --check {SEAL}") == 0
    assert replace(examine(folder, thorough=True), files={}) == manifest(1)
