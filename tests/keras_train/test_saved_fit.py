"""A Keras training that is cut and goes on equals one that is not, by a checksum of everything."""

import json
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from fresh import ROOT, run
from kerasfits import Tally, X, Y, train

import colonnade as cn


class Cut(Exception):
    pass


class After:
    """Raises after so many batches of this process."""

    def __init__(self, batches):
        self.left = batches

    def __call__(self, batch):
        self.left -= 1
        if self.left < 0:
            raise Cut


def cut_again_and_again(folder, after, **options):
    """Run a training, cut it after some batches, and again; at last let it end."""
    for batches in after:
        with pytest.raises(Cut):
            train(folder, at_batch=After(batches), **options)
    return train(folder, **options)


# Five batches make an epoch, and every third is saved.
@pytest.mark.filterwarnings("ignore:A callback ended this fit")  # which is the case, in some
@pytest.mark.parametrize(
    ("model", "data", "cuts", "options"),
    [
        ("plain", "dataset", [6], {"variables": "mirrored", "epochs": 3}),
        *long(
            ("plain", "dataset", [4, 2, 8], {"variables": "mirrored"}),
            ("own", "arrays", [4, 2, 8], {}),
            ("plain", "arrays", [4, 2, 8], {"variables": "partitioned", "devices": 3}),
            ("plain", "arrays", [4, 2, 8], {"shuffle": False, "devices": 1}),
            ("own", "dataset", [4, 2, 8], {"devices": 3}),
            ("plain", "dataset", [4, 2, 8], {"steps_per_epoch": 5, "every": 1}),
            ("plain", "arrays", [4, 2, 8], {"initial_epoch": 2, "every": 4}),
        ),
    ],
)
def test_a_training_that_was_cut_ends_as_one_that_was_not(tmp_path, model, data, cuts, options):
    options = {"model": model, "data": data, **options}
    expected = train(tmp_path / "unbroken", **options)
    assert int(expected.split()[2]) >= 15, expected  # else it was over before it could be cut
    assert cut_again_and_again(tmp_path / "cut", cuts, **options) == expected
    if len(cuts) > 1:
        # The same program once more has nothing left to do, and ends with the same.
        assert train(tmp_path / "cut", at_batch=After(0), **options) == expected


@pytest.mark.long
@pytest.mark.parametrize(("model", "data"), [("plain", "dataset"), ("own", "arrays")])
def test_a_training_that_is_killed_ends_as_one_that_was_not(tmp_path, model, data):
    program = [sys.executable, ROOT / "tests" / "killed_keras.py", tmp_path, 12, 7, model, data]
    done = run([str(word) for word in program])
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["found"] == told["wanted"], told
    assert min(told[where] for where in ("inside a save", "between steps", "at any time")) > 0, told


def model(**options):
    keras.utils.clear_session()  # names are as in a new process
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile(keras.optimizers.SGD(0.1), loss, **options)
    return made


@pytest.mark.long
def test_without_shuffling_it_is_the_training_without_a_checkpoint(tmp_path):
    found = []
    for checkpoint in (None, cn.Checkpoint(tmp_path)):
        made = model(metrics=["accuracy"])
        history = cn.fit(
            made,
            X.astype("float64"),
            Y,
            devices=2,
            batch_size=9,
            epochs=2,
            shuffle=False,
            class_weight={0: 0.5, 1: 2.0},
            validation_split=0.25,
            verbose=0,
            checkpoint=checkpoint,
        )
        found.append([*history.history.values(), *made.get_weights()])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
def test_more_epochs_go_on_from_the_end(tmp_path):
    """Which ends as if all epochs had been asked for at once."""

    def run(folder, epochs):
        made = model()
        data = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(43, seed=1).batch(10)
        history = cn.fit(
            made, data, devices=2, epochs=epochs, verbose=0, checkpoint=cn.Checkpoint(folder), prove=False
        )
        return history.history["loss"], made.get_weights()

    run(tmp_path / "some", 2)
    losses, weights = run(tmp_path / "some", 4)
    expected, others = run(tmp_path / "all", 4)
    assert losses == expected
    assert len(losses) == 4
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # so says Keras, too
def test_data_of_unknown_length(tmp_path):
    """Keras counts too far in the first epoch, and finds out."""

    def run(folder, after):
        made, left = model(), After(after)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: True).batch(10)
        hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: left(batch))
        options = {"epochs": 3, "verbose": 0, "callbacks": [hook], "prove": False}
        history = cn.fit(made, data, devices=2, checkpoint=cn.Checkpoint(folder, every=2), **options)
        return history.history["loss"], made.get_weights()

    expected, weights = run(tmp_path / "unbroken", 99)
    for after in (3, 4):
        with pytest.raises(Cut):
            run(tmp_path / "cut", after)
    losses, others = run(tmp_path / "cut", 99)
    assert losses == expected
    np.testing.assert_array_equal(weights[0], others[0])


@pytest.mark.long
def test_data_that_cannot_be_saved_are_gone_through_again(tmp_path):
    """With data="skip"."""

    def run(folder, after):
        made, left = model(), After(after)
        kinds = tf.TensorSpec([4]), tf.TensorSpec([], "int32")
        data = tf.data.Dataset.from_generator(lambda: zip(X, Y, strict=True), output_signature=kinds)
        data = data.batch(10).apply(tf.data.experimental.assert_cardinality(5))
        hook = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: left(batch))
        saved = cn.Checkpoint(folder, every=2, data="skip")
        options = {"epochs": 2, "verbose": 0, "callbacks": [hook], "prove": False}
        return cn.fit(made, data, devices=2, checkpoint=saved, **options).history["loss"]

    expected = run(tmp_path / "unbroken", 99)
    with pytest.raises(Cut):
        run(tmp_path / "cut", 8)
    assert run(tmp_path / "cut", 99) == expected


@pytest.mark.long
def test_a_log_of_epochs_keeps_its_rows(tmp_path):
    def run(after):
        left = After(after)
        hook = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: left(epoch))
        log = keras.callbacks.CSVLogger(tmp_path / "log.csv")
        options = {"epochs": 4, "verbose": 0, "callbacks": [log, hook], "batch_size": 10, "prove": False}
        try:
            cn.fit(model(), X, Y, devices=2, checkpoint=cn.Checkpoint(tmp_path / "saved", every=5), **options)
        finally:
            log.csv_file.close()

    with pytest.raises(Cut):
        run(2)
    run(99)
    rows = (tmp_path / "log.csv").read_text().split()
    assert [row.split(",")[0] for row in rows] == ["epoch", "0", "1", "2", "3"]


def test_data_that_fail_at_the_start_of_an_epoch_are_not_taken_for_their_end(tmp_path):
    begun = []

    def rows():
        begun.append(1)
        if len(begun) > 1:
            raise ValueError("a file is broken")
        yield from zip(X, Y, strict=True)

    kinds = tf.TensorSpec([4]), tf.TensorSpec([], "int32")
    data = tf.data.Dataset.from_generator(rows, output_signature=kinds).batch(10)
    data = data.apply(tf.data.experimental.assert_cardinality(5))
    tally = Tally()
    tally.on_epoch_end = lambda epoch, logs: tally.heard.append("end")
    with pytest.raises(tf.errors.OpError, match="a file is broken"):
        fit(model(), tmp_path, x=data, y=None, epochs=3, data="skip", callbacks=[tally])
    assert tally.heard == [("epoch", 0), 0, 1, 2, 3, 4, "end", ("epoch", 1)]


class Forgetful(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.names = {"one"}


def test_what_cannot_be_kept_is_said(tmp_path):
    with pytest.warns(UserWarning, match=r"will not be the same: Forgetful\.names cannot be kept"):
        cn.fit(
            model(), X, Y, devices=2, verbose=0, checkpoint=cn.Checkpoint(tmp_path), callbacks=[Forgetful()]
        )


def fit(made, folder, *, x=X, y=Y, **options):
    data = options.pop("data", "exact")
    checkpoint = options.pop("checkpoint", cn.Checkpoint(folder, data=data))
    return cn.fit(
        made, x, y, **{"devices": 2, "verbose": 0, "prove": False, "checkpoint": checkpoint, **options}
    )


@pytest.mark.long
def test_mistakes_are_told(tmp_path):
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    for options, says in (
        ({"checkpoint": "runs"}, "must be a cn.Checkpoint"),
        ({"data": "restart"}, "in the middle of an epoch"),
        ({"callbacks": [backup]}, "saves and goes on too"),
        ({"sync": cn.LocalSGD(2)}, "is not saved by cn.fit"),
        ({"x": iter([(X, Y)]), "y": None}, "must be arrays or a tf.data.Dataset"),
        ({"shuffle": "batch"}, "is not kept by a checkpoint"),
        ({"batch_size": 10, "steps_per_epoch": 3}, "does not divide the 5 batches"),
    ):
        with pytest.raises(cn.InvalidArgument, match=says):
            fit(model(), tmp_path, **options)
    made = model()
    fit(made, tmp_path / "one")
    with pytest.raises(cn.InvalidArgument, match=r"an earlier cn\.fit of this model"):
        fit(made, tmp_path / "one")
    fit(model(), tmp_path / "two", callbacks=[Tally()])
    with pytest.raises(cn.InvalidArgument, match=r"callbacks='Tally'.*had a state when step 2 was saved"):
        fit(model(), tmp_path / "two")
    keras.utils.clear_session()
    other = keras.Sequential([keras.Input([4]), keras.layers.Dense(3), keras.layers.Dense(2)])
    other.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.raises(cn.InvalidArgument, match="Go on with the model"):
        fit(other, tmp_path / "one")


@pytest.mark.long
def test_the_directory_of_a_trainer_is_refused(tmp_path):
    w = tf.Variable(1.0)
    trainer = cn.Trainer(lambda x: w * tf.reduce_sum(x, axis=1), keras.optimizers.SGD(0.1), devices=2)
    trainer.fit((X,), batch_size=10, steps=2, checkpoint=cn.Checkpoint(tmp_path), progress=False)
    with pytest.raises(cn.InvalidArgument, match=r"checkpoints of a cn\.Trainer"):
        fit(model(), tmp_path)
