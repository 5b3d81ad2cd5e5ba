"""The fake in NVML's place: it has pynvml's names, arguments and errors."""

import inspect
from itertools import combinations

import pynvml
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import FUNCTIONS

from colonnade.describe.topology import Device, Topology
from colonnade.hardware import fake
from colonnade.hardware.cards import Process, detect
from colonnade.hardware.fake import FakeNvml


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_fake_has_the_names_and_arguments_of_pynvml(name):
    ours = inspect.signature(getattr(FakeNvml(Topology.uniform(1)), name))
    theirs = inspect.signature(getattr(pynvml, name))
    assert [(p.name, p.default) for p in ours.parameters.values()] == [
        (p.name, p.default) for p in theirs.parameters.values()
    ]


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


def test_fake_cards_have_names_that_do_not_begin_alike():
    names = [fake.uuid(i) for i in range(16)]
    assert len({name[:12] for name in names}) == 16
    assert len({fake.bus_id(i) for i in range(200)}) == 200
