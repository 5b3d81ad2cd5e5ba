"""The machines of the published tables, as topologies."""

from functools import cache

from colonnade.describe.link import Device
from colonnade.describe.topology import Topology
from colonnade.hardware.cards import detect
from colonnade.hardware.recorded import recorded

P100, V100, A100 = "Tesla P100-SXM2-16GB", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"


@cache
def dgx1_p100() -> Topology:
    """Eight P100, each with four NVLinks: three to its quad and one across."""
    cross = {(i, i + 4) for i in range(4)}
    kinds = [
        [
            "X" if i == j else "NV1" if i // 4 == j // 4 or (min(i, j), max(i, j)) in cross else "SYS"
            for j in range(8)
        ]
        for i in range(8)
    ]
    return Topology.build([Device(P100, 16 * 2**30)] * 8, kinds)


@cache
def dgx1_v100() -> Topology:
    """Eight V100 in a cube mesh of NVLinks, as recorded."""
    return Topology(
        tuple(Device(V100, 16 * 2**30) for _ in range(8)), detect(recorded("dgx1")).topology.links
    )


@cache
def nvswitch_a100() -> Topology:
    kinds = [["X" if i == j else "NV12" for j in range(8)] for i in range(8)]
    return Topology.build([Device(A100, 80 * 2**30)] * 8, kinds)


@cache
def v100_machines(count: int, adapters: int = 1) -> Topology:
    return Topology.machines(dgx1_v100(), count, network="100Gb", adapters=adapters)


@cache
def selene(count: int) -> Topology:
    """Machines of eight A100 behind NVSwitches with eight adapters of 200 Gbit/s."""
    return Topology.machines(nvswitch_a100(), count, network="200Gb", adapters=8)


@cache
def linked(count: int, bandwidth: float) -> Topology:
    """Single devices, each a machine of its own, joined by a network of so many bytes per second."""
    return Topology.machines(Topology.uniform(1), count, network=bandwidth)
