"""What a loss function may return, and what a slice of the batch adds to the step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import kept

import colonnade as cn
from colonnade.run.batch.split import Arguments
from colonnade.run.step.objective import FIGURES, Objective, Weighted, stacked, total_of, vital

X = np.ones((6, 3), "float32")
SYNCS = {"sync": cn.Synchronous(), "async": cn.Asynchronous(), "local": cn.LocalSGD(2)}
LOSSES = np.array([1.0, 5.0, 2.0, 4.0, 8.0])
WEIGHTS = np.array([1.0, 0.0, 2.0, 0.5, 1.5])


def shares(make, counts):
    """What consecutive slices of the losses add, each as a loss function returns them."""
    ends = np.cumsum(counts)
    parts = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return [total_of(make(part), tf.constant(0.2, tf.float64), part.stop - part.start) for part in parts]


@pytest.mark.parametrize("counts", [(5,), (3, 2), (1, 4)])
def test_losses_and_means_of_slices_add_up_to_the_mean_of_the_batch(counts):
    for make in (lambda p: tf.constant(LOSSES[p]), lambda p: tf.reduce_mean(LOSSES[p])):
        assert sum(float(share.loss) for share in shares(make, counts)) == pytest.approx(4.0, rel=1e-12)
    both = shares(lambda p: (tf.constant(LOSSES[p]), {"m": tf.constant(LOSSES[p] ** 2)}), counts)
    total = sum(float(share.metrics["m"]) for share in both)
    assert total == pytest.approx(np.mean(LOSSES**2), rel=1e-12)
    assert all(share.weight is None for share in both)


@pytest.mark.parametrize("counts", [(5,), (3, 2), (1, 4)])
def test_weighted_losses_are_divided_by_the_weight_of_all(counts):
    def make(p):
        return Weighted(tf.constant(LOSSES[p]), tf.constant(WEIGHTS[p])), {"m": tf.constant(LOSSES[p] ** 2)}

    found = shares(make, counts)
    weight = sum(float(share.weight) for share in found)
    assert sum(float(s.loss) for s in found) / weight == pytest.approx(np.average(LOSSES, weights=WEIGHTS))
    metric = sum(float(s.metrics["m"]) for s in found) / weight
    assert metric == pytest.approx(np.average(LOSSES**2, weights=WEIGHTS))


def test_halves_and_whole_numbers_are_added_up_as_floats():
    losses = tf.fill([5], tf.constant(60000.0, tf.float16))
    assert float(total_of(losses, tf.constant(0.2), 5).loss) == pytest.approx(60000.0)
    assert float(total_of(tf.constant([1, 2]), tf.constant(0.5), 2).loss) == 1.5


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "must be losses, or"),
        ((tf.ones(2), {3: tf.ones(2)}), "must be losses, or"),
        (tf.ones([2, 3]), "one value for each of the 2 examples"),
        (tf.ones(3), "one value for each of the 2 examples"),
        ((tf.ones(2), {FIGURES[0]: tf.ones(2)}), "Call it something else"),
        (Weighted(tf.ones(2), tf.ones(3)), "must have the shape of the losses"),
    ],
)
def test_what_is_no_loss_is_refused(result, says):
    with pytest.raises(cn.InvalidArgument, match=says):
        total_of(result, tf.constant(0.5), 2)


FILTERED = {
    "loss": lambda each, some: tf.boolean_mask(each, some),
    "metric": lambda each, some: (each, {"some": tf.boolean_mask(each, some)}),
    "weights": lambda each, some: Weighted(tf.boolean_mask(each, some), tf.boolean_mask(tf.ones([3]), ~some)),
}


@pytest.mark.parametrize(("sync", "what"), [("sync", "loss"), ("async", "metric"), ("local", "weights")])
def test_other_than_one_value_for_each_example_is_refused_where_only_a_step_tells(sync, what):
    w = tf.Variable([1.0, 2.0])

    def loss(x):
        return FILTERED[what](tf.linalg.matvec(x, w), x[:, 0] > 0)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2, sync=SYNCS[sync])
    x = np.ones([6, 2], "float32")
    x[1::3, 0] = -1  # so two of the three in each slice are left
    for call in (trainer.train_on_batch, lambda x: trainer.evaluate((x,), batch_size=6)):
        with pytest.raises(cn.InvalidArgument, match="one value for each example"):
            call(x)


def test_what_leaves_no_example_out_may_hide_its_shape():
    w = tf.Variable([1.0, 2.0])
    x = np.arange(12, dtype="float32").reshape(6, 2)
    trainer = cn.Trainer(
        lambda x: tf.boolean_mask(tf.linalg.matvec(x, w), x[:, 0] >= 0), keras.optimizers.SGD(0.1), devices=2
    )
    assert trainer.train_on_batch(x).loss == pytest.approx((x @ [1.0, 2.0]).mean())


def test_a_gradient_is_finite_if_its_vital_number_is():
    bad = tf.constant([1.0, np.nan])
    assert np.isfinite(vital(tf.fill([9], tf.constant(60000.0, tf.float16))))
    assert np.isfinite(vital(tf.constant([1e300], tf.float64)))  # which is no float32
    assert not np.isfinite(vital(tf.constant([1e300, np.inf], tf.float64)))
    assert not np.isfinite(vital(bad))
    assert not np.isfinite(vital(tf.IndexedSlices(bad, tf.constant([0, 1]))))
    assert stacked([vital(None), vital(tf.ones(3))]).numpy().tolist() == [0.0, 3.0]
    assert stacked([]).shape == [0]


def test_loss_and_gradient_are_traced_together():
    w, fixed = tf.Variable([2.0, -1.0], dtype=tf.float64), tf.Variable(3.0, dtype=tf.float64)
    x = np.arange(6.0).reshape(3, 2)
    batch = Arguments((tf.constant(x),), {}, ["x"]).prefixed(tf.constant(1 / 3, tf.float64))
    objective = Objective(
        lambda x: tf.linalg.matvec(x, w) ** 2 * fixed,
        batch,
        lambda loss: 10.0 * loss,
        trainable=lambda watched: [v for v in watched if v is not fixed],
    )
    share = objective.pack(objective.on("/device:CPU:0", batch.components()))
    assert [p.ref() for p in objective.parameters] == [w.ref()]
    assert float(share.loss) == pytest.approx(3.0 * np.mean((x @ [2, -1]) ** 2))
    expected = 10.0 * 3.0 * 2.0 * (x @ [2, -1]) @ x / 3  # of the scaled loss
    np.testing.assert_allclose(share.gradients[0], expected, rtol=1e-12)
    assert share.health.shape == [1]


@pytest.mark.parametrize("devices", kept((1, 2), 2))
def test_a_shape_that_is_set_holds_in_a_loop_of_steps(devices):
    w = tf.Variable(np.ones((3, 1), "float32"))

    def loss(x):
        losses = tf.squeeze(x @ w, 1)
        each = tf.numpy_function(lambda v: v, [losses], tf.float32)
        each.set_shape([None])
        mean = tf.numpy_function(np.mean, [losses], tf.float32)
        mean.set_shape([])
        return losses, {"each": each, "mean": mean}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.0), devices=devices)
    data = tf.data.Dataset.from_tensors(X).repeat()
    record = trainer.fit(data, steps=4, progress=False).records[-1]
    assert record.metrics == {"each": 3.0, "mean": 3.0}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sync", kept(SYNCS, "sync", "async", "local"))
def test_a_gradient_that_only_slices_of_one_size_have(sync):
    """Three examples on two devices are slices of 2 and 1; both use both variables."""
    w, extra = tf.Variable(1.0, name="w"), tf.Variable(1.0, name="extra")

    def loss(x):
        return x[:, 0] * w * (extra if x.shape[0] == 2 else tf.stop_gradient(extra + 0.0))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.3), devices=2, sync=SYNCS[sync])
    trainer.train_on_batch(X[:3])
    if sync == "sync":
        assert [w.numpy(), extra.numpy()] == pytest.approx([0.7, 0.8])
    with pytest.raises(cn.NotFinite) as caught:
        trainer.train_on_batch(np.full((3, 1), np.inf, "float32"))
    assert caught.value.variable in ("w:0", "extra:0")


def test_gradients_are_made_from_the_last_layer_to_the_first_however_a_tape_lists_them():
    """It lists variables as they were made: here from the middle to both ends."""
    layers = [keras.layers.Dense(3, "tanh") for _ in range(12)]
    for i in (6, 7, 5, 8, 4, 9, 3, 10, 2, 11, 1, 0):
        layers[i].build([None, 3])
    model = keras.Sequential([keras.Input([3]), *layers])
    specs = Arguments((tf.TensorSpec([], tf.float64), tf.TensorSpec([6, 3])), {})
    objective = Objective(lambda x: tf.reduce_mean(model(x), axis=1), specs, lambda loss: loss)
    layer = {v.value.ref(): i for i, each in enumerate(model.layers) for v in each.trainable_variables}
    listed = [layer[parameter.ref()] for parameter in objective.parameters]
    first = sorted(range(len(listed)), key=objective.made.__getitem__)
    assert [listed[i] for i in first] == sorted(listed, reverse=True)
    assert listed[0] == 6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_gradient_of_no_rows_is_finite_and_one_bad_number_is_seen(dtype):
    none = tf.IndexedSlices(tf.zeros([0, 2], dtype), tf.zeros([0], tf.int32), tf.constant([4, 2]))
    assert np.isfinite(vital(none))
    assert np.isfinite(vital(tf.fill([9], tf.constant(60_000.0, dtype))))
    for bad in (np.nan, np.inf, -np.inf):
        assert not np.isfinite(vital(tf.constant([1.0, bad, 2.0, 3.0], dtype)))


@pytest.mark.parametrize("sync", kept(SYNCS, "sync", "local"))
def test_weights_that_are_trained_are_refused(sync):
    """The gradient of sum(losses * weights) / sum(weights) has a part from below the line."""
    w, gate = tf.Variable(1.0), tf.Variable(0.5, name="gate")

    def loss(x):
        return cn.Weighted(x[:, 0] * w, tf.sigmoid(gate * x[:, 0]))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=2, sync=SYNCS[sync])
    with pytest.raises(cn.InvalidArgument, match=r"weights.*depend on gate:0.*tf.stop_gradient"):
        trainer.train_on_batch(X)
    assert [float(w), float(gate)] == [1.0, 0.5]


@pytest.mark.parametrize("sync", kept({**SYNCS, "elastic": cn.Elastic(2, 0.1)}, "local", "elastic"))
def test_whole_numbers_are_not_trained_though_tensorflow_calls_them_trainable(sync):
    """An average of replicas made zeros of them."""
    w, order, count = tf.Variable(tf.ones([3])), tf.Variable([2, 0, 1]), tf.Variable(0)

    def loss(x):
        count.assign_add(1)
        return tf.reduce_sum(tf.gather(w, order) * x, axis=1)

    way = {**SYNCS, "elastic": cn.Elastic(2, 0.1)}[sync]
    trainer = cn.Trainer(loss, keras.optimizers.Adam(0.1), devices=2, sync=way)
    for _ in range(2):
        trainer.train_on_batch(X)
    assert order.numpy().tolist() == [2, 0, 1]
    assert int(count) == 2
    assert trainer.parameters == [w]
