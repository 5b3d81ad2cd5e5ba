"""What a profile costs while it records: steps with one against steps without, in every mode.

python benchmarks/profile/main.py            about five minutes
python benchmarks/profile/main.py --quick    one minute: fewer rounds
"""

import os
import random
import sys
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import typer
from rich.console import Console

import colonnade as cn

sys.path.insert(0, str(Path(__file__).parent.parent))
from contest import Claim, Spread, table

STEPS, BATCH = 60, 128
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


def ratios(trained: cn.Trainer, rounds: int) -> list[float]:
    """Seconds of a step that is recorded over those of one that is not, in pairs, in an order of chance."""
    data = (
        np.random.default_rng(0).random([1024, 28, 28, 1], "float32"),
        np.random.default_rng(1).integers(0, 10, 1024),
    )

    def step(profile: range | None) -> float:
        made = trained.fit(
            data, steps=STEPS, batch_size=BATCH, log_every=STEPS, progress=False, profile=profile
        )
        return made.seconds / STEPS

    step(range(1, STEPS + 1))
    found = []
    for _ in range(rounds):
        kinds = [None, range(1, STEPS + 1)]
        random.shuffle(kinds)
        times = {kind is not None: step(kind) for kind in kinds}
        found.append(times[True] / times[False])
    return found


def main(quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds.")] = False) -> None:
    """Measure, and print the table."""
    cn.setup(virtual=2)
    console = Console()
    claims = []
    for name, options in MODES.items():
        spread = Spread.of(ratios(trainer(**options), 5 if quick else 25))
        claims.append(Claim(f"{name}", spread, 1.03))
        console.log(name, f"{spread.median:.3f}")
    console.print(table("A step that is recorded against one that is not", claims))


if __name__ == "__main__":
    typer.run(main)
