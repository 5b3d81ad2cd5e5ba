"""What is detected of cards, from a fake in NVML's place."""

import os
import re
from dataclasses import fields
from types import SimpleNamespace
from unittest.mock import create_autospec

import psutil
import pynvml
import pytest
from machines import FUNCTIONS, seen

from colonnade.describe.topology import Topology
from colonnade.hardware import cards, devices
from colonnade.hardware.cards import Card, Instance, Machine, Process, detect, is_mps_server, sees_driver_pids
from colonnade.hardware.fake import FakeNvml
from colonnade.hardware.recorded import MACHINES, recorded


@pytest.mark.parametrize("machine", MACHINES)
def test_detect_calls_pynvml_as_it_wants_to_be_called(machine):
    nvml, source = create_autospec(pynvml, spec_set=True), recorded(machine)
    for name in FUNCTIONS:
        getattr(nvml, name).side_effect = getattr(source, name)
    assert detect(nvml, source.owner) == seen(recorded(machine))
    called = {name for name in dir(nvml) if name.startswith("nvml") and getattr(nvml, name).called}
    assert called <= set(FUNCTIONS)  # nothing that the fake lacks


def test_without_a_driver_there_are_the_virtual_cpu_devices():
    machine = detect(FakeNvml(Topology.uniform(1), error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND), virtual=4)
    assert machine.cards == ()
    assert machine.topology == Topology.uniform(4)
    assert machine.absent == "NVML Shared Library Not Found"
    assert machine.error == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND


def test_a_lost_card_is_told_and_left_out():
    machine = seen(FakeNvml(Topology.uniform(3, link="NV2"), lost=[1]))
    assert [card.index for card in machine.cards] == [0, 2]
    assert machine.topology.link(0, 1).kind == "NV2"
    assert machine.faults == ("card 1: GPU is lost",)
    assert seen(FakeNvml(Topology.uniform(1), lost=[0])).absent == "no card answers"


def test_nvlinks_of_processors_are_not_links_between_cards():
    nvml = FakeNvml(Topology.uniform(2, link="NV3"), switch=True)
    nvml.nvmlDeviceGetNvLinkRemoteDeviceType = lambda handle, link: pynvml.NVML_NVLINK_DEVICE_TYPE_IBMNPU
    assert seen(nvml).topology.link(0, 1).kind == "NODE"


def test_a_virtual_machine_that_answers_little():
    nvml = FakeNvml(Topology.uniform(2, link="NV3"))

    def refuse(*args):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    for name in (
        *("nvmlDeviceGetNvLinkState", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetTopologyCommonAncestor"),
        *("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMigMode"),
    ):
        setattr(nvml, name, refuse)
    machine = seen(nvml)
    assert machine.topology.link(0, 1).kind == "SYS"
    assert not machine.topology.link(0, 1).peer
    assert machine.cards[0].utilisation is None


OPTIONAL = [name for name in FUNCTIONS if name.startswith("nvmlDeviceGet") or "System" in name]
OPTIONAL = [name for name in OPTIONAL if not re.search("Count$|HandleByIndex$|UUID$|PciInfo$", name)]


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("code", [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_a_query_that_fails_costs_that_fact_only(name, code):
    parts = [Instance("MIG-1", 1, 0, 2**33), Instance("MIG-2", 2, 0, 2**33)]
    nvml = FakeNvml(Topology.uniform(3, link="NV2"), instances={2: parts}, switch=True)
    whole = seen(nvml)

    def refuse(*args):
        raise pynvml.NVMLError(code)

    setattr(nvml, name, refuse)
    machine = seen(nvml)
    assert [card.uuid for card in machine.cards] == [card.uuid for card in whole.cards]
    assert machine.faults == ()
    lost = {field for a, b in zip(machine.cards, whole.cards, strict=True) for field in differing(a, b)}
    assert len(lost - {"instances"}) <= 2  # total and free memory come together
    query = name.removeprefix("nvml").removeprefix("DeviceGet")
    named = code == pynvml.NVML_ERROR_UNKNOWN or query in ("MemoryInfo", "Name")
    asked = query != "TopologyCommonAncestor"  # which is not needed where there is NVLink
    assert any(query in fact for fact in machine.unanswered) == (named and asked), machine.unanswered


def differing(a, b):
    return [field.name for field in fields(a) if getattr(a, field.name) != getattr(b, field.name)]


def test_a_card_that_does_not_tell_its_memory_is_still_a_card():
    nvml = FakeNvml(Topology.uniform(2, link="PIX"))
    tell = nvml.nvmlDeviceGetMemoryInfo

    def refuse(handle, version=None):
        if handle.card == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return tell(handle)

    nvml.nvmlDeviceGetMemoryInfo = refuse
    machine = seen(nvml)
    assert [card.memory is None for card in machine.cards] == [False, True]
    assert machine.unanswered == ("card 1: MemoryInfo: Not Supported",)
    assert machine.topology.link(0, 1).kind == "PIX"


def test_a_driver_that_cannot_count_its_cards():
    nvml = FakeNvml(Topology.uniform(2))

    def fail():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    nvml.nvmlDeviceGetCount = fail
    machine = detect(nvml, virtual=2)
    assert (machine.cards, machine.error, machine.absent) == ((), 999, "Unknown Error")


def test_the_user_of_a_process():
    import os

    assert cards.owner(os.getpid())
    assert cards.owner(2**22 + 1) is None


def pretend(monkeypatch, machine, visible, parts=1, **environment):
    """Let TensorFlow have these cards, each divided into so many devices."""
    config = SimpleNamespace(
        get_visible_devices=lambda kind: [
            SimpleNamespace(name=f"/physical_device:{kind}:{i}") for i in (visible if kind == "GPU" else [0])
        ],
        get_logical_device_configuration=lambda device: [object()] * parts,
    )
    monkeypatch.setattr(devices, "tf", SimpleNamespace(config=config))
    monkeypatch.setattr(devices, "started", lambda: False)
    monkeypatch.setattr(devices.nvml, "detect", lambda: machine)
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return devices.topology()


def test_the_topology_of_the_devices_in_use(monkeypatch):
    machine = seen(recorded("article"))
    kinds = [link.kind for link in pretend(monkeypatch, machine, [0, 1, 2]).links[0]]
    assert kinds == ["X", "PHB", "SYS"]
    chosen = pretend(monkeypatch, machine, [0, 1], CUDA_VISIBLE_DEVICES="0,2")
    assert chosen.link(0, 1).kind == "SYS"
    divided = pretend(monkeypatch, machine, [3], parts=3)
    assert [link.kind for link in divided.links[0]] == ["X", "MEM", "MEM"]
    mixed = (*machine.cards[:1], Card(1, "GPU-9", "0:01:00.0", "another", 2**30))
    unknown = Machine(mixed, Topology.uniform(2, link="PIX"))
    assert pretend(monkeypatch, unknown, [0, 1]).link(0, 1).kind == "SYS"
    assert pretend(monkeypatch, unknown, [0, 1], CUDA_DEVICE_ORDER="PCI_BUS_ID").link(0, 1).kind == "PIX"


def test_the_topology_of_virtual_devices():
    from colonnade.hardware.devices import topology

    assert topology() == Topology.uniform(8)


@pytest.mark.parametrize(("link", "seen"), [("pid:[4026531836]", True), ("pid:[4026532281]", False)])
def test_process_numbers_of_a_container_are_not_the_drivers(tmp_path, link, seen):
    (tmp_path / "pid").symlink_to(link)
    assert sees_driver_pids(tmp_path / "pid") == seen
    assert sees_driver_pids(tmp_path / "none")


def test_who_draws_and_who_computes():
    both = [Process(1, "a", 5), Process(2, "a", 6, computes=False)]
    (card,) = detect(FakeNvml(Topology.uniform(1), processes={0: both}), owner=lambda pid: "a").cards
    assert list(card.processes) == both


def test_what_computes_through_mps_is_seen_beside_its_server():
    """NVML has a list of its own for them; a driver that does not know it costs nothing but that."""
    server, client = Process(1, "a", 5), Process(2, "a", 6, through_mps=True)
    nvml = FakeNvml(Topology.uniform(1), processes={0: [server, client]})
    (card,) = detect(nvml, owner=lambda pid: "a").cards
    assert list(card.processes) == [server, client]
    assert client.computes

    def unknown(handle):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

    nvml.nvmlDeviceGetMPSComputeRunningProcesses = unknown
    old = detect(nvml, owner=lambda pid: "a")
    assert list(old.cards[0].processes) == [server]
    assert old.unanswered == ()


def test_the_server_of_mps_is_known_by_its_name(monkeypatch):
    monkeypatch.setattr(psutil.Process, "name", lambda self: "nvidia-cuda-mps-server")
    assert is_mps_server(os.getpid())
    monkeypatch.undo()
    assert not is_mps_server(os.getpid())
    assert not is_mps_server(2**30)
