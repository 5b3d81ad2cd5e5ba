"""What a step sends between host and cards, counted on eight of them."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake import copies

import colonnade as cn
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments
from colonnade.run.step import xla

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
ROWS, WIDTH, STEPS = 256, 64, 10


def network(layers, norm=False):
    keras.utils.set_random_seed(1)
    stack = [keras.Input([WIDTH])]
    for _ in range(layers):
        stack += [keras.layers.Dense(WIDTH, "tanh")]
        stack += [keras.layers.BatchNormalization()] if norm else []
    return keras.Sequential([*stack, keras.layers.Dense(1)])


def per_step(model, devices, *, computed=True, **options):
    """For each pair the messages and bytes of a step: what twenty steps have more than ten."""
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1),
        keras.optimizers.Adam(0.01),
        devices=devices,
        **options,
    )
    x, y = np.ones([ROWS, WIDTH], "float32"), np.ones([ROWS, 1], "float32")
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    counted = []
    for steps in (STEPS, STEPS, 2 * STEPS):
        copies()
        trainer.fit(data, steps=steps, log_every=steps, progress=False, prove=False)
        counted.append(copies(computed=computed))
    _, ten, twenty = counted
    return {
        pair: tuple((a - b) / STEPS for a, b in zip(twenty[pair], ten.get(pair, (0, 0)), strict=True))
        for pair in twenty
    }


@pytest.fixture(scope="module")
def traffic():
    return per_step(network(3), CARDS)


def test_a_slice_goes_from_the_host_to_its_card(traffic):
    part = ROWS // len(CARDS) * (WIDTH + 1) * 4
    for card in range(len(CARDS)):
        _, size = traffic["CPU:0", f"GPU:{card}"]
        assert part <= size <= part + 256  # and some numbers: steps, rates


@pytest.mark.parametrize("layers", [3, 9])
def test_gradients_travel_in_buckets_both_ways_however_many_variables_there_are(traffic, layers):
    parameters = sum(v.numpy().nbytes for v in network(layers).trainable_variables)
    traffic = traffic if layers == 3 else per_step(network(layers), CARDS)
    between = {pair: sent for pair, sent in traffic.items() if "CPU:0" not in pair and sent[1] >= parameters}
    # Each card but the first sends its sum once, and gets that of all once.
    assert len(between) == 2 * (len(CARDS) - 1)
    assert all(size == parameters for _, size in between.values())
    assert all(number <= 4 for number, _ in between.values())  # a bucket, and what orders the ops


def test_a_card_that_takes_no_part_is_left_alone():
    """The user's variables are on the first card; what trains is on others."""
    traffic = per_step(network(3), CARDS[1:4])
    assert sum(size for pair, (_, size) in traffic.items() if "GPU:0" in pair) < 64  # the rate, say


def noisy(layers, norms, dropouts):
    keras.utils.set_random_seed(1)
    stack = [keras.Input([WIDTH]), *(keras.layers.Dense(WIDTH) for _ in range(layers))]
    stack += [keras.layers.BatchNormalization() for _ in range(norms)]
    stack += [keras.layers.Dropout(0.3) for _ in range(dropouts)]
    return keras.Sequential([*stack, keras.layers.Dense(1)])


def numbers(traffic):
    return {pair: number for pair, (number, _) in traffic.items()}


def messages(traffic):
    return sum(numbers(traffic).values())


def by_itself(model, home, assigned=False, rows=ROWS):
    """The messages of a call of `train_on_batch`, after others; before it a variable may be assigned."""
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1),
        keras.optimizers.Adam(0.01),
        devices=CARDS,
        variables=home,
    )
    x, y = np.ones([rows, WIDTH], "float32"), np.ones([rows, 1], "float32")
    trainer.train_on_batch(x, y)
    trainer.train_on_batch(x, y)
    if assigned:
        model.layers[0].bias.assign(model.layers[0].bias + 1.0)
    copies()
    trainer.train_on_batch(x, y)
    return messages(copies())


@pytest.mark.parametrize(("home", "rows"), [("mirrored", ROWS), ("mirrored", 250), ("shared", ROWS)])
def test_messages_do_not_depend_on_the_number_of_batch_norms(home, rows):
    """Nor where slices have two sizes, as those of 250 rows.

    With shared variables all cards read the two weights of each norm, which is a message for each card.
    """
    read = 4 * 2 * (len(CARDS) - 1) if home == "shared" else 0
    one, five = (by_itself(noisy(2, norms, 0), home, rows=rows) for norms in (1, 5))
    assert five == one + read


def test_neither_a_fit_with_norms_nor_a_ring_sends_more_messages_for_more_variables():
    """As many buckets as cards, of whatever they hold; a bucket goes to its root and back along a tree."""
    norms = [per_step(network(layers, norm=True), CARDS[:4]) for layers in (1, 4)]
    assert numbers(norms[0]) == numbers(norms[1])
    # Nor is there more to tell of branches that are not taken. At the end of each of its two calls, each of
    # the two fits may lack what four cards tell.
    every = [per_step(network(layers, norm=True), CARDS[:4], computed=False) for layers in (1, 4)]
    assert abs(messages(every[1]) - messages(every[0])) <= 2 * 2 * 4 / STEPS
    rings = [per_step(network(layers), CARDS[:4], reduce="ring") for layers in (1, 4)]
    between = [{pair: n for pair, n in numbers(ring).items() if "CPU:0" not in pair} for ring in rings]
    assert between[0] == between[1]
    assert sum(between[0].values()) <= 2 * (4 * 2 * 3)  # and what orders the ops


def test_dropout_sends_nothing_to_the_host():
    """Neither its seeds nor the numbers that Keras computes with; from there it gets two keys of numbers."""
    without, several = (per_step(noisy(1, 0, number), CARDS) for number in (0, 3))
    for card in range(len(CARDS)):
        back, nothing = several[f"GPU:{card}", "CPU:0"], without[f"GPU:{card}", "CPU:0"]
        assert back[1] == nothing[1]
        assert back[0] <= nothing[0] + 1  # an empty message, by which ops are ordered
        number, size = several["CPU:0", f"GPU:{card}"]
        assert number <= without["CPU:0", f"GPU:{card}"][0] + 2 * 3 + 1
        assert size <= without["CPU:0", f"GPU:{card}"][1] + 3 * 32


def test_a_step_by_itself_copies_only_what_has_changed():
    """However many variables there are; one that was assigned goes to the seven other cards."""
    few, many = by_itself(noisy(2, 2, 1), "mirrored"), by_itself(noisy(6, 2, 1), "mirrored")
    assert many == few
    assert by_itself(noisy(6, 2, 1), "mirrored", assigned=True) == many + len(CARDS) - 1


class Own(keras.Model):
    """With steps of its own."""

    def __init__(self, stack):
        super().__init__()
        self.stack = stack

    def call(self, x, training=False):
        return self.stack(x, training=training)

    def train_step(self, data):
        x, y, *_ = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}

    def test_step(self, data):
        x, y, *_ = data
        return {"loss": tf.reduce_mean((self(x) - y) ** 2)}


def of_own_step(stack, call=cn.train_on_batch):
    """For each pair the messages and bytes of a step of the model's own, after others."""
    x, y = np.ones([ROWS, WIDTH], "float32"), np.ones([ROWS, 1], "float32")
    model = Own(stack)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    for _ in range(3):
        copies()
        call(model, x, y, devices=CARDS, prove=False)
    return copies()


def test_the_batch_of_a_step_of_the_models_own_is_cut_on_the_host():
    traffic = of_own_step(network(2))
    part = ROWS // len(CARDS) * (WIDTH + 1) * 4  # and some numbers
    assert all(part <= traffic["CPU:0", f"GPU:{card}"][1] <= part + 1024 for card in range(len(CARDS)))


@pytest.mark.parametrize("call", [cn.train_on_batch, cn.test_on_batch])
def test_a_step_of_the_models_own_sends_no_more_messages_for_more_variables(call):
    """Neither those of layers, nor what an optimizer reads once for each of them: its rate."""
    few, many = (of_own_step(network(layers), call) for layers in (2, 8))
    assert numbers(few) == numbers(many)
    one, five = (of_own_step(noisy(2, norms, 0), call) for norms in (1, 5))
    assert numbers(one) == numbers(five)


def of_a_batch(run):
    """For each pair the messages and bytes of a batch: what ten batches have more than five."""
    counted = []
    for batches in (5, 5, 10):
        x, y = np.ones([batches * ROWS, WIDTH], "float32"), np.ones([batches * ROWS, 1], "float32")
        copies()
        run(x, y)
        counted.append(copies())
    _, few, many = counted
    return {
        pair: tuple((a - b) / 5 for a, b in zip(many[pair], few.get(pair, (0, 0)), strict=True))
        for pair in many
    }


def assert_only_slices_go_to_cards(traffic, part, more=0):
    """From the host its slice, and some numbers; from other cards nothing."""
    for (source, target), (_, size) in traffic.items():
        if target != "CPU:0":
            assert size <= (part + more + 256 if source == "CPU:0" else 64), (source, target, size)
    assert all(traffic["CPU:0", f"GPU:{card}"][1] >= part for card in range(len(CARDS)))


@pytest.mark.parametrize("norm", [False, True])
def test_evaluate_reads_the_copies_of_the_training(norm):
    model = network(3, norm)
    trainer = cn.Trainer(
        lambda x, y, training: tf.reduce_mean((model(x, training=training) - y) ** 2, axis=1),
        keras.optimizers.Adam(0.01),
        devices=CARDS,
    )
    trainer.train_on_batch(np.ones([ROWS, WIDTH], "float32"), np.ones([ROWS, 1], "float32"))
    traffic = of_a_batch(lambda x, y: trainer.evaluate((x, y), batch_size=ROWS))
    assert_only_slices_go_to_cards(traffic, ROWS // len(CARDS) * (WIDTH + 1) * 4)


@pytest.mark.parametrize("what", ["evaluate", "predict", "validation"])
def test_a_keras_model_is_read_on_every_card(what):
    model = network(3)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    options = {"devices": CARDS, "verbose": 0}

    def run(x, y):
        with tf.device("/device:CPU:0"):  # of arrays Keras itself makes tensors of the first card, once
            data = tf.data.Dataset.from_tensor_slices((x, y)).batch(ROWS)
        if what == "evaluate":
            cn.evaluate(model, data, **options)
        elif what == "predict":
            cn.predict(model, data.map(lambda x, y: x), **options)
        else:
            cn.fit(model, data.take(1), validation_data=data, prove=False, shuffle=False, **options)

    # Predictions Keras puts together on the first card, of all batches once; labels stay on the host.
    more = ROWS * 4 if what == "predict" else 0
    assert_only_slices_go_to_cards(of_a_batch(run), ROWS // len(CARDS) * WIDTH * 4, more)


def test_where_cards_can_compile_each_has_one_compiled_update(monkeypatch):
    """The graph that real cards get; XLA does not know these cards, so it is not run here."""
    assert not hardware.compiles_for(CARDS[0])
    monkeypatch.setattr(hardware, "compiles_for", lambda device: True)
    monkeypatch.setattr(xla, "LARGE", 0)
    model = network(3)
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1),
        keras.optimizers.Adam(0.01),
        devices=CARDS,
    )
    batch = Arguments((tf.ones([ROWS, WIDTH]), tf.ones([ROWS, 1])), {}, ("x", "y"))
    step, _ = trainer._loop.built(batch)
    updates = [op for op in step.graph.get_operations() if re.match(r"update_\d_sums", op.name)]
    compiled = [op for op in updates if op.type == "StatefulPartitionedCall"]
    assert sorted(op.device for op in compiled) == sorted(CARDS)
    functions = {op.get_attr("f").name for op in compiled}
    library = {f.signature.name: f for f in step.graph.as_graph_def().library.function}
    assert all(library[name].attr["_XlaMustCompile"].b for name in functions)
    # Beside them there is no op of the optimizer, but the handles of variables and what to wait for.
    assert {op.type for op in updates} == {"StatefulPartitionedCall", "Placeholder", "Const"}
