"""What `compile=True` gains: the steps of the seven models as they are, and compiled by XLA, in turn.

python benchmarks/compile/main.py                 two devices, some minutes on two cores
python benchmarks/compile/main.py --devices 1     one device with all cores
python benchmarks/compile/main.py mlp             this model only

It asks `compile="auto"`, which lets both ways take turns on the same batches, five times here, and reads what
each took.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "throughput"))
MODELS = ("polynomial", "mlp", "cnn", "cifar", "lstm", "embedding", "transformer")
TURNS, SECONDS = 5, 1.0


def measured(name: str, devices: int) -> dict[str, Any]:
    """In a process of its own: seconds per step of every turn."""
    import keras
    from contender import batches
    from models import MODELS as BUILDERS

    import colonnade as cn
    from colonnade.run.parallel import compilation

    compilation.TURNS, compilation.TURN_SECONDS, compilation.TURN_STEPS = TURNS, SECONDS, 10**9
    cn.setup(virtual=devices)
    model = BUILDERS[name]
    trainer = cn.Trainer(model.build(), keras.optimizers.Adam(1e-3), devices=devices, compile="auto")
    contest = trainer._compilation  # its figures, turn by turn
    ended = lambda _: not contest.undecided  # noqa: E731
    trainer.fit(batches(model), steps=10**9, callbacks=[ended], log_every=model.steps, progress=False)
    return {"verdict": contest.verdict, "turns": {str(way): turns for way, turns in contest._turns.items()}}


def main(
    models: Annotated[list[str] | None, typer.Argument(help="Some of the seven.")] = None,
    devices: Annotated[int, typer.Option(help="Virtual devices.")] = 2,
    one: Annotated[bool, typer.Option("--one", hidden=True)] = False,
) -> None:
    """Both ways in turn, model by model."""
    if one:
        assert models
        print(json.dumps(measured(models[0], devices)))
        return
    table = Table(title=f"a step on {devices} devices, ms (lowest and highest of {TURNS} turns)")
    for head in ("model", "as it is", "compiled", "compiled / as it is"):
        table.add_column(head, justify="left" if head == "model" else "right")
    for name in models or MODELS:
        command = [sys.executable, __file__, name, "--devices", str(devices), "--one"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        plain, compiled = ([1000 * s for s in sorted(found["turns"][way])] for way in ("False", "True"))
        if not compiled:
            table.add_row(name, "", "", found["verdict"])
            continue
        middle = TURNS // 2
        cells = [f"{t[middle]:.3g} ({t[0]:.3g} to {t[-1]:.3g})" for t in (plain, compiled)]
        table.add_row(name, *cells, f"{compiled[middle] / plain[middle]:.2f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    typer.run(main)
