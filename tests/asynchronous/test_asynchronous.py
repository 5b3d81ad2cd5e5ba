"""What a user sets, and what comes of it beside other ways of training."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from families import long
from numpy_async import RATE, batches, linear

import colonnade as cn


def test_six_workers_each_pushing_1_move_the_weight_by_6():
    moved = {}
    for name, sync in {"asynchronous": cn.Asynchronous(), "synchronous": cn.Synchronous()}.items():
        w = tf.Variable(0.0)
        trainer = cn.Trainer(lambda x, w=w: -w * x, keras.optimizers.SGD(1.0), devices=6, sync=sync)
        trainer.train_on_batch(np.ones(6, "float32"))
        moved[name] = w.numpy()
    assert moved == {"asynchronous": 6.0, "synchronous": 1.0}


def test_numpy_integers_are_whole_numbers():
    _, trainer = linear(cn.Asynchronous(np.int64(1)))
    assert max(trainer.fit(batches(4), progress=False).records[-1].staleness) <= 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: cn.Asynchronous(max_staleness=-1), "max_staleness=-1"),
        (lambda: cn.Asynchronous(damping=2), "damping=2"),
        (lambda: cn.Asynchronous(order=3), "order=3"),
        (
            lambda: linear(
                cn.Asynchronous(damping=True),
                optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE, use_ema=True)),
            ),
            "damping=True: does not go with an optimizer that has use_ema=True",
        ),
        (
            lambda: linear(
                cn.Asynchronous(damping=True),
                optimizer=keras.optimizers.MultiOptimizer(
                    keras.optimizers.OptimizerMap(keras.optimizers.SGD(RATE, use_ema=True))
                ),
            ),
            "damping=True: does not go with an optimizer that has use_ema=True",
        ),
        (lambda: linear(cn.Asynchronous(), variables="mirrored"), "has no meaning with Asynchronous"),
        (lambda: linear(cn.Asynchronous(), variables="partitioned"), "has no meaning with Asynchronous"),
    ],
)
def test_bad_settings(make, says):
    with pytest.raises(cn.InvalidArgument) as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.long
@pytest.mark.parametrize(
    ("sync", "rate"),
    [
        (cn.Synchronous(), 0.5),
        (cn.Asynchronous(), 0.1),
        *long((cn.Asynchronous(max_staleness=1), 0.1), (cn.LocalSGD(8), 0.5)),
        *long((cn.DiLoCo(16), 0.2), (cn.Elastic(4, 0.2), 0.5)),
    ],
    ids=["synchronous", "asynchronous", "staleness 1", "local", "diloco", "elastic"],
)
def test_every_mode_reaches_the_same_accuracy_on_digits(sync, rate):
    from sklearn.datasets import load_digits

    digits = load_digits()
    x, y = (digits.data / 16).astype("float32"), digits.target
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(10)])

    def loss(x, y):
        logits = model(x)
        losses = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(y, logits)}

    trainer = cn.Trainer(loss, keras.optimizers.SGD(rate), devices=3, sync=sync)
    history = trainer.fit((x[:1440], y[:1440]), batch_size=48, steps=300, progress=False)
    tested = trainer.evaluate((x[1440:], y[1440:]), batch_size=100)
    assert tested.metrics["accuracy"] > 0.85, (tested, history.records[-1])
    assert bool(history.records[-1].staleness) == isinstance(sync, cn.Asynchronous)
