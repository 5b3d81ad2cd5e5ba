"""A training with checkpoints, on every machine the same: `machine_training.py FOLDER STEPS [SECONDS]`.

After each step it says what the parameters are, by a checksum, and takes so many seconds of a callback. It
ends after STEPS, or where a file `enough` is in the folder; without a step it only joins the others.

Its sums are exact, so any number of machines comes to the same, to the last bit: the inputs are whole
numbers, and what each row adds to a gradient is one too, times 2^-20.
"""

import sys
import time
import zlib
from pathlib import Path

# Keras imports these where they are, for what is not used here: a second of every start.
sys.modules |= dict.fromkeys(("IPython", "matplotlib", "pandas", "sklearn"))

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import colonnade as cn  # noqa: E402

FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
GRAIN = 2.0**-20
DEVICES = cn.setup(virtual=1)

if not STEPS:  # the machines have joined, and nothing is trained
    print("joined", flush=True)
    time.sleep(60)
    sys.exit()
keras.utils.set_random_seed(11)  # before the data: the order of a shuffle follows from it too
x = np.random.default_rng(3).integers(-3, 4, size=(64, 5)).astype("float64")
rows = tf.data.Dataset.from_tensor_slices((x, np.sin(x.sum(axis=1, keepdims=True))))
data = rows.shuffle(64, seed=1).batch(16)
model = keras.Sequential([keras.Input((5,), dtype="float64"), keras.layers.Dense(1, dtype="float64")])


@tf.custom_gradient
def grained(error):
    """The same; its gradient is rounded to grains."""
    return error, lambda upstream: tf.round(upstream / GRAIN) * GRAIN


def loss(x, y):
    return tf.reduce_mean(grained(model(x, training=True) - y) ** 2, axis=1)


def look(record):
    print("step", record.step, checksum(), flush=True)
    time.sleep(SECONDS)
    return (FOLDER / "enough").exists()


def checksum():
    return f"{zlib.crc32(b''.join(p.numpy().tobytes() for p in trainer.parameters)):08x}"


trainer = cn.Trainer(loss, keras.optimizers.Adam(0.05), devices=DEVICES)
options = {"prove": False, "progress": False, "log_every": 1}
checkpoint = cn.Checkpoint(FOLDER, every=10)
trainer.fit(data, epochs=STEPS // 4, checkpoint=checkpoint, callbacks=[look], **options)
print("final", trainer.step, checksum(), flush=True)
