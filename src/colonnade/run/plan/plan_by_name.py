"""`colonnade plan`: a plan for a function that is named on the command line, or for a workload in a file."""

from typing import Any

import keras

from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware import devices as hardware
from colonnade.reason.planning.planner import choose
from colonnade.run.parallel.load import load
from colonnade.run.plan.workload import workload
from colonnade.run.train.devices_here import devices_here


def plan_by_name(
    name: str,
    *,
    devices: int | None,
    topology: Topology | None,
    optimizer: str,
    rows: int,
    keep: dict[str, Any],
) -> Plan:
    """Measure a loss function, `module:function`, on the example batch of its module, and plan for it."""
    if topology is None:
        hardware.setup(virtual=None if hardware.visible_cards() else devices)
    try:
        loaded = load(name, rows=rows)
        chosen = keras.optimizers.get(optimizer)
    except InvalidArgument as error:
        raise InvalidArgument("plan", error.problems) from None
    except ValueError:
        rule = "is no optimizer of Keras"
        problem = Problem("--optimizer", optimizer, rule, "Try adam, sgd or rmsprop")
        raise InvalidArgument("plan", [problem]) from None
    if loaded.kwargs:
        rule = "is a dict; a loss function is measured with arguments in their order"
        raise InvalidArgument("plan", [Problem("example", name, rule, "Make it a tuple")])
    machine = devices_here() if topology is None else topology
    limited = any(device.memory is not None for device in machine.devices)
    work = workload(loaded.fn, chosen, *loaded.args, memory=limited)
    return choose(machine, work, devices=devices, keep=keep)
