"""Made the files beside it, with the code of version 0.1.0 before its modules were put into rooms.

They must load for ever: `test_saved_before.py` goes on from them. Run it again only to add a file:
`python make.py FOLDER`.
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

# By name: how the training was done. Each was saved after 4 steps.
WAYS = {
    "synchronous": {"variables": "partitioned"},
    "local": {"sync": cn.LocalSGD(3)},
    "asynchronous": {"sync": cn.Asynchronous(max_staleness=0)},
}
X = np.linspace(-1, 1, 24).reshape(12, 2).astype("float32")
Y = X[:, :1] * 2 + 1


def trainer(name):
    """A small model with all that a checkpoint keeps: slots, averages, the state of a generator."""
    keras.utils.clear_session()  # Keras numbers names, and variables are found by them
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Dense(3, name="hidden"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.1, name="dropout", seed=5),
            keras.layers.Dense(1, name="out"),
        ]
    )
    model.build([None, 2])

    def loss(x, y):
        return tf.squeeze((model(x, training=True) - y) ** 2, axis=1)

    optimizer = keras.optimizers.Adam(0.01, use_ema=True)
    return model, cn.Trainer(loss, optimizer, devices=2, **WAYS[name])


def wide():
    """A model with layers that are split by width."""
    keras.utils.set_random_seed(4)
    return keras.Sequential(
        [
            keras.Input([4]),
            cn.width.Dense(5, split="columns", activation="relu", devices=2, name="columns"),
            cn.width.Dense(3, split="rows", devices=2, name="rows"),
        ]
    )


def weights(model):
    return [np.asarray(weight).tolist() for weight in model.get_weights()]


if __name__ == "__main__":
    cn.setup(virtual=2)
    folder = Path(sys.argv[1])
    expected = {}
    for name in WAYS:
        model, training = trainer(name)
        checkpoint = cn.Checkpoint(folder / name, every=4)
        training.fit((X, Y), batch_size=6, steps=4, checkpoint=checkpoint, progress=False)
        expected[name] = weights(model)
    model = wide()
    model.save(folder / "wide.keras")
    expected["wide"] = np.asarray(model(np.ones([2, 4], "float32"))).tolist()
    (folder / "expected.json").write_text(json.dumps(expected))
