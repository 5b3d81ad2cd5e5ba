"""The slice of the next step is copied to its card while the one before computes, and no batch is lost."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake import copies

import colonnade as cn
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.memory.estimate import Footprint, Memory
from colonnade.run.sync import workers

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 6)).astype("float32")
CALL = re.compile(r"replica_\d_on_GPU_\d/.*PartitionedCall$")
IDS = RNG.integers(0, 6, size=(160, 1)).astype("int32")


class Training:
    """A loss that has seen which rows, in the order of batches: their weights are written to a table."""

    def __init__(self, number, **options):
        rng = np.random.default_rng(1)
        self.w = tf.Variable(rng.normal(size=(6, 1)).astype("float32"))
        self.table = tf.Variable(rng.normal(size=(6, 1)).astype("float32"))

        def loss(x, ids):
            return tf.squeeze((x @ self.w) ** 2 + tf.gather(self.table, tf.squeeze(ids, 1)), 1)

        self.trainer = cn.Trainer(loss, keras.optimizers.Adam(0.01), devices=CARDS[:number], **options)

    def fit(self, data, **options):
        self.history = self.trainer.fit(data, progress=False, prove=False, **options)
        return self.values

    @property
    def values(self):
        return [self.w.numpy(), self.table.numpy()]


@pytest.fixture
def not_ahead(monkeypatch):
    """As if copies took no time."""
    return lambda: monkeypatch.setattr(GraphEngine, "ahead", lambda self, batch: None)


def assert_equal(one, other):
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def whole_and_cut():
    """Batches of 16 rows, of 10, and of 5, fewer than there are cards, in turn."""
    sizes, start = [16] * 3 + [10] * 2 + [5] + [16] * 2, 0
    for size in sizes:
        yield X[start : start + size], IDS[start : start + size]
        start += size


def dataset():
    spec = (tf.TensorSpec([None, 6]), tf.TensorSpec([None, 1], tf.int32))
    return tf.data.Dataset.from_generator(whole_and_cut, output_signature=spec)


@pytest.mark.parametrize(("number", "log_every"), [(2, 100), (4, 3), (8, 1)])
def test_sizes_that_change_and_the_end_of_the_data(not_ahead, number, log_every):
    """Bit for bit what it is without: the same batches, each of them once."""
    ahead = Training(number)
    values = ahead.fit(dataset(), log_every=log_every)
    assert ahead.trainer.step == 8
    not_ahead()
    behind = Training(number)
    assert_equal(values, behind.fit(dataset(), log_every=log_every))
    assert ahead.history.losses == behind.history.losses


def test_replicas_that_meet_from_time_to_time(not_ahead):
    values = Training(4, sync=cn.DiLoCo(2)).fit(dataset(), log_every=100)
    not_ahead()
    assert_equal(values, Training(4, sync=cn.DiLoCo(2)).fit(dataset(), log_every=100))


def test_a_fit_that_ends_early_leaves_the_next_batch_to_the_next(not_ahead, tmp_path):
    """And a training that is saved and goes on takes every batch once."""

    def run(folder):
        keras.backend.clear_session()
        data = tf.data.Dataset.from_tensor_slices((X, IDS)).batch(16)
        checkpoint = cn.Checkpoint(folder, every=3)
        Training(4).fit(data, steps=3, checkpoint=checkpoint)
        keras.backend.clear_session()
        training = Training(4)
        training.fit(data, steps=10, checkpoint=checkpoint)
        return training.trainer.step, training.values

    made, values = run(tmp_path / "ahead")
    assert made == 10
    straight = Training(4).fit(tf.data.Dataset.from_tensor_slices((X, IDS)).batch(16), steps=10)
    assert_equal(values, straight)
    not_ahead()
    assert_equal(values, run(tmp_path / "behind")[1])


def failing(good):
    for i in range(good):
        yield X[16 * i : 16 * (i + 1)], IDS[16 * i : 16 * (i + 1)]
    raise ValueError("the disk is gone")


@pytest.mark.parametrize(("good", "log_every"), [(1, 100), (2, 1), (5, 100)])
def test_data_that_fail_end_it_after_the_last_batch_that_was_there(not_ahead, good, log_every):
    def run():
        spec = (tf.TensorSpec([16, 6]), tf.TensorSpec([16, 1], tf.int32))
        data = tf.data.Dataset.from_generator(lambda: failing(good), output_signature=spec)
        training = Training(4)
        with pytest.raises(tf.errors.OpError, match="the disk is gone"):
            training.fit(data, log_every=log_every)
        return training.trainer.step, training.values

    made, values = run()
    assert made == good
    not_ahead()
    made, behind = run()
    assert made == good
    assert_equal(values, behind)


@pytest.mark.parametrize("on_nan", ["stop", "skip"])
def test_a_nan_is_that_of_its_step(on_nan):
    x = X.copy()
    x[3 * 16 + 9] = np.nan  # the fourth batch, on the third card
    data = tf.data.Dataset.from_tensor_slices((x, IDS)).batch(16)
    training = Training(4, on_nan=on_nan)
    if on_nan == "stop":
        with pytest.raises(cn.NotFinite, match="GPU:2 at step 4"):
            training.fit(data)
        assert_equal(training.values, Training(4).fit(data, steps=3))
    else:
        training.fit(data)
        assert training.trainer.step == 10
        assert all(np.isfinite(value).all() for value in training.values)


def test_each_card_is_sent_its_slices_once_and_sends_none_back(not_ahead):
    """The bytes of a step are those of its slices, as without."""

    def moved():
        training = Training(8)
        data = tf.data.Dataset.from_tensors((X, IDS)).repeat()
        counted = []
        for steps in (5, 5, 10):
            copies()
            training.fit(data, steps=steps, log_every=steps)
            counted.append(copies())
        _, few, many = counted
        return {pair: (many[pair][1] - few.get(pair, (0, 0))[1]) / 5 for pair in many if "CPU:0" in pair}

    ahead = moved()
    assert all(ahead["CPU:0", f"GPU:{card}"] >= 20 * 6 * 4 for card in range(8))
    not_ahead()
    assert ahead == pytest.approx(moved(), abs=64)


def named(node):
    return [text.lstrip("^").partition(":")[0] for text in node.input]


def above(node, nodes):
    """The names of all that a node waits for, in its function."""
    seen, waiting = set(), named(node)
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += named(nodes[name]) if name in nodes else []
    return seen


def test_the_copy_waits_for_nothing_that_the_step_computes():
    training = Training(8)
    training.fit(tf.data.Dataset.from_tensors((X, IDS)).repeat(), steps=4)
    (loop,) = training.trainer._loop._many.values()
    graph = loop.graph.graph.as_graph_def()
    (turns,) = [node for node in graph.node if node.op in ("While", "StatelessWhile")]
    body = turns.attr["body"].func.name
    (turn,) = [function for function in graph.library.function if function.signature.name == body]
    nodes = {node.name: node for node in turn.node_def}
    places = sum(map(len, loop.ahead.places))
    (sending,) = [
        node
        for node in nodes.values()
        if node.op == "If" and list(node.attr["Tin"].list.type).count(tf.resource.as_datatype_enum) == places
    ]
    replicas = {name for name in nodes if CALL.search(name)}
    assert len(replicas) == 8
    assert not above(sending, nodes) & replicas
    # And the other way: a replica does not wait for the slices of the next step.
    assert not any(sending.name in above(nodes[name], nodes) for name in replicas)
    for card, (x, ids) in enumerate(loop.ahead.places):
        assert x.device.endswith(CARDS[card])
        assert ids.device.endswith("CPU:0")  # where TensorFlow keeps such numbers for a card


def test_after_a_fit_no_card_holds_a_slice():
    training = Training(4)
    for data in (dataset(), tf.data.Dataset.from_tensors((X, IDS)).repeat()):
        training.fit(data, steps=9)
        loops = training.trainer._loop._many.values()
        held = [place for loop in loops for places in loop.ahead.places for place in places]
        assert [int(tf.size(place.read_value())) for place in held] == [0] * len(held)
    assert len(loops) == 4  # sizes of batches, each with places of its own


def test_the_estimate_counts_a_slice_more(monkeypatch):
    nothing = Memory(tuple(Footprint(card, 0, 0, 0, 0) for card in CARDS[:4]))
    monkeypatch.setattr(workers, "of_replicas", lambda *_: nothing)
    estimated = Training(4).trainer.memory(X, IDS)
    assert [device.total for device in estimated.devices] == [40 * (6 + 1) * 4 + 8] * 4  # with a factor
