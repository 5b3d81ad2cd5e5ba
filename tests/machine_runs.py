"""A training on one of several machines that goes wrong in the way that is asked for.

`python machine_runs.py WHAT FOLDER DEVICES`, with TF_CONFIG; the same program on every machine.
"""

import os
import signal
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])
DEVICES = cn.setup(virtual=int(sys.argv[3]))
LAST = cn.machines().rank == cn.machines().size - 1
EPOCHS = 4


def data(count=64):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(count, 5))
    return tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True))).shuffle(64, seed=1).batch(16)


def trainer(width=7, rate=0.05):
    keras.utils.set_random_seed(11)
    model = keras.Sequential(
        [
            keras.Input((5,), dtype="float64"),
            keras.layers.Dense(width, "tanh", dtype="float64"),
            keras.layers.Dropout(0.2, dtype="float64"),
            keras.layers.Dense(1, dtype="float64"),
        ]
    )

    def loss(x, y):
        return tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1)

    return cn.Trainer(loss, keras.optimizers.Adam(rate), devices=DEVICES)


def say(*words):
    print("SAID", *words, flush=True)


def run(after=None, **options):
    """A training with checkpoints; after so many steps something happens."""
    made = trainer()

    def looked(record):
        say("step", record.step)
        if after is not None:
            after(made, record)

    options = {"prove": False, "progress": False, "log_every": 1, **options}
    checkpoint = cn.Checkpoint(FOLDER, every=5)
    history = made.fit(data(), epochs=EPOCHS, checkpoint=checkpoint, callbacks=[looked], **options)
    say("resumed", history.resumed)
    say("losses", repr(history.losses))
    say("parameters", repr([p.numpy().tolist() for p in made.parameters]))


def at(step, do):
    def after(made, record):
        if LAST and record.step == step:
            say("now", time.time())
            do(made)

    return after


def spoil(made):
    """One machine comes to other values than the others."""
    made.parameters[0].assign_add(1e-9 * tf.ones_like(made.parameters[0]))


if WHAT == "train":
    run()
elif WHAT == "killed":
    run(at(7, lambda _: os.kill(os.getpid(), signal.SIGKILL)))
elif WHAT == "stopped":
    run(at(7, lambda _: os.kill(os.getpid(), signal.SIGSTOP)))
elif WHAT == "failed":
    run(at(7, lambda _: 1 / 0))
elif WHAT == "interrupted":
    run(at(7, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
elif WHAT == "spoilt":
    run(at(7, spoil))
