"""Disks that are full, directories that go, kills and signals while a training is saved."""

import json
import os
import re
import shutil
import sys
import time

import numpy as np
import pytest
from families import long
from fresh import ROOT, fresh, run
from saves import batches, linear, saved, steps_in

import colonnade as cn
from colonnade.run.checkpoint.directory import Archive


def test_the_directory_of_another_run_is_refused(tmp_path):
    _, trainer = linear()

    def second(record):
        _, other = linear()
        with pytest.raises(cn.CheckpointInUse, match=f"process {os.getpid()} on"):
            other.fit(batches(), checkpoint=saved(tmp_path), progress=False)

    trainer.fit(batches(), steps=2, callbacks=[second], checkpoint=saved(tmp_path), progress=False)


FULL = """
import os, keras, shutil
from pathlib import Path
import colonnade as cn
import tensorflow as tf
cn.setup(virtual=2)
folder = Path({folder!r})
w = tf.Variable(tf.random.normal([300, 300]), name="w")
trainer = cn.Trainer(lambda x: tf.reduce_sum((x @ w) ** 2, 1), keras.optimizers.SGD(1e-6), devices=2)
data = tf.data.Dataset.from_tensor_slices(tf.ones([200, 300])).batch(4)
checkpoint = cn.Checkpoint(folder, every=5, keep=None)
try:
    trainer.fit(data, checkpoint=checkpoint, progress=False, log_every=1)
except cn.DiskFull as error:
    print(error)
before = trainer.step
steps = [int(path.name[5:]) for path in sorted(folder.glob("step-*"))]
print(before > steps[-1], steps, os.listdir(folder))
trainer.train_on_batch(tf.ones([4, 300]))
print(trainer.step == before + 1)
shutil.rmtree(folder / f"step-{{steps[0]:012d}}")
history = trainer.fit(data, epochs=1, steps=steps[-1] + 5, checkpoint=checkpoint, progress=False)
print(history.resumed == steps[-1], trainer.step == steps[-1] + 5)
"""


def test_a_full_disk(tmp_path):
    """On a file system of 2 MiB, which lives and dies with the process."""
    enter = ["unshare", "--mount", *([] if os.getuid() == 0 else ["--map-root-user"])]
    mount = f"mount -t tmpfs -o size=2m tmpfs {tmp_path}"
    if shutil.which("unshare") is None or run([*enter, "sh", "-c", mount]).returncode:
        pytest.skip("a file system of one's own cannot be mounted here: unshare and mount are not allowed")
    program = tmp_path.parent / f"{tmp_path.name}.py"
    program.write_text(FULL.format(folder=str(tmp_path)))
    done = run([*enter, "sh", "-c", f"{mount} && exec {sys.executable} {program}"])
    assert done.returncode == 0, done.stderr
    said, older, on, resumed = done.stdout.splitlines()
    assert re.match(r"the disk is full: step \d+ could not be saved in .*Older checkpoints are whole", said)
    assert older.startswith("True [5")
    assert ".new-" not in older
    assert (on, resumed) == ("True", "True True")


@pytest.mark.long
def test_a_limit_on_the_size_of_files_is_named_like_a_full_disk(tmp_path):
    said = fresh(
        f"""
        import keras, os, resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        w = tf.Variable(tf.random.normal([300, 300]), name="w")
        trainer = cn.Trainer(lambda x: tf.reduce_sum(x @ w, 1), keras.optimizers.SGD(1e-6), devices=2)
        try:
            saved = cn.Checkpoint({str(tmp_path)!r})
            trainer.fit(tf.ones([8, 300]), batch_size=4, steps=2, checkpoint=saved, progress=False)
        except cn.DiskFull as error:
            print(error.step, sorted(os.listdir({str(tmp_path)!r})))
        """,
        virtual=2,
    )
    # Nothing of a checkpoint. The fence stays: an earlier start that comes back must find another's.
    assert said.strip() == "2 ['.fence', '.lock']"


def test_kills_signals_and_a_second_launch(tmp_path):
    """In processes of their own; a fixture for three tests would be made by each worker."""
    done = run([sys.executable, str(ROOT / "tests" / "killed.py"), str(tmp_path), "test"], timeout=500)
    assert done.returncode == 0, done.stderr
    happened = json.loads(done.stdout)
    kills = happened["random"]
    assert kills["kills"] >= 4
    assert kills["inside a save"] >= 1
    assert kills["as promised"] == kills["trainings"] >= 1, kills
    for told in happened["signals"].values():
        assert told["code"] == 75
        assert told["seconds"] < 30
        assert told["equal"]
        assert f"step {told['saved']} is saved in" in told["says"]
        assert "To go on, run the same again:" in told["says"]
        assert told["says"].rstrip().endswith(" test")
    assert happened["launches"] == {"refused": 1, "went on": 1}


def until_saved(folder, step):
    while step not in steps_in(folder):
        time.sleep(0.01)


def taken_away(folder, how):
    """A callback: at step 6, between two saves, the directory is removed, moved, or loses its lock."""

    def take(record):
        if record.step == 6:
            until_saved(folder, 4)
            if how == "removed":
                shutil.rmtree(folder)
            elif how == "moved":
                folder.rename(folder.with_name("elsewhere"))
            elif how == "replaced":
                folder.rename(folder.with_name("elsewhere"))
                folder.mkdir()
            else:
                (folder / ".lock").unlink()

    return take


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("removed", "the directory was removed or moved"),
        *long(("moved", "the directory was removed or moved"), ("replaced", r"\.lock in it was removed")),
        ("unlocked", r"the file \.lock in it was removed"),
    ],
)
def test_a_directory_that_is_taken_away_is_one_clear_error(tmp_path, how, says):
    folder = tmp_path / "run"
    w, trainer = linear()
    options = {"log_every": 1, "callbacks": [taken_away(folder, how)], "progress": False}
    with pytest.raises(cn.LostCheckpoint, match=f"step 8 could not be saved.*{says}"):
        trainer.fit(batches(), epochs=2, checkpoint=saved(folder), **options)
    assert trainer.step >= 8
    assert np.isfinite(w).all()
    if how != "removed":
        where = folder.with_name("elsewhere") if how in ("moved", "replaced") else folder
        _, again = linear()
        assert again.fit(batches(), epochs=2, checkpoint=saved(where), progress=False).resumed == 4


def test_two_programs_never_save_beside_each_other(tmp_path):
    """Somebody deletes the lock, and starts the training a second time while the first one trains."""
    _, second = linear()
    seconds = []

    def start_another(record):
        if record.step == 6:
            until_saved(tmp_path, 4)
            (tmp_path / ".lock").unlink()
            seconds.append(second.fit(batches(), epochs=2, checkpoint=saved(tmp_path), progress=False))

    _, first = linear()
    with pytest.raises(cn.LostCheckpoint, match="another program may save there now"):
        first.fit(
            batches(),
            epochs=2,
            checkpoint=saved(tmp_path),
            log_every=1,
            callbacks=[start_another],
            progress=False,
        )
    assert seconds[0].resumed == 4
    assert steps_in(tmp_path) == [4, 8, 12, 16, 20, 22]
    assert all(one.flaw is None for one in Archive(tmp_path).saved(thorough=True))


@pytest.mark.long
def test_ctrl_c_at_a_prompt_returns(tmp_path):
    """Nobody wants to lose his session with the fit."""
    said = fresh(
        f"""
        import os, signal, sys, threading, keras
        sys.ps1 = ">>> "
        w = tf.Variable(0.0, name="w")
        trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), devices=2)
        timer = threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        saved = cn.Checkpoint({str(tmp_path)!r})
        history = trainer.fit(tf.ones(4), batch_size=4, steps=10**7, checkpoint=saved, progress=False)
        print(history.interrupted, trainer.step > 0)
        """,
        virtual=2,
    )
    assert said.split() == ["True", "True"]
    assert steps_in(tmp_path)
