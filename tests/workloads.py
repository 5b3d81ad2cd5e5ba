"""Workloads, machines and plans for tests: some that were seen, and any that there may be."""

from dataclasses import replace

import numpy as np

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.link import Device
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload

V100 = "Tesla V100-SXM2-16GB"


def timed(seconds=(1.0,), *, batch=8, parameters=0, **more):
    """Layers that take so many seconds for the batch, a third of it forward."""
    layers = [
        LayerCost(f"layer {i}", parameters=parameters, timings=(Timing(batch, s / 3, 2 * s / 3),))
        for i, s in enumerate(seconds)
    ]
    return Workload.of(layers, batch=batch, **more)


def cards(count, kind="NV2", name=V100, memory=None):
    return Topology(tuple(Device(name, memory) for _ in range(count)), Topology.uniform(count, kind).links)


def virtual(count, cores):
    devices = tuple(replace(d, cores=cores) for d in Topology.uniform(count).devices)
    return Topology(devices, Topology.uniform(count).links)


def drawn(seed, *, most_layers=8):
    """A random workload of timed layers, and a batch of 8 to 64."""
    rng = np.random.default_rng(seed)
    layers = [
        LayerCost(
            f"layer {i}",
            parameters=int(rng.integers(1, 2**24)),
            activations=int(rng.integers(1, 2**20)),
            output=int(rng.integers(1, 2**16)),
            timings=(Timing(1, float(rng.uniform(1e-4, 1e-2)), float(rng.uniform(1e-4, 2e-2))),),
        )
        for i in range(int(rng.integers(1, most_layers + 1)))
    ]
    return Workload.of(layers, batch=int(rng.integers(8, 65)), update=float(rng.uniform(0, 1e-3)))
