"""A training as it is seen: the bar, log lines, summaries and the metrics file."""

import json
import os
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from lines import X, Y, linear

import colonnade as cn


def test_the_bar_in_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    _, trainer = linear(devices=2)
    trainer.fit((X, Y), batch_size=50, steps=20, log_every=10)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out).splitlines()[-1]
    assert "20/20" in shown
    assert re.search(r"loss [0-9.e-]+, [0-9,]+ examples/s", shown)


def test_the_log_line(capsys):
    _, trainer = linear(devices=2)
    history = trainer.fit((X, Y), batch_size=50, steps=20, log_every=10)
    lines = capsys.readouterr().out.splitlines()
    proved, *lines = lines
    assert proved.startswith("proved on the first batch")
    assert [line.split(":")[0] for line in lines] == ["step 10", "step 20"]
    assert "examples/s" in lines[1]
    assert "sec/batch" in lines[1]
    _, one = linear(devices=1)
    losses = [one.train_on_batch(X, Y).loss for _ in range(20)]
    assert f"loss {losses[-1]:.4g}" in lines[1]  # the mean over the global batch, not a replica's
    assert [record.step for record in history.records] == [10, 20]
    said = float(lines[1].split("examples/s")[0].split(",", 1)[1].replace(",", ""))
    per_batch = float(lines[1].split("sec/batch")[0].rsplit(",", 1)[1])
    assert said == pytest.approx(50 / per_batch, rel=0.05)


def test_a_folder_whose_name_is_no_text(tmp_path):
    """As on a disk from a system with another encoding."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    _, trainer = linear(devices=2)
    history = trainer.fit((X, Y), batch_size=50, steps=2, logdir=folder, progress=False)
    assert {"metrics.jsonl", "run.json"} <= {path.name for path in folder.iterdir()}
    assert list(folder.glob("events*"))
    assert history.report().parent == folder


def test_summaries_and_metrics_file(tmp_path):
    w = tf.Variable(tf.zeros([4, 1]))

    def loss(x, y):
        error = tf.squeeze(x @ w - y, axis=1)
        return error**2, {"absolute": tf.abs(error)}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=2)
    trainer.fit((X, Y), batch_size=50, steps=20, log_every=10, logdir=tmp_path, progress=False)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20]
    assert {"loss", "absolute", "examples_per_second", "seconds_per_batch", "examples", "skipped"} <= lines[
        0
    ].keys()
    assert lines[1]["loss"] == pytest.approx(np.mean(list(lines[1]["replicas"].values())), rel=1e-5)
    (events,) = tmp_path.glob("events*")
    tags = {
        value.tag
        for record in tf.data.TFRecordDataset(str(events))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
    }
    assert {"loss", "absolute", "loss by replica/CPU:0", "loss by replica/CPU:1"} <= tags


def test_a_loss_that_is_not_finite_is_null_in_the_metrics_file(tmp_path):
    w = tf.Variable(1.0)
    trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), devices=2, on_nan="skip")
    data = np.full(4, np.nan, "float32")
    trainer.fit(data, batch_size=4, steps=1, logdir=tmp_path, progress=False, prove=False)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in line
    assert json.loads(line)["loss"] is None


def test_a_metric_with_the_name_of_a_figure_is_refused():
    w = tf.Variable(1.0)
    trainer = cn.Trainer(lambda x: (w * x, {"step": x}), keras.optimizers.SGD(0.1), devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"own_step"):
        trainer.train_on_batch(np.ones(4, "float32"))
