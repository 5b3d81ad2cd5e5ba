"""One contender in a process of its own: python contender.py MODEL NAME STAGES MICRO_BATCHES SECONDS.

Prints the seconds of its fastest step and of its median step as JSON. Each virtual device has one thread.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

BATCH = 512


def mlp(num_layers=8, width=1024):
    hidden = [keras.layers.Dense(width, "elu") for _ in range(num_layers - 1)]
    return keras.Sequential([keras.Input([width]), *hidden, keras.layers.Dense(width)]), [BATCH, width]


def lstm(num_layers=4, width=128, steps=16):
    layers = [keras.layers.LSTM(width, return_sequences=True) for _ in range(num_layers)]
    return keras.Sequential([keras.Input([steps, width]), *layers]), [BATCH, steps, width]


MODELS = {"mlp": mlp, "lstm": lstm}


def loss_of(call):
    def loss(x, y):
        return tf.reduce_mean((call(x) - y) ** 2, axis=list(range(1, len(x.shape))))

    return loss


def pipeline(model, x, y, num_stages, micro_batches):
    """Colonnade's pipeline, by way of the trainer's own step."""
    per_stage = len(model.layers) // num_stages
    placement = [i // per_stage for i in range(len(model.layers))]
    piped = cn.Pipeline(model, num_stages, micro_batches=micro_batches, placement=placement)
    trainer = cn.Trainer(loss_of(piped), keras.optimizers.SGD(1e-3), devices=piped)
    return lambda: trainer.train_on_batch(x, y)


def accumulated(model, x, y, num_stages, micro_batches):
    """What one writes by hand for one device: micro-batches one after the other, gradients added up."""
    optimizer = keras.optimizers.SGD(1e-3)
    variables = model.trainable_variables
    optimizer.build(variables)
    loss = loss_of(model)
    size = BATCH // micro_batches

    @tf.function
    def step(x, y):
        sums = [tf.zeros_like(v) for v in variables]
        total = 0.0
        for i in tf.range(micro_batches):
            part = slice(i * size, (i + 1) * size)
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(loss(tf.ensure_shape(x[part], [size, *x.shape[1:]]), y[part])) / BATCH
            total += value
            found = tape.gradient(value, [v.value for v in variables])
            sums = [a + b for a, b in zip(sums, found, strict=True)]
        optimizer.apply(sums, variables)
        return total

    return lambda: float(step(x, y))


def main():
    model_name, name, *numbers = sys.argv[1:]
    num_stages, micro_batches, seconds = int(numbers[0]), int(numbers[1]), float(numbers[2])
    cn.setup(virtual=num_stages, threads=(1, num_stages))
    keras.utils.set_random_seed(1)
    model, shape = MODELS[model_name]()
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=shape).astype("float32")) for _ in range(2))
    step = {"pipeline": pipeline, "accumulated": accumulated}[name](model, x, y, num_stages, micro_batches)
    for _ in range(3):  # the first calls trace and settle
        step()
    print("ready", flush=True)
    if len(numbers) > 3:  # those that run side by side start together
        sys.stdin.readline()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    print(json.dumps({"step": float(np.median(times)), "fastest": min(times), "steps": len(times)}))


if __name__ == "__main__":
    main()
