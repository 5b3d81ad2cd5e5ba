"""Write a training function for one device; run it on all of them.

Public names only. Each is loaded on first use, so that `import colonnade` is quick and works
without TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from colonnade.errors import (
    AlreadyStarted,
    BrokenSums,
    CheckpointInUse,
    ColonnadeError,
    DamagedCheckpoint,
    DiskFull,
    InvalidArgument,
    LeaseTimeout,
    LostCheckpoint,
    MissingTensorFlow,
    NotFinite,
    PlacementError,
    UnreadCheckpoint,
)
from colonnade.hardware.onednn import switch_on as _switch_on_onednn

if TYPE_CHECKING:
    from colonnade.describe.plan import Plan
    from colonnade.describe.timeline import Timeline
    from colonnade.describe.topology import Topology
    from colonnade.describe.workload import Workload
    from colonnade.hardware.clusters.joining import machines
    from colonnade.hardware.devices import setup
    from colonnade.hardware.placement import Placement, placement
    from colonnade.run import width
    from colonnade.run.asynchronous.asynchronous import Asynchronous
    from colonnade.run.batch.split import broadcast
    from colonnade.run.checkpoint.checkpoint import Checkpoint
    from colonnade.run.engine.history import History, Record
    from colonnade.run.keras_train.keras_evaluate import evaluate, predict
    from colonnade.run.keras_train.keras_fit import fit
    from colonnade.run.keras_train.on_batch import test_on_batch, train_on_batch
    from colonnade.run.parallel.parallel import make_parallel, parallel
    from colonnade.run.parallel.verify import verify
    from colonnade.run.parallel.verify_report import Report
    from colonnade.run.pipeline.pipeline import Pipeline
    from colonnade.run.plan.planning import plan
    from colonnade.run.plan.workload import workload
    from colonnade.run.step.objective import Weighted
    from colonnade.run.sync.lockstep import Synchronous
    from colonnade.run.sync.periodic import DiLoCo, Elastic, LocalSGD
    from colonnade.run.train.memory import memory
    from colonnade.run.train.trainer import Trainer
    from colonnade.run.variables.partitioned import Partitioned
    from colonnade.show.sweep import sweep
    from colonnade.show.timeline import draw
    from colonnade.sweeps.pruning import pruning

__version__ = "0.1.0"

__all__ = [
    "AlreadyStarted",
    "Asynchronous",
    "BrokenSums",
    "Checkpoint",
    "CheckpointInUse",
    "ColonnadeError",
    "DamagedCheckpoint",
    "DiLoCo",
    "DiskFull",
    "Elastic",
    "History",
    "InvalidArgument",
    "LeaseTimeout",
    "LocalSGD",
    "LostCheckpoint",
    "MissingTensorFlow",
    "NotFinite",
    "Partitioned",
    "Pipeline",
    "Placement",
    "PlacementError",
    "Plan",
    "Record",
    "Report",
    "Synchronous",
    "Timeline",
    "Topology",
    "Trainer",
    "UnreadCheckpoint",
    "Weighted",
    "Workload",
    "broadcast",
    "draw",
    "evaluate",
    "fit",
    "machines",
    "make_parallel",
    "memory",
    "parallel",
    "placement",
    "plan",
    "predict",
    "pruning",
    "setup",
    "sweep",
    "test_on_batch",
    "train_on_batch",
    "verify",
    "width",
    "workload",
]

_HOME = {
    "Asynchronous": "run.asynchronous.asynchronous",
    "Checkpoint": "run.checkpoint.checkpoint",
    "DiLoCo": "run.sync.periodic",
    "Elastic": "run.sync.periodic",
    "History": "run.engine.history",
    "LocalSGD": "run.sync.periodic",
    "Partitioned": "run.variables.partitioned",
    "Pipeline": "run.pipeline.pipeline",
    "Placement": "hardware.placement",
    "Plan": "describe.plan",
    "Record": "run.engine.history",
    "Report": "run.parallel.verify_report",
    "Synchronous": "run.sync.lockstep",
    "Timeline": "describe.timeline",
    "Topology": "describe.topology",
    "Trainer": "run.train.trainer",
    "Weighted": "run.step.objective",
    "Workload": "describe.workload",
    "broadcast": "run.batch.split",
    "draw": "show.timeline",
    "evaluate": "run.keras_train.keras_evaluate",
    "fit": "run.keras_train.keras_fit",
    "machines": "hardware.clusters.joining",
    "make_parallel": "run.parallel.parallel",
    "memory": "run.train.memory",
    "parallel": "run.parallel.parallel",
    "placement": "hardware.placement",
    "plan": "run.plan.planning",
    "predict": "run.keras_train.keras_evaluate",
    "pruning": "sweeps.pruning",
    "setup": "hardware.devices",
    "sweep": "show.sweep",
    "test_on_batch": "run.keras_train.on_batch",
    "train_on_batch": "run.keras_train.on_batch",
    "verify": "run.parallel.verify",
    "width": "run.width",
    "workload": "run.plan.workload",
}
# TensorFlow reads the setting once, when it is imported.
_switch_on_onednn()
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
