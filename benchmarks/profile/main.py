"""What a profile costs while it records: steps with one against steps without, in every mode.

python benchmarks/profile/main.py            about five minutes
python benchmarks/profile/main.py --quick    one minute: fewer rounds
"""

import os
import random
import sys
import time
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import typer
from rich.console import Console

import colonnade as cn
from colonnade.hardware.profile import Recording

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Claim, Spread, table

STEPS, BATCHES = 20, (128, 1024)
MODES: dict[str, dict[str, Any]] = {
    "lockstep, shared": {},
    "lockstep, mirrored": {"variables": "mirrored"},
    "local": {"sync": cn.LocalSGD(8)},
    "asynchronous": {"sync": cn.Asynchronous()},
    "pipeline": {"pipeline": True},
}


def trainer(pipeline: bool = False, **options: Any) -> cn.Trainer:
    """The CNN of the examples, on two devices."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input([28, 28, 1]),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    used = cn.Pipeline(model, 2, micro_batches=4) if pipeline else model

    def loss(x: Any, y: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(y, used(x, training=True), from_logits=True)

    return cn.Trainer(loss, keras.optimizers.Adam(1e-3), devices=used if pipeline else 2, **options)


def ratios(trained: cn.Trainer, batch: int, rounds: int) -> list[float]:
    """CPU seconds of steps that are recorded over those of steps that are not, pair by pair.

    Those of all threads, because other programs of the machine do not change them much.
    """
    data = (
        np.random.default_rng(0).random([2048, 28, 28, 1], "float32"),
        np.random.default_rng(1).integers(0, 10, 2048),
    )

    def seconds(record: bool) -> float:
        recording = Recording()
        if record:
            recording.start()
        start = time.process_time()
        trained.fit(data, steps=STEPS, batch_size=batch, log_every=STEPS, progress=False)
        taken = time.process_time() - start
        if record:
            recording.stop()
        return taken

    seconds(True)
    found = []
    for _ in range(rounds):
        times = {record: seconds(record) for record in random.sample([True, False], 2)}
        found.append(times[True] / times[False])
    return found


def main(quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False) -> None:
    """Measure, and print the table."""
    cn.setup(virtual=2)
    console = Console()
    claims = []
    for batch in BATCHES:
        for name, options in MODES.items():
            spread = Spread.of(ratios(trainer(**options), batch, 5 if quick else 15))
            claims.append(Claim(f"{name}, batches of {batch}", spread, 1.03))
            console.log(name, batch, f"{spread.median:.3f}")
    console.print(table("A step that is recorded against one that is not", claims))


if __name__ == "__main__":
    typer.run(main)
