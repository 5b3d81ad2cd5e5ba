"""What a fit writes into its folder beside the metrics, also when it is killed, fails or goes on."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from lines import X, Y, linear

import colonnade as cn
from colonnade.describe.run_folder import read_run, sessions
from colonnade.describe.timeline import Event, Timeline
from colonnade.run.record.run_log import RunLog, end_last_line


def test_a_fit_tells_what_it_did(tmp_path):
    _, trainer = linear(devices=2)
    saved = cn.Checkpoint(tmp_path / "saved", every=10)
    trainer.fit((X, Y), batch_size=50, steps=20, logdir=tmp_path / "log", checkpoint=saved, progress=False)
    run = read_run(tmp_path / "log")
    assert run.flaws == ()
    ((begin, end),) = sessions(run)
    assert (begin["step"], begin["resumed"], end["step"], end["how"]) == (0, None, 20, "finished")
    assert [save["step"] for save in run.happened("save")] == [10, 20]
    assert sum(save["stalled"] for save in run.happened("save")) > 0
    assert run.happened("memory")[0]["memory"]["process"] > 2**20
    assert run.facts["devices"] == ["CPU:0", "CPU:1"]
    assert run.facts["mode"]["steps"] == 20
    for line in run.lines:
        assert line["loss_min"] <= line["loss"] <= line["loss_max"]


def test_a_fit_that_goes_on_adds_to_the_same_files(tmp_path):
    for steps in (10, 30):
        w = tf.Variable(tf.zeros([4, 1]), name="w")
        trainer = cn.Trainer(
            lambda x, y, w=w: tf.squeeze(x @ w - y, 1) ** 2, keras.optimizers.SGD(0.05, name="sgd"), devices=2
        )
        saved = cn.Checkpoint(tmp_path / "saved", every=10)
        options = {"logdir": tmp_path / "log", "checkpoint": saved, "progress": False}
        trainer.fit((X, Y), batch_size=50, steps=steps, **options)
    run = read_run(tmp_path / "log")
    assert [(b["step"], b["resumed"], e["step"]) for b, e in sessions(run)] == [(0, None, 10), (10, 10, 30)]
    assert [line["step"] for line in run.lines] == [10, 20, 30]


def test_skipped_updates_and_errors_are_noted(tmp_path):
    for on_nan, how in (("skip", "finished"), ("stop", "NotFinite")):
        _, trainer = linear(devices=2, on_nan=on_nan)
        x = np.where(np.arange(len(X))[:, None] == 3, np.nan, X).astype("float32")
        try:
            options = {"logdir": tmp_path / on_nan, "progress": False, "prove": False}
            trainer.fit((x, Y), batch_size=50, steps=2, **options)
        except cn.NotFinite:
            assert on_nan == "stop"
        run = read_run(tmp_path / on_nan)
        assert run.happened("end")[0]["how"].startswith(how)
        assert sum(line["updates"] for line in run.happened("skipped")) == (2 if on_nan == "skip" else 0)


def test_without_a_folder_nothing_is_asked():
    def asked():
        pytest.fail("facts were asked for")

    with RunLog(None, asked, asked) as log:
        log.begin(0, None)
        log.advance(1, 1, ())


def test_what_was_predicted_is_kept_until_a_fit_that_predicts_nothing(tmp_path):
    timeline = Timeline.of([Event("CPU:0", 0.0, 1.0, "forward")])
    with RunLog(tmp_path, dict, dict) as log:
        log.predicted(timeline)
        assert Timeline.from_json((tmp_path / "predicted.json").read_text()) == timeline
        log.predicted(None)
        assert not (tmp_path / "predicted.json").exists()
        log.predicted(None)


def test_a_timeline_is_kept(tmp_path):
    timeline = Timeline.of([Event("CPU:0", 0.0, 1.0, "forward")])
    with RunLog(tmp_path, dict, dict) as log:
        log.profiled(timeline)
    with RunLog(tmp_path, dict, dict) as log:
        log.begin(4, resumed=4)
        assert Timeline.from_json((tmp_path / "timeline.json").read_text()) == timeline
        log.begin(0, resumed=None)  # another training: what was profiled is not of it
        assert not (tmp_path / "timeline.json").exists()


def test_a_half_line_is_ended_once(tmp_path):
    path = tmp_path / "lines"
    end_last_line(path)
    assert not path.exists()
    path.write_text('{"a": 1}\n{"b"')
    for _ in range(2):
        end_last_line(path)
    assert path.read_text() == '{"a": 1}\n{"b"\n'


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    timeline = Timeline.of([Event("CPU:0", 0.0, 1.0, "forward")])
    with RunLog(tmp_path, dict, dict) as log:
        log.profiled(timeline)
        before = sorted(path.name for path in tmp_path.iterdir())
        monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError("no room")))
        with pytest.raises(OSError, match="no room"):
            log.profiled(Timeline.of([Event("CPU:1", 0.0, 2.0, "forward")]))
    assert Timeline.from_json((tmp_path / "timeline.json").read_text()) == timeline
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_folder_that_cannot_be_written_is_one_message(tmp_path):
    (tmp_path / "file").write_text("")
    _, trainer = linear(devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"logdir=.*cannot be written .*Name a directory of yours"):
        trainer.fit((X, Y), batch_size=50, steps=1, logdir=tmp_path / "file", progress=False)
    assert trainer.step == 0
