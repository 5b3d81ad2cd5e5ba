"""How good are the predictions on this machine? Every model has a process of its own.

python benchmarks/prediction/machine.py                    seven models, a slow device, pipelines, local
python benchmarks/prediction/machine.py --models mlp       one of them
python benchmarks/prediction/machine.py --advice 20        the advice for 20 random models

On a machine that does other things the figures mean little: what is measured and what it is measured
against are slowed by different amounts.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import psutil
import typer
from report import Row, Score, markdown

MODELS = ("polynomial", "mlp", "cnn", "cifar", "lstm", "embedding", "transformer")
# What is tried, and with which models; None is all.
KINDS = {"replicas": None, "shares": ("mlp", "cnn"), "stages": ("mlp", "lstm"), "local": ("mlp", "lstm")}
GOOD = 1.05  # the layout that was chosen may take this much longer than the best


def asked(*arguments: object) -> dict[str, list[list[float]]]:
    """What the worker says in its last line."""
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, str(Path(__file__).parent / "worker.py"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=3600)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.strip().splitlines()[-1])


def predictions(models: list[str], seconds: float) -> list[Row]:
    rows = []
    for kind, some in KINDS.items():
        for model in models if some is None else [m for m in models if m in some]:
            for case, (measured, predicted) in asked(kind, model, seconds).items():
                calibrates = case == "1 replica"
                note = "measured alone" if calibrates else ""
                row = Row(kind, f"{model}, {case}", measured, predicted, counted=not calibrates, note=note)
                rows.append(row)
                print(f"{model}, {case}: {measured:.4g} s, predicted {predicted:.4g}", file=sys.stderr)
    return rows


def advice(seeds: range, seconds: float) -> None:
    """Of random models, how often the chosen layout is nearly the best that was measured."""
    good = 0
    for seed in seeds:
        said = asked("advice", seed, seconds)
        chosen, steps = said.pop("chosen"), {case: step for case, (step, _) in said.items()}
        best = min(steps, key=lambda case: steps[case])
        within = steps[chosen] <= GOOD * steps[best]
        good += within
        listed = ", ".join(
            f"{case} {1e3 * took:.3g} ms, predicted {1e3 * told:.3g}" for case, (took, told) in said.items()
        )
        verdict = "" if within else f" ({steps[chosen] / steps[best]:.2f} times as long: NOT WITHIN 5%)"
        print(f"model {seed}: chosen {chosen}, best {best}{verdict}: {listed}", flush=True)
    print(f"\n{good} of {len(seeds)} choices are within 5% of the best")


def main(
    models: Annotated[list[str] | None, typer.Option(help="Which; all by default.")] = None,
    seconds: Annotated[float, typer.Option(help="How long each layout is timed.")] = 2.0,
    advice_for: Annotated[int, typer.Option("--advice", help="Try the advice for so many models.")] = 0,
    first: Annotated[int, typer.Option(help="The first of these models, from 0 up.")] = 0,
) -> None:
    """Measure, predict, and say how far off it is."""
    load = psutil.getloadavg()[0]
    print(f"{psutil.cpu_count()} cores, load {load:.1f} at the start")
    if advice_for:
        advice(range(first, first + advice_for), seconds)
        return
    rows = predictions(list(models or MODELS), seconds)
    print(f"\n{markdown(rows)}\n")
    print("| what | rows | median error | worst | rank correlation |\n|---|---|---|---|---|")
    for kind in dict.fromkeys(row.table for row in rows):
        print(Score.of(kind, [row for row in rows if row.table == kind]).line())
    print(Score.of("**all**", rows).line())


if __name__ == "__main__":
    typer.run(main)
