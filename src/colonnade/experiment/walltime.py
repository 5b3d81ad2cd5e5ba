"""Measures the speed of each mode: `python -m colonnade.experiment.walltime DEVICES ROUNDS SECONDS`.

In every round each mode trains for a while, one after the other, so that what else the machine does
falls on all of them alike.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.hardware.devices import setup
from colonnade.run.asynchronous.asynchronous import Asynchronous
from colonnade.run.engine.protocols import Sync
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.sync.periodic import DiLoCo, Elastic, LocalSGD
from colonnade.run.train.trainer import Trainer

PIXELS, HIDDEN, CLASSES, BATCH = 64, 1024, 10, 768
SLOWNESS = 4  # times the work, on the last device


def modes(num_devices: int) -> dict[str, Sync]:
    """What is compared, by the names that the experiment has for them."""
    return {
        "synchronous": Synchronous(),
        "asynchronous": Asynchronous(),
        "local 8": LocalSGD(8),
        "DiLoCo 32": DiLoCo(32),
        "elastic": Elastic(8, 0.9 / num_devices),
    }


def measured(num_devices: int, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Examples per second in every round, by pace and mode."""
    setup(virtual=num_devices, threads=(1, num_devices))  # a core for each device
    trainers = {
        (pace, mode): _trainer(sync, num_devices, slow=pace == "one slow")
        for pace in ("even", "one slow")
        for mode, sync in modes(num_devices).items()
    }
    x = np.random.default_rng(0).random((BATCH, PIXELS)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, np.arange(BATCH) % CLASSES)).repeat()
    rates: dict[str, dict[str, list[float]]] = {"even": {}, "one slow": {}}
    for trainer in trainers.values():
        trainer.fit(data, steps=8, progress=False, prove=False)  # what is slowed is slightly another loss
    for _ in range(rounds):
        for (pace, mode), trainer in trainers.items():
            rates[pace].setdefault(mode, []).append(_rate(trainer, data, seconds))
    return rates


def _rate(trainer: Trainer, data: tf.data.Dataset, seconds: float) -> float:
    start = time.perf_counter()
    history = trainer.fit(
        data,
        log_every=4,
        callbacks=[lambda _: time.perf_counter() - start > seconds],
        progress=False,
        prove=False,
    )
    return history.examples / (time.perf_counter() - start)


def _trainer(sync: Sync, num_devices: int, *, slow: bool) -> Trainer:
    keras.utils.set_random_seed(0)
    net = keras.Sequential(
        [keras.Input([PIXELS]), keras.layers.Dense(HIDDEN, "tanh"), keras.layers.Dense(CLASSES)]
    )

    def loss(x: Any, y: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y, net(x), from_logits=True)

    chosen = _slowed(loss, num_devices - 1) if slow else loss
    return Trainer(chosen, keras.optimizers.SGD(0.01), devices=num_devices, sync=sync)


def _slowed(loss: Callable[..., Any], device: int) -> Callable[..., Any]:
    """The same loss, with more work on one device; a function that can raise is traced for each of them."""

    def slowed(x: Any, y: Any) -> Any:
        tf.debugging.assert_non_negative(y)
        times = SLOWNESS if tf.get_current_name_scope().endswith(f"CPU_{device}") else 1
        # Not quite the same images each time, or TensorFlow would compute them once.
        return tf.add_n([loss(x * (1.0 + 1e-4 * k), y) for k in range(times)]) / times

    return slowed


def main(arguments: Iterator[str]) -> None:
    num_devices, rounds, seconds = int(next(arguments)), int(next(arguments)), float(next(arguments))
    print(json.dumps(measured(num_devices, rounds, seconds)))


if __name__ == "__main__":
    main(iter(sys.argv[1:]))
