"""What a self-test found, as JSON to attach to a report: nothing in it tells whose machine it was."""

import getpass
import json
import math
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade import __version__
from colonnade.hardware import devices as hardware
from colonnade.hardware.cards import detect
from colonnade.run.check import Result

FORMAT = 1
# In messages of others. A device string looks like a path, and stays.
PATH = re.compile(
    r"(?<![\w/:.])(?:~|[A-Za-z]:)?[/\\](?!(?:job|replica|task|device|cpu|gpu):)[^\s'\",;()]+", re.I
)
UUID = re.compile(r"(?:\b[A-Z]{3}-)?\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I)
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")


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
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
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
        "results": [_scrubbed(_reportable(result)) for result in results],
    }


def _reportable(result: Result) -> dict[str, Any]:
    """A result; of an error only its type and the functions it went through: its words may tell anything."""
    plain = asdict(result)
    if "where" in result.figures:
        plain["found"] = result.found.partition(":")[0]
    return plain


def scrub(text: str) -> str:
    """A message without paths, UUIDs, addresses, and the names of the user and the host.

    >>> scrub("MIG-6f1a3e50-0c0b-5c1f-9a58-3f64f8a6d001 on /device:CPU:1, see '/tmp/a b' at 10.0.0.7:80")
    "<uuid> on /device:CPU:1, see '<path> b' at <address>"
    """
    for pattern, mark in ((UUID, "<uuid>"), (ADDRESS, "<address>"), (PATH, "<path>")):
        text = pattern.sub(mark, text)
    for name, mark in ((_user(), "<user>"), (platform.node(), "<host>")):
        # A host that is called like every other one tells nothing, and is part of device strings.
        if name and name != "localhost":
            text = re.sub(rf"\b{re.escape(name)}\b", mark, text)
    return text


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in many a container
        return ""


def _scrubbed(value: Any) -> Any:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {_scrubbed(key): _scrubbed(each) for key, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    return [_scrubbed(each) for each in value] if isinstance(value, list | tuple) else value
