"""What a function assigns to variables while it is called: trained ones, counters, moving averages.

References are plain loops on one device, in float64: a tape, a mean, `optimizer.apply`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long

import colonnade as cn

MODES = ["shared", "mirrored", "partitioned"]
RNG = np.random.default_rng(5)
X = RNG.normal(size=(39, 6))
Y = RNG.normal(size=(39, 2))
BATCHES = [(X[i : i + 13], Y[i : i + 13]) for i in (0, 13, 26)]


class Masked(keras.layers.Dense):
    """As the convolutions of a PixelCNN: some weights are put to zero before the layer is called."""

    def call(self, inputs):
        mask = np.triu(np.ones(self.kernel.shape))
        self.kernel.assign(self.kernel * mask)
        return super().call(inputs)


def assigning():
    """Layers that assign to what they train; `SpectralNormalization` keeps a vector beside it."""
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense(5, "elu", dtype="float64")
    layers = [keras.layers.SpectralNormalization(dense, dtype="float64"), Masked(2, dtype="float64")]
    return keras.Sequential([keras.Input([6], dtype="float64"), *layers])


def loss_of(model):
    return lambda x, y: tf.reduce_sum((model(x, training=True) - y) ** 2, axis=1)


def penalty_of(model):
    return lambda: 0.1 * tf.reduce_sum(model.trainable_variables[0].value ** 2)


def sgd():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def alone(make, batches=BATCHES, optimizer=sgd, penalty=None):
    """The plain loop on one device."""
    model, optimizer = make(), optimizer()
    loss = loss_of(model)
    for x, y in batches:
        with tf.GradientTape() as tape:
            value = tf.reduce_mean(loss(tf.constant(x), tf.constant(y)))
            if penalty:
                value += penalty(model)()
        trained = model.trainable_variables
        optimizer.apply(tape.gradient(value, [v.value for v in trained]), trained)
    return model


def together(make, batches=BATCHES, optimizer=sgd, penalty=None, **options):
    model = make()
    trainer = cn.Trainer(loss_of(model), optimizer(), penalty=penalty(model) if penalty else None, **options)
    trainer.fit(batches, progress=False)
    return model


def assert_same(found, expected, rtol=1e-9):
    for one, other in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=rtol, atol=1e-12, err_msg=one.path)


@pytest.fixture(scope="module")
def assigned():
    return alone(assigning, penalty=penalty_of)


@pytest.mark.parametrize("devices", [3, *long(1)])
@pytest.mark.parametrize("variables", ["mirrored", "partitioned", *long("shared")])
def test_what_is_trained_takes_the_assignment_and_then_the_update(variables, devices, assigned):
    found = together(assigning, penalty=penalty_of, variables=variables, devices=devices)
    assert_same(found, assigned)


@pytest.mark.parametrize("sync", [cn.Asynchronous(), cn.LocalSGD(2), *long(cn.Asynchronous(max_staleness=0))])
def test_one_device_is_the_plain_loop_in_other_modes_too(sync, assigned):
    assert_same(together(assigning, penalty=penalty_of, sync=sync, devices=1), assigned)


def plain():
    return keras.optimizers.SGD(0.05)


def test_local_replicas_assign_to_their_own():
    """An average after every step of SGD is one step of all, if all slices are of one size."""
    even = [(x[:12], y[:12]) for x, y in BATCHES]
    expected = alone(assigning, even, plain)
    assert_same(together(assigning, even, plain, sync=cn.LocalSGD(1), devices=3), expected)


@pytest.mark.parametrize("rows", [[[0, 1], [2, 3]], *long([[0, 1]])])
def test_a_pipeline_of_whole_batches_assigns_once(rows, assigned):
    model = assigning()
    pipeline = cn.Pipeline(model, rows, micro_batches=1, placement=[0, 1])
    loss = lambda x, y: tf.reduce_sum((pipeline(x, training=True) - y) ** 2, axis=1)  # noqa: E731
    trainer = cn.Trainer(loss, sgd(), devices=pipeline, penalty=penalty_of(model))
    for batch in BATCHES:
        trainer.train_on_batch(*batch)
    assert_same(model, assigned)


def test_keras_fit_is_that_of_keras():
    models = [assigning(), assigning()]
    for model, fit in zip(models, (keras.Model.fit, lambda *a, **k: cn.fit(*a, devices=3, **k)), strict=True):
        model.compile(sgd(), "mse")
        fit(model, X, Y, batch_size=13, epochs=2, shuffle=False, verbose=0)
    assert_same(*models)


def test_modes_that_cannot_be_right_name_the_variable():
    model = assigning()
    before = [v.numpy() for v in model.variables]
    pipeline = cn.Pipeline(model, 2, micro_batches=2, placement=[0, 1])
    through = lambda x, y: tf.reduce_sum((pipeline(x, training=True) - y) ** 2, axis=1)  # noqa: E731
    with pytest.raises(cn.InvalidArgument, match=r"kernel.*micro_batches=1"):
        cn.Trainer(through, sgd(), devices=pipeline).train_on_batch(*BATCHES[0])
    with pytest.raises(cn.InvalidArgument, match=r"kernel.*undo what others did"):
        cn.Trainer(loss_of(model), sgd(), sync=cn.Asynchronous(), devices=2).train_on_batch(*BATCHES[0])
    assert all((v.numpy() == old).all() for v, old in zip(model.variables, before, strict=True))


@pytest.mark.parametrize("variables", ["mirrored", *long("shared", "partitioned")])
def test_what_replicas_assign_is_averaged_where_it_depends_on_their_slices(variables):
    """As data-dependent initialisation does: each replica trains from what it assigned itself."""
    w = tf.Variable(np.zeros(2))

    def loss(x):
        w.assign(w / 2 + tf.reduce_mean(x, axis=0))
        return tf.linalg.matvec(x, w)

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.5), devices=2, variables=variables)
    expected = np.zeros(2)
    for x in (X[:6, :2], X[6:13, :2]):
        trainer.train_on_batch(x)
        cut = (len(x) + 1) // 2
        own = [expected / 2 + part.mean(axis=0) for part in (x[:cut], x[cut:])]
        expected = np.average(own, axis=0, weights=[cut, len(x) - cut]) - 0.5 * x.mean(axis=0)
        np.testing.assert_allclose(w, expected, rtol=1e-12)


@pytest.mark.parametrize("sync", [cn.Synchronous(), cn.LocalSGD(2), cn.Asynchronous()])
def test_a_skipped_step_leaves_nothing_of_its_assignment(sync):
    w = tf.Variable([4.0])

    def loss(x):
        w.assign(w / 2)
        return x * w

    devices = 1 if isinstance(sync, cn.Asynchronous) else 2
    trainer = cn.Trainer(loss, keras.optimizers.SGD(1.0), on_nan="skip", sync=sync, devices=devices)
    trainer.train_on_batch(tf.constant([1.0, np.nan]))
    assert w.numpy() == [4.0]
    trainer.train_on_batch(tf.constant([1.0, 1.0]))
    assert w.numpy() == [1.0]


class Counting(keras.layers.Layer):
    """Counts examples and calls, and keeps what it saw last and a moving average, each by its own word."""

    def build(self, _):
        words = {
            "seen": "sum",
            "rows": "sum",
            "calls": "only_first_replica",
            "mean": "mean",
            "moving": "none",
        }
        for name, word in words.items():
            dtype = "int64" if name == "rows" else "float64"
            weight = self.add_weight(
                shape=(), initializer="zeros", trainable=False, dtype=dtype, aggregation=word, name=name
            )
            setattr(self, name, weight)

    def call(self, inputs):
        rows = tf.shape(inputs)[0]
        self.seen.assign_add(tf.cast(rows, tf.float64))
        self.rows.assign_add(tf.cast(rows, tf.int64))
        self.calls.assign_add(1.0)
        for average in (self.mean, self.moving):
            average.assign(average / 2 + tf.reduce_mean(inputs) / 2)
        return inputs * tf.cast(1 + 0 * self.rows, inputs.dtype)


def counting(layer=Masked):
    keras.utils.set_random_seed(3)
    layers = [Counting(dtype="float64"), layer(2, dtype="float64")]
    return keras.Sequential([keras.Input([6], dtype="float64"), *layers])


def counts(model):
    layer = model.layers[0]
    return [float(weight) for weight in (layer.seen, layer.rows, layer.calls)]


@pytest.mark.parametrize("variables", ["mirrored", *long("shared", "partitioned")])
def test_state_follows_the_word_of_its_variable(variables):
    even = [(x[:12], y[:12]) for x, y in BATCHES]
    found, expected = together(counting, even, variables=variables, devices=4), alone(counting, even)
    assert counts(expected) == [36, 36, 3]
    assert_same(found, expected)  # slices of one size, so the mean of their means is that of the batch


@pytest.mark.parametrize(
    "sync",
    [
        cn.Synchronous(),
        cn.Asynchronous(),
        *long(cn.LocalSGD(2), cn.Elastic(2, 0.2), cn.DiLoCo(2), cn.LocalSGD(1)),
    ],
)
def test_a_sum_counts_every_example_once_in_every_mode(sync):
    model = counting(keras.layers.Dense)
    trainer = cn.Trainer(loss_of(model), plain(), sync=sync, devices=4)
    trainer.train_on_batch(X[:2], Y[:2])  # two devices have no work
    assert counts(model)[:2] == [2, 2]
    trainer.fit(BATCHES, progress=False)
    assert counts(model)[:2] == [41, 41]
    model.layers[0].seen.assign(100)
    trainer.train_on_batch(X[:5], Y[:5])
    trainer.evaluate(BATCHES)
    assert counts(model)[:2] == [105, 46]


def test_a_pipeline_counts_its_micro_batches():
    model = counting(keras.layers.Dense)
    pipeline = cn.Pipeline(model, [[0, 1], [2, 3]], micro_batches=3, placement=[0, 1])
    loss = lambda x, y: tf.reduce_sum((pipeline(x, training=True) - y) ** 2, axis=1)  # noqa: E731
    cn.Trainer(loss, plain(), devices=pipeline).fit(BATCHES, progress=False)
    assert counts(model)[:2] == [39, 39]


@pytest.mark.parametrize("aggregation", ["SUM", "MEAN", "ONLY_FIRST_REPLICA"])
def test_plain_tensorflow_variables_have_the_same_words(aggregation):
    w, state = (
        tf.Variable([1.0]),
        tf.Variable(8.0, trainable=False, aggregation=tf.VariableAggregation[aggregation]),
    )

    def loss(x):
        state.assign_add(tf.reduce_sum(x))
        return x * w

    cn.Trainer(loss, plain(), devices=3).train_on_batch(tf.constant([1.0, 2.0, 6.0]))
    assert float(state) == {"SUM": 17, "MEAN": 11, "ONLY_FIRST_REPLICA": 9}[aggregation]


@pytest.mark.parametrize(
    ("start", "aggregation", "says"),
    [(0, "MEAN", r"int32 has no mean\. Choose"), (False, "SUM", r"bool cannot be added")],
)
def test_a_word_without_meaning_is_refused_where_there_are_replicas(start, aggregation, says):
    w = tf.Variable([1.0])
    state = tf.Variable(start, name="odd", aggregation=tf.VariableAggregation[aggregation])

    def loss(x):
        state.assign(state)
        return x * w

    with pytest.raises(cn.InvalidArgument, match=f"odd.*{says}"):
        cn.Trainer(loss, plain(), devices=2).train_on_batch(tf.ones([4]))
    assert w.numpy() == [1.0]
    cn.Trainer(loss, plain(), devices=1).train_on_batch(tf.ones([4]))


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore:Saved on 2 devices")
@pytest.mark.parametrize(
    ("first", "then"), [(cn.Elastic(1, 0.2), 2), (cn.Asynchronous(), 2), (cn.LocalSGD(2), 3)]
)
def test_a_sum_goes_on_from_a_checkpoint(tmp_path, first, then):
    """Replicas have counted apart when it is saved; on another number of devices the sum goes on."""
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(13)
    for devices, steps, expected in ((2, 2, 26), (then, 3, 39)):
        keras.utils.clear_session()  # the same names again
        model = counting(keras.layers.Dense)
        trainer = cn.Trainer(loss_of(model), plain(), sync=first, devices=devices)
        checkpoint = cn.Checkpoint(tmp_path / "saved", every=1)
        trainer.fit(data, steps=steps, checkpoint=checkpoint, progress=False)
        assert counts(model)[:2] == [expected, expected]
