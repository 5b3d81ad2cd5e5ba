"""One mode in a process of its own: `contender.py MODE TASK SECONDS` prints its figures.

`time` is the time per example, in microseconds, and `updates` the updates per second; the median over
fits. `bytes` is what a step moves between the devices, as counted by the engine.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

sys.path.insert(0, str(Path(__file__).parent.parent / "throughput"))
from models import MODELS, Loss
from tasks import BATCH

MODES = {
    "synchronous": cn.Synchronous(),
    "measured": cn.Synchronous(shares="measured"),
    "asynchronous": cn.Asynchronous(),
    "local": cn.LocalSGD(16),
}
SLOWER = 4  # times, by work
WORKERS = 6  # devices that push at one weight


def slowed(loss: Loss) -> Loss:
    """The same loss, with several times the work on the second device.

    A function that can raise is traced for each device, with the device's name in the scope.
    """

    def slow_on_one(x: Any, y: Any) -> Any:
        tf.debugging.assert_non_negative(y)
        times = SLOWER if "CPU_1" in tf.get_current_name_scope() else 1
        # Not quite the same images each time, or TensorFlow would compute them once.
        return tf.add_n([loss(x * (1.0 + 1e-4 * k), y) for k in range(times)]) / times

    return slow_on_one


def images(task: str, mode: str, seconds: float) -> dict[str, float]:
    """A network on two devices; a task that begins with `slow` has one device that is slower."""
    name = task.removeprefix("slow ")
    # A core for each device, as with two cards: else the fast one would help the slow one.
    cn.setup(virtual=2, threads=(1, 2) if task != name else None)
    model = MODELS[name]
    loss = slowed(model.build()) if task != name else model.build()
    data = tf.data.Dataset.from_tensor_slices(model.data(np.random.default_rng(0)))
    data = data.batch(BATCH, drop_remainder=True).cache().repeat()
    trainer = cn.Trainer(loss, keras.optimizers.Adam(1e-3), sync=MODES[mode])
    steps = 4 * model.steps
    # Long enough for measured shares to be settled, and their graphs to be made.
    for _ in range(4 if mode == "measured" else 1):
        trainer.fit(data, steps=steps, progress=False)
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        history = trainer.fit(data, steps=steps, progress=False)
        times.append(history.seconds / history.examples)
    return {"time": median(times) * 1e6, "bytes": trainer.traffic()}


def weight(mode: str, seconds: float) -> dict[str, float]:
    """A model of one weight, to which every device adds 1 with every update."""
    cn.setup(virtual=WORKERS)
    w = tf.Variable(0.0)
    trainer = cn.Trainer(lambda x: -w * x, keras.optimizers.SGD(1.0), sync=MODES[mode])
    data = tf.data.Dataset.from_tensors(np.ones(WORKERS, "float32")).repeat()
    trainer.fit(data, steps=50, progress=False)
    rates = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(rates) < 3:
        before = float(w)
        history = trainer.fit(data, steps=2000, log_every=100, progress=False)
        rates.append((float(w) - before) / history.seconds)
    if int(w) != WORKERS * trainer.step:
        raise RuntimeError(f"updates were lost: {float(w)} of {WORKERS * trainer.step}")
    return {"updates": median(rates)}


if __name__ == "__main__":
    chosen, job, duration = sys.argv[1:]
    keras.utils.set_random_seed(0)
    found = weight(chosen, float(duration)) if job == "weight" else images(job, chosen, float(duration))
    print(json.dumps(found))
