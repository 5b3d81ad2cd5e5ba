"""A pipeline against one device: the same losses and gradients, for every schedule and kind of layer."""

import time
from itertools import accumulate, pairwise

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from kernels import plain

import colonnade as cn
from colonnade.hardware.placement import short
from colonnade.run.batch.split import Arguments
from colonnade.run.pipeline import layer_costs
from colonnade.run.trace import subgraph

# Sums over micro-batches are taken in another order than over the batch: some units in the last place of
# float32, relative to the largest value.
TOLERANCE = 2e-5


DENSE = keras.layers.Dense


def given(shape, scale=0.4, seed=0):
    return np.random.default_rng(seed).normal(size=shape, scale=scale).astype("float32")


def with_weights(model):
    """Always the same weights, however Keras would have drawn them."""
    for i, variable in enumerate(model.trainable_variables):
        variable.assign(given(variable.shape, seed=i))
    return model


def mlp(layers=4):
    sizes = [keras.layers.Dense(8, "tanh") for _ in range(layers - 1)]
    return with_weights(keras.Sequential([keras.Input([6]), *sizes, keras.layers.Dense(3)]))


X, Y = given([99, 6], 1.0), np.random.default_rng(1).integers(0, 3, 99)


def classify(model):
    def loss(x, y):
        logits = model(x, training=True)
        losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(y, logits)}

    return loss


def train(build, batch, steps=2, loss=classify, optimizer=None, **pipeline):
    """Losses and variables after some steps on one device, or in a pipeline if there is one."""
    model = build()
    piped = cn.Pipeline(model, **pipeline) if pipeline else None
    optimizer = optimizer() if optimizer else keras.optimizers.SGD(0.1, momentum=0.9)
    trainer = cn.Trainer(loss(piped or model), optimizer, devices=piped or 1)
    records = [trainer.train_on_batch(*batch) for _ in range(steps)]
    return records, [v.numpy() for v in trainer.parameters], trainer


def assert_equal(found, wanted, tolerance=TOLERANCE):
    records, variables, _ = found
    expected, originals, _ = wanted
    for a, b in zip(records, expected, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=tolerance)
        assert a.metrics == pytest.approx(b.metrics, rel=tolerance)
    assert len(variables) == len(originals)
    for a, b in zip(variables, originals, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1.0, np.abs(b).max()))


@pytest.fixture(scope="module")
def mlp_alone():
    return train(mlp, (X, Y), optimizer=lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.5))


@pytest.mark.parametrize(
    "pipeline",
    [
        {"devices": 4, "micro_batches": 8, "schedule": "1f1b"},
        {"devices": [[0, 1], [2, 3]], "micro_batches": 4, "placement": [0, 1, 1, 1]},
        *long(
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


def lstm():
    inputs = keras.Input([5, 4])
    x = inputs
    for _ in range(3):
        x = keras.layers.LSTM(6, return_sequences=True)(x)
    return with_weights(keras.Model(inputs, keras.layers.Dense(3)(x[:, -1])))


def skips():
    """A value of the first layer is used by the last but one, past a stage that does not know it."""
    inputs = keras.Input([6])
    first = keras.layers.Dense(8, "tanh")(inputs)
    second = keras.layers.Dense(8, "tanh")(first)
    third = keras.layers.Dense(8, "tanh")(second)
    shortcut = keras.layers.Dense(8)(first)
    joined = keras.layers.Concatenate()([third * 2.0 + shortcut, inputs])
    return with_weights(keras.Model(inputs, keras.layers.Dense(3)(joined)))


def conv():
    layers = keras.layers
    return with_weights(
        keras.Sequential(
            [
                keras.Input([6, 1]),
                layers.Conv1D(4, 3, activation="tanh"),
                layers.MaxPooling1D(),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )
    )


@pytest.mark.parametrize(
    ("build", "x", "cut", "micro_batches"),
    [
        (conv, given([9, 6, 1], 1.0), [0, 1, 1, 2], 4),
        (skips, given([9, 6], 1.0), [0, 1, 2, 2, 2, 3, 3, 3], 4),
        *long(
            (lstm, given([9, 5, 4], 1.0), [0, 1, 2, 2, 2], 2),
            (lstm, given([9, 5, 4], 1.0), [0, 1, 2, 2, 2], 4),
        ),
    ],
    ids=["conv", "skips", "lstm", "lstm in four"],
)
def test_models_of_other_layers(build, x, cut, micro_batches):
    found = train(build, (x, Y[:9]), devices=max(cut) + 1, micro_batches=micro_batches, placement=cut)
    assert_equal(found, train(build, (x, Y[:9])))


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


def test_the_timeline_of_the_last_step():
    """F2, as far as it can be told without a clock: every task once, in the order of the schedule."""
    model = mlp()
    pipeline = cn.Pipeline(model, [[0, 1], [2, 3]], micro_batches=3, placement=[0, 0, 1, 1])
    with pytest.raises(cn.InvalidArgument, match="no step has been trained yet"):
        pipeline.timeline()
    trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline)
    trainer.fit((X, Y), batch_size=33, steps=3, progress=False)
    timeline = pipeline.timeline()
    tasks = [(e.replica, e.stage, e.micro_batch, e.kind) for e in timeline.events]
    assert len(set(tasks)) == len(tasks) == 2 * 2 * 3 * 2
    for row, devices in enumerate((("CPU:0", "CPU:1"), ("CPU:2", "CPU:3"))):
        for stage, device in enumerate(devices):
            mine = [e for e in timeline.events if e.device == device]
            assert {(e.replica, e.stage) for e in mine} == {(row, stage)}
            # One task at a time on a device, and no more micro-batches alive than the schedule says.
            assert all(a.end <= b.start for a, b in pairwise(mine))
            alive = list(accumulate(1 if e.kind == "forward" else -1 for e in mine))
            assert max(alive) == 2 - stage
    ends = {(e.replica, e.stage, e.micro_batch, e.kind): e.end for e in timeline.events}
    for e in timeline.events:
        before = (e.replica, e.stage - 1, e.micro_batch, "forward")
        if e.kind == "forward" and e.stage:
            assert ends[before] <= e.start


def test_on_cards_a_float_is_the_witness_of_the_end():
    """A number of type int32 lies in the memory of the host, and would be there before the card is done."""
    with tf.Graph().as_default() as graph:
        found = [tf.constant([1]), tf.constant([2.0]) * 3.0]
        subgraph._ended(found, on_card=True)
        subgraph._started((tf.constant(1.0),), on_card=True)
    (cut,) = [op for op in graph.get_operations() if op.type == "StridedSlice"]
    assert cut.inputs[0].dtype == tf.float32
    stamps = [op for op in graph.get_operations() if op.type == "Timestamp"]
    assert [short(op.device) for op in stamps] == ["CPU:0", "CPU:0"]
    assert cut.device == ""


@pytest.mark.long
def test_stages_that_wait_wait_together():
    """F2 of a real run: forward takes 2 + 4 - 1 naps where stages overlap, and 2 x 4 where they do not."""

    def nap(x):
        time.sleep(0.05)
        return x

    def stage(weight):
        return lambda x: weight * x + tf.stop_gradient(tf.numpy_function(nap, [x], tf.float32, stateful=True))

    pipeline = cn.Pipeline([stage(tf.Variable(1.0)), stage(tf.Variable(1.0))], 2, micro_batches=4)
    trainer = cn.Trainer(
        lambda x: tf.ensure_shape(pipeline(x), [1]), keras.optimizers.SGD(0.0), devices=pipeline
    )
    for _ in range(2):  # the first step is the slower one
        trainer.train_on_batch(tf.ones([4]))
    assert pipeline.timeline().slots < 7


def test_gpipe_keeps_all_micro_batches_alive():
    pipeline = cn.Pipeline(mlp(2), 2, micro_batches=5, schedule="gpipe")
    cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(X, Y)
    for device in ("CPU:0", "CPU:1"):
        mine = [e for e in pipeline.timeline().events if e.device == device]
        assert max(accumulate(1 if e.kind == "forward" else -1 for e in mine)) == 5


def test_it_says_who_holds_what():
    pipeline = cn.Pipeline([tf.identity, tf.tanh, tf.exp], [[0, 1], [2, 3]], placement=[0, 1, 1])
    assert str(pipeline) == "CPU:0, CPU:2  identity\nCPU:1, CPU:3  tanh, exp"


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


def test_called_by_itself_it_is_the_model_with_its_gradient():
    for build, x in ((mlp, X), (skips, X[:7])):
        model = build()
        pipeline = cn.Pipeline(model, 2, micro_batches=3, placement=[0] + [1] * (len(cut_of(model)) - 1))

        def both(call, x=x, model=model):
            with tf.GradientTape() as tape:
                value = tf.constant(x)
                tape.watch(value)
                y = call(value)
                end = tf.reduce_sum(y**2)
            return [y, *tape.gradient(end, [value, *[v.value for v in model.trainable_variables]])]

        for a, b in zip(both(pipeline), both(model), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE * max(1.0, np.abs(b).max()))

        @tf.function(input_signature=[tf.TensorSpec([None, 6])])
        def inside(x, pipeline=pipeline):
            return pipeline(x)

        np.testing.assert_allclose(inside(x), model(x), rtol=0, atol=1e-5)


def test_an_output_without_a_batch_dim_cannot_be_put_together():
    for fn in (tf.reduce_sum, lambda x: tf.reduce_sum(x, axis=0)):
        with pytest.raises(cn.InvalidArgument, match="has no batch dim"):
            cn.Pipeline([tf.identity, fn], 2, micro_batches=2)(X)


def cut_of(model):
    return cn.Pipeline(model, 1).layers


def test_auto_balances_what_was_measured():
    wide = [keras.layers.Dense(n) for n in (4, 512, 512, 4)]
    model = keras.Sequential([keras.Input([512]), *wide])
    pipeline = cn.Pipeline(model, 2, micro_batches=2)
    assert pipeline.placement is None
    assert pipeline(tf.ones([64, 512])).shape == (64, 4)
    assert pipeline.placement in ((0, 0, 1, 1), (0, 0, 0, 1))


def test_backward_is_measured_too_inside_a_trace(monkeypatch):
    """Where a function is being traced, no tape records unless it is in another thread."""
    model = mlp(3)
    pipeline = cn.Pipeline(model, 2, micro_batches=2)
    seen = []

    class Work(layer_costs._Work):
        def __init__(self, *args):
            super().__init__(*args)
            seen.append([variable.shape for variable in self.parameters])

    monkeypatch.setattr(layer_costs, "_Work", Work)
    cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(X, Y)
    assert seen == [[v.shape for v in layer.trainable_variables] for layer in model.layers]


def test_measuring_changes_nothing():
    norm, drop = keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.Input([6]), norm, drop, keras.layers.Dense(3)])
    before = [v.numpy() for v in model.variables] + [drop.seed_generator.state.numpy()]
    pipeline = cn.Pipeline(model, 2, micro_batches=2)
    pipeline(X, training=False)
    assert pipeline.placement is not None
    after = [v.numpy() for v in model.variables] + [drop.seed_generator.state.numpy()]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cn.Pipeline([]), "stages=[]: holds no stage"),
        (lambda: cn.Pipeline(3), "must be a list of functions or layers"),
        (lambda: cn.Pipeline([tf.identity, 3]), "stages[1]=3: is neither a function nor a layer"),
        (lambda: cn.Pipeline([tf.identity], 2), "devices=2: is more than there are layers to deal out, 1"),
        (lambda: cn.Pipeline([tf.identity], 9), "TensorFlow has 8 devices here"),
        (lambda: cn.Pipeline([tf.identity] * 3, [[0, 1], [2]]), "must be rows of the same length"),
        (lambda: cn.Pipeline([tf.identity] * 3, [[0, 1], [1, 2]]), "names a device twice"),
        (lambda: cn.Pipeline([tf.identity], 1, schedule="2f2b"), "must be one of sequential, gpipe, 1f1b"),
        (lambda: cn.Pipeline([tf.identity], 1, micro_batches=0), "must be a whole number from 1 up"),
        (lambda: cn.Pipeline([tf.identity] * 2, 2, placement=[1, 0]), "must name the stages 0 to 1 in order"),
        (lambda: cn.Pipeline([tf.identity] * 2, 2, placement=[0]), "must have 2 entries, one per layer"),
        (lambda: cn.Pipeline([tf.identity] * 2, 2, placement="even"), "must be auto, or a list"),
        (lambda: cn.Pipeline([tf.identity], 1, tied=3), "must be a list of variables or layers"),
        (lambda: cn.Pipeline([keras.layers.Masking()], 1), "makes a mask"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


def test_all_bad_settings_in_one_error():
    with pytest.raises(cn.InvalidArgument) as caught:
        cn.Pipeline([tf.identity], 2, micro_batches=-1, schedule="", placement=[0, 0])
    assert len(caught.value.problems) == 4


def test_an_output_that_does_not_fit_the_next_input():
    first, second = DENSE(4), DENSE(3)
    second.build([None, 5])
    pipeline = cn.Pipeline([first, second], 2)
    with pytest.raises(
        cn.InvalidArgument, match=r"stages\[1\]='dense.*cannot take what stages\[0\] returns, float32\(5, 4\)"
    ):
        cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline).train_on_batch(
            X[:40], Y[:40]
        )
    with pytest.raises(cn.InvalidArgument, match=r"cannot take what stages\[0\] returns"):
        pipeline(X)


@pytest.mark.parametrize("placement", ["auto", [0, 0, 1]])
def test_the_layer_that_does_not_fit_is_named_whatever_the_placement(placement):
    wrong = DENSE(3, name="wrong")
    wrong.build([None, 5])
    pipeline = cn.Pipeline([DENSE(4), wrong, DENSE(2)], 2, micro_batches=2, placement=placement)
    trainer = cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.1), devices=pipeline)
    for run in (lambda: pipeline(X[:4]), lambda: trainer.train_on_batch(X[:4], Y[:4])):
        with pytest.raises(cn.InvalidArgument) as caught:
            run()
        assert "stages[1]='wrong': cannot take what stages[0] returns, float32(2, 4)" in str(caught.value)
        assert "Traceback" not in str(caught.value)


def test_a_sparse_batch_with_auto():
    kernel = tf.Variable(given([5, 4]))
    stages = [lambda s: tf.sparse.sparse_dense_matmul(s, kernel), DENSE(3), DENSE(2)]
    pipeline = cn.Pipeline(stages, 2, micro_batches=2)
    entries = [[0, 2], [1, 4], [3, 0], [3, 1]]
    for count in (3, 4):  # also where a batch has another number of entries than the first
        batch = tf.SparseTensor(entries[:count], [1.0, 2.0, 3.0, 4.0][:count], [4, 5])
        wanted = stages[2](stages[1](tf.sparse.to_dense(batch) @ kernel))
        np.testing.assert_allclose(pipeline(batch), wanted, rtol=TOLERANCE, atol=TOLERANCE)


class Block(keras.layers.Layer):
    """Layers inside whose call() has no argument `training`: Keras tells them all the same."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)

    def call(self, x):
        return self.drop(self.norm(x))


def test_layers_inside_a_layer_know_that_they_train():
    block = Block()
    pipeline = cn.Pipeline([block, DENSE(3)], 2, micro_batches=1)
    assert np.allclose(pipeline(X), pipeline(X))
    assert not np.allclose(pipeline(X, training=True), pipeline(X, training=True))
    before = block.norm.moving_mean.numpy()
    cn.Trainer(classify(pipeline), keras.optimizers.SGD(0.0), devices=pipeline).train_on_batch(X, Y)
    np.testing.assert_allclose(block.norm.moving_mean, (before + X.mean(axis=0)) / 2, rtol=1e-4, atol=1e-5)


def test_inputs_of_a_functional_model_are_found_by_name_and_cast():
    first, second = keras.Input([2], name="b"), keras.Input([2], name="a")
    model = keras.Model([first, second], DENSE(1)(keras.layers.Subtract()([first, second])))
    pipeline = cn.Pipeline(model, 2, micro_batches=1)
    a, b = np.ones([3, 2], "int32"), np.full([3, 2], 5, "uint8")
    wanted = model({"a": a, "b": b})
    for inputs in ({"a": a, "b": b}, {"b": b, "a": a}, [b, a]):
        np.testing.assert_allclose(pipeline(inputs), wanted, rtol=TOLERANCE)
    with pytest.raises(cn.InvalidArgument, match=r"called b, a\. Pass a"):
        pipeline({"b": b})


@pytest.mark.long
def test_a_mask_that_leaves_a_nested_model_is_refused():
    masked = keras.layers.Embedding(5, 4, mask_zero=True)
    inner = keras.Sequential([masked, keras.layers.LSTM(4, return_sequences=True)], name="inner")
    tokens = np.array([[1, 2, 0, 0], [3, 0, 0, 0]])
    outer = keras.Sequential([keras.Input([4]), inner, keras.layers.LSTM(2), DENSE(1)])
    symbol = keras.Input([4])
    functional = keras.Model(symbol, DENSE(1)(keras.layers.LSTM(2)(inner(symbol))))
    for model in (outer, functional):
        for placement in ("auto", [0, 1, 1]):
            with pytest.raises(cn.InvalidArgument, match="stages='inner': makes a mask"):
                cn.Pipeline(model, 2, micro_batches=1, placement=placement)(tokens)
        inside = cn.Pipeline(model, 2, micro_batches=1, placement=[0, 0, 1])
        np.testing.assert_allclose(inside(tokens), model(tokens), rtol=TOLERANCE, atol=TOLERANCE)


def nested():
    inside = keras.Input([6])
    inner = keras.Model(inside, DENSE(4, "tanh")(inside) * 2.0, name="inner")
    inputs = keras.Input([6])
    return with_weights(keras.Model(inputs, DENSE(3)(DENSE(5)(inner(inputs)))))


def test_a_functional_model_in_a_functional_model():
    assert cn.Pipeline(nested(), 1).layers[0] == "inner"
    found = train(nested, (X, Y), devices=2, micro_batches=2, placement=[0, 1, 1])
    assert_equal(found, train(nested, (X, Y)))


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


def twice():
    inputs = keras.Input([6])
    layer = DENSE(6, name="twice")
    return with_weights(keras.Model(inputs, DENSE(3)(layer(layer(inputs)))))


def test_a_layer_that_is_called_twice_has_two_places():
    together = train(twice, (X, Y), devices=2, micro_batches=2, placement=[0, 0, 1])
    assert_equal(together, train(twice, (X, Y)))
    with pytest.raises(cn.InvalidArgument, match=r"kernel.*is used by stages 0, 1, and is not declared"):
        train(twice, (X, Y), devices=2, micro_batches=2, placement=[0, 1, 1])


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
