"""`cn.plan`: the best layout for a training, with the reasons; TensorFlow is needed to measure only."""

from collections.abc import Mapping
from typing import Any

from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem, is_whole
from colonnade.hardware.cards import detect
from colonnade.hardware.cores import cores
from colonnade.reason.planning.planner import choose

# Virtual devices that are described at once: all pairs of them have a link.
MOST_VIRTUAL = 2**10


def plan(
    loss: Any,
    optimizer: Any = None,
    *batch: Any,
    topology: Topology | None = None,
    devices: int | None = None,
    layers: Any = None,
    keep: Mapping[str, Any] | None = None,
) -> Plan:
    """Choose how to train: on how many devices, and how they share the work.

    All layouts are looked at that `cn.Trainer` can run, and those that other software could; what does not
    fit is dropped, the rest is simulated. `print` the plan for the ranking with the reasons, and pass it on:
    `cn.Trainer(loss, optimizer, plan=plan)`.

    Args:
        loss: a loss function or a Keras model, which is measured here; or a `cn.Workload`.
        optimizer: a Keras optimizer, unless a workload is given.
        batch: a global batch, unless a workload is given.
        topology: the machine to plan for; this one by default.
        devices: how many devices may be used; all by default.
        layers: the layers that the loss calls, as for `cn.workload`.
        keep: parts of the plan that are settled, such as `{"stage": 1}` or `{"variables": "mirrored"}`.
            The way of training is kept synchronous, which computes what one device would, unless `sync` names
            another one, or `any`.

    Example:
        >>> import colonnade as cn
        >>> net = cn.Workload.transformer(
        ...     hidden=1024, layers=24, heads=16, sequence=1024, vocabulary=51200, batch=64
        ... )
        >>> from colonnade.describe.link import Device
        >>> cards = [Device("NVIDIA A100-SXM4-40GB", 40 * 2**30)] * 8
        >>> box = cn.Topology(cards, cn.Topology.uniform(8, "NV12").links)
        >>> cn.plan(net, topology=box).layout
        '8 replicas, mirrored'
    """
    if isinstance(loss, Workload):
        if optimizer is not None or batch or layers is not None:
            rule = "is for a loss that is to be measured; a workload has its costs already"
            problem = Problem("optimizer", optimizer, rule, "Pass the workload alone")
            raise InvalidArgument("plan()", [problem])
        return choose(here(devices) if topology is None else topology, loss, devices=devices, keep=keep)
    if optimizer is None:
        rule = "is needed to measure the loss"
        raise InvalidArgument(
            "plan()", [Problem("optimizer", None, rule, "Pass a Keras optimizer and a batch")]
        )
    # Only here: what is given as a workload needs no TensorFlow.
    from colonnade.run.plan.workload import workload
    from colonnade.run.train.devices_here import devices_here

    machine = devices_here() if topology is None else topology
    limited = any(device.memory is not None for device in machine.devices)
    work = workload(loss, optimizer, *batch, layers=layers, memory=limited)
    return choose(machine, work, devices=devices, keep=keep)


def here(devices: int | None = None) -> Topology:
    """This machine without TensorFlow: its cards, or virtual devices that share its cores."""
    machine = detect()
    if machine.cards:
        return machine.topology
    return virtual(devices if is_whole(devices, 1, MOST_VIRTUAL) else cores(), cores())


def virtual(count: int, num_cores: int) -> Topology:
    """Virtual devices of a processor with so many cores.

    >>> virtual(2, 4).devices[1].cores
    4
    """
    devices = tuple(Device(f"CPU:{i}", cores=num_cores) for i in range(count))
    return Topology(devices, Topology.uniform(count).links)
