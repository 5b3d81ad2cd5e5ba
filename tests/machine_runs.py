"""A training on one of several machines that goes wrong in the way that is asked for.

`python machine_runs.py WHAT FOLDER DEVICES`, with TF_CONFIG; the same program on every machine.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

WHAT, FOLDER = sys.argv[1], Path(sys.argv[2])
if WHAT == "taken":  # another program listens at the port of the last machine
    TASKS = json.loads(os.environ["TF_CONFIG"])
    ADDRESSES = TASKS["cluster"]["worker"]
    if TASKS["task"]["index"] == len(ADDRESSES) - 1:
        TAKEN = socket.create_server(("", int(ADDRESSES[-1].rpartition(":")[2])))
DEVICES = cn.setup(virtual=int(sys.argv[3]))
LAST = cn.machines().rank == cn.machines().size - 1
EPOCHS = 4


def data(count):
    draw = np.random.default_rng(3)
    x = draw.normal(size=(count, 5))
    if WHAT == "failing" and LAST:
        x[40] = np.nan  # in the third batch
    rows = tf.data.Dataset.from_tensor_slices((x, x.sum(axis=1, keepdims=True)))
    if WHAT == "failing":
        rows = rows.map(lambda x, y: (tf.debugging.check_numerics(x, "a file is broken"), y))
    return (rows.shuffle(64, seed=1) if WHAT not in ("shorter", "failing") else rows).batch(16)


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
        if WHAT == "stuck":
            x = tf.ensure_shape(tf.py_function(held_up, [x], x.dtype), x.shape)
        return tf.reduce_mean((model(x, training=True) - y) ** 2, axis=1)

    return cn.Trainer(loss, keras.optimizers.Adam(rate), devices=DEVICES)


SEEN = []


def held_up(x):
    """On the last machine an op that does not end, in a step that all make; Python goes on."""
    SEEN.append(1)
    if LAST and len(SEEN) == 60:
        say("now", time.time())
        time.sleep(60)
    return x


def say(*words):
    print("SAID", *words, flush=True)


def run(after=None, count=64, **options):
    """A training with checkpoints; after so many steps something happens."""
    made = trainer()

    def looked(record):
        say("step", record.step)
        if after is not None:
            after(made, record)

    checkpoint = cn.Checkpoint(FOLDER, every=5)
    options = {"prove": False, "progress": False, "log_every": 1, "checkpoint": checkpoint, **options}
    history = made.fit(data(count), epochs=EPOCHS, callbacks=[looked], **options)
    say("resumed", history.resumed)
    say("losses", repr(history.losses))
    say("parameters", repr([p.numpy().tolist() for p in made.parameters]))


def fit(after=None, count=64, checkpoint=True):
    """The same by `cn.fit`, without what replicas draw: it is to go on on any number of devices."""
    keras.utils.set_random_seed(11)
    keras.config.set_floatx("float64")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])

    class Looks(keras.callbacks.Callback):
        made = 0

        def on_train_batch_end(self, batch, logs=None):
            self.made += 1
            if after is not None:
                after(None, SimpleNamespace(step=self.made))

    slower = keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, min_delta=0.5)
    options = {"epochs": EPOCHS, "verbose": 0, "prove": False, "devices": DEVICES}
    options["checkpoint"] = cn.Checkpoint(FOLDER, every=5) if checkpoint else None
    history = cn.fit(model, data(count), callbacks=[slower, Looks()], **options)
    say("history", repr(history.history))
    say("parameters", repr([w.tolist() for w in model.get_weights()]))


def at(step, do):
    def after(made, record):
        if LAST and record.step == step:
            say("now", time.time())
            do(made)

    return after


def killed(_):
    while not (FOLDER / "step-000000000005").exists():  # it is saved meanwhile
        time.sleep(0.01)
    say("now", time.time())
    os.kill(os.getpid(), signal.SIGKILL)


def hang_in_a_step(_):
    """Be stopped half a second later, in a step: the callbacks of this training do not take that long."""

    def stop():
        time.sleep(0.5)
        say("now", time.time())
        os.kill(os.getpid(), signal.SIGSTOP)

    threading.Thread(target=stop).start()


if WHAT == "train":
    run()
elif WHAT == "killed":
    run(at(7, killed))
elif WHAT == "fit":
    fit()
elif WHAT == "fit_killed":
    fit(at(7, killed))
elif WHAT == "fit_stopped":  # soon after it has made some steps; most of its time is in them
    EPOCHS = 100_000
    fit(at(7, hang_in_a_step), count=64_000, checkpoint=False)
elif WHAT == "stopped":
    EPOCHS = 100_000
    run(at(7, hang_in_a_step), log_every=7)
elif WHAT == "shorter":  # the data of the last machine are
    EPOCHS = 1
    run(count=48 if LAST else 64)
elif WHAT == "failing":  # the data of the last machine do, in the middle of a call
    run(count=160, log_every=100, checkpoint=None)
elif WHAT == "leaving":  # the last machine does, for a reason that will be there again
    if LAST:
        sys.exit("there is nothing in /data")
    run()
elif WHAT == "stuck":
    EPOCHS = 100_000
    run(log_every=1000)
elif WHAT == "told":  # to end, where nothing is trained
    if LAST:
        say("now", time.time())
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
elif WHAT == "interrupted":
    run(at(7, lambda _: os.kill(os.getpid(), signal.SIGTERM)))
