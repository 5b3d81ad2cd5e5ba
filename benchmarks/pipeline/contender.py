"""One contender in a process of its own: python contender.py MODEL NAME STAGES MICRO_BATCHES SECONDS.

Says `ready`, waits for a line, and prints the seconds of its median and its fastest step as JSON; a pipeline
adds what its timeline tells. Each virtual device has one thread.
"""

import json
import sys
import time

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

BATCH = 1024


def mlp(num_layers=12, width=768):
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


class Clock:
    """Notes when steps end, and says when it has been long enough."""

    def __init__(self, seconds):
        self.times, self._end = [time.perf_counter()], time.perf_counter() + seconds

    def tick(self, *_):
        self.times.append(time.perf_counter())
        return self.times[-1] > self._end and len(self.times) > 4

    def figures(self):
        steps = np.diff(self.times)[1:]  # the first one starts with what a call does once
        return {"step": float(np.median(steps)), "fastest": float(min(steps)), "steps": len(steps)}


def pipeline(model, x, y, num_stages, micro_batches):
    """Colonnade's pipeline, in a fit."""
    per_stage = len(model.layers) // num_stages
    placement = [i // per_stage for i in range(len(model.layers))]
    piped = cn.Pipeline(model, num_stages, micro_batches=micro_batches, placement=placement)
    trainer = cn.Trainer(loss_of(piped), keras.optimizers.SGD(1e-3), devices=piped)
    data = tf.data.Dataset.from_tensors((x, y)).repeat()

    def run(seconds):
        clock = Clock(seconds)
        trainer.fit(data, steps=10**6, log_every=1, callbacks=[clock.tick], progress=False)
        timeline = piped.timeline()
        return {**clock.figures(), "slots": timeline.slots, "overlap": timeline.overlap}

    return run


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

    def run(seconds):
        clock = Clock(seconds)
        float(step(x, y))
        while not clock.tick():
            float(step(x, y))
        return clock.figures()

    return run


def main():
    model_name, name, *numbers = sys.argv[1:]
    num_stages, micro_batches, seconds = int(numbers[0]), int(numbers[1]), float(numbers[2])
    cn.setup(virtual=num_stages, threads=(1, num_stages))
    keras.utils.set_random_seed(1)
    model, shape = MODELS[model_name]()
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=shape).astype("float32")) for _ in range(2))
    contender = {"pipeline": pipeline, "accumulated": accumulated}[name]
    run = contender(model, x, y, num_stages, micro_batches)
    run(0)  # traces and settles
    print("ready", flush=True)
    sys.stdin.readline()  # those that run side by side start together
    print(json.dumps(run(seconds)))


if __name__ == "__main__":
    main()
