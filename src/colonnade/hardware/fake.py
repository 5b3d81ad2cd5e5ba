"""A fake NVML for tests: a machine with any cards, on any machine.

    >>> from colonnade.describe.topology import Topology
    >>> from colonnade.hardware.cards import Process, detect
    >>> fake = FakeNvml(Topology.uniform(4, link="PIX"), processes={0: [Process(4242, "ada", 3 * 2**30)]})
    >>> [process.user for card in detect(fake, fake.owner).cards for process in card.processes]
    ['ada']

Names, arguments and error codes are those of pynvml, and a test holds them together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pynvml

from colonnade.describe.speeds import level
from colonnade.describe.topology import Topology
from colonnade.hardware.cards import Instance, Process

MEMORY = 16 * 2**30  # of a card whose topology names none
RESERVED = 300 * 2**20  # what a driver keeps of every card

_LEVELS = {
    "PIX": pynvml.NVML_TOPOLOGY_SINGLE,
    "PXB": pynvml.NVML_TOPOLOGY_MULTIPLE,
    "PHB": pynvml.NVML_TOPOLOGY_HOSTBRIDGE,
    "NODE": pynvml.NVML_TOPOLOGY_NODE,
}


@dataclass(frozen=True)
class _Handle:
    card: int
    instance: int | None = None


class FakeNvml:
    """A machine of `len(topology)` cards; pass it to `detect` in place of pynvml.

    Args:
        topology: the cards (name, memory, NUMA node) and the links between them.
        processes: what runs on each card, by its index. As with NVML, what computes through MPS is in a
            list of its own, and the server is among those that compute.
        utilisation: percent, by card.
        instances: cards in MIG mode, and their parts, with what runs on each.
        refusals: by pair of cards, why there is no peer access; NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED
            where nothing is said.
        capability: the architecture of the cards, as CUDA counts them.
        mode: how many processes the cards let in: one of NVML_COMPUTEMODE_...
        switch: NVLinks lead to a switch and not from card to card.
        lost: cards that do not answer.
        error: the NVML error that `nvmlInit` ends with; none by default.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        processes: Mapping[int, Sequence[Process]] | None = None,
        utilisation: Mapping[int, int] | None = None,
        instances: Mapping[int, Sequence[Instance]] | None = None,
        refusals: Mapping[tuple[int, int], int] | None = None,
        capability: tuple[int, int] = (8, 0),
        mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT,
        switch: bool = False,
        lost: Sequence[int] = (),
        error: int | None = None,
    ) -> None:
        self._topology = topology
        self._processes = dict(processes or {})
        self._utilisation = dict(utilisation or {})
        self._instances = {card: tuple(parts) for card, parts in (instances or {}).items()}
        self._refusals = dict(refusals or {})
        self._capability, self._mode = capability, mode
        self._switch = switch
        self._lost = set(lost)
        self._error = error
        self._started = 0

    def __getattr__(self, name: str) -> Any:
        # Constants and error classes are pynvml's own; a function that is missing here is missing.
        if name.startswith("NVML"):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def owner(self, pid: int) -> str | None:
        """The user of one of the fake processes."""
        return next((p.user for i in range(len(self._topology)) for p in self._on(i) if p.pid == pid), None)

    def nvmlInit(self) -> None:
        if self._error is not None:
            raise pynvml.NVMLError(self._error)
        self._started += 1

    def nvmlShutdown(self) -> None:
        self._check()
        self._started -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check()
        return "550.54.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        self._check()
        return 12040

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self._topology)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> _Handle:
        self._check()
        if not 0 <= index < len(self._topology):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if index in self._lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return _Handle(index)

    def nvmlDeviceGetName(self, handle: _Handle) -> str:
        return self._topology.devices[self._card(handle)].name

    def nvmlDeviceGetUUID(self, handle: _Handle) -> str:
        card = self._card(handle)
        if handle.instance is not None:
            return self._instances[card][handle.instance].uuid
        return uuid(card)

    def nvmlDeviceGetPciInfo(self, handle: _Handle) -> SimpleNamespace:
        return SimpleNamespace(busId=bus_id(self._card(handle)))

    def nvmlDeviceGetMemoryInfo(self, handle: _Handle, version: int | None = None) -> SimpleNamespace:
        card = self._card(handle)
        total = self._topology.devices[card].memory or MEMORY
        if handle.instance is not None:
            total = self._instances[card][handle.instance].memory or MEMORY
        taken = sum(process.memory or 0 for process in self._on(card, handle.instance))
        used = min(total, RESERVED + taken)
        return SimpleNamespace(total=total, used=used, free=total - used)

    def nvmlDeviceGetUtilizationRates(self, handle: _Handle) -> SimpleNamespace:
        card = self._card(handle)
        if card in self._instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=self._utilisation.get(card, 0), memory=0)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        return self._listed(handle, lambda p: p.computes and not p.through_mps)

    def nvmlDeviceGetMPSComputeRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        return self._listed(handle, lambda p: p.through_mps)

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: _Handle) -> list[SimpleNamespace]:
        return self._listed(handle, lambda p: not p.computes)

    def _listed(self, handle: _Handle, wanted: Callable[[Process], bool]) -> list[SimpleNamespace]:
        there = self._on(self._card(handle), handle.instance)
        return [SimpleNamespace(pid=p.pid, usedGpuMemory=p.memory) for p in there if wanted(p)]

    def nvmlDeviceGetMemoryAffinity(self, handle: _Handle, nodeSetSize: int, scope: int) -> list[int]:
        numa = self._topology.devices[self._card(handle)].numa
        if numa is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1 << numa % 64 if at == numa // 64 else 0 for at in range(nodeSetSize)]

    def nvmlDeviceGetCudaComputeCapability(self, handle: _Handle) -> list[int]:
        return list(self._capability)

    def nvmlDeviceGetComputeMode(self, handle: _Handle) -> int:
        return self._mode

    def nvmlDeviceGetMigMode(self, device: _Handle) -> list[int]:
        return [int(self._card(device) in self._instances)] * 2

    def nvmlDeviceGetMaxMigDeviceCount(self, device: _Handle) -> int:
        return 7 if self._card(device) in self._instances else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: _Handle, index: int) -> _Handle:
        card = self._card(device)
        if not 0 <= index < len(self._instances.get(card, ())):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return _Handle(card, index)

    def nvmlDeviceGetGpuInstanceId(self, device: _Handle) -> int | None:
        return self._part(device).gpu_instance

    def nvmlDeviceGetComputeInstanceId(self, device: _Handle) -> int | None:
        return self._part(device).compute_instance

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: _Handle, device2: _Handle) -> int:
        i, j = self._card(device1), self._card(device2)
        kind = self._topology.links[i][j].kind
        if level(kind) == "NV":  # how NVLinked cards are joined besides, their NUMA nodes tell
            kind = "NODE" if self._topology.devices[i].numa == self._topology.devices[j].numa else "SYS"
        return _LEVELS.get(kind, pynvml.NVML_TOPOLOGY_SYSTEM)

    def nvmlDeviceGetP2PStatus(self, device1: _Handle, device2: _Handle, p2pIndex: int) -> int:
        i, j = self._card(device1), self._card(device2)
        if self._topology.links[i][j].peer:
            return pynvml.NVML_P2P_STATUS_OK
        return self._refusals.get((i, j), pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED)

    def nvmlDeviceGetNvLinkState(self, device: _Handle, link: int) -> int:
        ends = self._ends(self._card(device))
        if not ends:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if not 0 <= link < pynvml.NVML_NVLINK_MAX_LINKS:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return int(link < len(ends))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: _Handle, link: int) -> SimpleNamespace:
        return SimpleNamespace(busId=self._end(device, link))

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: _Handle, link: int) -> int:
        self._end(handle, link)
        if self._switch:
            return pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        return pynvml.NVML_NVLINK_DEVICE_TYPE_GPU

    def _check(self) -> None:
        if not self._started:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)

    def _card(self, handle: _Handle) -> int:
        self._check()
        return handle.card

    def _on(self, card: int, instance: int | None = None) -> list[Process]:
        """What runs on an instance; what runs on a card, and on all its instances."""
        parts = self._instances.get(card, ())
        if instance is not None:
            return list(parts[instance].processes)
        return [*self._processes.get(card, ()), *(p for part in parts for p in part.processes)]

    def _part(self, handle: _Handle) -> Instance:
        card = self._card(handle)
        if handle.instance is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return self._instances[card][handle.instance]

    def _end(self, handle: _Handle, link: int) -> str:
        ends = self._ends(self._card(handle))
        if not 0 <= link < len(ends):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return ends[link]

    def _ends(self, card: int) -> list[str]:
        """The bus id at the far end of each NVLink of a card."""
        row = self._topology.links[card]
        counts = {j: int(link.kind[2:]) for j, link in enumerate(row) if level(link.kind) == "NV"}
        if self._switch:
            return ["00000000:FF:00.0"] * max(counts.values(), default=0)
        return [bus_id(j) for j, count in counts.items() for _ in range(count)]


def uuid(card: int) -> str:
    """The UUID of a fake card: always the same, and no two begin alike."""
    return f"GPU-{uuid5(NAMESPACE_OID, f'card {card}')}"


def bus_id(card: int) -> str:
    """The PCI bus id of a fake card, in NVML's form."""
    return f"{card // 60:08X}:{1 + 4 * (card % 60):02X}:00.0"
