"""What 20 widths cost: an epoch of batches that are padded to their longest text, tracing included.

python benchmarks/widths/main.py                  three models, three rounds
python benchmarks/widths/main.py masked -r 5      this model only, five rounds

In each round a process of its own trains a fresh model with Keras, and by `cn.fit` on 2 and on 4 devices, in
another order every time; ratios are taken within a round.
"""

import json
import random
import statistics
import subprocess
import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

MODELS = ("lstm", "convolution", "masked")
WAYS = (0, 2, 4)  # devices; 0 is plain Keras
WIDTHS, ROWS, WORDS = 20, 32, 200


def measured(name: str, seed: int) -> dict[str, Any]:
    """In a process of its own: seconds of the clock and of the processor, by way."""
    import colonnade as cn

    cn.setup(virtual=max(WAYS))
    order = list(WAYS)
    random.Random(seed).shuffle(order)
    _trained(name, 0, widths=1)  # TensorFlow and Keras start
    return {str(way): _trained(name, way) for way in order}


def _trained(name: str, devices: int, widths: int = WIDTHS) -> tuple[float, float]:
    import keras

    import colonnade as cn

    keras.utils.clear_session()
    keras.utils.set_random_seed(0)
    model, data = _model(name), _batches(name, widths)
    began = time.perf_counter(), time.process_time()
    if devices:
        cn.fit(model, data, devices=devices, verbose=0)
    else:
        model.fit(data, verbose=0)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def _model(name: str) -> Any:
    import keras
    from keras import layers

    words = layers.Embedding(WORDS, 32, mask_zero=name == "masked")
    inner = {
        "lstm": [layers.LSTM(32)],
        "convolution": [layers.Conv1D(32, 3, padding="same"), layers.GlobalMaxPooling1D()],
        "masked": [layers.LSTM(32, return_sequences=True)],
    }[name]
    model = keras.Sequential([words, *inner, layers.Dense(5, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _batches(name: str, widths: int) -> Any:
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    batches = []
    for width in range(10, 10 + widths):
        texts = rng.integers(1, WORDS, (ROWS, width))
        for row, length in enumerate(rng.integers(width // 2, width + 1, ROWS)):
            texts[row, length:] = 0
        batches.append((texts, rng.integers(0, 5, (ROWS, width) if name == "masked" else ROWS)))
    shapes = [[None, None], [None, None] if name == "masked" else [None]]
    specs = tuple(tf.TensorSpec(shape, "int64") for shape in shapes)
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(widths))


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Some of the three.")] = None,
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="Processes for each model.")] = 3,
    one: Annotated[int, typer.Option("--one", hidden=True)] = -1,
) -> None:
    """A table of ratios: several devices against Keras."""
    if one >= 0:
        assert models
        print(json.dumps(measured(models[0], one)))
        return
    table = Table(title=f"an epoch of {WIDTHS} widths against Keras (median, lowest and highest)")
    for head in ("model", "Keras, s", "devices", "time", "processor time"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name in models or MODELS:
        found = [_round(name, seed) for seed in range(rounds)]
        plain = statistics.median(each["0"][0] for each in found)
        for way in WAYS[1:]:
            ratios = [[each[str(way)][i] / each["0"][i] for each in found] for i in (0, 1)]
            cells = [f"{statistics.median(r):.2f} ({min(r):.2f} to {max(r):.2f})" for r in ratios]
            table.add_row(name, f"{plain:.2f}", str(way), *cells)
    Console(width=110).print(table)


def _round(name: str, seed: int) -> dict[str, Any]:
    command = [sys.executable, __file__, name, "--one", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    typer.run(main)
