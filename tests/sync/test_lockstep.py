"""Steps in which all replicas compute and the model moves once: the same on any number of devices."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from lines import X, Y, poisoned

import colonnade as cn

RNG = np.random.default_rng(1)


@pytest.mark.parametrize("home", ["mirrored", *long("shared")])
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


@pytest.mark.parametrize("home", ["mirrored", *long("shared", "partitioned")])
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


@pytest.mark.parametrize("home", ["mirrored", *long("shared")])
def test_skipping_ends_after_a_limit(home):
    _, _, trainer, bad = poisoned(home, on_nan="skip")
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
        lambda x: (w * x + tf.random.uniform(tf.shape(x)), {"noise": tf.random.uniform(tf.shape(x))}),
        keras.optimizers.SGD(0.1),
        devices=2,
    )
    first = trainer.train_on_batch(tf.zeros(8))
    assert 0 < first.metrics["noise"] < 1
    assert trainer.train_on_batch(tf.zeros(8)).metrics["noise"] != first.metrics["noise"]
    trainer.fit(tf.zeros(8), batch_size=8, steps=1, logdir=tmp_path, progress=False)
    of_one, of_other = json.loads((tmp_path / "metrics.jsonl").read_text())["replicas"].values()
    assert of_one != of_other


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


@pytest.mark.long
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


def scaled(**options):
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.25), initial_scale=4.0, dynamic_growth_steps=2, **options
    )


@pytest.mark.sampled(3)
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


def test_a_penalty_on_what_slices_make_of_a_variable_is_refused():
    w, rate = tf.Variable(1.0), tf.Variable(0.5, trainable=False)
    average = tf.Variable(0.0, trainable=False, name="average")
    count = tf.Variable(0.0, trainable=False, name="count", aggregation=tf.VariableAggregation.SUM)

    def loss(x):
        rate.assign(0.9 * rate)  # the same everywhere
        average.assign(tf.reduce_mean(x))
        count.assign_add(1.0)
        return x * w

    def trainer(penalty, devices):
        return cn.Trainer(loss, keras.optimizers.SGD(0.1), penalty=penalty, devices=devices)

    with pytest.raises(cn.InvalidArgument, match=r"(?s)average:0': is changed.*count:0': is changed"):
        trainer(lambda: average * w + count, 2).train_on_batch(tf.range(4.0))
    trainer(lambda: average * w + count, 1).train_on_batch(tf.range(4.0))
    w.assign(1.0), rate.assign(0.5)
    trainer(lambda: rate * w, 2).train_on_batch(tf.range(4.0))
    np.testing.assert_allclose(w, 1 - 0.1 * (1.5 + 0.45), rtol=1e-6)


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


@pytest.mark.long
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
