"""A step is written by a thread: what goes wrong there is raised at the next chance."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.checkpoint import writer as module
from colonnade.run.checkpoint.directory import Archive
from colonnade.run.checkpoint.lock import FENCE, LOCK, OWNER, owned
from colonnade.run.checkpoint.manifest import Manifest
from colonnade.run.checkpoint.tensor_files import read
from colonnade.run.checkpoint.writer import UnwrittenStep, Writer

DATA = {"kind": "exact", "spec": "x", "cardinality": 1, "epochs": 1, "passes": 1, "before": []}


def manifest(step):
    return Manifest(
        step=step,
        examples=step,
        skipped=0,
        fit=1,
        begin=0,
        stopped=False,
        loss=0.5,
        metrics={},
        staleness={},
        schedule={},
        generators={},
        data={**DATA, "batches": step},
        devices=2,
        mode={},
        versions={},
        written="2026-01-01T00:00:00+00:00",
    )


@pytest.fixture
def archive(tmp_path):
    return Archive(tmp_path)


@pytest.fixture
def writer(archive):
    with owned(archive.directory) as ownership, ThreadPoolExecutor(1) as thread:
        yield Writer(archive, ownership, 2, thread)


def begin(writer, step, described=None):
    values, position = {"w": tf.constant(step)}, {"size": tf.constant(1)}
    writer.begin(UnwrittenStep(step, described or (lambda: manifest(step)), values, position))


def test_steps_are_on_disk_after_waiting_and_the_newest_are_kept(writer, archive):
    for step in (1, 2, 3):
        begin(writer, step)
        writer.wait()
        assert archive.last() == step
    saved, damaged = archive.newest()
    assert (saved.step, damaged) == (3, [])
    assert int(read(saved.path, "values")["w"]) == 3
    assert [one.step for one in archive.saved()] == [2, 3]


def test_the_training_goes_on_while_a_step_is_written(writer, archive):
    go_on = threading.Event()

    def described():
        assert go_on.wait(30)
        return manifest(1)

    begin(writer, 1, described)
    writer.raise_failure()  # nothing is known yet, and nothing waited for
    assert archive.last() is None
    go_on.set()
    writer.wait()
    assert archive.last() == 1


def test_a_full_disk_is_told_once_and_leaves_nothing(writer, archive, monkeypatch):
    def full(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "no space")

    monkeypatch.setattr(module, "write", full)
    begin(writer, 1)
    with pytest.raises(cn.DiskFull, match="step 1 could not be saved"):
        writer.wait()
    writer.wait()
    writer.raise_failure()
    assert archive.last() is None
    assert {path.name for path in archive.directory.iterdir()} == {FENCE, LOCK, OWNER}


def test_nothing_is_written_into_what_is_not_owned_any_more(writer, archive):
    (archive.directory / LOCK).unlink()
    begin(writer, 1)
    with pytest.raises(cn.LostCheckpoint, match=r"\.lock in it was removed"):
        writer.wait()
    assert archive.last() is None


@pytest.mark.parametrize("how", ["taken over", "removed"])
def test_what_is_lost_right_after_a_step_was_written_is_told_at_the_next(writer, archive, monkeypatch, how):
    """That step is on disk. Nothing is removed: what is old to one owner may be all that the next one has."""
    for step in (1, 2):
        begin(writer, step)
        writer.wait()
    commit = archive.commit

    def lost_at_its_end(*arguments):
        commit(*arguments)
        if how == "removed":
            archive.directory.rename(archive.directory.with_name("elsewhere"))
        else:
            (archive.directory / FENCE).write_text("another")

    monkeypatch.setattr(archive, "commit", lost_at_its_end)
    begin(writer, 3)
    writer.wait()
    where = Archive(archive.directory.with_name("elsewhere")) if how == "removed" else archive
    assert [one.step for one in where.saved()] == [1, 2, 3]
    begin(writer, 4)
    says = "removed or moved" if how == "removed" else "another start took it over"
    with pytest.raises(cn.LostCheckpoint, match=f"step 4 could not be saved.*{says}"):
        writer.wait()
    assert where.last() == 3
