"""Prints log lines and the progress bar of a fit; writes TensorBoard summaries and metrics.jsonl."""

import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import tensorflow as tf
from rich.console import Console

from colonnade.hardware.placement import short
from colonnade.run.record.bars import bar_for


class Progress:
    """Shows and writes what a fit reports; a context manager around the fit.

    Args:
        expected: how many steps, if that is known.
        logdir: where to write, if anywhere.
        devices: of the replicas.
        show: whether to show a bar, or lines.
        shares: tells the part of a batch that each device gets, where that changes.
    """

    def __init__(
        self,
        expected: int | None,
        logdir: str | Path | None,
        devices: Sequence[str],
        *,
        show: bool,
        shares: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        self._console = Console()
        self._show, self._shares = show, shares
        self._devices = [short(device) for device in devices]
        self._bar = bar_for(self._console, expected) if show else None
        self._since, self._examples, self._steps = 0.0, 0, 0
        self._ages: Counter[int] = Counter()  # of the gradients applied since the last log line
        self._losses: list[float] = []  # of the steps since then
        self._unwritten: tuple[Any, Any] | None = None  # what was reached since then
        self._writer = self._file = None
        if logdir is not None:
            folder = Path(logdir)
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = tf.summary.create_file_writer(os.fsencode(folder))
            self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def __enter__(self) -> "Progress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()
        if self._unwritten:
            self._write(*self._unwritten)
        if self._file:
            self._file.close()
        if self._writer:
            self._writer.close()

    def say(self, line: str) -> None:
        """A line of its own, if anything is shown."""
        if self._show:
            self._console.print(line, highlight=False, soft_wrap=True)

    def begin_at(self, step: int, done: int) -> None:
        """The fit goes on where an earlier run was."""
        if self._bar:
            self._bar.advance(done, f"goes on from step {step}")
        elif self._show:
            self._console.print(f"goes on from step {step}", highlight=False)

    def advance(self, record: Any, chunk: Any, *, logged: bool) -> None:
        """Some steps were made; with `logged` they end at a log line."""
        self._since += chunk.seconds
        self._examples += chunk.examples
        self._steps += chunk.steps
        self._ages.update(chunk.ages)
        self._losses += chunk.losses
        self._unwritten = record, chunk
        if self._bar:
            self._bar.advance(chunk.steps, self._line(record, short=True))
        if logged:
            if self._show and not self._bar:
                self._console.print(f"step {record.step}: {self._line(record)}", highlight=False)
            self._write(record, chunk)
            self._since, self._examples, self._steps = 0.0, 0, 0
            self._ages, self._losses, self._unwritten = Counter(), [], None

    def _line(self, record: Any, *, short: bool = False) -> str:
        said = [f"loss {record.loss:.4g}", *(f"{name} {value:.4g}" for name, value in record.metrics.items())]
        said.append(f"{self._rate():,.0f} examples/s")
        if not short:
            said.append(f"{self._since / max(self._steps, 1):.3g} sec/batch")
        if record.skipped:
            said.append(f"{record.skipped} skipped")
        return ", ".join(said)

    def _rate(self) -> float:
        """Examples of global batches per second since the last log line."""
        return self._examples / self._since if self._since else 0.0

    def _write(self, record: Any, chunk: Any) -> None:
        replicas = dict(zip(self._devices, chunk.replicas, strict=False))
        if self._file:
            line = {
                "time": time.time(),
                "step": record.step,
                "examples": record.examples,
                "loss": record.loss,
                "loss_min": min(filter(math.isfinite, self._losses), default=record.loss),
                "loss_max": max(filter(math.isfinite, self._losses), default=record.loss),
                **record.metrics,
                "examples_per_second": self._rate(),
                "seconds_per_batch": self._since / max(self._steps, 1),
                "skipped": record.skipped,
                "replicas": replicas,
            }
            if self._shares is not None:
                line["shares"] = {short(device): share for device, share in self._shares().items()}
            if record.staleness:
                line["staleness"] = record.staleness
            self._file.write(json.dumps(_finite(line)) + "\n")
            self._file.flush()
        if self._writer:
            with self._writer.as_default(step=record.step):
                tf.summary.scalar("loss", record.loss)
                for name, value in record.metrics.items():
                    tf.summary.scalar(name, value)
                tf.summary.scalar("examples_per_second", self._rate())
                if self._ages:
                    tf.summary.histogram("staleness", list(self._ages.elements()))
                for device, loss in replicas.items():
                    tf.summary.scalar(f"loss by replica/{device}", loss)
            self._writer.flush()


def _finite(figures: Any) -> Any:
    """Numbers, and null for what is not finite, for which JSON has no word."""
    if isinstance(figures, dict):
        return {name: _finite(figure) for name, figure in figures.items()}
    return figures if math.isfinite(figures) else None
