"""A training with checkpoints, on every machine the same: `machine_training.py FOLDER STEPS [DEVICES]`.

Says each step, and at its end what it has learnt, exactly.
"""

import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

FOLDER, STEPS = Path(sys.argv[1]), int(sys.argv[2])
DEVICES = cn.setup(virtual=int(sys.argv[3]) if len(sys.argv) > 3 else 1)

keras.utils.set_random_seed(11)  # before the data: the order of a shuffle follows from it too
draw = np.random.default_rng(3)
x = draw.normal(size=(64, 5))
rows = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
data = rows.shuffle(64, seed=1).batch(16)

layers = [keras.layers.Dense(7, "tanh", dtype="float64"), keras.layers.Dense(1, dtype="float64")]
model = keras.Sequential([keras.Input((5,), dtype="float64"), *layers])


def loss(x, y):
    return tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1)


def look(record):
    print("step", record.step, flush=True)
    time.sleep(0.05)


trainer = cn.Trainer(loss, keras.optimizers.Adam(0.05), devices=DEVICES)
options = {"prove": False, "progress": False, "log_every": 1}
checkpoint = cn.Checkpoint(FOLDER, every=10)
trainer.fit(data, epochs=STEPS // 4, checkpoint=checkpoint, callbacks=[look], **options)
print("final", *(float(v).hex() for p in trainer.parameters for v in p.numpy().ravel()), flush=True)
