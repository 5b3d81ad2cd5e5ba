"""Tells what runs where, as plain data: model, optimizer, devices and links, mode, memory, versions."""

import inspect
import json
import os
import platform
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade import __version__
from colonnade.describe.plan import Prediction
from colonnade.describe.topology import Topology
from colonnade.hardware import devices as hardware
from colonnade.hardware.peaks import device_peaks, process_peak
from colonnade.hardware.placement import short
from colonnade.run.engine.protocols import Engine
from colonnade.run.memory.estimate import Memory
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.pipeline.pipeline import Pipeline


def called(sync: Any) -> str:
    """A way of training as a user would write it: without what has its default.

    >>> import colonnade as cn
    >>> called(cn.Synchronous()), called(cn.Asynchronous(max_staleness=4))
    ('Synchronous()', 'Asynchronous(max_staleness=4)')
    """
    given = [(f.name, getattr(sync, f.name), f.default) for f in fields(sync) if f.repr]
    said = ", ".join(f"{name}={value!r}" for name, value, usual in given if value != usual)
    return f"{type(sync).__name__}({said})"


def facts(
    loss: Callable[..., Any],
    optimizer: Any,
    engine: Engine,
    how: Mapping[str, Any],
    devices: Sequence[str],
    estimate: Memory | None,
    predicted: Prediction | None = None,
) -> dict[str, Any]:
    """What run.json says; the engine has made a step by now."""
    parameters = engine.parameters
    links = [
        {"from": short(source), "to": short(target), "bytes": size}
        for (source, target), size in engine.links().items()
    ]
    return {
        "program": Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "",
        "loss": getattr(loss, "__qualname__", type(loss).__name__),
        "models": _models(loss),
        "optimizer": _optimizer(optimizer),
        "parameters": {
            "variables": len(parameters),
            "numbers": sum(int(np.prod(p.shape)) for p in parameters),
            "bytes": sum(map(num_bytes, parameters)),
        },
        "mode": dict(how),
        "devices": [short(device) for device in devices],
        "topology": _topology(devices),
        "links": links,
        "memory": {"estimate": _estimate(estimate), "limits": _limits(devices)},
        "predicted": None if predicted is None else asdict(predicted),
        "machine": {
            "host": socket.gethostname(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
        },
        "versions": {
            "colonnade": __version__,
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }


def peaks(devices: Sequence[str]) -> dict[str, Any]:
    """The most memory in use so far: by card, and of the process."""
    cards = {short(device): size for device, size in device_peaks(devices).items()}
    return {"devices": cards, "process": process_peak()}


def _models(loss: Callable[..., Any]) -> list[str]:
    """The models that the function closes over, by name and type."""
    plain = inspect.unwrap(getattr(loss, "python_function", loss))
    if not inspect.isfunction(plain):
        return [_model(plain)] if isinstance(plain, keras.Model | Pipeline) else []
    try:
        closed = inspect.getclosurevars(plain)
    except ValueError:  # it names something that has no value yet
        return []
    values = [*closed.nonlocals.values(), *closed.globals.values()]
    return [_model(value) for value in values if isinstance(value, keras.Model | Pipeline)]


def _model(model: Any) -> str:
    if isinstance(model, Pipeline):
        return f"a pipeline of {model.num_stages} stages, {model.micro_batches} micro-batches"
    return f"{model.name} ({type(model).__name__})"


def _optimizer(optimizer: Any) -> dict[str, Any]:
    """Its name and settings, as far as it tells them and they are numbers and words."""
    try:
        config = optimizer.get_config()
    except (AttributeError, NotImplementedError):
        config = {}
    plain = {name: value for name, value in config.items() if isinstance(value, str | int | float | bool)}
    return {"name": type(optimizer).__name__, "settings": plain}


def _topology(devices: Sequence[str]) -> Any:
    """The links between the devices that are used; None for devices of other machines."""
    here = hardware.names()
    if not set(devices) <= set(here):
        return None
    chosen: Topology = hardware.topology().select([here.index(device) for device in dict.fromkeys(devices)])
    return json.loads(chosen.to_json())


def _estimate(estimate: Memory | None) -> dict[str, Any] | None:
    if estimate is None:
        return None
    kinds = ("parameters", "slots", "gradients", "activations", "total")
    return {short(d.device): {kind: getattr(d, kind) for kind in kinds} for d in estimate.devices}


def _limits(devices: Sequence[str]) -> dict[str, int]:
    rooms = {short(device): hardware.room(device) for device in devices}
    return {device: limit for device, limit in rooms.items() if limit is not None}
