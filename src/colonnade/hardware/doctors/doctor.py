"""`colonnade doctor`: what keeps this machine from being used, why it matters, and what to do.

Each check is a function of what it looks at, so it can be tried on machines that are not here.
"""

import contextlib
import os
import re
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pynvml

from colonnade.describe.speeds import suggests_peer
from colonnade.describe.topology import Topology
from colonnade.hardware import gpu, onednn
from colonnade.hardware.cards import Card, Machine, Process, is_mps_server, sees_driver_pids
from colonnade.hardware.doctors.admission import NO_CARDS, architecture, compute_mode
from colonnade.hardware.doctors.finding import Finding
from colonnade.hardware.doctors.open_ports import open_ports, reachable
from colonnade.hardware.probes.probe import TensorFlow

GIB = 2**30
RECORDED = TensorFlow(unmeasured="a recorded machine")
# A copy that takes more than so many times its published time goes another way than it should.
SLOW = 2.0
XID = "sudo dmesg | grep -i xid for the cause; sudo nvidia-smi --gpu-reset, or reboot"
BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def examine(machine: Machine, tensorflow: TensorFlow, root: Path = Path("/")) -> tuple[Finding, ...]:
    """All checks, on this machine."""
    system = root / "sys"
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return (
        driver(machine, tensorflow, os.environ, on_bus(system)),
        architecture(machine.cards, tensorflow),
        *examine_cards(machine, os.environ, tensorflow),
        iommu(machine.cards, system),
        access_control(machine.cards, system),
        shared_memory(root / "dev" / "shm"),
        locked_memory(limit, adapters=(system / "class" / "infiniband").exists()),
        threads(_cores(), len(machine.topology)),
        faster_kernels(tensorflow, os.environ),
        reachable(*open_ports()),
    )


def examine_cards(
    machine: Machine, environment: Mapping[str, str], tensorflow: TensorFlow = RECORDED
) -> tuple[Finding, ...]:
    """The checks of cards, for which a recorded machine will do."""
    me = psutil.Process().username()
    return (
        answers(machine),
        order(machine.cards, environment),
        peer_access(machine.topology, machine.cards, tensorflow),
        compute_mode(machine.cards),
        leftover(machine.cards, me, known_pids=sees_driver_pids()),
    )


def driver(
    machine: Machine, tensorflow: TensorFlow, environment: Mapping[str, str], bus: Sequence[str]
) -> Finding:
    """Whether driver, CUDA and TensorFlow find each other, and the cards on the PCI bus."""
    check, why = "driver and CUDA", "TensorFlow computes on a card only if it finds the driver and CUDA"
    said = "".join(f"; TensorFlow says: {line}" for line in tensorflow.log)
    if not tensorflow.version:
        remedy = "pip install 'colonnade[gpu]' with cards, pip install 'colonnade[cpu]' without"
        return Finding(check, "blocks", f"TensorFlow does not start{said}", why, remedy)
    name = f"TensorFlow {tensorflow.version}"
    built = f"built for CUDA {tensorflow.cuda}" if tensorflow.built_with_cuda else "built without CUDA"
    if machine.error == pynvml.NVML_ERROR_DRIVER_NOT_LOADED:
        remedy = "sudo modprobe nvidia; if that fails, install the driver again for this kernel"
        return Finding(check, "blocks", "a driver is installed, and not loaded", why, remedy)
    if machine.error == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH:
        summary = "the driver was updated while an older one is running"
        return Finding(
            check, "blocks", summary, why, "Reboot, or reload the module: sudo rmmod nvidia_uvm nvidia"
        )
    if not machine.cards and (bus or machine.error not in (None, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)):
        seen = f"NVIDIA cards on the PCI bus: {', '.join(bus) or 'none'}"
        remedy = "Install NVIDIA's driver, then run: nvidia-smi. In a container: docker run --gpus all"
        return Finding(check, "blocks", f"the driver shows no cards ({machine.absent}); {seen}", why, remedy)
    if not machine.cards:
        return Finding(check, "good", f"no cards ({machine.absent}); {name} computes on the CPU", why)
    cards = f"driver {machine.driver}, {len(machine.cards)} cards; {name}, {built}"
    if not tensorflow.built_with_cuda:
        return Finding(check, "blocks", cards, why, "pip install 'colonnade[gpu]'")
    wanted = int(tensorflow.cuda.partition(".")[0] or 0)
    if machine.cuda and machine.cuda[0] < wanted:
        summary = f"{cards}; this driver runs CUDA up to {machine.cuda[0]}.{machine.cuda[1]}"
        return Finding(check, "blocks", summary, why, f"Install a driver for CUDA {wanted} or newer")
    expected = len(gpu.visible(machine.cards, environment))
    if tensorflow.cards < expected:
        summary = f"{cards}; it can use {tensorflow.cards} of {expected}{said}"
        remedy = "pip install --upgrade 'tensorflow[and-cuda]', which brings the libraries along"
        return Finding(check, "blocks", summary, why, remedy)
    return Finding(check, "good", f"{cards}; it can use {tensorflow.cards}", why)


def on_bus(system: Path) -> tuple[str, ...]:
    """The NVIDIA cards on the PCI bus, driver or not, but those that were given to a virtual machine."""
    addresses = []
    for device in sorted((system / "bus" / "pci" / "devices").glob("*")):
        with contextlib.suppress(OSError):
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
            # Class 3 are displays and accelerators; cards bring sound and USB along.
            if vendor == "0x10de" and kind.startswith("0x03"):
                addresses += [device.name] if (device / "driver").resolve().name != "vfio-pci" else []
    return tuple(addresses)


def answers(machine: Machine) -> Finding:
    """Whether all cards answer."""
    check, why = "cards that answer", "a card that has dropped off the bus takes no work"
    if machine.faults:
        return Finding(check, "blocks", "; ".join(machine.faults), why, XID)
    if not machine.cards:
        return Finding(check, "unknown", NO_CARDS, why)
    if machine.unanswered:
        summary = f"all {len(machine.cards)}, but not everything: {'; '.join(machine.unanswered)}"
        return Finding(check, "note", summary, "what is not known cannot be shown, limited or avoided", XID)
    return Finding(check, "good", f"all {len(machine.cards)}", why)


def order(cards: Sequence[Card], environment: Mapping[str, str]) -> Finding:
    """Whether card 1 is the same card for nvidia-smi, CUDA and TensorFlow, and what is visible."""
    check = "device order"
    why = "nvidia-smi counts by PCI bus, CUDA unless told so by speed: card 1 may be two different cards"
    if not cards:
        return Finding(check, "unknown", NO_CARDS, why)
    rows = gpu.names(cards, environment)
    seen = [row for row in rows if row.visible]
    listed = environment.get(gpu.VISIBLE)
    what = "" if listed is None else f"; {gpu.VISIBLE}={listed} shows {len(seen)} of {len(rows)}"
    if listed is not None and len(seen) < len([entry for entry in listed.split(",") if entry.strip()]):
        why = "CUDA stops at the first entry that names no card, and takes one instance of cards in MIG mode"
        remedy = f"export {gpu.VISIBLE}={','.join(row.uuid for row in seen) or rows[0].uuid}"
        return Finding(check, "note", f"not every entry is a card{what}", why, remedy)
    if any(row.ordinal is None for row in seen):
        summary = f"different cards, and {gpu.ORDER} is not set: CUDA's order is not known{what}"
        return Finding(
            check, "note", summary, why, f"export {gpu.ORDER}={gpu.BUS_ORDER} (cn.setup() does it too)"
        )
    return Finding(check, "good", f"the same for nvidia-smi, CUDA and TensorFlow{what}", why)


def peer_access(topology: Topology, cards: Sequence[Card], tensorflow: TensorFlow) -> Finding:
    """Peer access as the kinds of links suggest it, as the driver says it, and as copies go."""
    check = "peer access"
    why = "without it a copy from card to card goes through the host: slower, and a load on the CPU"
    if len(cards) < 2:
        return Finding(check, "unknown", "it takes two cards to look at", why)
    pairs = [(i, j) for j in range(len(cards)) for i in range(j)]
    direct = [pair for pair in pairs if topology.link(*pair).peer and topology.link(*pair[::-1]).peer]
    likely = [pair for pair in pairs if suggests_peer(topology.link(*pair).kind)]
    missing = [f"{i}-{j} ({topology.link(i, j).kind})" for i, j in likely if (i, j) not in direct]
    summary = (
        f"by their links {len(likely)} of {len(pairs)} pairs should have it, by the driver {len(direct)} do"
    )
    if missing:
        summary += f"; missing for {', '.join(missing)}"
    lost = [f"{copy.source} to {copy.target}" for copy in tensorflow.copies if not copy.arrived]
    if lost:
        remedy = "Switch off IOMMU translation and ACS, see below; until then use one of these cards only"
        return Finding(check, "blocks", f"{summary}; copies do not arrive: {', '.join(lost)}", why, remedy)
    slow = _slow(topology, cards, tensorflow)
    summary += f"; {_measured(tensorflow)}" + (
        f"; slower than it should be: {', '.join(slow)}" if slow else ""
    )
    if missing or slow:
        remedy = (
            "Consumer cards have none, and no remedy. Others: switch off IOMMU translation and ACS, see below"
        )
        return Finding(check, "note", summary, why, remedy)
    return Finding(check, "good", summary, why)


def _measured(tensorflow: TensorFlow) -> str:
    if not tensorflow.copies:
        return f"not measured: {tensorflow.unmeasured}"
    speeds = sorted(copy.bandwidth / 1e9 for copy in tensorflow.copies)
    return f"measured: all copies arrive, at {speeds[0]:.1f} to {speeds[-1]:.1f} GB/s"


def _slow(topology: Topology, cards: Sequence[Card], tensorflow: TensorFlow) -> list[str]:
    place = {card.index: at for at, card in enumerate(cards)}
    links = {copy: topology.link(place[copy.source], place[copy.target]) for copy in tensorflow.copies}
    return [
        f"{copy.source} to {copy.target} ({link.kind}, {copy.bandwidth / 1e9:.1f} of"
        f" {link.bandwidth / 1e9:.1f} GB/s)"
        for copy, link in links.items()
        if copy.bandwidth * SLOW < link.bandwidth
    ]


def leftover(cards: Sequence[Card], me: str, *, known_pids: bool = True) -> Finding:
    """Memory that is taken, and by whom.

    Without `known_pids`, the driver's process numbers are not those of this container: nobody is named.
    """
    check, why = "memory taken", "TensorFlow takes nearly all that is free, and fails later if that is little"
    if not cards:
        return Finding(check, "unknown", NO_CARDS, why)
    uses, remedy = [], []
    for card in cards:
        for process in card.processes:
            size = "" if process.memory is None else f"{process.memory / GIB:.1f} GiB, "
            if not known_pids:
                uses.append(f"card {card.index}: {size}process {process.pid} of the host")
                remedy.append(f"on the host, outside this container: ps {process.pid}")
                continue
            who = process.user or "a user who is not visible from here"
            role = _role(process)
            uses.append(f"card {card.index}: {size}process {process.pid} of {who}{role and f', {role}'}")
            if not role:
                own = process.user == me
                remedy.append(f"kill {process.pid}" if own else f"ask {who} about {process.pid}")
        known = sum(process.memory or 0 for process in card.processes)
        taken = None if card.memory is None or card.free is None else card.memory - card.free
        hidden = (taken or 0) - known
        if hidden > GIB and all(process.memory is not None for process in card.processes):
            uses.append(f"card {card.index}: {hidden / GIB:.1f} GiB of no process that is visible from here")
            remedy.append(f"sudo fuser -v /dev/nvidia{card.index}")
    full = all(card.free is not None and card.free < 0.1 * (card.memory or 0) for card in cards)
    if not uses:
        return Finding(check, "good", "none", why)
    return Finding(check, "blocks" if full else "note", "; ".join(uses), why, "; ".join(remedy))


def _role(process: Process) -> str:
    """What a process is for that is to be left alone; empty for one that computes something of its own."""
    if not process.computes:
        return "which draws"
    return "the server of MPS, through which others compute" if is_mps_server(process.pid) else ""


def iommu(cards: Sequence[Card], system: Path) -> Finding:
    """Whether the IOMMU translates the addresses that cards use."""
    check = "IOMMU"
    why = "translated addresses make copies between cards slow, and on some machines wrong or endless"
    if not cards:
        return Finding(check, "unknown", NO_CARDS, why)
    kinds = {card.index: _domain(_pci(card, system)) for card in cards}
    translated = [f"card {index} ({kind})" for index, kind in kinds.items() if kind.startswith("DMA")]
    if len(cards) > 1 and translated:
        remedy = "Add iommu=pt to GRUB_CMDLINE_LINUX in /etc/default/grub, sudo update-grub, reboot"
        return Finding(check, "note", f"translates for {', '.join(translated)}", why, remedy)
    untold = [f"card {index}" for index, kind in kinds.items() if kind not in ("none", "identity")]
    if untold and not translated:
        remedy = "sudo dmesg | grep -i -e iommu -e dmar"
        return Finding(check, "unknown", f"the system does not tell for {', '.join(untold)}", why, remedy)
    state = "off, or passes addresses through" if not translated else "translates for the only card"
    return Finding(check, "good", state, why)


def _domain(device: Path) -> str:
    """How the IOMMU treats a device: `none` without an IOMMU, empty where that cannot be read."""
    try:
        if not (device / "iommu_group").exists():
            return "none" if device.exists() else ""
        return (device / "iommu_group" / "type").read_text().strip()
    except OSError:  # kernels before 5.11 do not say
        return ""


def access_control(cards: Sequence[Card], system: Path) -> Finding:
    """Whether PCIe bridges above the cards send copies between cards up to the CPU (ACS)."""
    check = "PCIe access control (ACS)"
    why = "bridges that redirect make copies between cards go through the CPU, as if there were no switch"
    if len(cards) < 2:
        return Finding(check, "unknown", "it takes two cards to look at", why)
    redirecting, unread, bridges = [], 0, {b.name: b for card in cards for b in _bridges(_pci(card, system))}
    for name, path in sorted(bridges.items()):
        control = _acs_control(path / "config")
        unread += control is None
        if control and control & 0x0C:  # redirect requests, redirect completions
            redirecting.append(name)
    if redirecting:
        remedy = "; ".join(f"sudo setpci -s {name} ECAP_ACS+0x6.w=0000" for name in redirecting)
        return Finding(check, "note", f"redirects at {', '.join(redirecting)}", why, remedy)
    if unread or not bridges:
        summary = f"{unread} of {len(bridges)} bridges cannot be read without root"
        return Finding(check, "unknown", summary, why, "sudo colonnade doctor")
    return Finding(check, "good", f"{len(bridges)} bridges, none redirects", why)


def shared_memory(path: Path) -> Finding:
    """Whether processes of this machine have room to hand each other data."""
    check, why = "/dev/shm", "processes on one machine exchange data there; containers often get 64 MiB"
    if not path.exists():
        return Finding(check, "unknown", "there is none", why)
    size = shutil.disk_usage(path)
    summary = f"{size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    if size.free < GIB:
        return Finding(
            check,
            "note",
            summary,
            why,
            "docker run --shm-size=8g; else sudo mount -o remount,size=8G /dev/shm",
        )
    return Finding(check, "good", summary, why)


def locked_memory(limit: int, *, adapters: bool) -> Finding:
    """Whether network adapters may lock the memory that they read."""
    check, why = (
        "locked memory",
        "InfiniBand and RoCE adapters lock the memory they send from; a low limit fails late",
    )
    summary = "no limit" if limit == resource.RLIM_INFINITY else f"up to {limit / 2**20:.0f} MiB"
    if limit == resource.RLIM_INFINITY or not adapters:
        return Finding(check, "good", summary if adapters else f"{summary}; no such adapter here", why)
    remedy = "ulimit -l unlimited; for good in /etc/security/limits.conf; docker run --ulimit memlock=-1"
    return Finding(check, "note", summary, why, remedy)


def threads(cores: int, devices: int) -> Finding:
    """Whether every device has threads that keep it busy."""
    check, why = (
        "threads per device",
        "a device waits if no thread launches its work and none prepares its data",
    )
    summary = f"{cores} cores for {devices} device{'s' if devices > 1 else ''}"
    if cores < 2 * devices and devices > 1:
        return Finding(check, "note", summary, why, f"Use fewer devices, or cn.setup(threads=(1, {devices}))")
    return Finding(check, "good", summary, why)


def faster_kernels(tensorflow: TensorFlow, environment: Mapping[str, str]) -> Finding:
    """Whether TensorFlow uses oneDNN in programs that import it before Colonnade."""
    check, why = "oneDNN", "without it convolutions and matrix products on the CPU may take twice as long"
    if not tensorflow.version:
        return Finding(check, "unknown", "TensorFlow does not start", why)
    if tensorflow.onednn:
        return Finding(check, "good", "TensorFlow uses it", why)
    if not onednn.on_x86():
        return Finding(check, "good", "not used; for this kind of processor TensorFlow claims no gain", why)
    if onednn.VARIABLE in onednn.as_found(environment):
        chosen = f"{onednn.VARIABLE}={environment[onednn.VARIABLE]}"
        return Finding(check, "note", f"switched off by {chosen}", why, f"unset {onednn.VARIABLE}")
    summary = "TensorFlow leaves it off on this processor; Colonnade, imported first, switches it on"
    return Finding(check, "note", summary, why, onednn.REMEDY)


def _cores() -> int:
    """The cores that this process may use: fewer than the machine has, in many a container."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pci(card: Card, system: Path) -> Path:
    domain, _, rest = card.bus_id.lower().partition(":")
    return system / "bus" / "pci" / "devices" / f"{int(domain, 16):04x}:{rest}"


def _bridges(device: Path) -> Iterator[Path]:
    """The bridges between the host and a device: the folders above it in sysfs."""
    return (parent for parent in device.resolve().parents if BUS.fullmatch(parent.name))


def _acs_control(config: Path) -> int | None:
    """The ACS control register of a bridge, 0 if it has none, None if it cannot be read.

    Extended capabilities start at 0x100, each with its id, and the place of the next one. Without
    root the kernel shows the first 64 bytes only.
    """
    try:
        space = config.read_bytes()
    except OSError:
        return None
    if len(space) < 0x104:
        return None
    at, seen = 0x100, set()
    while 0x100 <= at <= len(space) - 8 and at not in seen:
        seen.add(at)
        head = int.from_bytes(space[at : at + 4], "little")
        if head & 0xFFFF == 0x000D:
            return int.from_bytes(space[at + 6 : at + 8], "little")
        at = head >> 20
    return 0
