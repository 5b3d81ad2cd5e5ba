"""The NVIDIA cards of this machine and the links between them, as NVML reports them."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psutil
import pynvml

from colonnade.describe import speeds
from colonnade.describe.topology import Device, Topology

# pynvml's NVML_P2P_CAPS_INDEX_READ is the tuple (0,), by a stray comma, and NVML takes a number.
READ = 0

_KINDS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two on one board
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
# What a card, a driver or a virtual machine may not answer. Everything else is a fault of the card.
_UNANSWERED = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
)


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a card; `user` is None where the system does not show it."""

    pid: int
    user: str | None
    memory: int | None  # bytes


@dataclass(frozen=True)
class Instance:
    """A part of a card in MIG mode, which CUDA treats as a card of its own."""

    uuid: str
    gpu_instance: int
    compute_instance: int
    memory: int  # bytes


@dataclass(frozen=True)
class Card:
    """A physical card. `index` is NVML's, which is PCI bus order."""

    index: int
    uuid: str
    bus_id: str
    name: str
    memory: int  # bytes
    free: int | None = None  # bytes
    utilisation: int | None = None  # percent
    processes: tuple[Process, ...] = ()
    mig: bool = False
    instances: tuple[Instance, ...] = ()

    @property
    def mib(self) -> int:
        return self.memory // 2**20


@dataclass(frozen=True)
class Machine:
    """What was found: cards and their topology, or the virtual CPU devices and why there are no cards.

    `topology.devices[i]` is `cards[i]`. A card that does not answer is in `faults`, and not in `cards`.
    """

    cards: tuple[Card, ...]
    topology: Topology
    driver: str = ""
    cuda: tuple[int, int] | None = None  # the newest CUDA that the driver can run
    absent: str = ""  # why there are no cards
    error: int | None = None  # the code with which NVML refused to start
    faults: tuple[str, ...] = ()


def owner(pid: int) -> str | None:
    """The user of a process, or None if it has ended, or belongs to another container."""
    try:
        return psutil.Process(pid).username()
    except psutil.Error:
        return None


def detect(nvml: Any = pynvml, owner: Callable[[int], str | None] = owner, virtual: int = 1) -> Machine:
    """Look at the machine: its cards in PCI bus order, else that many virtual CPU devices.

    Args:
        nvml: pynvml, or a `FakeNvml` in its place.
        owner: tells the user of a process.
        virtual: how many devices the CPU is divided into, where there are no cards.

    Example:
        >>> from colonnade.hardware.fake import FakeNvml
        >>> machine = detect(FakeNvml(Topology.uniform(2, link="NV4")))
        >>> [card.index for card in machine.cards], machine.topology.link(0, 1).kind
        ([0, 1], 'NV4')
    """
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Machine((), Topology.uniform(virtual), absent=str(error), error=error.value)
    try:
        return _machine(nvml, owner, virtual)
    finally:
        nvml.nvmlShutdown()


def _machine(nvml: Any, owner: Callable[[int], str | None], virtual: int) -> Machine:
    found, faults = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            found.append((handle, _card(nvml, handle, index, owner)))
        except pynvml.NVMLError as error:
            faults.append(f"card {index}: {error}")
    driver = _ask("", nvml.nvmlSystemGetDriverVersion)
    version = _ask(None, nvml.nvmlSystemGetCudaDriverVersion_v2)
    cuda = version and (version // 1000, version % 1000 // 10)
    cards = tuple(card for _, card in found)
    if not cards:
        absent = "no card answers" if faults else "the driver lists no cards"
        return Machine((), Topology.uniform(virtual), driver, cuda, absent, faults=tuple(faults))
    return Machine(cards, _topology(nvml, found), driver, cuda, faults=tuple(faults))


def _card(nvml: Any, handle: Any, index: int, owner: Callable[[int], str | None]) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    usage = _ask(None, nvml.nvmlDeviceGetUtilizationRates, handle)
    mig = _ask([pynvml.NVML_DEVICE_MIG_DISABLE], nvml.nvmlDeviceGetMigMode, handle)
    enabled = mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    return Card(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId,
        name=nvml.nvmlDeviceGetName(handle),
        memory=memory.total,
        free=memory.free,
        utilisation=None if usage is None else usage.gpu,
        processes=tuple(_processes(nvml, handle, owner)),
        mig=enabled,
        instances=tuple(_instances(nvml, handle)) if enabled else (),
    )


def _processes(nvml: Any, handle: Any, owner: Callable[[int], str | None]) -> Iterator[Process]:
    computing = _ask([], nvml.nvmlDeviceGetComputeRunningProcesses, handle)
    drawing = _ask([], nvml.nvmlDeviceGetGraphicsRunningProcesses, handle)
    # A process that does both is listed twice, with the same memory.
    for pid, memory in {p.pid: p.usedGpuMemory for p in [*computing, *drawing]}.items():
        yield Process(pid, owner(pid), memory)


def _instances(nvml: Any, handle: Any) -> Iterator[Instance]:
    for at in range(_ask(0, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)):
        part = _ask(None, nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, at)
        if part is not None:  # places without an instance are not found
            yield Instance(
                uuid=nvml.nvmlDeviceGetUUID(part),
                gpu_instance=nvml.nvmlDeviceGetGpuInstanceId(part),
                compute_instance=nvml.nvmlDeviceGetComputeInstanceId(part),
                memory=nvml.nvmlDeviceGetMemoryInfo(part).total,
            )


def _topology(nvml: Any, found: Sequence[tuple[Any, Card]]) -> Topology:
    lines = [_nvlinks(nvml, handle, {card.bus_id.upper() for _, card in found}) for handle, _ in found]
    kinds, peers = [], []
    for i, (a, _) in enumerate(found):
        joined = [_joined(lines, i, j, card) for j, (_, card) in enumerate(found)]
        kinds.append(
            ["X" if i == j else joined[j] or _ancestor(nvml, a, b) for j, (b, _) in enumerate(found)]
        )
        peers.append([i == j or _peer(nvml, a, b) for j, (b, _) in enumerate(found)])
    devices = [
        Device(card.name, card.memory, speeds.flops(card.name), _numa(nvml, handle)) for handle, card in found
    ]
    return Topology.build(devices, kinds, peers)


def _nvlinks(nvml: Any, handle: Any, cards: set[str]) -> Counter[str]:
    """How many active NVLinks lead to each card, by bus id, and to a switch, which reaches all."""
    count: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not _ask(0, nvml.nvmlDeviceGetNvLinkState, handle, link):
            continue
        remote = _ask(None, nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is not None and remote.busId.upper() in cards:
            count[remote.busId.upper()] += 1
            continue
        switch = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH  # what else there is: processors with NVLink
        if _ask(switch, nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == switch:
            count["switch"] += 1
    return count


def _joined(lines: Sequence[Counter[str]], i: int, j: int, card: Card) -> str:
    number = lines[i][card.bus_id.upper()] or min(lines[i]["switch"], lines[j]["switch"])
    return f"NV{number}" if number else ""


def _ancestor(nvml: Any, a: Any, b: Any) -> str:
    level = _ask(pynvml.NVML_TOPOLOGY_SYSTEM, nvml.nvmlDeviceGetTopologyCommonAncestor, a, b)
    return _KINDS.get(level, "SYS")


def _peer(nvml: Any, a: Any, b: Any) -> bool | None:
    status = _ask(None, nvml.nvmlDeviceGetP2PStatus, a, b, READ)
    return None if status is None else status == pynvml.NVML_P2P_STATUS_OK


def _numa(nvml: Any, handle: Any) -> int | None:
    """The NUMA node next to a card, if there is exactly one."""
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = _ask([], nvml.nvmlDeviceGetMemoryAffinity, handle, 16, scope)
    nodes = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None


def _ask(otherwise: Any, function: Callable[..., Any], *args: Any) -> Any:
    """The answer of NVML, or `otherwise` if this card or driver does not have one."""
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        if error.value not in _UNANSWERED:
            raise
        return otherwise
