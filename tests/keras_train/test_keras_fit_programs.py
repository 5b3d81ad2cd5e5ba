"""What programs around `cn.fit`, `cn.evaluate` and `cn.predict` use of Keras, against Keras's own."""

import csv
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 6)).astype("float32")
Y = RNG.normal(size=(24, 2)).astype("float32")
OPTIONS = {"verbose": 0, "shuffle": False}
THEIRS = keras.Model.fit, keras.Model.evaluate, keras.Model.predict
OURS = tuple(partial(call, devices=2) for call in (cn.fit, cn.evaluate, cn.predict))


def model(**options):
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input([6]), keras.layers.Dense(2)])
    made.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], **options)
    return made


def flat(nest):
    return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(nest)])


def same(program):
    """Whatever a program gives, ours must give as well."""
    theirs, ours = (flat(program(*calls)) for calls in (THEIRS, OURS))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


class Batches(keras.utils.PyDataset):
    def __init__(self, count, **options):
        super().__init__(**options)
        self.count = count

    def __len__(self):
        return 3

    def __getitem__(self, i):
        rows = slice(8 * i, 8 * i + 6)
        return (X[rows], Y[rows], np.linspace(0, 1, 6))[: self.count]


@pytest.mark.long
def test_python_datasets():
    def program(fit, evaluate, predict):
        made = model()
        history = fit(made, Batches(3), validation_data=Batches(2), **OPTIONS).history
        return history, evaluate(made, Batches(3), verbose=0), predict(made, Batches(1, workers=2), verbose=0)

    same(program)


def test_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    x, y = pandas.DataFrame(X), pandas.DataFrame(Y)

    def program(fit, evaluate, predict):
        made = model()
        history = fit(made, x, y, 6, 2, validation_split=0.25, **OPTIONS).history
        return history, evaluate(made, x, y, 6, verbose=0), predict(made, x, 6, verbose=0)

    same(program)


@pytest.mark.parametrize(
    "options",
    [
        {"validation_split": 0.25, "validation_freq": 2},
        {
            "validation_data": tf.data.Dataset.from_tensor_slices((X, Y)).batch(6).repeat(),
            "validation_steps": 3,
        },
        pytest.param({"validation_split": 0.25, "validation_freq": [1, 3]}, marks=pytest.mark.long),
    ],
)
def test_validation_now_and_then(options):
    steps = 2 if "validation_steps" in options else 1

    def program(fit, evaluate, predict):
        history = fit(model(steps_per_execution=steps), X, Y, 6, 3, **OPTIONS, **options).history
        return [history[name] for name in sorted(history)]

    same(program)


def two_outputs():
    keras.utils.set_random_seed(0)
    given = keras.Input([6])
    made = keras.Model(
        given, {"a": keras.layers.Dense(2, name="a")(given), "b": keras.layers.Dense(1)(given)}
    )
    weights = {"a": 1.0, "b": 0.3}
    made.compile("sgd", {"a": "mse", "b": "mae"}, loss_weights=weights, metrics={"a": ["mae"], "b": ["mse"]})
    return made


@pytest.mark.long
def test_several_outputs_with_losses_and_metrics_of_their_own():
    targets = {"a": Y, "b": Y[:, :1]}

    def program(fit, evaluate, predict):
        made = two_outputs()
        history = fit(made, X, targets, 12, **OPTIONS).history
        scores = evaluate(made, X, targets, 10, verbose=0, return_dict=True)
        return history, scores, evaluate(made, X, targets, verbose=0), predict(made, X, 10, verbose=0)

    same(program)


class Cut(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise InterruptedError


@pytest.mark.long
def test_callbacks_of_keras_that_write_and_read_files(tmp_path):
    def program(fit, evaluate, predict):
        place = tmp_path / str(fit is cn.fit or isinstance(fit, partial))
        table, best = place / "log.csv", place / "best.keras"
        place.mkdir()
        with pytest.raises(InterruptedError):
            fit(
                model(),
                X,
                Y,
                12,
                3,
                callbacks=[keras.callbacks.BackupAndRestore(place / "b"), Cut()],
                **OPTIONS,
            )
        made, callbacks = model(), keras.callbacks
        history = fit(
            made,
            X,
            Y,
            12,
            3,
            validation_split=0.5,
            callbacks=[
                callbacks.BackupAndRestore(place / "b"),
                callbacks.TensorBoard(place / "board", histogram_freq=1, update_freq=1),
                callbacks.CSVLogger(table),
                callbacks.ModelCheckpoint(best, save_best_only=True),
                callbacks.ReduceLROnPlateau(patience=0, min_delta=1.0),
            ],
            **OPTIONS,
        )
        assert sorted(path.name for path in (place / "board").iterdir()) == ["train", "validation"]
        rows = [
            [float(value) for value in row] for row in list(csv.reader(table.read_text().splitlines()))[1:]
        ]
        return history.epoch, history.history, rows, keras.models.load_model(best).get_weights()

    same(program)
