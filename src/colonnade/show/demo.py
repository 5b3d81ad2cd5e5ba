"""The first thing a newcomer sees: the same fit on one device and on all of them."""

import time

import keras
import numpy as np
import psutil
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import placement, short
from colonnade.run.parallel import make_parallel

STEPS = 1000


class Quadratic:
    """y = 5x^2 + 3, to be found from examples by Adam."""

    def __init__(self, num_devices: int) -> None:
        self.num_devices = num_devices
        self.w = tf.Variable([[0.0], [0.0], [0.0]], name="w")
        self.optimizer = keras.optimizers.Adam(0.1)
        self.train = tf.function(self._train)

    def model(self, x: tf.Tensor) -> tf.Tensor:
        return tf.concat([x * x, x, tf.ones_like(x)], axis=1) @ self.w

    def _train(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            prediction = make_parallel(self.model, self.num_devices, x=x)
            loss = tf.reduce_mean((prediction - y) ** 2)
        self.optimizer.apply([tape.gradient(loss, self.w)], [self.w])
        return loss


def demo(console: Console) -> None:
    """Set up the devices, fit on one and on all, show that the results agree and where each half ran."""
    virtual = None if hardware.visible_cards() else max(2, psutil.cpu_count() or 2)
    devices = hardware.setup(virtual=virtual)
    console.print(f"[bold]{len(devices)} devices[/]: {', '.join(map(short, devices))}")
    if virtual:
        console.print(
            "No cards are visible, so the CPU is divided into virtual devices: cn.setup(virtual=...).\n"
        )
    x = np.random.default_rng(0).uniform(-1, 1, (1000, 1)).astype("float32")
    y = 5 * x**2 + 3
    results = Table(title=f"y = 5x² + 3 from 1000 examples, {STEPS} steps of Adam(0.1)", title_justify="left")
    for column in ("devices", "w", "loss", "ms per step"):
        results.add_column(column, justify="right")
    fits = {count: Quadratic(count) for count in (1, len(devices))}
    for count, fit in fits.items():
        loss = fit.train(x, y)
        start = time.perf_counter()
        for _ in range(STEPS - 1):
            loss = fit.train(x, y)
        each = (time.perf_counter() - start) / (STEPS - 1)
        weights = "  ".join(f"{w:+.4f}" for w in fit.w.numpy().ravel())
        results.add_row(str(count), weights, f"{float(loss):.1e}", f"{1000 * each:.2f}")
    console.print(results)
    one, every = (fit.w.numpy() for fit in fits.values())
    console.print(f"Largest difference between the two: {np.abs(one - every).max():.1e}\n")
    rows = placement(fits[len(devices)].train, x, y)
    ran = Table(title="Where the replicas ran (MatMul)", title_justify="left")
    for column in ("replica", "forward", "backward"):
        ran.add_column(column)
    for i in range(len(devices)):
        mine = [row for row in rows.ops if row.op == "MatMul" and f"replica_{i}_" in row.name]
        where = {row.phase: short(row.actual) for row in mine}
        ran.add_row(str(i), where.get("forward", "-"), where.get("backward", "-"))
    console.print(ran)
    console.print("\nTry next:  [bold].venv/bin/python examples/01_make_parallel/after.py[/]")
