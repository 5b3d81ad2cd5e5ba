"""Writes the result of a self-test as JSON that can be shared: no user, host or path is in it."""

import json
import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade import __version__
from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import detect
from colonnade.run.selftest.verdict import Result

FORMAT = 1
# All that is told of a result: what this package says itself, and not the words of others.
FIELDS = ("check", "compares", "tolerance", "state", "found", "seconds", "figures")


def bundle(devices: Sequence[str], results: Sequence[Result]) -> dict[str, Any]:
    """Versions, kinds of devices, the links between them, and the results."""
    machine = detect()
    build = tf.sysconfig.get_build_info()
    topology = hardware.topology().select([hardware.names().index(device) for device in devices])
    return {
        "format": FORMAT,
        "versions": {
            "colonnade": __version__,
            "python": platform.python_version(),
            "tensorflow": _public(tf.__version__),
            "keras": _public(keras.__version__),
            "numpy": _public(np.__version__),
            "system": f"{platform.system()} {platform.machine()}",
            "driver": machine.driver,
            "cuda of the driver": machine.cuda and ".".join(map(str, machine.cuda)),
            "cuda of tensorflow": str(build.get("cuda_version", "")),
            "cudnn of tensorflow": str(build.get("cudnn_version", "")),
        },
        "cards": hardware.are_cards(devices),
        "devices": list(devices),
        # The names of devices are those of their models.
        "topology": json.loads(topology.to_json()),
        "results": [{name: _plain(getattr(result, name)) for name in FIELDS} for result in results],
    }


def _public(version: str) -> str:
    """A version without what somebody who built it himself put behind it."""
    return version.partition("+")[0]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
