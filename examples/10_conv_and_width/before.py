"""A conv net with wide dense layers, on images of which the class is the place of a faint square."""

import argparse

import keras
import numpy as np
import tensorflow as tf

CLASSES = 100

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=100)
args = parser.parse_args()


def images(count, seed):
    """Images of noise, each with a square in one of 10 x 10 places."""
    rng = np.random.default_rng(seed)
    pixels, labels = rng.normal(size=[count, 20, 20, 1]).astype("float32"), rng.integers(0, CLASSES, count)
    for image, label in zip(pixels, labels, strict=True):
        row, column = divmod(2 * label, 20)
        image[2 * row : 2 * row + 2, column : column + 2] += 4
    return pixels, labels


keras.utils.set_random_seed(1)
tower = keras.Sequential(
    [
        keras.Input([20, 20, 1]),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(32, 2, strides=2, activation="relu"),
        keras.layers.Flatten(),
    ]
)
wide = keras.Sequential(
    [
        keras.Input([3200]),
        keras.layers.Dense(1000, "relu"),
        keras.layers.Dense(200, "relu"),
        keras.layers.Dense(CLASSES),
    ]
)
optimizer = keras.optimizers.SGD(0.02, momentum=0.9)
variables = tower.trainable_variables + wide.trainable_variables
optimizer.build(variables)


def logits(pixels):
    return wide(tower(pixels))


@tf.function
def train_step(pixels, labels):
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits(pixels), from_logits=True)
        mean = tf.reduce_mean(losses)
    optimizer.apply(tape.gradient(mean, variables), variables)
    return mean


for step in range(1, args.steps + 1):
    mean = float(train_step(*images(64, seed=step)))
    if step % 20 == 0:
        print(f"step {step}: loss {mean:.4f}")

pixels, labels = images(500, seed=10_000)
best = tf.math.top_k(logits(pixels), 1).indices[:, 0]
print(f"test accuracy {np.mean(best.numpy() == labels):.3f}")
