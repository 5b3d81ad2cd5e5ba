import json
import os
import re
import signal
import sys
import textwrap
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from fresh import run

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype("float32")
Y = (X @ np.array([[1.0], [-2.0], [0.5], [3.0]]) + 0.1).astype("float32")


def linear(rate=0.05, **options):
    w = tf.Variable(tf.zeros([4, 1]), name="w")
    b = tf.Variable(tf.zeros([1]), name="b")

    def loss(x, y):
        return tf.squeeze((x @ w + b - y) ** 2, axis=1)

    return w, cn.Trainer(loss, keras.optimizers.SGD(rate), **{"devices": 2, **options})


def test_fit_on_arrays_datasets_and_generators_is_the_same():
    def batches():
        for i in range(0, 50, 16):
            yield X[i : i + 16], Y[i : i + 16]

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    results = []
    for data, size in (((X, Y), 16), (dataset, None), (batches(), None)):
        w, trainer = linear()
        history = trainer.fit(data, batch_size=size, progress=False)
        assert (trainer.step, trainer.examples, len(history.losses)) == (4, 50, 4)
        results.append(w.numpy())
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


def test_a_fit_equals_single_steps_short_last_batch_included():
    w, trainer = linear()
    history = trainer.fit((X, Y), batch_size=16, epochs=3, progress=False)
    v, single = linear()
    losses = [
        single.train_on_batch(X[i : i + 16], Y[i : i + 16]).loss for _ in range(3) for i in range(0, 50, 16)
    ]
    np.testing.assert_allclose(w, v, atol=1e-6)
    np.testing.assert_allclose(history.losses, losses, rtol=1e-5)


def test_a_fit_goes_on_where_the_last_one_ended():
    w, trainer = linear()
    trainer.fit((X, Y), batch_size=10, steps=5, progress=False)
    trainer.fit((X, Y), batch_size=10, steps=5, progress=False)
    v, once = linear()
    once.fit((X, Y), batch_size=10, steps=10, progress=False)
    np.testing.assert_allclose(w, v, atol=1e-6)
    assert (trainer.step, trainer.examples) == (10, 100)


def test_steps_and_epochs():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(25)
    for arguments, steps in (({}, 2), ({"epochs": 3}, 6), ({"steps": 5, "epochs": 9}, 5), ({"steps": 7}, 2)):
        _, trainer = linear()
        trainer.fit(dataset, progress=False, **arguments)
        assert trainer.step == steps, arguments  # a dataset that ends early ends the fit
    _, trainer = linear()
    trainer.fit((X, Y), batch_size=25, steps=7, progress=False)
    assert trainer.step == 7  # arrays go round


def test_batches_of_many_sizes():
    sizes = [7, 7, 1, 12, 7, 3]
    ends = np.cumsum(sizes)
    w, trainer = linear(devices=4)
    trainer.fit(((X[e - s : e], Y[e - s : e]) for s, e in zip(sizes, ends, strict=True)), progress=False)
    v, one = linear(devices=1)
    for s, e in zip(sizes, ends, strict=True):
        one.train_on_batch(X[e - s : e], Y[e - s : e])
    np.testing.assert_allclose(w, v, atol=1e-6)


@pytest.mark.parametrize("home", ["shared", "mirrored"])
def test_the_schedule_means_the_same_on_any_number_of_devices(home):
    rates = []
    for devices in (1, 4):
        w = tf.Variable(tf.zeros([4, 1]))
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5, staircase=True)
        trainer = cn.Trainer(
            lambda x, y, w=w: tf.squeeze((x @ w - y) ** 2, 1),
            keras.optimizers.SGD(schedule),
            devices=devices,
            variables=home,
        )
        seen = []
        for _ in range(12):
            record = trainer.train_on_batch(X, Y)
            seen.append((record.examples, float(trainer.optimizer.learning_rate)))
        rates.append(seen)
    assert rates[0] == rates[1]
    assert rates[0][-1][1] == pytest.approx(0.025)


def poisoned(home, on_nan="stop", **options):
    w = tf.Variable(tf.ones([4, 1]), name="weights")
    count = tf.Variable(0.0, trainable=False)

    def loss(x, y):
        count.assign_add(1.0)
        return tf.squeeze((x @ w - y) ** 2, axis=1)

    # Decay needs no gradient, so it must be told that the gradient is bad.
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9, weight_decay=0.5)
    trainer = cn.Trainer(loss, optimizer, devices=3, variables=home, on_nan=on_nan, **options)
    bad = X[:12].copy()
    bad[5] = np.nan  # rows 4 to 7 are device 1's, which is not the last
    return w, count, trainer, bad


@pytest.mark.parametrize("home", ["partitioned", "mirrored", *long("shared")])
def test_a_nan_names_device_step_and_variable_and_nothing_is_applied(home):
    w, count, trainer, bad = poisoned(home)
    for _ in range(3):
        trainer.train_on_batch(X[:12], Y[:12])
    before = w.numpy(), count.numpy(), [np.asarray(v) for v in trainer.optimizer.variables]
    with pytest.raises(cn.NotFinite) as caught:
        trainer.train_on_batch(bad, Y[:12])
    assert (caught.value.device, caught.value.step) == ("/device:CPU:1", 4)
    assert caught.value.variable == "weights:0"
    for value in (w.numpy(), *(own for (own,) in trainer.replicas())):
        assert np.array_equal(value, before[0])
    assert count.numpy() == before[1]
    for variable, value in zip(trainer.optimizer.variables, before[2], strict=True):
        assert np.array_equal(np.asarray(variable), value)
    assert trainer.step == 3
    trainer.train_on_batch(X[:12], Y[:12])  # and it can go on
    assert np.isfinite(w.numpy()).all()


def test_a_gradient_that_is_not_finite_under_a_finite_loss():
    w = tf.Variable([0.0, 1.0], name="root")
    trainer = cn.Trainer(lambda x: tf.reduce_sum(tf.sqrt(w)) + 0 * x, keras.optimizers.SGD(0.1), devices=2)
    with pytest.raises(
        cn.NotFinite, match="a gradient is not finite on /device:CPU:0 at step 1; first bad gradient: root"
    ):
        trainer.train_on_batch(tf.zeros(4))
    assert w.numpy().tolist() == [0.0, 1.0]


def test_a_nan_in_a_fit_is_found_at_its_step():
    w, _, trainer, bad = poisoned("shared")
    data = [(X[:12], Y[:12])] * 7 + [(bad, Y[:12])] + [(X[:12], Y[:12])] * 3
    with pytest.raises(cn.NotFinite, match="at step 8"):
        trainer.fit(iter(data), progress=False, log_every=100)
    assert trainer.step == 7
    v, _, clean, _ = poisoned("shared")
    for _ in range(7):
        clean.train_on_batch(X[:12], Y[:12])
    np.testing.assert_allclose(w, v, atol=1e-6)


@pytest.mark.parametrize("home", ["shared", "mirrored", *long("partitioned")])
def test_skipping_a_nan_leaves_that_update_out_and_counts_it(home):
    w, count, trainer, bad = poisoned(home, on_nan="skip")
    data = [(X[:12], Y[:12]), (bad, Y[:12]), (X[:12], Y[:12])]
    history = trainer.fit(iter(data), progress=False)
    assert history.records[-1].skipped == 1
    v, other, clean, _ = poisoned(home)
    for _ in range(2):
        clean.train_on_batch(X[:12], Y[:12])
    np.testing.assert_allclose(w, v, atol=1e-6)
    assert count.numpy() == other.numpy() == 2.0


def test_skipping_ends_after_a_limit():
    _, _, trainer, bad = poisoned("shared", on_nan="skip")
    with pytest.raises(cn.NotFinite, match="in a row"):
        trainer.fit(((bad, Y[:12]) for _ in range(60)), progress=False)


def test_every_device_sees_its_own_examples(capfd):
    w = tf.Variable(1.0)

    def loss(ids):
        tf.print("saw", ids, summarize=-1)
        return w * tf.cast(ids, tf.float32)

    cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=3).train_on_batch(np.arange(10))
    lines = [line for line in capfd.readouterr().err.splitlines() if "saw" in line]
    seen = {device: ids.strip("[]").split() for device, ids in (line.split(" saw ") for line in lines)}
    assert sorted(seen) == ["[CPU:0]", "[CPU:1]", "[CPU:2]"]
    assert sorted(int(i) for ids in seen.values() for i in ids) == list(range(10))


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
    trainer.fit(np.full(4, np.nan, "float32"), batch_size=4, steps=1, logdir=tmp_path, progress=False)
    line = (tmp_path / "metrics.jsonl").read_text()
    assert "NaN" not in line
    assert json.loads(line)["loss"] is None


def test_a_metric_with_the_name_of_a_figure_is_refused():
    w = tf.Variable(1.0)
    trainer = cn.Trainer(lambda x: (w * x, {"step": x}), keras.optimizers.SGD(0.1), devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"own_step"):
        trainer.train_on_batch(np.ones(4, "float32"))


def test_metrics_and_weights_are_those_of_the_global_batch():
    w = tf.Variable(tf.ones([4, 1]))
    mask = (RNG.uniform(size=50) < 0.3).astype("float32")

    def loss(x, y, mask):
        error = tf.squeeze(x @ w - y, axis=1)
        return cn.Weighted(error**2, mask), {"absolute": tf.abs(error)}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=4)
    record = trainer.train_on_batch(X, Y, mask)
    error = (X @ np.ones([4, 1]) - Y)[:, 0]
    assert record.loss == pytest.approx((error**2 * mask).sum() / mask.sum(), rel=1e-5)
    assert record.metrics["absolute"] == pytest.approx((np.abs(error) * mask).sum() / mask.sum(), rel=1e-5)
    gradient = (2 * error * mask) @ X / mask.sum()
    np.testing.assert_allclose(w.numpy()[:, 0], 1 - 0.1 * gradient, atol=1e-5)


def test_a_scalar_loss_is_weighted_by_the_size_of_the_slice():
    w = tf.Variable(tf.ones([4, 1]))
    trainer = cn.Trainer(lambda x, y: tf.reduce_mean((x @ w - y) ** 2), keras.optimizers.SGD(0.1), devices=4)
    record = trainer.train_on_batch(X[:47], Y[:47])
    assert record.loss == pytest.approx(np.mean((X[:47] @ np.ones([4, 1]) - Y[:47]) ** 2), rel=1e-5)


def test_evaluation_counts_every_example_once_with_averaged_weights():
    w = tf.Variable(tf.zeros([4, 1]))

    def loss(x, y):
        error = tf.squeeze(x @ w - y, axis=1)
        return error**2, {"close": tf.abs(error) < 1.0}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5), devices=3)
    average = np.zeros([4, 1], "float32")
    for i in range(6):
        trainer.train_on_batch(X, Y)
        average = 0.5 * average + 0.5 * w.numpy() if i else w.numpy()
    moved = w.numpy()
    found = trainer.evaluate((X, Y), batch_size=16)  # 16, 16, 16 and 2 rows: one device idle at the end
    model_average = trainer.optimizer.variables[-1].numpy()
    error = (X @ model_average - Y)[:, 0]
    assert found.loss == pytest.approx(np.mean(error**2), rel=1e-5)
    assert found.metrics["close"] == pytest.approx(np.mean(np.abs(error) < 1), rel=1e-5)
    assert found.examples == 50
    assert np.array_equal(w.numpy(), moved)  # put back


def test_averaged_weights_are_told_apart_where_the_optimizer_was_built_before():
    """In another order than that of the trainer, and of the same shape: nothing else would tell."""
    a, b = tf.Variable(1.0, name="a"), tf.Variable(2.0, name="b")
    optimizer = keras.optimizers.SGD(0.0, use_ema=True)
    trainer = cn.Trainer(lambda x: a * x + 10 * b, optimizer, devices=2)
    optimizer.build([b, a])
    trainer.train_on_batch(np.zeros(4, "float32"))
    assert trainer.evaluate(np.zeros(4, "float32"), batch_size=4).loss == 20.0
    one, other = tf.Variable(1.0, name="same"), tf.Variable(2.0, name="same")
    optimizer = keras.optimizers.SGD(0.0, use_ema=True)
    optimizer.build([other, one])
    trainer = cn.Trainer(lambda x: one * x + 10 * other, optimizer, devices=2)
    trainer.train_on_batch(np.zeros(4, "float32"))
    with pytest.raises(cn.InvalidArgument, match="which average is whose"):
        trainer.evaluate(np.zeros(4, "float32"), batch_size=4)
    assert [one.numpy(), other.numpy()] == [1.0, 2.0]


def test_evaluation_of_what_has_no_weight_is_zero():
    w = tf.Variable(1.0)
    trainer = cn.Trainer(lambda x: cn.Weighted(w * x, tf.zeros_like(x)), keras.optimizers.SGD(), devices=2)
    assert trainer.evaluate(np.ones(4, "float32"), batch_size=4).loss == 0.0


def test_evaluation_changes_nothing_and_tells_the_function():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.layers.Dense(8),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )

    def loss(x, y, training):
        return tf.squeeze((model(x, training=training) - y) ** 2, axis=1)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=2)
    trainer.fit((X, Y), batch_size=25, epochs=2, progress=False)
    before = [v.numpy() for v in model.variables]
    found = trainer.evaluate((X, Y), batch_size=20)
    expected = np.mean((model(X, training=False).numpy() - Y) ** 2)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(model.variables, before, strict=True))


def dropout_run(home="shared", steps=4):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    )
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((model(x, training=True) - y) ** 2, 1),
        keras.optimizers.Adam(0.01),
        devices=3,
        variables=home,
    )
    trainer.fit((X, Y), batch_size=25, steps=steps, progress=False)
    return np.concatenate([v.numpy().ravel() for v in model.trainable_variables])


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_two_runs_are_equal_bit_for_bit(home):
    assert np.array_equal(dropout_run(home), dropout_run(home))


def test_replicas_draw_different_numbers():
    layer = keras.layers.Dropout(0.5, seed=1)
    generator = tf.random.Generator.from_seed(1)
    w = tf.Variable(1.0)
    drawn = {}

    def loss(x):
        mask, noise = layer(x, training=True), generator.uniform(tf.shape(x))

        def note(index, mask, noise):
            drawn[int(index[0, 0])] = (mask.numpy().tobytes(), noise.numpy().tobytes())
            return index

        kept = tf.py_function(note, [x, mask / tf.maximum(x, 1.0), noise], tf.float32)
        return tf.reduce_sum(w * (mask + noise) + 0.0 * tf.reshape(kept, tf.shape(x)), axis=1)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=3)
    x = np.repeat(np.arange(1, 4), 2)[:, None] * np.ones([6, 8])
    trainer.train_on_batch(x.astype("float32"))
    assert len(drawn) == 3
    assert len({mask for mask, _ in drawn.values()}) == 3
    assert len({noise for _, noise in drawn.values()}) == 3


def test_legacy_random_ops_do_not_repeat_on_the_replicas(tmp_path):
    tf.random.set_seed(1)
    w = tf.Variable(0.0)
    trainer = cn.Trainer(
        lambda x: (w * x + tf.random.uniform([4]), {"noise": tf.random.uniform([4])}),
        keras.optimizers.SGD(0.1),
        devices=2,
    )
    first = trainer.train_on_batch(tf.zeros(8))
    assert 0 < first.metrics["noise"] < 1
    assert trainer.train_on_batch(tf.zeros(8)).metrics["noise"] != first.metrics["noise"]
    trainer.fit(tf.zeros(8), batch_size=8, steps=1, logdir=tmp_path, progress=False)
    of_one, of_other = json.loads((tmp_path / "metrics.jsonl").read_text())["replicas"].values()
    assert of_one != of_other


def test_evaluation_draws_other_numbers_on_every_replica(capfd):
    tf.random.set_seed(1)
    w = tf.Variable(1.0)

    def loss(x):
        tf.print("drew", tf.random.uniform([]))
        return w * x

    cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2).evaluate(tf.zeros(8), batch_size=8)
    lines = sorted(line for line in capfd.readouterr().err.splitlines() if "drew" in line)
    assert [line.split(" drew ")[0] for line in lines] == ["[CPU:0]", "[CPU:1]"]
    assert len({line.split(" drew ")[1] for line in lines}) == 2


def test_batch_norm_on_two_clones():
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 16).astype("float32")
    inputs = np.stack([rng.normal(labels, 0.1) for _ in range(4)], axis=1).astype("float32")
    norm = keras.layers.BatchNormalization(momentum=0.0)
    model = keras.Sequential([norm, keras.layers.Dense(1)])

    def loss(x, y):
        return keras.losses.binary_crossentropy(y[:, None], model(x, training=True), from_logits=True)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(1.0), devices=2)
    first = trainer.train_on_batch(inputs, labels).loss
    for _ in range(9):
        last = trainer.train_on_batch(inputs, labels).loss
    assert last < first / 5
    halves = np.split(inputs, 2)
    np.testing.assert_allclose(norm.moving_mean, np.mean([h.mean(0) for h in halves], 0), atol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, np.mean([h.var(0) for h in halves], 0), atol=1e-5)


def test_frozen_layers_stay_frozen():
    model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
    model.build((None, 4))
    model.layers[0].trainable = False
    before = model.layers[0].kernel.numpy()
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((model(x) - y) ** 2, 1), keras.optimizers.SGD(0.1), devices=2
    )
    trainer.train_on_batch(X, Y)
    assert np.array_equal(model.layers[0].kernel.numpy(), before)
    assert {v.name for v in trainer.parameters} == {v.value.name for v in model.layers[1].variables}


def test_weights_changed_between_fits_are_seen():
    for home in ("shared", "mirrored", "partitioned"):
        w, trainer = linear(variables=home, devices=3)
        trainer.train_on_batch(X, Y)
        w.assign(tf.ones([4, 1]))
        record = trainer.train_on_batch(X, Y)
        b = trainer.parameters[1] if "b" in trainer.parameters[1].name else trainer.parameters[0]
        assert record.loss == pytest.approx(np.mean((X @ np.ones([4, 1]) - Y) ** 2), rel=0.2)
        assert b.shape == [1]


def test_callbacks_see_records_and_can_end_the_fit():
    _, trainer = linear()
    seen = []
    trainer.fit(
        (X, Y),
        batch_size=10,
        steps=50,
        log_every=5,
        callbacks=[seen.append, lambda r: r.step >= 15],
        progress=False,
    )
    assert [record.step for record in seen][-1] == 15
    assert trainer.step == 15


def test_ctrl_c_ends_the_fit_with_what_was_reached():
    _, trainer = linear()
    threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    history = trainer.fit((X, Y), batch_size=10, steps=10**7, progress=False)
    assert history.interrupted
    assert trainer.step == len(history.losses) > 0
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_variables_are_dealt_in_turn_or_by_size():
    def dealt(variables):
        parameters = [tf.Variable(tf.zeros([size]), name=f"p{size}") for size in (1, 5, 2, 4)]
        trainer = cn.Trainer(
            lambda x: x * tf.add_n([tf.reduce_sum(p) for p in parameters]),
            keras.optimizers.SGD(0.1),
            devices=2,
            variables=variables,
        )
        trainer.train_on_batch(tf.ones(4))
        homes = trainer.homes()
        assert [p.numpy().tolist() for p in parameters] == [
            pytest.approx([-0.1] * size) for size in (1, 5, 2, 4)
        ]
        return [homes[p.name][-1] for p in parameters]

    assert dealt(cn.Partitioned(by="turn")) == ["0", "1", "0", "1"]
    assert dealt(cn.Partitioned()) == dealt("partitioned") == ["0", "0", "1", "1"]
    with pytest.raises(cn.InvalidArgument, match="must be size or turn"):
        cn.Partitioned(by="weight")


def test_partitioned_variables_and_their_slots_live_with_their_owners():
    model = {
        name: tf.Variable(tf.ones(size), name=name)
        for name, size in (("a", [40, 4]), ("b", [4, 30]), ("c", [30, 1]))
    }
    optimizer = keras.optimizers.Adam(0.1)
    trainer = cn.Trainer(
        lambda x, y: tf.squeeze((x @ model["a"] @ model["b"] @ model["c"] - y) ** 2, 1),
        optimizer,
        devices=3,
        variables="partitioned",
    )
    trainer.train_on_batch(np.ones([6, 40], "float32"), np.ones([6, 1], "float32"))
    homes = trainer.homes()
    assert {name: homes[f"{name}:0"][-5:] for name in model} == {"a": "CPU:0", "b": "CPU:1", "c": "CPU:2"}
    slots = {path: device for path, device in homes.items() if "momentum" in path or "velocity" in path}
    for name, device in (("a", "CPU:0"), ("b", "CPU:1"), ("c", "CPU:2")):
        assert {d[-5:] for path, d in slots.items() if f"{name}_" in path.split("/")[-1]} == {device}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"loss": 3}, "must be a function"),
        ({"optimizer": "adam"}, "Keras 3 optimizer"),
        ({"variables": "mirored"}, "auto, shared, mirrored, partitioned"),
        ({"on_nan": "ignore"}, "stop or skip"),
        ({"penalty": 0.1}, "without arguments"),
        ({"sync": "async"}, "cn.Synchronous"),
        ({"devices": 9}, "cn.setup(virtual=9)"),
        ({"reduce": "ring"}, "must be auto"),
    ],
)
def test_bad_settings_of_the_trainer(arguments, says):
    settings = {"loss": lambda x: x, "optimizer": keras.optimizers.SGD(), **arguments}
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Trainer(settings.pop("loss"), settings.pop("optimizer"), **settings)
    assert says in str(caught.value)


def test_all_bad_settings_in_one_error():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Trainer(3, "adam", devices=9, sync=False, variables="x", on_nan="y")
    wrong = ["loss", "optimizer", "devices", "variables", "sync", "on_nan"]
    assert [p.argument for p in caught.value.problems] == wrong


@pytest.mark.parametrize(
    ("data", "arguments", "says"),
    [
        ((X, Y), {}, "batch_size=None"),
        ((X, Y[:9]), {"batch_size": 10}, "same number of rows"),
        ((X, Y), {"batch_size": 0}, "number of examples"),
        ((X, Y), {"batch_size": 10, "steps": 0, "log_every": -1}, "log_every=-1"),
        ((X, Y), {"batch_size": 10, "callbacks": [keras.callbacks.EarlyStopping()]}, "are for cn.fit"),
        ((X, Y), {"batch_size": 10, "callbacks": print}, "list of functions"),
        (iter([]), {}, "gave no batch"),
        (iter([(X, Y), (X[:0], Y[:0]), (X, Y)]), {}, "has no rows"),
        (5, {"batch_size": 10}, "tf.data.Dataset, arrays"),
    ],
)
def test_bad_data(data, arguments, says):
    _, trainer = linear()
    with pytest.raises(cn.InvalidArgument) as caught:
        trainer.fit(data, progress=False, **arguments)
    assert says in str(caught.value)


def test_losses_of_a_wrong_shape_and_functions_without_variables():
    w = tf.Variable(tf.ones([4, 1]))
    wrong = cn.Trainer(lambda x, y: (x @ w - y) ** 2, keras.optimizers.SGD(), devices=2)
    with pytest.raises(cn.InvalidArgument, match=r"cn\.Weighted"):
        wrong.train_on_batch(X, Y)
    nothing = cn.Trainer(lambda x, y: tf.reduce_mean(x), keras.optimizers.SGD(), devices=2)
    with pytest.raises(cn.InvalidArgument, match="no trainable variable"):
        nothing.train_on_batch(X, Y)


@pytest.mark.long
def test_no_warning_at_the_end_of_the_data():
    program = textwrap.dedent(
        """
        import colonnade as cn, keras, numpy as np, tensorflow as tf
        cn.setup(virtual=2)
        w = tf.Variable(1.0)
        trainer = cn.Trainer(lambda x: w * x, keras.optimizers.SGD(0.1), devices=2)
        dataset = tf.data.Dataset.from_tensor_slices(np.ones(10, "float32")).batch(4)
        trainer.fit(dataset, epochs=2, progress=False)
        print(trainer.step)
        """
    )
    done = run([sys.executable, "-c", program], TF_CPP_MIN_LOG_LEVEL="0")
    assert done.stdout == "6\n"
    assert not re.search(r"OUT_OF_RANGE|End of sequence|^W\d|Warning", done.stderr, re.M), done.stderr


def scaled(**options):
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.25), initial_scale=4.0, dynamic_growth_steps=2, **options
    )


@pytest.mark.parametrize(
    "options",
    [
        {"variables": "mirrored"},
        *long({"variables": "shared"}, {"variables": "partitioned"}),
        {"sync": cn.LocalSGD(1)},
        {"sync": cn.Asynchronous(), "devices": 1},
    ],
    ids=str,
)
def test_a_dynamic_loss_scale_moves_with_the_training(options):
    def run(fit):
        w, optimizer = tf.Variable([0.0, 1.0]), scaled()
        fit(w, optimizer)
        return w.numpy().tolist(), float(optimizer.dynamic_scale)

    x = X[:6, :2]

    def alone(w, optimizer):
        optimizer.build([w])
        for _ in range(6):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.reduce_sum((x - w) ** 2, 1)) + tf.reduce_sum(w**2) / 8
                scaled = optimizer.scale_loss(loss)
            optimizer.apply([tape.gradient(scaled, w)], [w])

    def together(w, optimizer):
        trainer = cn.Trainer(
            lambda x: tf.reduce_sum((x - w) ** 2, 1),
            optimizer,
            penalty=lambda: tf.reduce_sum(w**2) / 8,
            **{"devices": 2, **options},
        )
        trainer.train_on_batch(x)
        trainer.fit([x] * 5, progress=False)

    weights, scale = run(together)
    expected, moved = run(alone)
    assert scale == moved == 32.0
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("home", ["partitioned", *long("shared", "mirrored")])
def test_optimizers_that_look_at_keras_variables(home):
    keras.utils.set_random_seed(0)
    start = keras.layers.Dense(3)
    start.build([None, 4])
    found = []
    for devices in (None, 2):
        layer, optimizer = keras.layers.Dense(3), keras.optimizers.Muon(0.1)
        layer.build([None, 4])
        layer.set_weights(start.get_weights())
        if devices is None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.reduce_sum(layer(X[:6]) ** 2, 1))
            weights = layer.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
        else:
            loss = lambda x, layer=layer: tf.reduce_sum(layer(x) ** 2, 1)  # noqa: E731
            cn.Trainer(loss, optimizer, devices=devices, variables=home).train_on_batch(X[:6])
        found.append(layer.get_weights())
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_an_optimizer_of_other_variables_is_refused():
    w, optimizer = tf.Variable(1.0), keras.optimizers.SGD(0.1)
    optimizer.build([tf.Variable(1.0)])
    with pytest.raises(cn.InvalidArgument, match="built for other variables"):
        cn.Trainer(lambda x: x * w, optimizer, devices=2).train_on_batch(tf.ones([4]))


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.LocalSGD(2), cn.Asynchronous()], ids=repr)
def test_stateful_layers_are_refused_on_several_devices(sync):
    layer = keras.layers.LSTM(2, stateful=True, name="memory")
    made = keras.Sequential([keras.Input(batch_shape=[2, 3, 2]), layer])

    def trainer(devices):
        return cn.Trainer(
            lambda x: tf.reduce_sum(made(x) ** 2, 1), keras.optimizers.SGD(0.1), devices=devices, sync=sync
        )

    with pytest.raises(cn.InvalidArgument, match="memory") as caught:
        trainer(2).train_on_batch(np.ones([4, 3, 2], "float32"))
    assert "stateful=True" in str(caught.value)
    if isinstance(sync, cn.Synchronous):
        assert trainer(1).train_on_batch(np.ones([2, 3, 2], "float32")).step == 1


def test_weights_and_weighted_metrics_have_the_shape_of_the_losses():
    w = tf.Variable(1.0)

    def trainer(weights, metric):
        return cn.Trainer(
            lambda x: (cn.Weighted(x * w, weights(x)), {"m": metric(x)}), keras.optimizers.SGD(0.0), devices=2
        )

    x = tf.constant([1.0, 2.0, 3.0, 4.0])
    with pytest.raises(cn.InvalidArgument, match="shape of the losses") as caught:
        trainer(lambda x: x[:, None], lambda x: x[None, :]).train_on_batch(x)
    assert [problem.argument for problem in caught.value.problems] == ["weights", "m"]
    record = trainer(lambda x: x, lambda x: tf.reduce_max(x) * 0 + 7.0).train_on_batch(x)
    assert (record.loss, record.metrics["m"]) == (3.0, 7.0)


@pytest.mark.parametrize("half", [tf.float16, *long(tf.bfloat16)])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_in_half_precision_are_added_up_in_single(half, weighted):
    w = tf.Variable(tf.cast(5.0, half))
    loss = (lambda x: cn.Weighted(x * w, x)) if weighted else (lambda x: x * w)
    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2)
    x = tf.ones([30_001], half)
    assert trainer.train_on_batch(x).loss == pytest.approx(5.0, rel=1e-5)
    assert trainer.evaluate(x, batch_size=30_001).loss == pytest.approx(5.0, rel=1e-5)


@pytest.mark.parametrize("log_every", [7, *long(1, 100)])
def test_the_limit_of_skipped_steps_does_not_depend_on_the_log(log_every):
    _, _, trainer, bad = poisoned("shared", on_nan="skip")
    good = [(X[:12], Y[:12])] * 3
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        trainer.fit([*good, *[(bad, Y[:12])] * 30, *good], progress=False, log_every=log_every)
    assert (trainer.step, trainer.skipped) == (23, 20)
    trainer.fit([*[(bad, Y[:12])] * 19, *good] * 2, progress=False, log_every=log_every)
    assert trainer.skipped == 20 + 38


def test_skipped_steps_in_a_row_are_counted_across_calls():
    _, _, trainer, bad = poisoned("shared", on_nan="skip")
    for _ in range(12):
        trainer.train_on_batch(bad, Y[:12])
    trainer.fit([(bad, Y[:12])] * 4, progress=False)
    for _ in range(3):
        trainer.train_on_batch(bad, Y[:12])
    with pytest.raises(cn.NotFinite, match="20 steps in a row"):
        trainer.train_on_batch(bad, Y[:12])
    assert (trainer.step, trainer.skipped) == (20, 20)


@pytest.mark.parametrize("home", ["mirrored", *long("shared")])
def test_fifty_steps_on_1_2_and_4_devices(home):
    """In float64, where nothing but the order of sums can differ: 50 steps carry that to 1e-13 at most."""
    keras.utils.set_random_seed(0)
    start = [RNG.normal(size=shape) for shape in ([4, 8], [8], [8, 1])]
    runs = []
    for devices in (1, 2, 4):
        a, b, c = (tf.Variable(value) for value in start)
        trainer = cn.Trainer(
            lambda x, y, a=a, b=b, c=c: tf.squeeze((tf.nn.tanh(x @ a + b) @ c - y) ** 2, 1),
            keras.optimizers.Adam(0.01),
            devices=devices,
            variables=home,
        )
        history = trainer.fit(
            (X.astype("float64"), Y.astype("float64")), batch_size=13, steps=50, progress=False
        )
        runs.append([np.asarray(history.losses), *(v.numpy() for v in (a, b, c))])
    for other in runs[1:]:
        for found, expected in zip(other[1:], runs[0][1:], strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-12)
        np.testing.assert_allclose(other[0], runs[0][0], rtol=1e-6)  # the history is float32
