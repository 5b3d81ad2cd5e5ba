"""Write a training function for one device; run it on all of them.

Public names only. Each is loaded on first use, so that `import colonnade` is quick and works
without TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colonnade.errors import (
    AlreadyStarted,
    ColonnadeError,
    InvalidArgument,
    LeaseTimeout,
    MissingTensorFlow,
    PlacementError,
)

if TYPE_CHECKING:
    from colonnade.hardware.devices import setup
    from colonnade.hardware.placement import Placement, placement
    from colonnade.run.parallel import make_parallel
    from colonnade.run.split import broadcast

__version__ = "0.1.0"

__all__ = [
    "AlreadyStarted",
    "ColonnadeError",
    "InvalidArgument",
    "LeaseTimeout",
    "MissingTensorFlow",
    "Placement",
    "PlacementError",
    "broadcast",
    "make_parallel",
    "placement",
    "setup",
]

_HOME = {
    "Placement": "hardware.placement",
    "broadcast": "run.split",
    "make_parallel": "run.parallel",
    "placement": "hardware.placement",
    "setup": "hardware.devices",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'colonnade' has no attribute {name!r}")
    try:
        module = import_module(f"colonnade.{_HOME[name]}")
    except ModuleNotFoundError as missing:
        if missing.name in ("tensorflow", "keras"):
            raise MissingTensorFlow(name) from None
        raise
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
