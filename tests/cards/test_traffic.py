"""What a step sends between host and cards, counted on eight of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from fake import copies

import colonnade as cn

CARDS = tuple(device.name for device in tf.config.list_logical_devices("GPU"))
ROWS, WIDTH, STEPS = 256, 64, 10


def network(layers, norm=False):
    keras.utils.set_random_seed(1)
    stack = [keras.Input([WIDTH])]
    for _ in range(layers):
        stack += [keras.layers.Dense(WIDTH, "tanh")]
        stack += [keras.layers.BatchNormalization()] if norm else []
    return keras.Sequential([*stack, keras.layers.Dense(1)])


def per_step(model, devices, **options):
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
        trainer.fit(data, steps=steps, log_every=steps, progress=False)
        counted.append(copies())
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


def messages(traffic):
    return sum(number for number, _ in traffic.values())


def by_itself(model, home, assigned=False):
    """The messages of a call of `train_on_batch`, after others; before it a variable may be assigned."""
    trainer = cn.Trainer(
        lambda x, y: tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1),
        keras.optimizers.Adam(0.01),
        devices=CARDS,
        variables=home,
    )
    x, y = np.ones([ROWS, WIDTH], "float32"), np.ones([ROWS, 1], "float32")
    trainer.train_on_batch(x, y)
    trainer.train_on_batch(x, y)
    if assigned:
        model.layers[0].bias.assign(model.layers[0].bias + 1.0)
    copies()
    trainer.train_on_batch(x, y)
    return messages(copies())


@pytest.mark.parametrize("home", ["mirrored", "shared"])
def test_messages_do_not_depend_on_the_number_of_batch_norms(home):
    """With shared variables all cards read the two weights of each norm, which is a message for each card."""
    read = 4 * 2 * (len(CARDS) - 1) if home == "shared" else 0
    assert by_itself(noisy(2, 5, 0), home) == by_itself(noisy(2, 1, 0), home) + read


def test_a_step_by_itself_copies_only_what_has_changed():
    """However many variables there are; one that was assigned goes to the seven other cards."""
    few, many = by_itself(noisy(2, 2, 1), "mirrored"), by_itself(noisy(6, 2, 1), "mirrored")
    assert many == few
    assert by_itself(noisy(6, 2, 1), "mirrored", assigned=True) == many + len(CARDS) - 1
