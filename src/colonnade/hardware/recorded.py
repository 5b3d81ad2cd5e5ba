"""What NVML says on five kinds of machine, recorded, to try Colonnade without having them.

>>> from colonnade.hardware.cards import detect
>>> [link.kind for link in detect(recorded("dgx1")).topology.links[0]]
['X', 'NV1', 'NV1', 'NV2', 'NV2', 'SYS', 'SYS', 'SYS']
"""

from collections.abc import Callable

import pynvml

from colonnade.describe.speeds import flops
from colonnade.describe.topology import Device, Topology
from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware.cards import Instance, Process
from colonnade.hardware.fake import FakeNvml

GIB = 2**30


def recorded(name: str) -> FakeNvml:
    """One of the machines in `MACHINES`."""
    if name not in MACHINES:
        fix = f"One of: {', '.join(MACHINES)}"
        raise InvalidArgument("recorded()", [Problem("machine", name, "no such machine was recorded", fix)])
    return MACHINES[name]()


def article() -> FakeNvml:
    """Four cards in two pairs, as TensorFlow's log shows: no peer access between the pairs.

    The log does not tell the model; K40m is our choice.
    """
    kinds = "X PHB SYS SYS / PHB X SYS SYS / SYS SYS X PHB / SYS SYS PHB X"
    peers = [[i // 2 == j // 2 for j in range(4)] for i in range(4)]
    return FakeNvml(_topology(kinds, "Tesla K40m", 11441, numa=(0, 0, 1, 1), peers=peers))


def dgx1() -> FakeNvml:
    """A DGX-1: eight V100 in a cube mesh of NVLinks; peer access where there is an NVLink."""
    kinds = (
        "X NV1 NV1 NV2 NV2 SYS SYS SYS / NV1 X NV2 NV1 SYS NV2 SYS SYS /"
        "NV1 NV2 X NV2 SYS SYS NV1 SYS / NV2 NV1 NV2 X SYS SYS SYS NV1 /"
        "NV2 SYS SYS SYS X NV1 NV1 NV2 / SYS NV2 SYS SYS NV1 X NV2 NV1 /"
        "SYS SYS NV1 SYS NV1 NV2 X NV2 / SYS SYS SYS NV1 NV2 NV1 NV2 X"
    )
    processes = {0: [Process(21001, "ada", 9 * GIB)], 3: [Process(21002, "grace", 14 * GIB)]}
    topology = _topology(kinds, "Tesla V100-SXM2-16GB", 16160, numa=(0,) * 4 + (1,) * 4)
    return FakeNvml(topology, processes=processes, utilisation={0: 71, 3: 98})


def nvswitch() -> FakeNvml:
    """Eight H100 behind NVSwitches: 18 NVLinks from any card to any other."""
    kinds = " / ".join(" ".join("X" if i == j else "NV18" for j in range(8)) for i in range(8))
    topology = _topology(kinds, "NVIDIA H100 80GB HBM3", 81559, numa=(0,) * 4 + (1,) * 4)
    return FakeNvml(topology, switch=True)


def consumer() -> FakeNvml:
    """Four RTX 4090: the labels suggest peer access, and the cards have none. Somebody left memory taken."""
    kinds = "X PHB SYS SYS / PHB X SYS SYS / SYS SYS X PHB / SYS SYS PHB X"
    refused = {(i, j): pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED for i in range(4) for j in range(4)}
    peers = [[i == j for j in range(4)] for i in range(4)]
    topology = _topology(kinds, "NVIDIA GeForce RTX 4090", 24564, numa=(0, 0, 1, 1), peers=peers)
    return FakeNvml(topology, refusals=refused, processes={2: [Process(31337, "linus", 22 * GIB)]})


def mig() -> FakeNvml:
    """One A100 that is divided into three instances."""
    parts = [
        Instance("MIG-6f1a3e50-0c0b-5c1f-9a58-3f64f8a6d001", 2, 0, 20 * GIB),
        Instance("MIG-b7d7c6b2-54f9-5d0e-8c11-92a1d5d4e002", 3, 0, 10 * GIB),
        Instance("MIG-0e9c1f77-7a1d-5b3a-b0de-6f0f5b8aa003", 9, 0, 5 * GIB),
    ]
    return FakeNvml(_topology("X", "NVIDIA A100-SXM4-40GB", 40960, numa=(0,)), instances={0: parts})


MACHINES: dict[str, Callable[[], FakeNvml]] = {
    "article": article,
    "dgx1": dgx1,
    "nvswitch": nvswitch,
    "consumer": consumer,
    "mig": mig,
}


def _topology(
    kinds: str, name: str, mib: int, *, numa: tuple[int, ...], peers: list[list[bool]] | None = None
) -> Topology:
    rows = [row.split() for row in kinds.split("/")]
    devices = [Device(name, mib * 2**20, flops(name), node) for node in numa]
    return Topology.build(devices, rows, peers)
