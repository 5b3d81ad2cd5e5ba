"""A classifier with batch normalisation and an L2 penalty, on 16 examples that every step sees twice."""

import keras
import numpy as np
import tensorflow as tf

STEPS = 10

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
labels = rng.integers(0, 2, [16, 1]).astype("float32")
inputs = (rng.uniform(size=[16, 4]) + 2 * labels * [1, 0, 1, 0]).astype("float32")
dataset = tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().batch(32)

norm = keras.layers.BatchNormalization(momentum=0.1, epsilon=1e-5)
classify = keras.layers.Dense(1)
model = keras.Sequential([keras.Input([4]), norm, classify])
optimizer = keras.optimizers.SGD(1.0)


def loss(x, y):
    return keras.losses.binary_crossentropy(y, model(x, training=True), from_logits=True)


def penalty():
    return 1e-3 * tf.nn.l2_loss(classify.kernel)


@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        total = tf.reduce_mean(loss(x, y)) + penalty()
    optimizer.apply(tape.gradient(total, model.trainable_variables), model.trainable_variables)
    return total


losses = [float(step(x, y)) for x, y in dataset.take(STEPS)]

print(f"loss {losses[0]:.4f}, after {STEPS} steps {losses[-1]:.4f}")
print("mean    ", norm.moving_mean.numpy().round(4), "of the data", inputs.mean(axis=0).round(4))
print("variance", norm.moving_variance.numpy().round(4), "of the data", inputs.var(axis=0).round(4))
