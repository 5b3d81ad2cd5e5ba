"""A conv net on CIFAR-10: SGD with a staircase schedule, tested with the averages of its weights."""

import argparse
import pickle
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

cn.setup(virtual=2)  # with cards: cn.setup()

BATCH_SIZE = 128

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", help="CIFAR-10's Python version; else images are generated")
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()


def cifar10(*names):
    """The images and labels of some of CIFAR-10's files."""
    files = [pickle.loads(Path(args.folder, name).read_bytes(), encoding="bytes") for name in names]
    images = np.concatenate([file[b"data"] for file in files]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, np.concatenate([file[b"labels"] for file in files])


def generated(count, seed):
    """Images of noise, each with a faint square whose place is the label."""
    rng = np.random.default_rng(seed)
    images, labels = rng.integers(0, 225, [count, 32, 32, 3], dtype=np.uint8), rng.integers(0, 10, count)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(label, 5)
        image[16 * row + 4 : 16 * row + 12, 6 * column : 6 * column + 6] += 30
    return images, labels


if args.folder:
    train, test = cifar10(*(f"data_batch_{i}" for i in range(1, 6))), cifar10("test_batch")
else:
    train, test = generated(2000, seed=1), generated(500, seed=2)

keras.utils.set_random_seed(1)
train_set = (
    tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[0]), seed=1).repeat().batch(BATCH_SIZE)
)
test_set = tf.data.Dataset.from_tensor_slices(test).batch(BATCH_SIZE)

model = keras.Sequential(
    [
        keras.Input([32, 32, 3]),
        keras.layers.Rescaling(1 / 128, offset=-1),
        keras.layers.Conv2D(16, 5, strides=2, padding="same", activation="elu"),
        keras.layers.Conv2D(32, 3, strides=2, padding="same", activation="elu"),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="elu"),
        keras.layers.Dense(10),
    ]
)
rate = keras.optimizers.schedules.ExponentialDecay(0.1, args.steps // 3, 0.1, staircase=True)
optimizer = keras.optimizers.SGD(rate, use_ema=True, ema_momentum=1 - 3 / args.steps)


def loss(images, labels):
    logits = model(images)
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(labels, logits)}


trainer = cn.Trainer(loss, optimizer)
trainer.fit(train_set, steps=args.steps, log_every=10)
accuracy = trainer.evaluate(test_set).metrics["accuracy"]
print(f"test accuracy {accuracy:.4f}")
