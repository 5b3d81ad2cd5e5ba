"""Cards, the fake in NVML's place, and the recorded machines."""

import inspect
import re
from dataclasses import fields
from itertools import combinations
from types import SimpleNamespace
from unittest.mock import create_autospec

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.describe.topology import Device, Topology
from colonnade.errors import InvalidArgument
from colonnade.hardware import cards, devices, fake
from colonnade.hardware.cards import Card, Instance, Machine, Process, detect
from colonnade.hardware.fake import FakeNvml
from colonnade.hardware.recorded import MACHINES, recorded
from colonnade.reason.reduction import reduction

FUNCTIONS = [name for name in vars(FakeNvml) if name.startswith("nvml")]


def seen(nvml):
    return detect(nvml, nvml.owner)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_fake_has_the_names_and_arguments_of_pynvml(name):
    ours = inspect.signature(getattr(FakeNvml(Topology.uniform(1)), name))
    theirs = inspect.signature(getattr(pynvml, name))
    assert [(p.name, p.default) for p in ours.parameters.values()] == [
        (p.name, p.default) for p in theirs.parameters.values()
    ]


@pytest.mark.parametrize("machine", MACHINES)
def test_detect_calls_pynvml_as_it_wants_to_be_called(machine):
    nvml, source = create_autospec(pynvml, spec_set=True), recorded(machine)
    for name in FUNCTIONS:
        getattr(nvml, name).side_effect = getattr(source, name)
    assert detect(nvml, source.owner) == seen(recorded(machine))
    called = {name for name in dir(nvml) if name.startswith("nvml") and getattr(nvml, name).called}
    assert called <= set(FUNCTIONS)  # nothing that the fake lacks


@pytest.mark.parametrize(
    ("code", "act"),
    [
        (pynvml.NVML_ERROR_UNINITIALIZED, lambda f: f.nvmlDeviceGetCount()),
        (pynvml.NVML_ERROR_UNINITIALIZED, lambda f: f.nvmlShutdown()),
        (pynvml.NVML_ERROR_INVALID_ARGUMENT, lambda f: f.nvmlInit() or f.nvmlDeviceGetHandleByIndex(2)),
        (pynvml.NVML_ERROR_GPU_IS_LOST, lambda f: f.nvmlInit() or f.nvmlDeviceGetHandleByIndex(1)),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, lambda f: f.nvmlInit() or f.nvmlDeviceGetNvLinkState(first(f), 0)),
        (
            pynvml.NVML_ERROR_NOT_FOUND,
            lambda f: f.nvmlInit() or f.nvmlDeviceGetMigDeviceHandleByIndex(first(f), 0),
        ),
        (
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
            lambda f: f.nvmlInit() or f.nvmlDeviceGetGpuInstanceId(first(f)),
        ),
        (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            lambda f: f.nvmlInit() or f.nvmlDeviceGetMemoryAffinity(first(f), 1, 0),
        ),
    ],
)
def test_the_fake_fails_with_the_codes_of_nvml(code, act):
    with pytest.raises(pynvml.NVMLError) as caught:
        act(FakeNvml(Topology.uniform(2, link="PIX"), lost=[1]))
    assert caught.value.value == code


def first(nvml):
    return nvml.nvmlDeviceGetHandleByIndex(0)


def test_the_fake_has_no_other_names():
    nvml = FakeNvml(Topology.uniform(1))
    assert nvml.NVMLError is pynvml.NVMLError
    assert not hasattr(nvml, "nvmlDeviceGetSerial")


@st.composite
def machines(draw):
    n = draw(st.integers(1, 6))
    kinds = [["X"] * n for _ in range(n)]
    peers = [[True] * n for _ in range(n)]
    for i, j in combinations(range(n), 2):
        kinds[i][j] = kinds[j][i] = draw(st.sampled_from(["NV1", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS"]))
        peers[i][j], peers[j][i] = draw(st.booleans()), draw(st.booleans())
    named = [
        Device("Tesla T4", draw(st.integers(2**30, 2**40)), 8.1e12, draw(st.integers(0, 130)))
        for _ in range(n)
    ]
    users = st.builds(
        Process, st.integers(1, 2**22), st.sampled_from(["ada", "grace", None]), st.integers(0, 2**28)
    )
    held = {i: draw(st.lists(users, max_size=3, unique_by=lambda p: p.pid)) for i in range(n)}
    return Topology.build(named, kinds, peers), held


@settings(max_examples=60, deadline=None)
@given(machines())
def test_any_fake_machine_is_detected_as_it_is(machine):
    topology, held = machine
    found = detect(FakeNvml(topology, processes=held), owner=str)
    assert found.topology == topology
    assert [card.memory for card in found.cards] == [device.memory for device in topology.devices]
    for card in found.cards:
        assert [(p.pid, p.user, p.memory) for p in card.processes] == [
            (p.pid, str(p.pid), p.memory) for p in held[card.index]
        ]


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


def test_s1_the_machine_of_the_article():
    machine = seen(recorded("article"))
    assert [[link.peer for link in row] for row in machine.topology.links] == [
        [i // 2 == j // 2 for j in range(4)] for i in range(4)
    ]
    assert list(reduction(machine.topology)) == [((1, 0), (3, 2)), ((2, 0),)]
    assert machine.topology.best(2) == (0, 1)


def test_the_other_recorded_machines():
    dgx1 = seen(recorded("dgx1")).topology
    assert [sum(int(link.kind[2:]) for link in row if link.kind.startswith("NV")) for row in dgx1.links] == [
        6
    ] * 8
    assert all(link.peer == (link.kind != "SYS") for row in dgx1.links for link in row)
    assert dgx1.best(4) in combinations(range(8), 4)
    switch = seen(recorded("nvswitch")).topology
    assert {link.kind for row in switch.links for link in row} == {"X", "NV18"}
    consumer = seen(recorded("consumer"))
    assert not any(consumer.topology.link(i, j).peer for i, j in combinations(range(4), 2))
    assert consumer.cards[2].processes == (Process(31337, "linus", 22 * 2**30),)
    (card,) = seen(recorded("mig")).cards
    assert card.mig
    assert card.utilisation is None
    assert [part.memory // 2**30 for part in card.instances] == [20, 10, 5]
    with pytest.raises(InvalidArgument, match="article, dgx1, nvswitch, consumer, mig"):
        recorded("dgx2")


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


def test_fake_cards_have_names_that_do_not_begin_alike():
    names = [fake.uuid(i) for i in range(16)]
    assert len({name[:12] for name in names}) == 16
    assert len({fake.bus_id(i) for i in range(200)}) == 200


def pretend(monkeypatch, machine, visible, parts=1, **environment):
    """Let TensorFlow have these cards, each divided into so many devices."""
    config = SimpleNamespace(
        get_visible_devices=lambda kind: [
            SimpleNamespace(name=f"/physical_device:{kind}:{i}") for i in (visible if kind == "GPU" else [0])
        ],
        get_logical_device_configuration=lambda device: [object()] * parts,
    )
    monkeypatch.setattr(devices, "tf", SimpleNamespace(config=config))
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
