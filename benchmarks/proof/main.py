"""What the proof on the first batch costs: the first step of the seven models with it and without.

python benchmarks/proof/main.py              4 devices, three rounds
python benchmarks/proof/main.py mlp lstm     these models only

Each first step is one of a process of its own, with and without in turn; ratios are taken within a round.
"""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "throughput"))
MODELS = ("polynomial", "mlp", "cnn", "cifar", "lstm", "embedding", "transformer")
LIMIT = 0.6


def measured(name: str, devices: int, *, prove: bool) -> tuple[float, float]:
    """In a process of its own: seconds of the clock and of the processor until the first step is made."""
    import keras
    from contender import batches
    from models import MODELS as BUILDERS

    import colonnade as cn

    cn.setup(virtual=devices)
    model = BUILDERS[name]
    trainer = cn.Trainer(model.build(), keras.optimizers.Adam(1e-3), devices=devices)
    data = batches(model)
    began = time.perf_counter(), time.process_time()
    trainer.fit(data, steps=1, prove=prove, progress=False)
    return time.perf_counter() - began[0], time.process_time() - began[1]


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Some of the seven.")] = None,
    devices: Annotated[int, typer.Option(help="Virtual devices.")] = 4,
    rounds: Annotated[int, typer.Option("--rounds", "-r", help="Pairs of processes for each model.")] = 3,
    one: Annotated[str, typer.Option("--one", hidden=True)] = "",
) -> None:
    """A table: what the proof adds to the first step."""
    if one:
        assert models
        print(json.dumps(measured(models[0], devices, prove=one == "prove")))
        return
    table = Table(title=f"the proof, in first steps without it, on {devices} devices (limit {LIMIT})")
    for head in ("model", "first step, s", "time", "processor time"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name in models or MODELS:
        pairs = [(_first(name, devices, "plain"), _first(name, devices, "prove")) for _ in range(rounds)]
        added = [[proved[i] / plain[i] - 1 for plain, proved in pairs] for i in (0, 1)]
        cells = [f"{statistics.median(a):.2f} ({min(a):.2f} to {max(a):.2f})" for a in added]
        table.add_row(name, f"{statistics.median(plain[0] for plain, _ in pairs):.2f}", *cells)
    Console(width=110).print(table)


def _first(name: str, devices: int, way: str) -> list[float]:
    command = [sys.executable, __file__, name, "--devices", str(devices), "--one", way]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    found: list[float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    typer.run(main)
