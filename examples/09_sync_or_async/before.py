"""Six devices whose steps should move a weight by 1: synchronous training moves it by 1."""

import keras
import tensorflow as tf

import colonnade as cn

cn.setup(virtual=6)
weight = tf.Variable(0.0)


def loss(x):
    return -weight * x  # its gradient is -1 for every example


trainer = cn.Trainer(loss, keras.optimizers.SGD(1.0))
trainer.train_on_batch(tf.ones([6]))
print(f"the weight moved by {weight.numpy():g}")
