"""`colonnade demo`: real digits, learned on one device and then on all of them."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import psutil
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from colonnade.errors import ColonnadeError
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import placement, short
from colonnade.run.parallel.parallel import make_parallel
from colonnade.run.train.trainer import Trainer

EPOCHS = 10
TURNS = 6  # of timing
BATCH_SIZE = 128
TRAINING = 1536  # of the 1797 digits, so that all batches are full
EXAMPLE = Path(__file__).parents[3] / "examples" / "08_keras_fit" / "after.py"  # in a clone


@dataclass(frozen=True)
class Digits:
    """Images with values from 0 to 1, and labels."""

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]

    def turned(self) -> "Digits":
        """The same batches, each from its last example to its first."""
        order = np.arange(TRAINING).reshape(-1, BATCH_SIZE)[:, ::-1].ravel()
        x, y = self.train
        return Digits((x[order], y[order]), self.test)


@dataclass(frozen=True)
class DemoRun:
    """A training that is done: its trainer, and what came of it."""

    trainer: Trainer
    model: keras.Model
    weights: list[np.ndarray]
    accuracy: float


def demo(console: Console) -> None:
    """Train on one device and on all, and show that the results agree, how fast it was and where it ran."""
    digits = _digits()
    cards = len(hardware.visible_cards())
    virtual = {0: max(2, min(4, psutil.cpu_count() or 2)), 1: 2}.get(cards)
    devices = hardware.setup(virtual=virtual)
    _print_devices(console, devices, cards, virtual)
    one = _trained(console, digits, devices[:1])
    every = _trained(console, digits, devices)
    turned = _trained(console, digits.turned(), devices[:1], "the examples of each batch in another order")
    rates = _timed(digits, one.trainer, every.trainer)
    _print_results(console, one, every, turned, rates)
    if virtual and np.median(rates[1]) < np.median(rates[0]):
        console.print(
            "All devices together were not faster than one here: virtual devices share the same "
            f"{'card' if cards else 'cores'}, and one device can use all of them.\n"
        )
    _print_places(console, every.model, digits, devices)
    _print_next(console)


def _digits() -> Digits:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError:
        raise ColonnadeError(
            "colonnade demo needs scikit-learn, which has the digits. Install it: pip install scikit-learn"
        ) from None
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    x = (images[order] / 16).astype("float32").reshape(-1, 8, 8, 1)
    y = labels[order]
    return Digits((x[:TRAINING], y[:TRAINING]), (x[TRAINING:], y[TRAINING:]))


def _model() -> keras.Model:
    """Without kinks in its activations, at which rounding errors would grow from step to step."""
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input([8, 8, 1]),
            keras.layers.Conv2D(32, 3, padding="same", activation="elu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="elu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="elu"),
            keras.layers.Dense(10),
        ]
    )


def _trained(console: Console, digits: Digits, devices: tuple[str, ...], how: str = "") -> DemoRun:
    model = _model()

    def loss(images: Any, labels: Any) -> Any:
        logits = model(images)
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        return losses, {"accuracy": keras.metrics.sparse_categorical_accuracy(labels, logits)}

    ending = f", {how}" if how else ""
    console.print(f"Training on {', '.join(map(short, devices))}{ending}", highlight=False)
    trainer = Trainer(loss, keras.optimizers.Adam(1e-3), devices=devices)
    trainer.fit(digits.train, batch_size=BATCH_SIZE, epochs=EPOCHS, log_every=40)
    tested = trainer.evaluate(digits.test, batch_size=len(digits.test[0]))
    return DemoRun(trainer, model, model.get_weights(), tested.metrics["accuracy"])


def _timed(digits: Digits, *trainers: Trainer) -> list[list[float]]:
    """Examples per second of each trainer, a number per turn.

    They take turns, and who begins changes too: other work on the machine, and the order itself, can
    otherwise make one of them look twice as fast.
    """
    rates: list[list[float]] = [[] for _ in trainers]
    for turn in range(TURNS):
        for i in range(len(trainers))[:: -1 if turn % 2 else 1]:
            history = trainers[i].fit(digits.train, batch_size=BATCH_SIZE, epochs=2, progress=False)
            rates[i].append(history.examples_per_second)
    return rates


def _print_devices(console: Console, devices: tuple[str, ...], cards: int, virtual: int | None) -> None:
    table = _table("Devices", "device", "what")
    what = {0: "virtual device, a share of the CPU", 1: "virtual device, a share of the card"}
    for device in devices:
        table.add_row(short(device), what.get(cards, "card"))
    console.print(table)
    if virtual:
        console.print(
            f"{'One card is visible; it' if cards else 'No cards are visible; the CPU'} is divided into "
            f"virtual devices: cn.setup(virtual={virtual}).\n"
        )


def _print_results(
    console: Console, one: DemoRun, every: DemoRun, turned: DemoRun, rates: list[list[float]]
) -> None:
    title = f"{TRAINING} real digits, {EPOCHS} epochs, one seed"
    table = _table(title, "*devices", "*examples/s", "*speed-up", "*test accuracy")
    medians = [float(np.median(each)) for each in rates]
    for run, rate in zip((one, every), medians, strict=True):
        table.add_row(
            str(len(run.trainer.devices)),
            f"{rate:,.0f}",
            f"{rate / medians[0]:.2f}",
            f"{100 * run.accuracy:.1f}%",
        )
    console.print()
    console.print(table)
    ratios = [b / a for a, b in zip(*rates, strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    console.print(f"Speeds are medians of {TURNS} turns; the speed-up of a turn was {spread}.")
    console.print(f"Largest difference between a parameter of the two: {_gap(one, every):.1e}")
    # Sums of floats depend on their order, and training makes more of it; so this is what rounding does.
    console.print(f"On one device, with the examples in another order: {_gap(one, turned):.1e}\n")


def _gap(one: DemoRun, other: DemoRun) -> float:
    """The largest difference between a parameter of two trainings."""
    return max(float(np.abs(a - b).max()) for a, b in zip(one.weights, other.weights, strict=True))


def _print_places(console: Console, model: keras.Model, digits: Digits, devices: tuple[str, ...]) -> None:
    """The devices of the convolutions, for one forward and one backward pass of the same model."""

    def gradients(images: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(make_parallel(model, len(devices), inputs=images))
        return tape.gradient(total, model.trainable_variables)

    rows = placement(gradients, digits.test[0]).ops
    table = _table("Where the convolutions ran", "replica", "forward", "backward")
    for i in range(len(devices)):
        mine = [row for row in rows if "Conv2D" in row.op and f"replica_{i}_" in row.name]
        where = {
            phase: ", ".join(sorted({short(row.actual) for row in mine if row.phase == phase}))
            for phase in ("forward", "backward")
        }
        table.add_row(str(i), where["forward"], where["backward"])
    console.print(table)


def _print_next(console: Console) -> None:
    console.print(
        "\nTry next: [bold]cn.fit(model, x, y)[/] in place of model.fit(x, y) in a program of yours"
    )
    if EXAMPLE.exists():
        python, example = (_from_here(path) for path in (sys.executable, EXAMPLE))
        console.print(f"       or: [bold]{python} {example}[/]", soft_wrap=True)


def _from_here(path: str | Path) -> str:
    """A path as one would type it here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith(os.pardir) else relative


def _table(title: str, *columns: str) -> Table:
    """A table; a column whose name starts with * holds numbers."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column.lstrip("*"), justify="right" if column.startswith("*") else "left")
    return table
