"""An MLP split by width in a process of its own: `contender.py DEVICES THREADS SECONDS` prints its figures.

`step` is the median time of a step in milliseconds, `loss` that of the last step of the warm-up. There
is one thread inside an op; THREADS is how many ops run at a time.
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


def main(num_devices: int, num_threads: int, seconds: float) -> None:
    cn.setup(virtual=num_devices, threads=(1, num_threads))
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input([WIDTH]),
            cn.width.Dense(WIDTH, "relu", gather=False),
            cn.width.Dense(WIDTH, "relu", split="rows"),
            cn.width.Dense(WIDTH, gather=False),
        ]
    )

    def loss(x: Any, labels: Any) -> Any:
        return cn.width.softmax_cross_entropy(labels, model(x))

    trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=1)
    x = tf.random.stateless_normal([BATCH, WIDTH], seed=(0, 1))
    labels = tf.range(BATCH) * 31 % WIDTH
    for _ in range(WARM_UP):
        last = trainer.train_on_batch(x, labels).loss
    times: list[float] = []
    while sum(times) < seconds or len(times) < 3:
        start = time.perf_counter()
        trainer.train_on_batch(x, labels)
        times.append(time.perf_counter() - start)
    print(json.dumps({"step": 1e3 * median(times), "loss": last}))


if __name__ == "__main__":
    devices, threads, duration = sys.argv[1:]
    main(int(devices), int(threads), float(duration))
