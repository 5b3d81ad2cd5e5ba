"""Make the pictures of the documentation again: `python docs/pictures.py [DIRECTORY [STEPS]]`.

A step of a two-stage pipeline is timed on two virtual devices. Every op has one thread and two ops run at
a time, so that on two cores the stages work at once. Other programs stretch steps: the shortest is drawn.
"""

import sys
from pathlib import Path

import keras
import numpy as np

import colonnade as cn

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 500
WIDTH, BATCH = 256, 1024

cn.setup(virtual=2, threads=(1, 2))
keras.utils.set_random_seed(1)

layers = [keras.layers.Dense(WIDTH, "elu") for _ in range(6)]
model = keras.Sequential([keras.Input([WIDTH]), *layers])
pipeline = cn.Pipeline(model, devices=2, micro_batches=8, placement=[0, 0, 0, 1, 1, 1])


def loss(x):
    return keras.ops.mean((pipeline(x) - x) ** 2, axis=1)


x = np.random.default_rng(1).normal(size=(BATCH, WIDTH)).astype("float32")
trainer = cn.Trainer(loss, keras.optimizers.SGD(0.01), devices=pipeline)
timelines = []
for _ in range(STEPS):
    trainer.train_on_batch(x)
    timelines.append(pipeline.timeline())

fastest = min(timelines, key=lambda timeline: timeline.span)
print(cn.draw(fastest, FOLDER / "timeline.png").name)
print(f"{fastest.span * 1e3:.0f} ms, {fastest.slots:.1f} slots, {fastest.overlap:.0%} of the work overlaps")
