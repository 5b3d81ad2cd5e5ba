"""ResNet-50 on some cards for some seconds, by Colonnade or by MirroredStrategy; prints its figures as JSON.

python benchmarks/cards/contender.py colonnade resnet50 4 64 224 20    cards, images per card, pixels, seconds
"""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

CLASSES = 1000
STEPS = 10  # in one call, by either contender
Figures = dict[str, float]


def resnet50(size: int) -> keras.Model:
    return keras.applications.ResNet50(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )


def tiny(size: int) -> keras.Model:
    """A few layers of the same kinds, to see that the benchmark works."""
    x = inputs = keras.Input([size, size, 3])
    for filters in (4, 8):
        x = keras.layers.Conv2D(filters, 3, strides=2, use_bias=False)(x)
        x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(inputs, keras.layers.Dense(CLASSES)(keras.layers.GlobalAveragePooling2D()(x)))


MODELS = {"resnet50": resnet50, "tiny": tiny}


def batches(batch: int, size: int) -> tf.data.Dataset:
    """The same images again and again: reading them is not what is measured."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(batch, size, size, 3)).astype("float32")
    labels = rng.integers(0, CLASSES, batch)
    return tf.data.Dataset.from_tensors((images, labels)).cache().repeat().prefetch(tf.data.AUTOTUNE)


def optimizer() -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9)


def colonnade(
    build: Callable[[int], keras.Model], cards: int, batch: int, size: int, seconds: float
) -> Figures:
    model = build(size)

    def loss(images: Any, labels: Any) -> Any:
        logits = model(images, training=True)
        return keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)

    data = batches(batch * cards, size)
    start = time.perf_counter()
    trainer = cn.Trainer(loss, optimizer(), devices=cards)
    trainer.fit(data, steps=1, progress=False)
    first = time.perf_counter() - start
    trainer.fit(data, steps=STEPS, log_every=STEPS, progress=False)  # warm
    ends: list[float] = []

    def ticked(_: Any) -> bool:
        ends.append(time.perf_counter())
        return ends[-1] - ends[0] >= seconds and len(ends) > 1

    trainer.fit(data, steps=10**9, log_every=STEPS, callbacks=[ticked], progress=False)
    return figures(first, ends, batch * cards)


def mirrored(
    build: Callable[[int], keras.Model], cards: int, batch: int, size: int, seconds: float
) -> Figures:
    """MirroredStrategy with NCCL, its default, and with many steps in one tf.function."""
    names = [device.name for device in tf.config.list_logical_devices("GPU")][:cards]
    if len(names) < cards:
        raise SystemExit(f"TensorFlow can use {len(names)} cards here, not {cards}: run colonnade doctor")
    by_copies = tf.distribute.HierarchicalCopyAllReduce() if "--copies" in sys.argv else None
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=by_copies)
    with strategy.scope():
        model, own = build(size), optimizer()
        own.build(model.trainable_variables)
    data = iter(strategy.experimental_distribute_dataset(batches(batch * cards, size)))
    start = time.perf_counter()

    def replica(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            value = tf.reduce_sum(losses) / (batch * cards)
        variables = model.trainable_variables
        own.apply(tape.gradient(value, variables), variables)
        return value

    @tf.function
    def many(iterator: Any, count: Any) -> Any:
        last = tf.constant(0.0)
        for _ in tf.range(count):
            last = strategy.reduce("SUM", strategy.run(replica, args=next(iterator)), axis=None)
        return last

    float(many(data, tf.constant(1)))
    first = time.perf_counter() - start
    float(many(data, tf.constant(STEPS)))
    ends = [time.perf_counter()]
    while ends[-1] - ends[0] < seconds or len(ends) < 2:
        float(many(data, tf.constant(STEPS)))
        ends.append(time.perf_counter())
    return figures(first, ends, batch * cards)


def figures(first: float, ends: list[float], rows: int) -> Figures:
    step = (ends[-1] - ends[0]) / (len(ends) - 1) / STEPS
    return {"first": first, "step": step, "images": rows / step}


CONTENDERS = {"colonnade": colonnade, "mirrored": mirrored}

if __name__ == "__main__":
    name, model_name, *numbers, duration = [a for a in sys.argv[1:] if not a.startswith("--")]
    if "--half" in sys.argv:
        keras.mixed_precision.set_global_policy("mixed_float16")
    cn.setup()
    count, each, pixels = map(int, numbers)
    found = CONTENDERS[name](MODELS[model_name], count, each, pixels, float(duration))
    # NCCL may have been cut off in the middle of a line.
    print("", json.dumps(found), sep="\n", flush=True)
