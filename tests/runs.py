"""Folders of runs that never ran, for pages about them."""

import json
import math

from colonnade.describe.timeline import Event, Timeline

START = 1_790_000_000.0


def facts(**changes):
    estimate = {"parameters": 3 * 2**20, "slots": 6 * 2**20, "gradients": 3 * 2**20, "activations": 2**24}
    total = sum(estimate.values())
    return {
        "format": 1,
        "program": "train.py",
        "loss": "loss",
        "models": ["tower (Sequential)"],
        "optimizer": {"name": "Adam", "settings": {"learning_rate": 0.001, "amsgrad": False}},
        "parameters": {"variables": 4, "numbers": 786432, "bytes": 3 * 2**20},
        "mode": {"sync": "Synchronous(shares='even')", "variables": "shared", "batch": 128, "steps": 100},
        "devices": ["CPU:0", "CPU:1"],
        "links": [
            {"from": "CPU:1", "to": "CPU:0", "bytes": 3145728.0},
            {"from": "CPU:0", "to": "CPU:1", "bytes": 1048576.0},
        ],
        "memory": {
            "estimate": {f"CPU:{i}": {**estimate, "total": total} for i in range(2)},
            "limits": {"CPU:0": 2**25},
        },
        "machine": {"host": "vm", "cores": 2},
        "versions": {"colonnade": "0.1.0", "tensorflow": "2.21.0"},
        **changes,
    }


def lines(steps, every=1, spike=None):
    for i in range(every, steps + 1, every):
        loss = 2 * math.exp(-3 * i / steps) + (50.0 if i == spike else 0.0)
        yield {
            "time": START + i * 0.01,
            "step": i,
            "examples": 128 * i,
            "loss": loss,
            "loss_min": 0.9 * loss,
            "loss_max": 1.1 * loss,
            "accuracy": 1 - loss / 60,
            "examples_per_second": 12_000 + 500 * math.sin(i),
            "seconds_per_batch": 0.01,
            "skipped": 0,
            "replicas": {"CPU:0": loss + 0.01, "CPU:1": loss - 0.01},
        }


def progress(steps, how="finished"):
    yield {"time": START, "event": "begin", "step": 0, "resumed": None}
    yield {"time": START + 0.5, "event": "save", "step": steps // 2, "stalled": 0.004, "bytes": 9 * 2**20}
    yield {"time": START + 0.6, "event": "skipped", "step": steps // 2 + 1, "updates": 3}
    if how is not None:
        memory = {"devices": {"CPU:0": 2**24}, "process": 700 * 2**20}
        yield {"time": START + steps * 0.01, "event": "end", "step": steps, "how": how, "memory": memory}


def timeline(steps=4, devices=2):
    """Two devices, of which the second is slower; a reduction and an update on the first."""
    events = []
    for step in range(steps):
        at = 0.012 * step
        for i in range(devices):
            middle, end = at + 0.002 + 0.001 * i, at + 0.006 + 0.002 * i
            events += [
                Event(f"CPU:{i}", at, middle, "forward", step=step),
                Event(f"CPU:{i}", middle, end, "backward", step=step),
            ]
        moved = {"bytes": 2**20, "bucket": 0, "link": "CPU:1 -> CPU:0"}
        events.append(Event("CPU:0", at + 0.009, at + 0.010, "reduction", step=step, **moved))
        events.append(Event("CPU:0", at + 0.010, at + 0.011, "update", step=step))
        events.append(Event("host", at + 0.001, at + 0.004, "input", step=step))
    return Timeline.of(events)


def run_folder(folder, *, steps=100, every=1, spike=None, how="finished", profiled=True, **changes):
    """A folder as a fit leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(facts(**changes)))
    for name, values in (("metrics", lines(steps, every, spike)), ("progress", progress(steps, how))):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    if profiled:
        (folder / "timeline.json").write_text(timeline().to_json())
    return folder
