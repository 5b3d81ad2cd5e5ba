"""The devices of this process as a topology, in TensorFlow's order: for plans that are run here."""

from dataclasses import replace

from colonnade.describe.link import Device
from colonnade.describe.topology import Topology
from colonnade.hardware import devices as hardware
from colonnade.hardware.cores import cores
from colonnade.hardware.placement import short


def devices_here() -> Topology:
    """Names, links and memory of the devices that `cn.Trainer` would use; virtual ones share the cores."""
    names = hardware.names()
    if hardware.are_cards(names):
        topology = hardware.topology()
        rooms = zip(topology.devices, names, strict=True)
        return replace(topology, devices=tuple(replace(d, memory=hardware.room(name)) for d, name in rooms))
    devices = tuple(Device(short(name), hardware.room(name), cores=cores()) for name in names)
    return Topology(devices, Topology.uniform(len(names)).links)
