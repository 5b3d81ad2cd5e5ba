"""A conv net with wide dense layers, on images of which the class is the place of a faint square.

The convolutions have few weights and much work: every device takes a slice of the batch. The dense
layers have most of the weights: every device takes a part of them.
"""

import argparse

import keras
import numpy as np

import colonnade as cn

cn.setup(virtual=4)  # with cards: cn.setup()

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
        cn.width.Dense(1000, "relu", gather=False),
        cn.width.Dense(200, "relu", split="rows"),
        cn.width.Dense(CLASSES, gather=False),
    ]
)
features = cn.parallel(tower)  # a slice of the batch for every device


def logits(pixels):
    return wide(features(pixels))  # a part of the weights on every device


def loss(pixels, labels):
    return cn.width.softmax_cross_entropy(labels, logits(pixels))


# One replica of the loss: what it calls is spread over the devices already.
trainer = cn.Trainer(loss, keras.optimizers.SGD(0.02, momentum=0.9), devices=1)
for step in range(1, args.steps + 1):
    mean = trainer.train_on_batch(*images(64, seed=step)).loss
    if step % 20 == 0:
        print(f"step {step}: loss {mean:.4f}")

pixels, labels = images(500, seed=10_000)
best = cn.width.top_k(logits(pixels), 1)[1][:, 0]
print(f"test accuracy {np.mean(best.numpy() == labels):.3f}")
for part in wide.layers[0].kernel.parts:
    print(part.path, tuple(part.shape), part.value.device[-5:])
