"""An MLP split by width in a process of its own: `contender.py SECONDS` prints its figures.

One device and two take turns within the process, a step each, so that what else the machine does slows
both alike. Every virtual device has one thread: one thread inside an op, two between ops.
"""

import json
import sys
import time
from statistics import median
from typing import Any

import keras
import tensorflow as tf

import colonnade as cn

WIDTH, BATCH, WARM_UP = 4_096, 128, 3


def step_of(num_devices: int) -> Any:
    """A training step of a trainer, as a function without arguments."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input([WIDTH]),
            cn.width.Dense(WIDTH, "relu", gather=False, devices=num_devices),
            cn.width.Dense(WIDTH, "relu", split="rows", devices=num_devices),
            cn.width.Dense(WIDTH, gather=False, devices=num_devices),
        ]
    )
    labels = tf.range(BATCH) * 31 % WIDTH
    x = tf.random.stateless_normal([BATCH, WIDTH], seed=(0, 1))

    def loss(x: Any, labels: Any) -> Any:
        return cn.width.softmax_cross_entropy(labels, model(x))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=1)
    return lambda: trainer.train_on_batch(x, labels).loss


def main(seconds: float) -> None:
    cn.setup(virtual=2, threads=(1, 2))
    steps = {n: step_of(n) for n in (1, 2)}
    times: dict[int, list[float]] = {n: [] for n in steps}
    losses: dict[int, list[float]] = {n: [] for n in steps}
    begin = None
    while begin is None or time.perf_counter() - begin < seconds:
        for n, step in steps.items():
            start = time.perf_counter()
            losses[n].append(step())
            times[n].append(time.perf_counter() - start)
        if begin is None and len(times[2]) >= WARM_UP:
            begin = time.perf_counter()
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses[1], losses[2], strict=True))
    one, two = (median(times[n][WARM_UP:]) for n in (1, 2))
    print(json.dumps({"one": 1e3 * one, "two": 1e3 * two, "ratio": two / one, "apart": apart}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
