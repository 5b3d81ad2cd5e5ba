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
    NotFinite,
    PlacementError,
)

if TYPE_CHECKING:
    from colonnade.describe.topology import Topology
    from colonnade.hardware.devices import setup
    from colonnade.hardware.placement import Placement, placement
    from colonnade.run import width
    from colonnade.run.fit import fit
    from colonnade.run.lockstep import Synchronous
    from colonnade.run.objective import Weighted
    from colonnade.run.parallel import make_parallel, parallel
    from colonnade.run.split import broadcast
    from colonnade.run.trainer import History, Record, Trainer
    from colonnade.run.verify import Report, verify

__version__ = "0.1.0"

__all__ = [
    "AlreadyStarted",
    "ColonnadeError",
    "History",
    "InvalidArgument",
    "LeaseTimeout",
    "MissingTensorFlow",
    "NotFinite",
    "Placement",
    "PlacementError",
    "Record",
    "Report",
    "Synchronous",
    "Topology",
    "Trainer",
    "Weighted",
    "broadcast",
    "fit",
    "make_parallel",
    "parallel",
    "placement",
    "setup",
    "verify",
    "width",
]

_HOME = {
    "History": "run.trainer",
    "Placement": "hardware.placement",
    "Record": "run.trainer",
    "Report": "run.verify",
    "Synchronous": "run.lockstep",
    "Topology": "describe.topology",
    "Trainer": "run.trainer",
    "Weighted": "run.objective",
    "broadcast": "run.split",
    "fit": "run.fit",
    "make_parallel": "run.parallel",
    "parallel": "run.parallel",
    "placement": "hardware.placement",
    "setup": "hardware.devices",
    "verify": "run.verify",
    "width": "run.width",
}
# These names are modules, with public names of their own.
_MODULES = ("width",)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'colonnade' has no attribute {name!r}")
    try:
        module = import_module(f"colonnade.{_HOME[name]}")
    except ModuleNotFoundError as missing:
        if missing.name in ("tensorflow", "keras"):
            raise MissingTensorFlow(f"colonnade.{name}") from None
        raise
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
