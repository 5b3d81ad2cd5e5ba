"""One training, with or without checkpoints: seconds in all, and seconds that steps waited for saves.

python benchmarks/checkpoint/contender.py MODEL every|never STEPS EVERY
"""

import json
import sys
import tempfile
import time

import keras
import numpy as np
import tensorflow as tf

import colonnade as cn

DEVICES, BATCH, EXAMPLES = 2, 256, 30_000


def mlp() -> keras.Model:
    layers = [keras.layers.Dense(1024, "relu"), keras.layers.Dense(1024, "relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input([784]), *layers])


def deep() -> keras.Model:
    """Many small variables: 100 layers, and Adam has 2 more for each."""
    layers = [keras.layers.Dense(64, "relu") for _ in range(100)]
    return keras.Sequential([keras.Input([784]), *layers, keras.layers.Dense(10)])


def main(name: str, saving: str, steps: str, every: str) -> None:
    cn.setup(virtual=DEVICES)
    keras.utils.set_random_seed(1)
    model = {"mlp": mlp, "deep": deep}[name]()
    chance = np.random.default_rng(0)
    x = chance.normal(size=(EXAMPLES, 784)).astype("float32")
    y = chance.integers(0, 10, EXAMPLES)
    # As most people write it: all examples are in the buffer of the shuffle.
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(EXAMPLES).batch(BATCH, drop_remainder=True)
    trainer = cn.Trainer(
        lambda x, y: keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True),
        keras.optimizers.Adam(1e-4),
    )
    trainer.fit(data, steps=5, progress=False)
    epochs = -(-int(steps) * BATCH // EXAMPLES) + 1
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = cn.Checkpoint(folder, every=int(every)) if saving == "every" else None
        start = time.perf_counter()
        history = trainer.fit(
            data,
            epochs=epochs,
            steps=int(steps),
            log_every=50,
            checkpoint=checkpoint,
            progress=False,
            prove=False,  # the first fit had the proof; without a checkpoint this one would not repeat it
        )
        seconds = time.perf_counter() - start
    figures = {
        "seconds": seconds,
        "steps": history.seconds,
        "stalled": history.stalled,
        "saves": int(steps) // int(every) if checkpoint else 0,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
