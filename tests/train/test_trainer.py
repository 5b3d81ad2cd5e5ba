"""What a trainer and its fit do, whatever the way of training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from lines import X, Y, linear

import colonnade as cn

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("home", ["mirrored", *long("shared")])
def test_fit_on_arrays_datasets_and_generators_is_the_same(home):
    def batches():
        for i in range(0, 50, 16):
            yield X[i : i + 16], Y[i : i + 16]

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    results = []
    for data, size in (((X, Y), 16), (dataset, None), (batches(), None)):
        w, trainer = linear(variables=home)
        history = trainer.fit(data, batch_size=size, progress=False)
        assert (trainer.step, trainer.examples, len(history.losses)) == (4, 50, 4)
        results.append(w.numpy())
    assert np.array_equal(results[0], results[1])
    assert np.array_equal(results[0], results[2])


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


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_metrics_and_weights_are_those_of_the_global_batch(home):
    w = tf.Variable(tf.ones([4, 1]))
    mask = (RNG.uniform(size=50) < 0.3).astype("float32")

    def loss(x, y, mask):
        error = tf.squeeze(x @ w - y, axis=1)
        return cn.Weighted(error**2, mask), {"absolute": tf.abs(error)}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=4, variables=home)
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


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_evaluation_counts_every_example_once_with_averaged_weights(home):
    w = tf.Variable(tf.zeros([4, 1]))

    def loss(x, y):
        error = tf.squeeze(x @ w - y, axis=1)
        return error**2, {"close": tf.abs(error) < 1.0}

    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5)
    trainer = cn.Trainer(loss, optimizer, devices=3, variables=home)
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


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.LocalSGD(2), cn.Asynchronous()])
def test_before_the_first_update_there_is_no_average(sync):
    w = tf.Variable(3.0)
    optimizer = keras.optimizers.SGD(0.1, use_ema=True)
    trainer = cn.Trainer(lambda x: w * x, optimizer, devices=2, on_nan="skip", sync=sync)
    trainer.train_on_batch(np.full(4, np.nan, "float32"))
    assert trainer.evaluate(np.ones(4, "float32"), batch_size=4).loss == 3.0


@pytest.mark.parametrize("built", [False, True])
def test_each_of_several_optimizers_has_its_averages(built):
    a, b, c = (keras.Variable(1.0, name=name) for name in "abc")
    kinds = {
        "a": keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.5),
        "b": keras.optimizers.SGD(2.0, use_ema=True, ema_momentum=0.5),
        "c": keras.optimizers.SGD(0.0),
    }
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: kinds[variable.path])
    if built:
        optimizer.build([c, b, a])
    trainer = cn.Trainer(lambda x: -(a.value + b.value + c.value) * x, optimizer, devices=2)
    for _ in range(2):
        trainer.train_on_batch(np.ones(2, "float32"))
    # a was 2 and 3, b was 3 and 5.
    assert trainer.evaluate(np.ones(2, "float32"), batch_size=2).loss == -(2.5 + 4.0 + 1.0)
    assert [float(v) for v in (a, b, c)] == [3.0, 5.0, 1.0]


def test_evaluation_of_what_has_no_weight_is_zero():
    w = tf.Variable(1.0)
    trainer = cn.Trainer(lambda x: cn.Weighted(w * x, tf.zeros_like(x)), keras.optimizers.SGD(), devices=2)
    assert trainer.evaluate(np.ones(4, "float32"), batch_size=4).loss == 0.0


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
def test_evaluation_changes_nothing_and_tells_the_function(home):
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

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=2, variables=home)
    trainer.fit((X, Y), batch_size=25, epochs=2, progress=False)
    before = [v.numpy() for v in model.variables]
    found = trainer.evaluate((X, Y), batch_size=20)
    expected = np.mean((model(X, training=False).numpy() - Y) ** 2)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert all(np.array_equal(v.numpy(), b) for v, b in zip(model.variables, before, strict=True))


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


@pytest.mark.parametrize("home", ["shared", "mirrored", "partitioned"])
def test_weights_changed_between_steps_are_seen(home):
    """The next step starts from what was assigned, and leaves alone what was not."""
    w, trainer = linear(variables=home, devices=3)
    trainer.train_on_batch(X, Y)
    (b,) = [v for v in trainer.parameters if v is not w]
    w.assign(tf.ones([4, 1]))
    kept = b.numpy()
    record = trainer.train_on_batch(X, Y)
    error = X @ np.ones([4, 1]) + kept - Y
    # Sums of float32 in another order.
    assert record.loss == pytest.approx(np.mean(error**2), rel=1e-5)
    np.testing.assert_allclose(w, 1 - 0.05 * 2 * X.T @ error / len(X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(b, kept - 0.05 * 2 * error.mean(axis=0), rtol=1e-5, atol=1e-6)


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
