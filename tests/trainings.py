"""Every kind of training that is killed, and what must hold at its end.

A kind is a mode and a source of data. What docs/checkpoints.md promises depends on both:

    equal     the end is, bit for bit, that of a training that nothing happened to
    counted   every example counted once per epoch, and every count agrees; where the order of the data, or
              of the devices, is up to the moment, an unbroken training does not repeat either

A training that is compared has all that there is to remember: averages of batch normalisation, dropout,
Adam with averaged weights, a schedule. One that is counted has a parameter for every example, which each
visit of that example moves by one.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

BATCH, EPOCHS, EVERY = 10, 5, 5

MODES: dict[str, dict[str, Any]] = {
    "shared": {"variables": "shared"},
    "mirrored": {"variables": "mirrored"},
    "partitioned": {"variables": "partitioned"},
    "asynchronous": {"sync": cn.Asynchronous()},
    "asynchronous alone": {"sync": cn.Asynchronous()},
    "local": {"sync": cn.LocalSGD(every=2)},
    "diloco": {"sync": cn.DiLoCo(every=3)},
    "elastic": {"sync": cn.Elastic(every=2, alpha=0.3)},
    "pipeline": {},
}
# Two where nothing is said: a device more is a trace more, and kills should be cheap.
DEVICES = {"asynchronous alone": 1, "shared": 3, "partitioned": 3, "asynchronous": 3}
DATA = ("arrays", "generator", "seeded", "unseeded", "repeat", "unseeded repeat")


@dataclass(frozen=True)
class Kind:
    mode: str
    data: str

    def __post_init__(self) -> None:
        assert self.mode in MODES, self.mode
        assert self.data in DATA, self.data

    @property
    def counted(self) -> bool:
        return self.mode == "asynchronous" or self.data.startswith("unseeded")

    @property
    def rows(self) -> int:
        """102 leave a short batch at the end of an epoch; to count, lockstep needs batches of one size."""
        return 100 if self.counted and self.mode != "asynchronous" else 102

    @property
    def steps(self) -> int:
        return EPOCHS * -(-self.rows // BATCH)

    def __str__(self) -> str:
        return f"{self.mode}, {self.data}"


def train(kind: Kind, folder: Path | None, at_step: Callable[[], None] = lambda: None) -> str:
    """What the training ends with, as text: a checksum of everything, or the counts of the examples."""
    devices = DEVICES.get(kind.mode, 2)
    cn.setup(virtual=devices)
    if not kind.counted:
        keras.utils.set_random_seed(3)
    make = _counting if kind.counted else _whole
    loss, optimizer, of, columns = make(kind, devices)
    trainer = cn.Trainer(loss, optimizer, devices=of, **MODES[kind.mode])
    place = "skip" if kind.data == "generator" else "exact"
    trainer.fit(
        _data(kind, columns),
        **_length(kind),
        log_every=1,
        callbacks=[lambda record: at_step()],
        checkpoint=cn.Checkpoint(folder, every=EVERY, data=place) if folder else None,
        progress=False,
    )
    counts = f"{trainer.step} steps, {trainer.examples} examples, {int(optimizer.iterations)} updates"
    if kind.counted:
        seen = next(v for v in trainer.parameters if v.name.startswith("seen")).numpy()
        visits = sorted(set(np.round(seen, 6).tolist()))
        ages = sum(trainer.staleness.values()) if kind.mode == "asynchronous" else "no"
        return f"{counts}, {ages} ages, visits {visits}"
    total = hashlib.sha256()
    for name, variable in sorted(trainer._engine.state().variables().items()):
        total.update(name.encode() + np.asarray(variable).tobytes())
    return f"{counts}, {total.hexdigest()}"


def promised(kind: Kind) -> str | None:
    """What a counted training must end with; for others an unbroken one tells."""
    if not kind.counted:
        return None
    # One for each slice; the short batch has two.
    ages = EPOCHS * (10 * 3 + 2) if kind.mode == "asynchronous" else "no"
    counts = f"{kind.steps} steps, {EPOCHS * kind.rows} examples, {kind.steps} updates"
    return f"{counts}, {ages} ages, visits [{float(EPOCHS)}]"


def _length(kind: Kind) -> dict[str, int]:
    if "repeat" in kind.data or kind.data == "generator":
        return {"steps": kind.steps}
    return {"epochs": EPOCHS, "batch_size": BATCH} if kind.data == "arrays" else {"epochs": EPOCHS}


def _data(kind: Kind, columns: tuple[np.ndarray, ...]) -> Any:
    if kind.data == "arrays":
        return columns if len(columns) > 1 else columns[0]
    if kind.data == "generator":
        return _batches(columns)
    data = tf.data.Dataset.from_tensor_slices(columns if len(columns) > 1 else columns[0])
    data = data.shuffle(50) if kind.data.startswith("unseeded") else data.shuffle(50, seed=7)
    data = data.batch(BATCH)
    return data.repeat() if "repeat" in kind.data else data


def _batches(columns: tuple[np.ndarray, ...]) -> Iterator[tuple[np.ndarray, ...]]:
    while True:
        for start in range(0, len(columns[0]), BATCH):
            yield tuple(column[start : start + BATCH] for column in columns)


def _whole(kind: Kind, devices: int) -> tuple[Any, Any, Any, tuple[np.ndarray, ...]]:
    x = np.random.default_rng(0).normal(size=(kind.rows, 4)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) > 0).astype("float32")
    layers = [
        keras.layers.Dense(5),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input([4]), *layers])
    of: Any = devices
    if kind.mode == "pipeline":
        model = of = cn.Pipeline(model, devices=devices, micro_batches=2, placement=[0, 0, 1, 1])

    def loss(x: Any, y: Any) -> Any:
        return tf.squeeze((model(x, training=True) - y) ** 2, axis=1)

    rate = keras.optimizers.schedules.ExponentialDecay(0.01, 5, 0.9)
    return loss, keras.optimizers.Adam(rate, use_ema=True), of, (x, y)


def _counting(kind: Kind, devices: int) -> tuple[Any, Any, Any, tuple[np.ndarray, ...]]:
    seen = tf.Variable(tf.zeros([kind.rows], tf.float64), name="seen")
    ids = np.arange(kind.rows)
    of: Any = devices

    def look(ids: Any) -> Any:
        return tf.gather(seen, ids)

    if kind.mode == "pipeline":
        bias = tf.Variable(tf.zeros([], tf.float64), name="bias")
        look = of = cn.Pipeline(
            [look, lambda x: x + bias], devices=devices, micro_batches=2, placement=[0, 1]
        )

    def loss(ids: Any) -> Any:
        # The gradient of a loss is divided by the examples: of the batch, of the slice where devices go
        # by themselves, of the slice and then by the replicas where these are averaged.
        number = tf.cast(tf.shape(ids)[0], tf.float64)
        factor = {"asynchronous": number, "local": devices * number}.get(kind.mode, float(BATCH))
        return -look(ids) * factor

    return loss, keras.optimizers.SGD(1.0), of, (ids,)
