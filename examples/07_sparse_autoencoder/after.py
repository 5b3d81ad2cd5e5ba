"""A sparse autoencoder that predicts what else a user would like, out of 27 278 items."""

import argparse

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

cn.setup(virtual=8)  # with cards: cn.setup()

ITEMS, HIDDEN = 27_278, 1_024
TASTES, EACH, SHOWN = 40, 20, 20  # a user has two tastes of 20 items each, and shows 20 of the 40

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=100)
parser.add_argument("--batch", type=int, default=64)
args = parser.parse_args()


def users(count, seed):
    """What each user has shown, and all that each likes: item numbers, a row per user."""
    rng = np.random.default_rng(seed)
    tastes = np.random.default_rng(0).permutation(ITEMS)[: TASTES * EACH].reshape(TASTES, EACH)
    liked = np.stack([rng.permutation(tastes[rng.permutation(TASTES)[:2]].ravel()) for _ in range(count)])
    return liked[:, :SHOWN], liked


def sparse(items):
    """A row per user, in which the items share a weight of one."""
    count, each = items.shape
    places = np.stack([np.repeat(np.arange(count), each), np.sort(items, axis=1).ravel()], axis=1)
    return tf.SparseTensor(places, np.full(count * each, 1 / each, "float32"), [count, ITEMS])


def right(best, shown, liked):
    """Of the ten best items that a user has not shown: how many are liked."""
    new = [[i for i in row if i not in seen][:10] for row, seen in zip(best, shown, strict=True)]
    return np.mean([len(set(row) & set(likes)) for row, likes in zip(new, liked, strict=True)])


def build(devices):
    keras.utils.set_random_seed(1)
    return keras.Sequential(
        [
            keras.Input([ITEMS], sparse=True),
            cn.width.SparseDense(HIDDEN, "relu", gather=False, devices=devices),
            cn.width.Dense(HIDDEN, "relu", split="rows", devices=devices),
            cn.width.Dense(HIDDEN, "relu", devices=devices),
            cn.width.Dense(ITEMS, gather=False, devices=devices),
        ]
    )


def loss(shown, liked):
    return cn.width.softmax_cross_entropy(liked, model(shown))


optimizer = keras.optimizers.Adam(1e-3)
print("MiB of parameters, gradients and Adam's slots per device, by an estimate")
for num_devices in (1, 2, 4, 8):
    model = build(num_devices)
    estimate = cn.memory(loss, tuple(map(sparse, users(args.batch, seed=0))), optimizer=optimizer)
    held = [device.parameters + device.gradients + device.slots for device in estimate.devices]
    print(f"{num_devices} devices:", *(f"{size / 2**20:.1f}" for size in held))


trainer = cn.Trainer(loss, optimizer, devices=1)
for step in range(1, args.steps + 1):
    mean = trainer.train_on_batch(*map(sparse, users(args.batch, seed=step))).loss
    if step % 10 == 0 or step == args.steps:
        print(f"step {step}: loss {mean:.4f}")

shown, liked = users(200, seed=10_000)
_, best = cn.width.top_k(model(sparse(shown)), SHOWN + 10)
print(f"of 10 predicted items, {right(best.numpy(), shown, liked):.2f} are right")
