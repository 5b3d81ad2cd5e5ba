"""The NVIDIA cards of this machine and the links between them, as NVML reports them."""

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from colonnade.describe import speeds
from colonnade.describe.topology import Device, Topology

# pynvml's NVML_P2P_CAPS_INDEX_READ is the tuple (0,), by a stray comma, and NVML takes a number.
READ = 0

# Linux gives the namespace of the host's process numbers this number.
FIRST_NAMESPACE = "pid:[4026531836]"

_KINDS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "PIX",  # two on one board
    pynvml.NVML_TOPOLOGY_SINGLE: "PIX",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "PXB",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "PHB",
    pynvml.NVML_TOPOLOGY_NODE: "NODE",
    pynvml.NVML_TOPOLOGY_SYSTEM: "SYS",
}
# How a card, a driver or a virtual machine says that it does not have such a thing, which is no fault.
_NO_SUCH_THING = (
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
    computes: bool = True  # or only draws, as the display server does
    through_mps: bool = False  # whether it computes through the server of NVIDIA's MPS


@dataclass(frozen=True)
class Instance:
    """A part of a card in MIG mode, which CUDA treats as a card of its own."""

    uuid: str
    gpu_instance: int | None
    compute_instance: int | None
    memory: int | None  # bytes
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True)
class Card:
    """A physical card. `index` is NVML's, which is PCI bus order. None where the driver does not tell."""

    index: int
    uuid: str
    bus_id: str
    name: str
    memory: int | None  # bytes
    free: int | None = None  # bytes
    utilisation: int | None = None  # percent
    processes: tuple[Process, ...] = ()
    mig: bool = False
    instances: tuple[Instance, ...] = ()
    capability: tuple[int, int] | None = None  # its architecture, as CUDA counts them
    mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT  # how many processes it lets in

    @property
    def mib(self) -> int:
        """Its memory in MiB; 0 where that is not known."""
        return (self.memory or 0) // 2**20


@dataclass(frozen=True)
class Machine:
    """What was found: cards and their topology, or the virtual CPU devices and why there are no cards.

    `topology.devices[i]` is `cards[i]`. A card that does not answer is in `faults`, and not in `cards`;
    a query that fails for a card costs that fact, and is in `unanswered`.
    """

    cards: tuple[Card, ...]
    topology: Topology
    driver: str = ""
    cuda: tuple[int, int] | None = None  # the newest CUDA that the driver can run
    absent: str = ""  # why there are no cards
    error: int | None = None  # the code with which NVML refused to start
    faults: tuple[str, ...] = ()
    unanswered: tuple[str, ...] = ()


Owner = Callable[[int], str | None]


def owner(pid: int) -> str | None:
    """The user of a process, or None if it has ended, or belongs to another container."""
    try:
        return psutil.Process(pid).username()
    except psutil.Error:
        return None


def is_mps_server(pid: int) -> bool:
    """Whether a process is the server of NVIDIA's MPS, which computes for others and nothing of its own."""
    try:
        return psutil.Process(pid).name().startswith("nvidia-cuda-mps")
    except psutil.Error:
        return False


def sees_driver_pids(own: Path = Path("/proc/self/ns/pid")) -> bool:
    """Whether process numbers here are those of the driver, which knows the host's.

    In a container with numbers of its own, a number from the driver may be that of another process.
    """
    try:
        return own.readlink().name == FIRST_NAMESPACE
    except OSError:  # a system without such namespaces
        return True


def detect(nvml: Any = pynvml, owner: Owner = owner, virtual: int = 1) -> Machine:
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
        try:
            return _machine(_Driver(nvml), nvml.nvmlDeviceGetCount(), owner, virtual)
        finally:
            with contextlib.suppress(pynvml.NVMLError):
                nvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return Machine((), Topology.uniform(virtual), absent=str(error), error=error.value)


class _Driver:
    """NVML, and what it did not answer: a query that fails costs one fact, and is named."""

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self.unanswered: list[str] = []

    def ask(
        self,
        of: str,
        query: str,
        *args: Any,
        otherwise: Any = None,
        no_fault: Collection[int] = _NO_SUCH_THING,
    ) -> Any:
        """The answer to a query about something, or `otherwise` if there is none."""
        try:
            return getattr(self.nvml, f"nvml{query}")(*args)
        except pynvml.NVMLError as error:
            fault = f"{of}: {query.removeprefix('DeviceGet')}: {error}"
            if error.value not in no_fault and fault not in self.unanswered:
                self.unanswered.append(fault)
            return otherwise


def _machine(driver: _Driver, count: int, owner: Owner, virtual: int) -> Machine:
    answering, faults = [], []
    for index in range(count):
        try:
            handle = driver.nvml.nvmlDeviceGetHandleByIndex(index)
            answering.append((handle, _card(driver, handle, index, owner)))
        except pynvml.NVMLError as error:
            faults.append(f"card {index}: {error}")
    name = driver.ask("driver", "SystemGetDriverVersion", otherwise="")
    version = driver.ask("driver", "SystemGetCudaDriverVersion_v2")
    cuda = version and (version // 1000, version % 1000 // 10)
    cards = tuple(card for _, card in answering)
    absent = "" if cards else "no card answers" if faults else "the driver lists no cards"
    topology = _topology(driver, answering) if cards else Topology.uniform(virtual)
    return Machine(
        cards, topology, name, cuda, absent, faults=tuple(faults), unanswered=tuple(driver.unanswered)
    )


def _card(driver: _Driver, handle: Any, index: int, owner: Owner) -> Card:
    """A card; without its UUID and its place it is none, so an error there is the caller's."""
    of, nvml = f"card {index}", driver.nvml
    memory = driver.ask(of, "DeviceGetMemoryInfo", handle, no_fault=())
    usage = driver.ask(of, "DeviceGetUtilizationRates", handle)
    mig = driver.ask(of, "DeviceGetMigMode", handle, otherwise=[pynvml.NVML_DEVICE_MIG_DISABLE])
    enabled = mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    instances = tuple(_instances(driver, of, handle, owner)) if enabled else ()
    # The card's own list may leave out what runs on its instances, without root.
    listed = [*_processes(driver, of, handle, owner), *(p for part in instances for p in part.processes)]
    capability = driver.ask(of, "DeviceGetCudaComputeCapability", handle)
    return Card(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        bus_id=nvml.nvmlDeviceGetPciInfo(handle).busId,
        name=driver.ask(of, "DeviceGetName", handle, otherwise="a card", no_fault=()),
        memory=memory and memory.total,
        free=memory and memory.free,
        utilisation=usage and usage.gpu,
        processes=tuple({process.pid: process for process in listed}.values()),
        mig=enabled,
        instances=instances,
        capability=capability and (capability[0], capability[1]),
        mode=driver.ask(of, "DeviceGetComputeMode", handle, otherwise=pynvml.NVML_COMPUTEMODE_DEFAULT),
    )


def _processes(driver: _Driver, of: str, handle: Any, owner: Owner) -> Iterator[Process]:
    computing = driver.ask(of, "DeviceGetComputeRunningProcesses", handle, otherwise=[])
    # Those that compute through MPS have a list of their own; the other one has the server alone.
    served = driver.ask(of, "DeviceGetMPSComputeRunningProcesses", handle, otherwise=[])
    drawing = driver.ask(of, "DeviceGetGraphicsRunningProcesses", handle, otherwise=[])
    through_mps = {p.pid for p in served}
    computes = through_mps.union(p.pid for p in computing)
    # A process that does several is listed for each, with the same memory.
    for pid, memory in {p.pid: p.usedGpuMemory for p in [*computing, *served, *drawing]}.items():
        yield Process(pid, owner(pid), memory, pid in computes, pid in through_mps)


def _instances(driver: _Driver, of: str, handle: Any, owner: Owner) -> Iterator[Instance]:
    for at in range(driver.ask(of, "DeviceGetMaxMigDeviceCount", handle, otherwise=0)):
        part = driver.ask(of, "DeviceGetMigDeviceHandleByIndex", handle, at)
        uuid = None if part is None else driver.ask(f"{of}, instance {at}", "DeviceGetUUID", part)
        if uuid is None:  # a place without an instance
            continue
        memory = driver.ask(uuid, "DeviceGetMemoryInfo", part, no_fault=())
        yield Instance(
            uuid=uuid,
            gpu_instance=driver.ask(uuid, "DeviceGetGpuInstanceId", part),
            compute_instance=driver.ask(uuid, "DeviceGetComputeInstanceId", part),
            memory=memory and memory.total,
            processes=tuple(_processes(driver, uuid, part, owner)),
        )


def _topology(driver: _Driver, cards: Sequence[tuple[Any, Card]]) -> Topology:
    places = {card.bus_id.upper() for _, card in cards}
    lines = [_nvlinks(driver, f"card {card.index}", handle, places) for handle, card in cards]
    kinds, peers = [], []
    for i, (a, _) in enumerate(cards):
        joined = [_joined(lines, i, j, card) for j, (_, card) in enumerate(cards)]
        pairs = [(f"cards {cards[i][1].index} and {card.index}", a, b) for b, card in cards]
        kinds.append(
            ["X" if i == j else joined[j] or _ancestor(driver, *pairs[j]) for j in range(len(cards))]
        )
        peers.append([i == j or _peer(driver, *pairs[j]) for j in range(len(cards))])
    devices = [
        Device(card.name, card.memory, speeds.flops(card.name), _numa(driver, f"card {card.index}", handle))
        for handle, card in cards
    ]
    return Topology.build(devices, kinds, peers)


def _nvlinks(driver: _Driver, of: str, handle: Any, cards: set[str]) -> Counter[str]:
    """How many active NVLinks lead to each card, by bus id, and to a switch, which reaches all."""
    count: Counter[str] = Counter()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if not driver.ask(of, "DeviceGetNvLinkState", handle, link):
            continue
        remote = driver.ask(of, "DeviceGetNvLinkRemotePciInfo", handle, link)
        if remote is not None and remote.busId.upper() in cards:
            count[remote.busId.upper()] += 1
            continue
        switch = pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH  # what else there is: processors with NVLink
        if driver.ask(of, "DeviceGetNvLinkRemoteDeviceType", handle, link, otherwise=switch) == switch:
            count["switch"] += 1
    return count


def _joined(lines: Sequence[Counter[str]], i: int, j: int, card: Card) -> str:
    number = lines[i][card.bus_id.upper()] or min(lines[i]["switch"], lines[j]["switch"])
    return f"NV{number}" if number else ""


def _ancestor(driver: _Driver, of: str, a: Any, b: Any) -> str:
    level = driver.ask(of, "DeviceGetTopologyCommonAncestor", a, b)
    return _KINDS.get(level, "SYS")


def _peer(driver: _Driver, of: str, a: Any, b: Any) -> bool | None:
    status = driver.ask(of, "DeviceGetP2PStatus", a, b, READ)
    return None if status is None else bool(status == pynvml.NVML_P2P_STATUS_OK)


def _numa(driver: _Driver, of: str, handle: Any) -> int | None:
    """The NUMA node next to a card, if there is exactly one."""
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    words = driver.ask(of, "DeviceGetMemoryAffinity", handle, 16, scope, otherwise=[])
    nodes = [64 * at + bit for at, word in enumerate(words) for bit in range(64) if word >> bit & 1]
    return nodes[0] if len(nodes) == 1 else None
