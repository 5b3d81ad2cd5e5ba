import errno
import hashlib
import json
import math
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from corruption import KINDS, corrupt, manifest, save

import colonnade as cn
from colonnade.run.checkpoint import directory as module
from colonnade.run.checkpoint.directory import Archive
from colonnade.run.checkpoint.manifest import MANIFEST, SEAL, Flaw, Manifest, examine, seal
from colonnade.show.checkpoints import facts


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path / "run")


def names(archive):
    return sorted(path.name for path in archive.directory.iterdir())


def test_two_hundred_flips_and_truncations_are_found(tmp_path):
    total = corrupt(tmp_path, 200, seed=5, kinds=("flip", "truncate"))
    assert sum(total.values()) == 200
    assert min(total.values()) > 50


def test_other_damage_is_found_too(tmp_path):
    assert min(corrupt(tmp_path, 100, seed=6, kinds=KINDS[2:]).values()) > 0


def test_a_manifest_survives_json():
    one = manifest(7)
    assert Manifest.from_json(one.to_json()) == one


def test_what_is_not_a_number_is_null_in_json():
    one = replace(manifest(7), loss=math.nan, metrics={"accuracy": math.inf}, schedule={"rate": math.nan})
    plain = json.loads(one.to_json(), parse_constant=pytest.fail)
    assert (plain["loss"], plain["metrics"], plain["schedule"]) == (None, {"accuracy": None}, {"rate": None})
    back = Manifest.from_json(one.to_json())
    assert math.isnan(back.loss)
    assert math.isnan(back.metrics["accuracy"])


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
        "data.data-00000-of-00001",
        "data.index",
        "values.data-00000-of-00001",
        "values.index",
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
        ({"format": "99"}, "has format '99'"),
        ({"files": {}}, "is there, and manifest.json does not name it"),
        ({"step": -1}, "not a whole number"),
        ({"step": 8}, "that of step 8"),
        ({"fit": 0}, "no training has: fit=0"),
        ({"begin": 8}, "no training has: begin=8"),
        ({"devices": 0}, "no training has: devices=0"),
        ({"devices": "2"}, "no training has: devices='2'"),
        ({"stopped": 1}, "no training has: stopped=1"),
        ({"written": "yesterday"}, "no training has: written='yesterday'"),
        ({"written": 3}, "no training has: written=3"),
        ({"staleness": {"old": 3}}, "no training has: staleness={'old': 3}"),
        ({"staleness": []}, "no training has: staleness=[]"),
        ({"mode": "shared"}, "no training has: mode='shared'"),
        ({"metrics": {"loss": "low"}}, "not a manifest"),
        ({"loss": [1]}, "not a manifest"),
        ({"data": []}, "no training has: data=[]"),
        ({"data": {}}, "no training has: data={}"),
        ({"fit": 3}, "no training has: data={'kind'"),  # nothing is said of the two before it
    ],
)
def test_a_manifest_that_lies_is_refused(archive, tmp_path, changes, says):
    (tmp_path / "outside").write_text("safe")
    save(archive, 7)
    sealed(archive.directory / "step-000000000007", **changes)
    saved, (damaged,) = archive.newest()
    assert saved is None
    assert says in damaged.flaw


@pytest.mark.parametrize(
    "changes",
    [
        {"passes": 0.5},
        {"passes": 10**15},
        {"epochs": "all"},
        {"batches": 3},
        {"before": [1]},
        {"before": None},
        {"cardinality": None},
        {"spec": 3},
        {"kind": None},
    ],
)
def test_a_place_in_the_data_that_cannot_be_is_refused(archive, changes):
    save(archive, 7)
    folder = archive.directory / "step-000000000007"
    sealed(folder, data=json.loads((folder / MANIFEST).read_text())["data"] | changes)
    saved, (damaged,) = archive.newest()
    assert saved is None
    assert "no training has: data={" in damaged.flaw


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


def test_a_step_of_another_format_is_not_called_damaged(archive):
    save(archive, 7)
    save(archive, 8)
    sealed(archive.directory / "step-000000000008", format=99)
    with pytest.raises(cn.UnreadCheckpoint, match=r"has format 99, and this version of Colonnade reads \d"):
        archive.newest()
    assert names(archive) == ["step-000000000007", "step-000000000008"]


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


def test_a_link_that_the_manifest_does_not_name_is_not_followed(archive, tmp_path):
    save(archive, 7)
    folder, name = archive.directory / "step-000000000007", "values.data-00000-of-00001"
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    listed = json.loads((folder / MANIFEST).read_text())["files"]
    for files in ({}, {one: listed[one] for one in listed if one != name}):
        sealed(folder, files=files)
        assert "does not name it" in archive.newest()[1][0].flaw
    (folder / name).unlink()
    assert "names no values.data-" in archive.newest()[1][0].flaw


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
        looks = [facts(archive.saved(thorough=True), thorough=True) for _ in range(60)]
    finally:
        over.set()
        thread.join()
    assert [one["flaw"] for look in looks for one in look if one["flaw"]] == []
    assert looks[-1][-1]["step"] > 5


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
