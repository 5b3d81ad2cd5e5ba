"""Training in a pipeline against one device: the same losses and variables, for every schedule."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from kernels import plain
from piped import DENSE, TOLERANCE, X, Y, assert_equal, classify, given, mlp, train, with_weights

import colonnade as cn
from colonnade.hardware.placement import short
from colonnade.run.batch.split import Arguments


@pytest.fixture(scope="module")
def mlp_alone():
    return train(mlp, (X, Y), optimizer=lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "pipeline",
    [
        {"devices": [[0, 1], [2, 3]], "micro_batches": 4, "placement": [0, 1, 1, 1]},
        *long(
            {"devices": 4, "micro_batches": 8, "schedule": "1f1b"},
            {"devices": 4, "micro_batches": 8, "schedule": "gpipe"},
            {"devices": [0, 1, 2], "micro_batches": 8, "schedule": "sequential", "placement": [0, 1, 1, 2]},
            {"devices": 1, "micro_batches": 3, "placement": [0, 0, 0, 0]},
            {"devices": 2, "micro_batches": 1, "placement": [0, 0, 0, 1]},
            {"devices": [[4, 3], [2, 1], [0, 5]], "micro_batches": 12, "placement": [0, 0, 1, 1]},
        ),
    ],
    ids=lambda p: "-".join(str(value).replace(" ", "") for value in p.values()),
)
def test_99_examples_in_a_pipeline_equal_one_device(pipeline, mlp_alone):
    """Clipped by the global norm and with Adam: one update, whoever owns the parts."""
    found = train(mlp, (X, Y), optimizer=lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5), **pipeline)
    assert_equal(found, mlp_alone)


def test_fit_and_evaluate_equal_one_device():
    def run(devices=None):
        model = mlp()
        piped = cn.Pipeline(model, devices, micro_batches=4, placement=[0, 0, 1, 1]) if devices else None
        trainer = cn.Trainer(classify(piped or model), keras.optimizers.SGD(0.1), devices=piped or 1)
        history = trainer.fit((X, Y), batch_size=40, epochs=2, progress=False)  # 40, 40, 19
        tested = trainer.evaluate((X, Y), batch_size=70)
        return [*history.losses, tested.loss, tested.metrics["accuracy"]], tested.examples

    (wanted, examples), (found, same) = run(), run([[0, 1], [2, 3]])
    assert examples == same == 99
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE)


def test_variables_and_slots_live_with_their_stage():
    _, _, trainer = train(mlp, (X, Y), steps=1, devices=[1, 3], micro_batches=2, placement=[0, 0, 0, 1])
    homes = [short(home) for home in trainer.homes().values()]
    assert homes[:8] == ["CPU:1"] * 6 + ["CPU:3"] * 2
    assert homes[-2:] == ["CPU:3"] * 2  # momentum


@pytest.mark.long
def test_a_step_computes_on_the_devices_of_the_stages():
    model = mlp(2)
    pipeline = cn.Pipeline(model, [2, 5], micro_batches=2)
    trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline)
    engine, batch = trainer._engine, Arguments((X, Y), {})
    engine.prepare(batch)
    report = cn.placement(lambda *parts: engine.step(batch.with_components(parts)).loss, *batch.components())
    rows = [(plain(row.op), short(row.actual)) for row in report.ops]
    ran = {row for row in rows if row[0] in ("MatMul", "TanhGrad")}
    # The first stage has no input to give a gradient to, so its one product backward is for the kernel.
    assert ran == {("MatMul", "CPU:2"), ("MatMul", "CPU:5"), ("TanhGrad", "CPU:2")}


def tied_language_model():
    """An embedding that is also the output layer, in functions; gradients of it are sparse and dense."""
    table = tf.Variable(given([11, 4]), name="table")
    kernel = tf.Variable(given([4, 4]), name="kernel")

    def embed(tokens):
        return tf.gather(table, tokens)

    def mix(x):
        return {"x": tf.tanh(x @ kernel), "skip": x}

    def predict(values):
        return (values["x"] + values["skip"]) @ tf.transpose(table)

    return [embed, mix, predict], table


def token_loss(call):
    def loss(tokens, mask):
        logits = call(tokens[:, :-1])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tokens[:, 1:], logits)
        return cn.Weighted(losses, mask[:, 1:])

    return loss


def test_tied_weights_and_weighted_losses():
    rng = np.random.default_rng(3)
    tokens = rng.integers(0, 11, [13, 6])
    mask = (rng.random([13, 6]) < 0.7).astype("float32")

    def run(piped):
        functions, table = tied_language_model()
        pipeline = cn.Pipeline(functions, 3, micro_batches=4, tied=[table]) if piped else None

        def chained(x):
            for fn in functions:
                x = fn(x)
            return x

        trainer = cn.Trainer(
            token_loss(pipeline or chained), keras.optimizers.Adam(0.1), devices=pipeline or 1
        )
        records = [trainer.train_on_batch(tokens, mask) for _ in range(3)]
        homes = {k: short(v) for k, v in trainer.homes().items()}
        return records, {v.name: v.numpy() for v in trainer.parameters}, homes

    records, variables, homes = run(True)
    expected, originals, _ = run(False)
    np.testing.assert_allclose([r.loss for r in records], [r.loss for r in expected], rtol=TOLERANCE)
    for name, value in originals.items():
        np.testing.assert_allclose(variables[name], value, atol=TOLERANCE)
    assert (homes["table:0"], homes["kernel:0"]) == ("CPU:0", "CPU:1")


def wide_end(piped, rows=None):
    """A pipeline whose last stage is split by width over two other devices; full logits are nowhere."""
    keras.utils.set_random_seed(1)
    body, head = DENSE(8, "tanh"), cn.width.Dense(10, gather=False, devices=[2, 3])
    pipeline = cn.Pipeline([body, head], rows or [0, 1], micro_batches=2) if piped else None

    def loss(x, y):
        return cn.width.softmax_cross_entropy(y, pipeline(x) if piped else head(body(x)))

    trainer = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=pipeline or 1)
    return [trainer.train_on_batch(X, Y) for _ in range(3)], [v.numpy() for v in trainer.parameters], trainer


@pytest.mark.long
def test_a_layer_split_by_width_keeps_its_parts_where_they_are():
    found, wanted = wide_end(True), wide_end(False)
    assert_equal(found, wanted)
    homes = {name: short(home) for name, home in found[2].homes().items()}
    assert len(homes) >= 3 * 6
    for name, home in homes.items():  # and what Adam keeps for them
        for i, device in enumerate(("CPU:2", "CPU:3")):
            assert (f"part_{i}" in name) == (home == device), (name, home)
    with pytest.raises(cn.InvalidArgument, match="is a part of a layer that is split by width"):
        wide_end(True, [[0, 1], [4, 5]])


def test_a_penalty_counts_once_and_a_frozen_layer_stays():
    def run(piped):
        model = mlp(3)
        model.layers[1].trainable = False
        pipeline = cn.Pipeline(model, 3, micro_batches=4) if piped else None
        trainer = cn.Trainer(
            classify(pipeline or model),
            keras.optimizers.SGD(0.1),
            devices=pipeline or 1,
            penalty=lambda: 0.1 * tf.reduce_sum(model.layers[0].kernel ** 2),
        )
        losses = [trainer.train_on_batch(X, Y).loss for _ in range(3)]
        return losses, [w.copy() for w in model.get_weights()]

    (losses, weights), (expected, originals) = run(True), run(False)
    np.testing.assert_allclose(losses, expected, rtol=TOLERANCE)
    for a, b in zip(weights, originals, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)
    np.testing.assert_array_equal(weights[2], given([8, 8], seed=2))


def test_a_penalty_on_an_embedding_whose_gradient_is_sparse():
    tokens = np.arange(30).reshape(10, 3) % 7

    def run(piped):
        table, kernel = tf.Variable(given([7, 4])), tf.Variable(given([4]))

        def embed(tokens):
            return tf.gather(table, tokens)

        def score(x):
            return tf.reduce_sum(x * kernel, axis=[1, 2])

        pipeline = cn.Pipeline([embed, score], 2, micro_batches=3) if piped else None
        call = pipeline or (lambda x: score(embed(x)))
        trainer = cn.Trainer(
            lambda x: call(x) ** 2,
            keras.optimizers.SGD(0.05, momentum=0.9),
            devices=pipeline or 1,
            penalty=lambda: tf.reduce_sum(table**2),
        )
        losses = [trainer.train_on_batch(tokens).loss for _ in range(3)]
        return losses, table.numpy(), kernel.numpy()

    for a, b in zip(run(True), run(False), strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


def test_batch_norm_takes_each_micro_batch_by_itself():
    """As documented: statistics of the micro-batch, and one update of the moving averages for each."""
    x = given([8, 6], 1.0)
    norm = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential(
        [keras.Input([6]), keras.layers.Activation("linear"), norm, keras.layers.Dense(3)]
    )
    pipeline = cn.Pipeline(model, 3, micro_batches=2)
    trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.0), devices=pipeline)
    found = trainer.train_on_batch(x, Y[:8]).loss
    mean = np.zeros(6)
    for part in (x[:4], x[4:]):
        mean = 0.5 * mean + 0.5 * part.mean(axis=0)
    np.testing.assert_allclose(norm.moving_mean.numpy(), mean, rtol=1e-5, atol=1e-6)
    alone = cn.Trainer(classify(model), keras.optimizers.SGD(0.0), devices=2)  # slices are micro-batches
    assert found == pytest.approx(alone.train_on_batch(x, Y[:8]).loss, rel=TOLERANCE)


def dropped(seed, **pipeline):
    """How much a dropout layer in the second stage lets through, in two steps."""
    keras.utils.set_random_seed(seed)
    weight = tf.Variable(1.0)
    piped = cn.Pipeline([lambda x: x * weight, keras.layers.Dropout(0.5)], **pipeline)

    def loss(x):
        y = piped(x, training=True)
        return tf.reduce_mean(y, axis=1), {f"row {i}": y[:, i] for i in range(5)}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=piped)
    return [trainer.train_on_batch(tf.ones([8, 50])) for _ in range(2)]


def test_dropout_draws_for_every_micro_batch_and_repeats_from_the_seed():
    first, again, other = (dropped(seed, devices=2, micro_batches=4) for seed in (1, 1, 2))
    assert [r.loss for r in first] == [r.loss for r in again]
    assert [r.loss for r in first] != [r.loss for r in other]
    assert first[0].loss != first[1].loss
    assert len(set(first[0].metrics.values())) > 1


def test_seeded_legacy_random_ops_differ_between_micro_batches():
    weight = tf.Variable(1.0)

    def noisy(x):
        return x * tf.random.uniform(tf.shape(x), seed=7)

    pipeline = cn.Pipeline([lambda x: x * weight, noisy], 2, micro_batches=4)
    values = pipeline(tf.ones([4, 1])).numpy()
    assert len(np.unique(values)) == 4

    def loss(x):
        y = pipeline(x)[:, 0]
        return y, {"square": y**2}

    record = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=pipeline).train_on_batch(tf.ones([4, 1]))
    assert record.metrics["square"] > record.loss**2 + 1e-3  # not four times the same number


def test_nan_names_the_device_of_the_stage():
    shift, scale = tf.Variable(1.0, name="shift"), tf.Variable(1.0, name="scale")

    def first(x):
        return tf.sqrt(shift * x)

    def second(x):
        return scale * x

    pipeline = cn.Pipeline([first, second], [4, 6], micro_batches=2)
    trainer = cn.Trainer(lambda x: pipeline(x), keras.optimizers.SGD(0.1), devices=pipeline)
    assert trainer.train_on_batch(tf.ones([4])).step == 1
    before = float(scale)
    with pytest.raises(cn.NotFinite) as caught:
        trainer.train_on_batch(tf.constant([1.0, 1.0, 1.0, 0.0]))  # the root of 0 has no slope
    assert (short(caught.value.device), caught.value.variable) == ("CPU:4", "shift:0")
    assert caught.value.step == 2
    assert float(scale) == before


def test_a_variable_of_two_stages_must_be_declared():
    shared = DENSE(6)
    stages = [shared, DENSE(6), shared, DENSE(3)]
    for tied in ([], [shared]):
        pipeline = cn.Pipeline(stages, 4, micro_batches=2, tied=tied)
        trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline)
        if tied:
            assert trainer.train_on_batch(X, Y).step == 1
        else:
            with pytest.raises(
                cn.InvalidArgument, match=r"kernel.*is used by stages 0, 2, and is not declared"
            ):
                trainer.train_on_batch(X, Y)


def test_a_loss_function_must_call_the_pipeline_of_its_trainer():
    model = mlp(2)
    pipeline = cn.Pipeline(model, 2)
    wrong = {
        "does not call the pipeline": (classify(model), pipeline),
        "Pass it: cn.Trainer.loss, optimizer, devices=pipeline.": (classify(pipeline), 2),
        "calls another pipeline": (classify(cn.Pipeline(model, 2)), pipeline),
        "inside a loop, a branch or a tf.function": (classify(tf.function(pipeline)), pipeline),
    }
    for says, (loss, devices) in wrong.items():
        with pytest.raises(cn.InvalidArgument, match=says):
            cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=devices).train_on_batch(X, Y)
    with pytest.raises(cn.InvalidArgument, match="has no meaning for a pipeline"):
        cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline, variables="mirrored")
    norm = keras.Sequential([DENSE(4), keras.layers.BatchNormalization(synchronized=True), DENSE(3)])
    pipeline = cn.Pipeline(norm, 3)
    with pytest.raises(cn.InvalidArgument, match="Leave synchronized=True out"):
        cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(X, Y)


def scaling(scale):
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=scale, dynamic_growth_steps=2
    )


@pytest.mark.sampled(2)
# In half precision a sum over micro-batches differs by some units in the tenth bit; with the largest scale
# all six steps overflow and are left out.
@pytest.mark.parametrize(
    ("policy", "scale", "tolerance", "devices"),
    [
        ("float32", 64.0, TOLERANCE, [[0, 1], [2, 3]]),
        ("mixed_float16", 1024.0, 5e-3, 2),
        *long(("mixed_float16", 2.0**30, 0, 2), ("float16", 256.0, 2e-2, 2)),
    ],
)
def test_a_loss_scale_that_is_not_built_before(policy, scale, tolerance, devices):
    """The optimizer makes its scale when the parameters are known, and the loss is traced again with it."""

    def build():
        layers = [DENSE(8, "tanh", dtype=policy), DENSE(3, dtype=policy)]
        return with_weights(keras.Sequential([keras.Input([6]), *layers]))

    model, optimizer = build(), scaling(scale)
    for _ in range(6):
        with tf.GradientTape() as tape:
            losses, _ = classify(model)(X[:30], Y[:30])
            scaled = optimizer.scale_loss(tf.reduce_mean(tf.cast(losses, tf.float32)))
        trained = model.trainable_variables
        optimizer.apply(tape.gradient(scaled, [v.value for v in trained]), trained)
    _, found, trainer = train(
        build, (X[:30], Y[:30]), 6, optimizer=lambda: scaling(scale), devices=devices, micro_batches=3
    )
    assert float(trainer.optimizer.dynamic_scale) == float(optimizer.dynamic_scale) != scale
    for one, other in zip(found, model.trainable_variables, strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("devices", [[0, 1], [[0, 1], [2, 3]]])
def test_whole_numbers_that_a_stage_reads_from_a_variable(devices):
    """TensorFlow 2.21 refused a call of `EnsureShape` of an unknown shape, which the part had for them."""
    table, rows = tf.Variable(tf.ones([7, 3], tf.float64)), tf.Variable(tf.range(5), trainable=False)
    pipeline = cn.Pipeline(
        [lambda x: x * tf.reduce_sum(tf.gather(table, rows)), lambda x: tf.reduce_sum(x, axis=1)],
        devices,
        micro_batches=2,
    )
    trainer = cn.Trainer(lambda x: pipeline(x), keras.optimizers.SGD(0.5), devices=pipeline)
    trainer.train_on_batch(tf.ones([8, 3], tf.float64))
    np.testing.assert_array_equal(table.numpy()[:, 0], [-0.5] * 5 + [1.0] * 2)
