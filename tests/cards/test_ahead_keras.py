"""In `cn.fit` too the slice of the next batch is on its card by then, and Keras's loop is as it was."""

import itertools
import re
from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake import copies
from test_ahead import above, assert_equal

import colonnade as cn
from colonnade.run.batch.shares import MeasuredShares
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.step_ahead import StepAhead
from colonnade.run.keras_steps.own_step import OwnStep
from colonnade.run.keras_train import keras_fit
from colonnade.run.move.slices_ahead import SlicesAhead

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(90, 6)).astype("float32"), RNG.normal(size=(90, 1)).astype("float32")
CALL = re.compile(r"replica_\d_on_GPU_\d/.*PartitionedCall$")


class Own(keras.Model):
    """With a step of its own."""

    def __init__(self):
        super().__init__()
        self.stack = stack()

    def call(self, x):
        return self.stack(x)

    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


class Cut(Exception):
    """Ends a program in the middle."""


class Seen(keras.callbacks.Callback):
    """All that Keras tells, in order."""

    def __init__(self, stop=None):
        super().__init__()
        self.told, self._stop = [], stop

    def on_train_batch_begin(self, batch, logs=None):
        self.told.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.told.append(("end", batch, float(logs["loss"]), *self.model.get_weights()[0].ravel()))
        self.model.stop_training = batch == self._stop

    def on_epoch_end(self, epoch, logs=None):
        self.told.append(("epoch", epoch, logs))


def stack(width=6):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.BatchNormalization(), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input([width]), *layers])


def compiled(own=False, steps_per_execution=1):
    model = Own() if own else stack()
    model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=steps_per_execution)
    return model


@pytest.fixture
def not_ahead(monkeypatch):
    """As if copies took no time: neither is a batch looked at early, nor sent."""

    once = OwnStep.once

    def patch():
        monkeypatch.setattr(GraphEngine, "ahead", lambda self, batch: None)
        monkeypatch.setattr(OwnStep, "once", lambda self, data, coming=None: once(self, data))
        monkeypatch.setattr(keras_fit, "looking_ahead", lambda step, *_: nullcontext((step, [])))

    return patch


@pytest.fixture
def sent(monkeypatch):
    """The rows of batches that were sent before their own step, and not by the step before."""
    rows, fill = [], StepAhead.fill

    def noted(self, batch):
        rows.append(batch.size("the batch"))
        fill(self, batch)

    monkeypatch.setattr(StepAhead, "fill", noted)
    return rows


@pytest.fixture
def places(monkeypatch):
    """All that was made of them."""
    made, original = [], SlicesAhead.__init__
    monkeypatch.setattr(
        SlicesAhead, "__init__", lambda self, *args: (made.append(self), original(self, *args))[1]
    )
    return made


def held(places):
    return [int(tf.size(place.read_value())) for each in places for own in each.places for place in own]


def of_sizes(sizes=(16, 16, 16, 10, 10, 5, 16)):
    """Batches of some sizes, one after the other, of which nobody knows the number."""

    def batches():
        start = 0
        for size in sizes:
            yield X[start : start + size], Y[start : start + size]
            start += size

    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1]))
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def run(number=4, data=of_sizes, own=False, at_once=1, watched=True, **options):
    keras.backend.clear_session()
    model, seen = compiled(own, at_once), Seen()
    options = {"epochs": 2, "verbose": 0, "shuffle": False, "prove": False} | options
    given = data() if callable(data) else data
    arguments = given if isinstance(given, tuple) else (given,)
    callbacks = [seen] if watched else []
    history = cn.fit(model, *arguments, devices=CARDS[:number], callbacks=callbacks, **options)
    return model.get_weights(), history.history, seen.told


def assert_same(one, other):
    assert_equal(one[0], other[0])
    assert one[1] == other[1]
    assert one[2] == other[2]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("number", "own", "at_once"), [(2, False, 1), (8, False, 3), (4, True, 1), (1, False, 1), (1, True, 2)]
)
def test_sizes_that_change_and_the_end_of_the_data(not_ahead, sent, number, own, at_once):
    """Bit for bit what it is without: the same batches, each of them once, and what callbacks are told."""
    ahead = run(number, own=own, at_once=at_once)
    # In each of two epochs the first of all, and whatever comes after another size.
    assert sent == [16, 10, 5, 16] * 2
    not_ahead()
    assert_same(ahead, run(number, own=own, at_once=at_once))


@pytest.mark.parametrize("watched", [False, True])
def test_arrays_with_an_uneven_last_batch_and_a_validation(not_ahead, sent, watched):
    options = {"data": (X, Y), "batch_size": 16, "validation_data": (X, Y), "watched": watched}
    ahead = run(**options)
    assert sent == [16, 10] * 2
    not_ahead()
    assert_same(ahead, run(**options))


def test_a_generator_and_batches_of_a_pydataset(not_ahead):
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return X[16 * index : 16 * (index + 1)], Y[16 * index : 16 * (index + 1)]

    def generator():
        yield from (Batches()[i % 5] for i in range(12))

    ways = [{"data": Batches}, {"data": generator, "steps_per_epoch": 5}]
    ahead = [run(**way) for way in ways]
    not_ahead()
    for one, way in zip(ahead, ways, strict=True):
        assert_same(one, run(**way))


@pytest.mark.parametrize("own", [False, True])
def test_an_epoch_of_so_many_steps_fetches_no_more_than_that(not_ahead, own):
    """What is left is for the next fit, where somebody made all datasets of one source."""

    def fetched():
        keras.backend.clear_session()
        model, drawn = compiled(own), []

        def batches(source=iter(range(1000))):  # noqa: B008  one for all
            for i in source:
                drawn.append(i)
                yield X[i % 9 : i % 9 + 16], Y[i % 9 : i % 9 + 16]

        spec = (tf.TensorSpec([16, 6]), tf.TensorSpec([16, 1]))
        data = tf.data.Dataset.from_generator(batches, output_signature=spec)
        # Otherwise tf.data fetches ahead by itself, as far as it comes.
        quiet = tf.data.Options()
        quiet.experimental_optimization.inject_prefetch = False
        data = data.with_options(quiet)
        options = {"verbose": 0, "prove": False, "devices": CARDS[:2], "shuffle": False}
        for _ in range(2):
            cn.fit(model, data, steps_per_epoch=4, epochs=2, **options)
        return len(drawn), model.get_weights()

    ahead = fetched()
    not_ahead()
    behind = fetched()
    assert ahead[0] == behind[0]
    assert_equal(ahead[1], behind[1])


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_widths_that_change(not_ahead):
    def texts():
        for i, width in enumerate([5, 5, 7, 7, 6, 7]):
            yield np.resize(X[8 * i : 8 * i + 8], [8, width, 6]), Y[8 * i : 8 * i + 8]

    def fitted():
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(4, "tanh"), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input([None, 6]), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        spec = (tf.TensorSpec([8, None, 6]), tf.TensorSpec([8, 1]))
        data = tf.data.Dataset.from_generator(texts, output_signature=spec)
        cn.fit(model, data, devices=CARDS[:4], verbose=0, epochs=2, prove=False, shuffle=False)
        return model.get_weights()

    ahead = fitted()
    not_ahead()
    assert_equal(ahead, fitted())


@pytest.mark.parametrize("good", [1, 3])
def test_data_that_fail_end_it_after_the_last_batch_that_was_there(not_ahead, good):
    def failing():
        yield from ((X[16 * i : 16 * (i + 1)], Y[16 * i : 16 * (i + 1)]) for i in range(good))
        raise ValueError("the disk is gone")

    def fitted():
        spec = (tf.TensorSpec([16, 6]), tf.TensorSpec([16, 1]))
        data = tf.data.Dataset.from_generator(failing, output_signature=spec)
        model, seen = compiled(), Seen()
        options = {"verbose": 0, "prove": False, "devices": CARDS[:4], "shuffle": False}
        with pytest.raises(tf.errors.OpError, match="the disk is gone"):
            cn.fit(model, data, callbacks=[seen], **options)
        assert [what[:2] for what in seen.told if what[0] == "end"] == [("end", i) for i in range(good)]
        return model.get_weights()

    ahead = fitted()
    not_ahead()
    assert_equal(ahead, fitted())


def test_a_nan_is_that_of_its_batch(not_ahead):
    x = X.copy()
    x[40] = np.nan  # the third batch
    stop = [keras.callbacks.TerminateOnNaN()]

    def fitted():
        model, seen = compiled(), Seen()
        options = {"batch_size": 16, "shuffle": False, "verbose": 0, "prove": False, "devices": CARDS[:4]}
        cn.fit(model, x, Y, callbacks=[seen, *stop], **options)
        return [what[:2] for what in seen.told]

    assert fitted()[-3:] == [("begin", 2), ("end", 2), ("epoch", 0)]
    ahead = fitted()
    not_ahead()
    assert ahead == fitted()


@pytest.mark.parametrize("own", [False, True])
def test_a_fit_that_is_ended_early_leaves_nothing_on_a_card(not_ahead, places, own):
    def fitted():
        model = compiled(own)
        options = {"batch_size": 16, "shuffle": False, "verbose": 0, "prove": False, "devices": CARDS[:4]}
        cn.fit(model, X, Y, callbacks=[Seen(stop=2)], epochs=3, **options)
        assert not any(held(places))
        cn.fit(model, X, Y, **options)
        assert not any(held(places))
        return model.get_weights()

    ahead = fitted()
    assert places
    not_ahead()
    assert_equal(ahead, fitted())


def test_shares_that_change_leave_no_slices_of_the_old_sizes_on_a_card(monkeypatch, places):
    """As after measuring: the slice that was sent ahead is of no use then."""
    turns = itertools.count()

    def reconsider(self):
        self.speeds = np.array([1.0 + next(turns) // 3 % 2, 1.0, 1.0, 1.0])

    monkeypatch.setattr(MeasuredShares, "reconsider", reconsider)
    kinds = []

    def look(batch, logs):
        kinds.append(sum(any(held([each])) for each in places))

    ends = keras.callbacks.LambdaCallback(on_train_batch_end=look)
    options = {"batch_size": 10, "verbose": 0, "prove": False, "devices": CARDS[:4], "shuffle": False}
    cn.fit(compiled(), X, Y, callbacks=[ends], sync=cn.Synchronous(shares="measured"), **options)
    assert len(places) >= 2  # sizes of slices
    assert len(kinds) == 9
    assert max(kinds) == 1
    assert not any(held(places))


@pytest.mark.parametrize("own", [False, True])
def test_a_checkpoint_goes_on_with_the_batch_that_comes_next(not_ahead, sent, tmp_path, own):
    def cut_short(batch, logs):
        if batch == 3:
            raise Cut

    def fitted(folder, cut=False):
        keras.backend.clear_session()
        model = compiled(own)
        options = {"batch_size": 16, "verbose": 0, "prove": False, "devices": CARDS[:4], "shuffle": False}
        options |= {"checkpoint": cn.Checkpoint(folder, every=1)}
        ends = keras.callbacks.LambdaCallback(on_train_batch_end=cut_short if cut else None)
        with pytest.raises(Cut) if cut else nullcontext():
            cn.fit(model, X, Y, epochs=2, callbacks=[ends], **options)
        return model.get_weights()

    fitted(tmp_path / "ahead", cut=True)
    assert sent == [16]
    ahead = fitted(tmp_path / "ahead")
    # What was cut goes on with its fourth batch, then comes the uneven one, and the second epoch.
    assert sent == [16, 16, 10, 16, 10]
    assert_equal(ahead, fitted(tmp_path / "straight"))
    not_ahead()
    assert_equal(ahead, fitted(tmp_path / "behind"))


def of_a_batch(model, **options):
    """Bytes between the host and the cards: what ten batches have more than five."""
    counted = []
    for batches in (5, 5, 10):
        x, y = np.ones([batches * 80, 6], "float32"), np.ones([batches * 80, 1], "float32")
        with tf.device("/device:CPU:0"):  # of arrays Keras itself makes tensors of the first card, once
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(80)
        copies()
        cn.fit(model, data, devices=CARDS, verbose=0, prove=False, shuffle=False, **options)
        counted.append(copies(computed=True))
    _, few, many = counted
    return {pair: (many[pair][1] - few.get(pair, (0, 0))[1]) / 5 for pair in many if "CPU:0" in pair}


@pytest.mark.parametrize("kind", ["plain", "own", "whole"])
def test_each_card_is_sent_its_slices_once_and_sends_none_back(not_ahead, kind):
    """The bytes of a batch are those of its slices, as without; also where a loss is of the whole one."""

    def moved():
        model = compiled(own=kind == "own")
        if kind == "whole":
            model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
        return of_a_batch(model)

    ahead = moved()
    # Ten rows of six numbers and a label; the first card is told a number of the step besides. A loss of the
    # whole batch is computed on every card, from the labels of all 80 rows.
    part, more = 10 * (6 + 1) * 4, (80 + 10) * 4 if kind == "whole" else 0
    first, *others = (ahead["CPU:0", f"GPU:{card}"] for card in range(8))
    assert others == [part + more] * 7
    assert part + more <= first <= part + more + 8
    not_ahead()
    assert ahead == pytest.approx(moved(), abs=64)


@pytest.mark.parametrize("own", [False, True])
def test_the_copy_waits_for_nothing_that_the_step_computes(monkeypatch, own):
    made, original = [], StepAhead.__init__
    monkeypatch.setattr(
        StepAhead, "__init__", lambda self, *args: (made.append(self), original(self, *args))[1]
    )
    cn.fit(compiled(own), X[:80], Y[:80], batch_size=16, devices=CARDS, verbose=0, prove=False)
    (step,) = made
    nodes = {node.name: node for node in step.graph.graph.as_graph_def().node}
    # Of the branches in a step it is the one that takes the places of x and y on all cards.
    (sending,) = [
        node
        for node in nodes.values()
        if node.op == "If" and list(node.attr["Tin"].list.type).count(tf.resource.as_datatype_enum) == 16
    ]
    replicas = {name for name in nodes if CALL.search(name)}
    assert len(replicas) >= 8
    assert not above(sending, nodes) & replicas
    # And the other way: a replica does not wait for the slices of the next step.
    assert not any(sending.name in above(nodes[name], nodes) for name in replicas)
    for card, own_places in enumerate(step.places.places):
        assert own_places[0].device.endswith(CARDS[card])
