"""What the slices of a step add up to."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy_async import RATE, START, X, Y, batches, linear

import colonnade as cn
from colonnade.reason.simulator.staleness import ReadOrApply, race


def histograms(folder):
    """How many ages each histogram holds."""
    (events,) = folder.glob("events*")
    return [
        int(tf.make_ndarray(value.tensor)[:, 2].sum())
        for record in tf.data.TFRecordDataset(str(events))
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value
        if value.tag == "staleness"
    ]


def test_the_age_of_every_gradient_is_written(tmp_path):
    """In metrics.jsonl since the trainer was made, in a histogram since the one before."""
    _, trainer = linear(cn.Asynchronous(order=race([1.0] * 3)))
    for name, steps, counts, grown in (("a", 25, [30, 60, 75], [30, 30, 15]), ("b", 10, [105], [30])):
        history = trainer.fit(batches(steps), log_every=10, logdir=tmp_path / name, progress=False)
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert [sum(line["staleness"].values()) for line in lines] == counts
        assert {int(age): n for age, n in lines[-1]["staleness"].items()} == history.records[-1].staleness
        assert histograms(tmp_path / name) == grown


def test_weights_of_examples_and_a_slice_without_any():
    w = tf.Variable(START)
    mask = np.array([0.0, 0, 0, 0, 1, 1, 0, 1, 0.5, 0.25])
    trainer = cn.Trainer(
        lambda x, y, m: cn.Weighted(tf.squeeze((x @ w - y) ** 2, axis=1), m),
        keras.optimizers.SGD(RATE),
        devices=3,
        sync=cn.Asynchronous(order=[ReadOrApply(k, i) for k in ("read", "apply") for i in range(3)]),
    )
    record = trainer.train_on_batch(X[:10], Y[:10], mask)
    expected = START
    for rows in (slice(4, 7), slice(7, 10)):
        x, y, m = X[rows], Y[rows], mask[rows, None]
        expected = expected - RATE * 2 * x.T @ (m * (x @ START - y)) / m.sum()
    np.testing.assert_allclose(w, expected, rtol=0, atol=1e-13)
    losses = ((X[:10] @ START - Y[:10]) ** 2)[:, 0]
    assert record.loss == pytest.approx((losses * mask).sum() / mask.sum())
