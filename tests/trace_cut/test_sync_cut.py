"""Batch normalisation on several devices, local and synchronised, against one device on the same seeds."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept, long
from norms import (
    CLOSE,
    FAR,
    assert_same,
    batches,
    built,
    convolutional,
    difference,
    loss_of,
    norm,
    stacked,
    trained,
    twice,
    values,
)

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.trace import replica_context
from colonnade.run.trace_cut import sync_cut

# Measuring coverage doubles the time of a trace; the same lines are run by other tests.
MODES = ("shared", "mirrored", "partitioned")


@pytest.fixture(scope="module")
def one_device():
    """What one device and plain batch normalisation give, by layers and rows."""
    kept = {}

    def expected(layers, rows):
        if (layers, rows) not in kept:
            kept[layers, rows] = trained(layers, 1, synchronized=False, rows=rows)
        return kept[layers, rows]

    return expected


# 13 rows give slices of two sizes, and so two traces.
@pytest.mark.parametrize("rows", [13])
@pytest.mark.parametrize("variables", kept(MODES, "shared", "mirrored"))
@pytest.mark.parametrize("devices", [3, *long(1, 2, 4)])
def test_synchronised_equals_one_device(devices, variables, rows, one_device):
    found = trained(stacked, devices, variables=variables, rows=rows)
    assert_same(found, one_device(stacked, rows))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("layers", "devices", "variables"),
    kept(
        [
            (layers, *home)
            for layers in (convolutional, twice)
            for home in ((3, "shared"), (2, "mirrored"), (4, "partitioned"))
        ],
        (convolutional, 2, "mirrored"),
        (twice, 3, "shared"),
    ),
)
def test_other_models_equal_one_device(layers, devices, variables, one_device):
    assert_same(trained(layers, devices, variables=variables, rows=13), one_device(layers, 13))


@pytest.mark.long
def test_fewer_rows_than_devices():
    """Small steps, because statistics of three rows make a loss that magnifies every rounding."""
    one = trained(stacked, 1, synchronized=False, rows=3, optimizer=keras.optimizers.SGD(0.01))
    assert_same(trained(stacked, 4, rows=3, optimizer=keras.optimizers.SGD(0.01)), one)


@pytest.mark.long
def test_gradients_equal_those_of_one_device():
    """With SGD and a rate of 1 a step moves every parameter by its gradient."""
    moved = []
    for devices, synchronized in ((1, False), (3, True)):
        model = built(stacked, synchronized)
        before = [v.numpy() for v in model.trainable_variables]
        trainer = cn.Trainer(loss_of(model), keras.optimizers.SGD(1.0), devices=devices)
        trainer.train_on_batch(*next(batches(13)))
        moved.append([a - v.numpy() for a, v in zip(before, model.trainable_variables, strict=True)])
    assert max(np.abs(g).max() for g in moved[0]) > 0.1
    for found, expected in zip(moved[1], moved[0], strict=True):
        np.testing.assert_allclose(found, expected, **CLOSE)


def test_without_its_backward_part_it_is_something_else(monkeypatch, one_device):
    """The sums stay, and gradients pass them unsummed."""

    def forward_only(self, value):
        @tf.custom_gradient
        def marked(tensor):
            mark = tf.identity(tensor, name=replica_context.MARK)
            self._marks.append(mark)
            return mark, lambda gradient: gradient

        return marked(value)

    monkeypatch.setattr(replica_context.TracingContext, "_marked", forward_only)
    found = trained(stacked, 2)
    # The first loss is a forward pass, and right; then the parameters go astray.
    np.testing.assert_allclose(found[0][0], one_device(stacked, 12)[0][0], **CLOSE)
    assert difference(found, one_device(stacked, 12)) > FAR


def test_adam_clipping_and_a_penalty():
    def run(devices, synchronized):
        optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
        return trained(convolutional, devices, synchronized=synchronized, rows=13, optimizer=optimizer)

    assert_same(run(3, True), run(1, False))


@pytest.mark.long
def test_steps_inside_the_graph_and_a_short_last_batch():
    found = []
    for devices, synchronized in ((1, False), (3, True)):
        model = built(stacked, synchronized)
        trainer = cn.Trainer(loss_of(model), keras.optimizers.SGD(0.05), devices=devices)
        x, y = next(batches(31))
        history = trainer.fit((x, y), epochs=3, batch_size=12, log_every=4, progress=False)
        found.append((history.losses, values(model)))
    assert len(found[0][0]) == 9
    assert_same(found[1], found[0])


@pytest.mark.long
def test_weighted_losses():
    found = []
    for devices, synchronized in ((1, False), (2, True)):
        model = built(stacked, synchronized)

        def loss(x, y, model=model):
            return cn.Weighted(tf.squeeze((model(x, training=True) - y) ** 2, axis=1), tf.abs(x[:, 0]))

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=devices)
        losses = [trainer.train_on_batch(x, y).loss for x, y in batches(13)]
        found.append((losses, values(model)))
    assert_same(found[1], found[0])


def test_evaluation_with_batch_statistics_is_synchronised_too():
    """A loss function that always trains uses the statistics of the batch in `evaluate` as well."""
    x, y = next(batches(13))
    found = []
    for devices, synchronized in ((1, False), (4, True)):
        model = built(stacked, synchronized)
        trainer = cn.Trainer(loss_of(model), keras.optimizers.SGD(0.05), devices=devices)
        before = values(model)
        found.append(trainer.evaluate((x, y), batch_size=13).loss)
        for name, value in values(model).items():
            np.testing.assert_array_equal(value, before[name])
    np.testing.assert_allclose(found[1], found[0], **CLOSE)


@pytest.mark.long
def test_keras_fit():
    found = []
    for devices, synchronized in ((1, False), (3, True)):
        model = built(stacked, synchronized)
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
        x, y = next(batches(31))
        history = cn.fit(model, x, y, devices=devices, batch_size=12, epochs=3, shuffle=False, verbose=0)
        found.append((history.history["loss"] + history.history["mae"], values(model)))
    assert_same(found[1], found[0])


@pytest.mark.long
def test_half_precision_policy():
    """Statistics are summed in float32; what lies around them is rounded to 8 bits."""
    found = []
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for devices, synchronized in ((1, False), (2, True)):
            found.append(trained(stacked, devices, synchronized=synchronized))
    finally:
        keras.config.set_dtype_policy("float32")
    assert difference(found[1], found[0]) < 0.05


@pytest.mark.long
def test_layers_that_are_called_again_for_the_gradient():
    """`tf.recompute_grad` calls the layer in the backward pass, and that must be synchronised as well."""
    found = []
    for devices, synchronized in ((1, False), (3, True)):
        keras.utils.set_random_seed(7)
        dense, layer, last = keras.layers.Dense(3), norm(synchronized=synchronized), keras.layers.Dense(1)
        for built_now, width in ((dense, 4), (layer, 3), (last, 3)):
            built_now.build([None, width])
        again = tf.recompute_grad(lambda x, dense=dense, layer=layer: layer(dense(x), training=True))

        def loss(x, y, again=again, last=last):
            return tf.squeeze((last(again(x)) - y) ** 2, axis=1)

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=devices)
        losses = [trainer.train_on_batch(x, y).loss for x, y in batches(13)]
        found.append((losses, {v.path: v.numpy() for v in (*dense.variables, *layer.variables)}))
    assert_same(found[1], found[0])


@pytest.mark.long
def test_between_embedding_loop_and_prints(capfd):
    """Sparse gradients, a loop whose tensors are needed by its gradient, a trace for each replica."""
    found = []
    for devices, synchronized in ((1, False), (3, True)):
        keras.utils.set_random_seed(7)
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input([6], dtype="int32"),
                layers.Embedding(11, 4),
                norm(synchronized=synchronized),
                layers.LSTM(3),
                norm(synchronized=synchronized),
                layers.Dense(1),
            ]
        )

        def loss(x, y, model=model):
            tf.print("rows", tf.shape(x)[0])
            return tf.squeeze((model(x, training=True) - y) ** 2, axis=1)

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.05), devices=devices)
        rng = np.random.default_rng(0)
        losses = []
        for _ in range(3):
            x, y = rng.integers(0, 11, [13, 6]), rng.normal(size=[13, 1]).astype("float32")
            losses.append(trainer.train_on_batch(x, y).loss)
        found.append((losses, values(model)))
    assert_same(found[1], found[0])
    assert capfd.readouterr().err.count("[CPU:2] rows 4") == 3


def test_a_model_that_is_built_by_the_first_call():
    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.layers.Dense(3), norm(), keras.layers.Dense(1)])
    trainer = cn.Trainer(loss_of(model), keras.optimizers.SGD(0.05), devices=2)
    losses = [trainer.train_on_batch(x, y).loss for x, y in batches(12)]
    assert np.isfinite(losses).all()
    assert len(model.trainable_variables) == 6


@pytest.mark.parametrize("variables", kept(MODES, "mirrored"))
def test_a_nan_stops_before_anything_is_applied(variables):
    model = built(stacked, True)
    trainer = cn.Trainer(loss_of(model), keras.optimizers.SGD(0.05), devices=3, variables=variables)
    x, y = next(batches(12))
    trainer.train_on_batch(x, y)
    before = values(model)
    bad = x.copy()
    bad[-1] = np.nan
    with pytest.raises(cn.NotFinite, match="step 2"):
        trainer.train_on_batch(bad, y)
    for name, value in values(model).items():
        np.testing.assert_array_equal(value, before[name])
    assert np.isfinite(trainer.train_on_batch(x, y).loss)


@pytest.mark.parametrize("synchronized", [True, *long(False)])
@pytest.mark.long
def test_a_skipped_step_leaves_no_trace_in_the_moving_averages(synchronized):
    """Also inside the graph, where the replicas' own copies go on to the next step."""
    good = list(batches(12, steps=3))
    bad = (np.full([12, 4], np.nan, "float32"), good[0][1])
    found = []
    for data in (good, [good[0], bad, *good[1:]]):
        model = built(stacked, synchronized)
        trainer = cn.Trainer(loss_of(model), keras.optimizers.SGD(0.05), devices=2, on_nan="skip")
        parts = tuple(np.stack(part) for part in zip(*data, strict=True))
        dataset = tf.data.Dataset.from_tensor_slices(parts)
        trainer.fit(dataset, log_every=10, progress=False)
        found.append(([], values(model)))
    assert difference(found[1], found[0]) == 0.0


@pytest.mark.long
def test_two_clones_learn_a_binary_problem():
    """16 examples of 4 numbers; loss below a fifth; the moving averages are the data's."""
    rng = np.random.default_rng(0)
    y = np.arange(16) % 2
    x = (rng.normal(size=[16, 4]) + 2.0 * y[:, None] + [1.0, 2.0, 3.0, 4.0]).astype("float32")
    for synchronized in (True, False):
        keras.utils.set_random_seed(3)
        layer = keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.1)
        model = keras.Sequential([keras.Input([4]), layer, keras.layers.Dense(1)])

        def loss(x, y, model=model):
            logits = tf.squeeze(model(x, training=True), axis=1)
            return tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, tf.float32), logits)

        trainer = cn.Trainer(loss, keras.optimizers.SGD(1.0), devices=2)
        losses = [trainer.train_on_batch(x, y).loss for _ in range(10)]
        assert losses[-1] < losses[0] / 5
        # Ten steps with a momentum of 0.1 leave 1e-10 of the initial values.
        np.testing.assert_allclose(layer.moving_mean.numpy(), x.mean(axis=0), rtol=1e-5)
        variance = (
            x.var(axis=0) if synchronized else np.stack([x[:8].var(axis=0), x[8:].var(axis=0)]).mean(axis=0)
        )
        np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-4)


def clones(synchronized):
    """The square of the first example's normalised value, the mean, the variance."""
    layer = keras.layers.BatchNormalization(synchronized=synchronized, momentum=0.0, epsilon=0.0)
    w = tf.Variable(1.0)

    def loss(x, chosen):
        normalised = layer(x, training=True)[:, 0]
        return w * normalised, {"chosen": normalised**2 * chosen}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=2)
    x = np.array([[0.0], [2.0], [10.0], [16.0]], "float32")
    record = trainer.train_on_batch(x, np.array([4.0, 0.0, 0.0, 0.0], "float32"))
    return record.metrics["chosen"], layer.moving_mean.numpy()[0], layer.moving_variance.numpy()[0]


def test_clones_with_different_data_local():
    """Each replica normalises with its own slice; moving averages are the mean over the replicas."""
    square, mean, variance = clones(False)
    np.testing.assert_allclose(square, 1.0, rtol=1e-5)  # 0 in (0, 2): one deviation below the mean
    np.testing.assert_allclose([mean, variance], [(1 + 13) / 2, (1 + 9) / 2], rtol=1e-5)


def test_clones_with_different_data_synchronised():
    """All replicas normalise with the statistics of the global batch (0, 2, 10, 16)."""
    square, mean, variance = clones(True)
    np.testing.assert_allclose([mean, variance], [7.0, 41.0], rtol=1e-5)
    np.testing.assert_allclose(square, 49 / 41, rtol=1e-5)


@pytest.mark.long
def test_several_runs_are_equal_bit_for_bit():
    first, second = trained(stacked, 4, rows=13), trained(stacked, 4, rows=13)
    assert first[0] == second[0]
    assert difference(first, second) == 0.0


@pytest.mark.long
def test_a_trace_without_synchronisation_is_not_cut(monkeypatch, one_device):
    """So local statistics are something else; on a single device there is nothing to synchronise."""
    cuts = []
    cut = sync_cut._Cut
    monkeypatch.setattr(sync_cut, "_Cut", lambda traced: cuts.append(traced) or cut(traced))
    local = trained(stacked, 2, synchronized=False)
    alone = trained(stacked, 1, synchronized=True)
    assert cuts == []
    assert_same(alone, one_device(stacked, 12))
    assert difference(local, one_device(stacked, 12)) > FAR
    trained(stacked, 2, synchronized=True)
    assert len(cuts) == 1  # the trace that serves both slices of six rows


@pytest.mark.long
def test_replicas_run_on_their_devices():
    engine = cn.Trainer(loss_of(built(convolutional, True)), keras.optimizers.SGD(0.05), devices=2)._engine
    batch = Arguments(tuple(tf.constant(part) for part in next(batches(12))), {})
    engine.prepare(batch)
    report = cn.placement(lambda *parts: engine.step(batch.with_components(parts)).loss, *batch.components())
    for kind in ("Conv2D", "Conv2DBackpropFilter"):
        where = sorted(row.actual[-5:] for row in report.ops if row.op.endswith(kind))
        assert where == ["CPU:0", "CPU:1"]
