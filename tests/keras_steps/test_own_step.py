"""A `train_step` of a model's own through `cn.fit`: what Keras has around it; see keras_programs too."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(22, 6)).astype("float32")
Y = RNG.normal(size=(22, 2)).astype("float32")


class Stepped(keras.Model):
    """Counts how often it is traced; its layers are those of local statistics."""

    def __init__(self, norm=False):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.norm = keras.layers.BatchNormalization() if norm else None
        self.traces = 0

    def call(self, x, training=False):
        x = self.dense(x)
        return x if self.norm is None else self.norm(x, training=training)

    def train_step(self, data):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        self.traces += 1
        with tf.GradientTape() as tape:
            each = ops.mean((self(x, training=True) - y) ** 2, axis=-1)
            loss = ops.mean(each if weight is None else each * weight)
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables, strict=True)
        )
        return {"loss": loss}


def model(**options):
    keras.utils.set_random_seed(0)
    made = Stepped(**options)
    made.compile(keras.optimizers.SGD(0.1, momentum=0.9), steps_per_execution=2)
    return made


@pytest.mark.long
def test_rates_callbacks_weights_and_later_fits_are_those_of_keras():
    def rates(epoch, rate):
        return rate * 0.5

    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 4})):
        made = model()
        callbacks = [keras.callbacks.LearningRateScheduler(rates)]
        options = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0, **more}
        history = fit(made, X, Y, sample_weight=np.arange(22.0), callbacks=callbacks, **options).history
        made.dense.kernel.assign(made.dense.kernel * 0.5)  # what the user assigns counts
        fit(made, X, Y, **options)
        both.append([*history.values(), *made.get_weights(), *[v.numpy() for v in made.optimizer.variables]])
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_a_second_fit_traces_nothing():
    made = model()
    cn.fit(made, X[:20], Y[:20], devices=2, batch_size=10, verbose=0)
    before = made.traces
    cn.fit(made, X[:20], Y[:20], devices=2, batch_size=10, verbose=0)
    assert made.traces == before


def test_statistics_of_slices_are_averaged_and_said(capsys):
    made = model(norm=True)
    x = np.concatenate([np.zeros([4, 6]), np.ones([4, 6])]).astype("float32")
    made.dense.build((None, 6))
    cn.fit(made, x, Y[:8], devices=2, batch_size=8, shuffle=False, verbose=2)
    assert "without the statistics of the slices of training" in capsys.readouterr().out
    assert made.norm.trainable
    assert np.abs(made.norm.moving_mean.numpy()).max() > 0


class Doubled(keras.Sequential):
    """Twice a sum is not seen to be one, which makes no difference between slices of one size."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            with tf.GradientTape() as inner:
                inner.watch(x)
                target = 2 * ops.sum(self(x, training=True))
            loss = ops.mean(inner.gradient(target, x) ** 2) + ops.mean((self(x) - y) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


@pytest.mark.long
def test_the_first_batch_with_slices_of_several_sizes_is_proved_too():
    norm = keras.layers.BatchNormalization(synchronized=True)
    made = Doubled([keras.Input([6]), norm, keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
    made.compile("sgd")
    cn.fit(made, X[:16], Y[:16], devices=2, batch_size=8, verbose=0)
    with pytest.raises(cn.InvalidArgument, match=r"train_step='Doubled': .* not the mean of"):
        cn.fit(made, X[:11], Y[:11], devices=2, batch_size=8, verbose=0)


def test_other_ways_of_training_are_refused():
    with pytest.raises(cn.InvalidArgument, match="has no meaning for a train_step"):
        cn.fit(model(), X, Y, devices=2, sync=cn.LocalSGD(2))


class Makes(Stepped):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


def test_a_train_function_of_its_own_is_refused():
    made = Makes()
    made.compile("sgd")
    with pytest.raises(cn.InvalidArgument, match="Override train_step instead"):
        cn.fit(made, X, Y, devices=2)


class Idle(keras.Model):
    def train_step(self, data):
        return {}


def test_a_step_that_gives_nothing():
    made = Idle()
    made.compile()
    assert cn.fit(made, X, Y, devices=2, verbose=0).history == {}


def test_a_step_of_the_instance_is_run_too():
    made = keras.Sequential([keras.Input([6]), keras.layers.Dense(2)])
    made.compile("sgd", "mse")
    made.train_step = lambda data: {"answer": tf.constant(42.0)}
    assert cn.fit(made, X, Y, devices=2, verbose=0).history == {"answer": [42.0]}


class Tells(Stepped):
    """Logs that are no tensors, and variables."""

    def __init__(self):
        super().__init__()
        self.steps = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def train_step(self, data):
        logs = super().train_step(data)
        self.steps.assign_add(1)
        return {"half": 0.5, **logs, "steps": self.steps, "rate": self.optimizer.learning_rate}


def test_logs_may_be_numbers_and_variables():
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 4})):
        keras.utils.set_random_seed(0)
        made = Tells()
        made.compile(keras.optimizers.SGD(0.1))
        both.append(fit(made, X, Y, batch_size=10, epochs=2, shuffle=False, verbose=0, **more).history)
    assert both[0].keys() == both[1].keys()
    assert both[1]["steps"] == [3, 6]
    for name, expected in both[0].items():
        np.testing.assert_allclose(both[1][name], expected, rtol=1e-5, err_msg=name)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # so says Keras itself
def test_what_a_generator_leaves_out_is_none_as_with_keras():
    """Keras says None by an Optional, which its own steps do not see."""

    def batches(*more):
        for start in range(0, 12, 4):
            yield X[start : start + 4], *more

    both = []
    for fit, options in ((keras.Model.fit, {}), (cn.fit, {"devices": 2})):
        keras.utils.set_random_seed(0)
        made = keras.Sequential([keras.Input([6]), keras.layers.Dense(2)])
        made.compile("sgd", lambda y, p: ops.mean((p - y) ** 2))
        of_loss = fit(made, batches(Y[:4], None), shuffle=False, verbose=0, **options).history["loss"]
        seen = []

        class Own(keras.Model):
            def __init__(self, net):
                super().__init__()
                self.net = net

            def train_step(self, data, seen=seen):
                seen.append(data[1])
                with tf.GradientTape() as tape:
                    loss = ops.mean(self.net(data[0]) ** 2)
                variables = self.trainable_variables
                self.optimizer.apply(tape.gradient(loss, variables), variables)
                return {"loss": loss}

        own = Own(made)
        own.compile("sgd")
        of_step = fit(own, batches(None), shuffle=False, verbose=0, **options).history["loss"]
        both.append([of_loss, of_step])
        assert seen
        assert all(each is None for each in seen)
        assert len(seen) < 9  # not traced for every batch
    np.testing.assert_allclose(both[1], both[0], rtol=1e-5)


class Chain(keras.Sequential):
    """Layers one after the other, trained by a step of its own."""

    traces = 0
    train_step = Stepped.train_step


def chain(*layers, optimizer="sgd"):
    made = Chain([keras.Input([6]), *layers])
    made.compile(optimizer, "mse")
    return made


class Counting(keras.layers.Layer):
    """Keeps something of its slice, with a word for what becomes of the replicas' values."""

    def __init__(self, dtype, aggregation):
        super().__init__()
        options = {"dtype": dtype, "aggregation": aggregation, "trainable": False}
        self.kept = self.add_weight(shape=[], initializer="zeros", name="odd", **options)

    def call(self, x):
        some = ops.any(x > 0)
        self.kept.assign(some if self.kept.dtype == "bool" else self.kept + ops.cast(some, self.kept.dtype))
        return x


@pytest.mark.parametrize(
    ("dtype", "aggregation", "said"),
    [
        ("int64", "mean", "aggregation mean, and int64 has no mean"),
        ("bool", "sum", "sum, and bool cannot be added"),
    ],
)
def test_words_without_meaning_are_refused_whoever_calls_the_model(dtype, aggregation, said):
    made = chain(Counting(dtype, aggregation), keras.layers.Dense(2))
    batch = {"batch_size": 11, "verbose": 0}
    with pytest.raises(cn.InvalidArgument, match=f"odd:0.*{said}"):
        cn.fit(made, X, Y, devices=2, **batch)
    with pytest.raises(cn.InvalidArgument, match=f"odd:0.*{said}"):
        cn.fit(made, X, Y, devices=2, per_device=True, **batch)
    with pytest.raises(cn.InvalidArgument, match=f"odd:0.*{said}"):
        cn.evaluate(made, X, Y, devices=2, **batch)
    with pytest.raises(cn.InvalidArgument, match=f"odd:0.*{said}"):
        cn.predict(made, X, devices=2, **batch)
    cn.predict(made, X, devices=1, **batch)  # one device keeps what it has


class Complex(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        options = {"dtype": "complex64", "initializer": "ones"}
        self.w = self.add_weight(shape=[6, 2], name="w", **options)
        self.seen = self.add_weight(shape=[], name="seen", trainable=False, **options)

    def call(self, x):
        found = tf.cast(x, "complex64") @ self.w * (1 + 0.5j)
        self.seen.assign(0.5 * self.seen + tf.reduce_mean(found))
        return tf.abs(found)


def test_complex_numbers_are_those_of_one_device():
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 3})):
        made = chain(Complex())
        fit(made, X, Y, batch_size=11, shuffle=False, verbose=0, **more)
        both.append(made.get_weights())
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("per_device", [False, True])
def test_optimizers_of_whole_variables_are_refused_for_parts(per_device):
    split = cn.width.Dense(2, devices=["/CPU:0", "/CPU:1"])
    made = chain(split, optimizer=keras.optimizers.SGD(0.1, clipnorm=1.0))
    with pytest.raises(cn.InvalidArgument, match=r"clipnorm=1\.0: looks at a whole variable.*part_0"):
        cn.fit(made, X, Y, devices=2, batch_size=11, verbose=0, per_device=per_device)


class Examples(keras.layers.Layer):
    """Counts the examples that it is given, which a trace knows as a number."""

    def __init__(self):
        super().__init__()
        options = {"initializer": "zeros", "trainable": False, "dtype": "int64"}
        self.count = self.add_weight(shape=[], aggregation="sum", **options)

    def call(self, x):
        self.count.assign(self.count + tf.cast(tf.shape(x)[0], "int64"))
        return x


def test_counts_that_say_so_are_sums_over_the_replicas():
    made = chain(Examples(), keras.layers.Dense(2))
    cn.fit(made, X, Y, devices=3, batch_size=11, epochs=2, verbose=0)
    assert int(made.layers[0].count) == 44


class Branches(keras.Model):
    """A step that is a tf.function: AutoGraph makes branches and loops of it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(x)

    @tf.function
    def train_step(self, data):
        x, y = data
        total = tf.zeros([], x.dtype)
        for i in tf.range(3):
            total += tf.cast(i, x.dtype)
        if total > 2:
            total = total / 2
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2) * total
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def test_a_step_that_is_a_tf_function_may_branch_and_loop_by_tensors():
    both = []
    for fit, more in ((keras.Model.fit, {}), (cn.fit, {"devices": 2})):
        keras.utils.set_random_seed(0)
        made = Branches()
        made.compile(keras.optimizers.SGD(0.1))
        history = fit(made, X[:12], Y[:12], batch_size=6, shuffle=False, verbose=0, **more).history
        both.append([history["loss"], *made.get_weights()])
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
