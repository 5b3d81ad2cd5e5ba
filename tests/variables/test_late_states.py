"""Which averages replicas may have to themselves between looks; `tests/cards` trains with them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments
from colonnade.run.trace.traced import trace
from colonnade.run.variables.late_states import LateStates, factors, independent

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")


def variable(name="v", **options):
    return tf.Variable(1.0, trainable=False, name=name, **options)


def found(step):
    """The names of variables that a step leaves to the replicas; what it returns is left out."""
    traced = trace(lambda x: (step(x), tf.reduce_sum(x))[1], tf.TensorSpec([3]))
    return {ref.deref().name for ref in independent(traced)}


def test_an_average_of_which_a_fixed_multiple_goes_on():
    v, rate = variable(), variable("rate")
    mean = tf.reduce_mean
    for step in (
        lambda x: v.assign(0.9 * v + 0.1 * mean(x)),
        lambda x: v.assign_sub((v - mean(x)) * 0.1),
        lambda x: v.assign_add(mean(x)),
        lambda x: v.assign(v * rate / 2.0 + mean(x)),  # by another variable, which is the same everywhere
    ):
        assert found(step) == {"v:0"}, step


def test_what_must_be_one_value_at_every_step():
    v, w = variable(), variable("w")
    mean = tf.reduce_mean
    for step in (
        lambda x: v.assign(tf.maximum(v, mean(x))),  # not a sum
        lambda x: v.assign(v * mean(x)),  # a multiple of the slice
        lambda x: v.assign(v * v + mean(x)),
        lambda x: v.assign(2.0 / v + mean(x)),
        lambda x: v.assign(0.9 * v + mean(x)) * x,  # and it is read
        lambda x: [v.assign(0.9 * v + mean(x)), x * v],
        lambda x: [v.assign(0.9 * v + mean(x)), w.assign(v * 2.0)],
        lambda x: tf.cond(mean(x) > 0, lambda: v.assign(0.9 * v + mean(x)), lambda: v.assign(v)),
    ):
        assert "v:0" not in found(step), step


def test_what_is_returned_is_read():
    v = variable()
    traced = trace(lambda x: v.assign(0.9 * v + tf.reduce_mean(x)).read_value(), tf.TensorSpec([3]))
    assert independent(traced) == []


def test_what_is_the_same_everywhere_and_what_is_random():
    counter, total = variable("counter"), variable("total", aggregation=tf.VariableAggregation.SUM)
    generator = tf.random.Generator.from_seed(1)

    def step(x):
        counter.assign_add(1.0)
        total.assign_add(1.0)  # of which each replica adds its own
        return x + generator.normal([])

    assert found(step) == {"counter:0", generator.state.name}


def test_two_traces_multiply_by_the_same_number_or_it_is_not_known():
    """Only then may slices of two sizes be late."""
    v, rate = variable(), variable("rate")
    mean = tf.reduce_mean

    def of_sizes(step):
        traces = [trace(lambda x: (step(x), tf.reduce_sum(x))[1], tf.TensorSpec([rows])) for rows in (3, 4)]
        return [factors(traced, [v.ref()]).get(v.ref()) for traced in traces]

    for step in (
        lambda x: v.assign(0.9 * v + 0.1 * mean(x)),
        lambda x: v.assign_sub((v - mean(x)) * 0.1),
        lambda x: v.assign_add(float(x.shape[0])),
    ):
        one, other = of_sizes(step)
        assert one is not None
        assert one == other
    for step in (
        lambda x: v.assign(v / float(x.shape[0]) + mean(x)),
        lambda x: v.assign(0.9 * v + mean(x)) if x.shape[0] == 3 else v.assign(v - 0.9 * v + mean(x)),
    ):
        one, other = of_sizes(step)
        assert None not in (one, other)
        assert one != other
    assert of_sizes(lambda x: v.assign(v * rate + mean(x))) == [None, None]
    assert of_sizes(lambda x: v.assign(tf.maximum(v, mean(x)))) == [None, None]


def norms(on_nan="stop"):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(momentum=0.7)]
    model = keras.Sequential([keras.Input([3]), *layers, keras.layers.Dense(1)])
    trainer = cn.Trainer(
        lambda x: tf.squeeze(model(x, training=True), 1) ** 2,
        keras.optimizers.SGD(0.01),
        devices=4,
        variables="mirrored",
        on_nan=on_nan,
        reduce="tree",
    )
    return model, trainer


@pytest.fixture
def late(monkeypatch):
    """As on cards, where averages are late, or as elsewhere."""
    true = LateStates.prepare

    def set_to(on):
        monkeypatch.setattr(LateStates, "prepare", true if on else lambda self, traced: None)
        monkeypatch.setattr(hardware, "are_cards", lambda devices: True)
        monkeypatch.setattr(hardware, "is_card", lambda device: False)

    return set_to


def states(on, late, on_nan="stop", bad=False):
    """What the user's variables show after steps of several kinds, each time he looks."""
    late(on)
    model, trainer = norms(on_nan)
    seen = []
    look = lambda *_: seen.append([w.numpy() for w in model.weights])  # noqa: E731
    trainer.fit((X,), batch_size=24, steps=5, progress=False, log_every=2, callbacks=[look], prove=False)
    look()
    trainer.train_on_batch(X[:3])  # one replica has no work
    look()
    trainer.train_on_batch(X[:23])
    trainer.train_on_batch(X[1:])
    trainer.train_on_batch(X[:21])  # each time slices of two sizes
    look()
    if bad:
        poison = X.copy()
        poison[9] = np.nan
        if on_nan == "stop":
            with pytest.raises(cn.NotFinite):
                trainer.train_on_batch(poison)
        else:
            trainer.train_on_batch(poison)
        look()
    model.layers[1].moving_mean.assign([1.0, 2.0, 3.0, 4.0])
    trainer.train_on_batch(X)
    look()
    trainer.fit((X,), batch_size=24, steps=3, progress=False, prove=False)
    look()
    return seen, trainer


def test_slices_of_two_sizes_are_late_too(late):
    late(True)
    _, trainer = norms()
    trainer.train_on_batch(X[:23])
    engine = trainer._engine
    batch = Arguments((X[:23],), {}, ("x",))
    assert len(engine.housed.late.of(engine._traced(batch), engine.cut(batch))) == 2


@pytest.mark.long
@pytest.mark.parametrize("on_nan", ["skip", "stop"])
def test_whoever_looks_sees_what_settling_at_every_step_shows(late, on_nan):
    (first, _), (second, trainer) = (states(on, late, on_nan, bad=True) for on in (False, True))
    assert len(trainer._engine.housed.late.kept) == 2
    assert len(first) == len(second) == 8
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_replicas_set_out_from_one_count_where_their_slices_differ_in_size(late):
    found = []
    for on in (False, True):
        late(on)
        w, rows = (
            tf.Variable(1.0),
            tf.Variable(0, trainable=False),
        )  # of whole numbers the first one's is kept

        def loss(x, w=w, rows=rows):
            return x * w * tf.cast(rows.assign_add(x.shape[0]), tf.float32)

        trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=2, variables="mirrored", reduce="tree")
        for _ in range(3):
            trainer.train_on_batch(X[:5, 0])
        found.append((w.numpy(), rows.numpy()))
    assert found[0] == found[1]
