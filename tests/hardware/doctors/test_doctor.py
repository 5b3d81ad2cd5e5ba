import resource
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from machines import machine

from colonnade.describe.topology import Topology
from colonnade.hardware.cards import Card, Machine, Process, detect
from colonnade.hardware.doctors import doctor
from colonnade.hardware.fake import FakeNvml
from colonnade.hardware.probes.probe import Copy, TensorFlow
from colonnade.hardware.recorded import MACHINES

GIB = 2**30
NONE = Machine((), Topology.uniform(1), absent="NVML Shared Library Not Found", error=12)
GOOD = TensorFlow("2.21.0", True, "12.5.1", 4)


@pytest.mark.parametrize(
    ("found", "tensorflow", "state", "says", "remedy"),
    [
        (NONE, TensorFlow("2.21.0"), "good", "computes on the CPU", ""),
        (
            NONE,
            TensorFlow(log=("No module named 'tensorflow'",)),
            "blocks",
            "No module named",
            "colonnade[gpu]",
        ),
        (machine("article"), GOOD, "good", "it can use 4", ""),
        (machine("article"), TensorFlow("2.21.0"), "blocks", "built without CUDA", "colonnade[gpu]"),
        (
            machine("article"),
            TensorFlow("2.30.0", True, "13.1", 0),
            "blocks",
            "up to 12.4",
            "CUDA 13 or newer",
        ),
        (
            machine("article"),
            TensorFlow("2.21.0", True, "12.5.1", 0, log=("Cannot dlopen some libraries",)),
            "blocks",
            "0 of 4; TensorFlow says: Cannot dlopen",
            "and-cuda",
        ),
        *(
            (
                Machine((), Topology.uniform(1), absent="words of NVML", error=code),
                GOOD,
                "blocks",
                "words of NVML",
                "nvidia-smi",
            )
            for code in (pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_UNKNOWN)
        ),
        (
            Machine((), Topology.uniform(1), error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED),
            GOOD,
            "blocks",
            "not loaded",
            "modprobe nvidia",
        ),
        (
            Machine((), Topology.uniform(1), error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH),
            GOOD,
            "blocks",
            "updated",
            "Reboot",
        ),
    ],
)
def test_driver(found, tensorflow, state, says, remedy):
    finding = doctor.driver(found, tensorflow, {}, ())
    assert finding.state == state
    assert says in finding.found
    assert remedy in finding.remedy
    assert finding.why


def test_cards_on_the_bus_that_no_driver_shows(tmp_path):
    listed = tmp_path / "bus" / "pci" / "devices"
    for name, vendor, kind in (
        ("0000:01:00.0", "0x10de", "0x030200"),
        ("0000:01:00.1", "0x10de", "0x040300"),  # the sound of a card
        ("0000:02:00.0", "0x10de", "0x030000"),  # given to a virtual machine
        ("0000:03:00.0", "0x8086", "0x030000"),
    ):
        (listed / name).mkdir(parents=True)
        (listed / name / "vendor").write_text(f"{vendor}\n")
        (listed / name / "class").write_text(f"{kind}\n")
    (listed / "0000:02:00.0" / "driver").symlink_to(tmp_path / "vfio-pci")
    (listed / "0000:04:00.0").mkdir()  # one that cannot be read
    assert doctor.on_bus(tmp_path) == ("0000:01:00.0",)
    assert doctor.on_bus(tmp_path / "none") == ()
    empty = Machine((), Topology.uniform(1), absent="the driver lists no cards")
    for machine_without in (NONE, empty):
        finding = doctor.driver(machine_without, GOOD, {}, ("0000:01:00.0",))
        assert finding.state == "blocks"
        assert "0000:01:00.0" in finding.found
        assert "Install NVIDIA's driver" in finding.remedy
        assert doctor.driver(machine_without, GOOD, {}, ()).state == "good"


def test_cards_that_answer():
    assert doctor.answers(machine("dgx1")).found == "all 8"
    assert doctor.answers(NONE).state == "unknown"
    lost = doctor.answers(detect(FakeNvml(Topology.uniform(2), lost=[1])))
    assert (lost.state, lost.found) == ("blocks", "card 1: GPU is lost")
    mute = doctor.answers(replace(machine("article"), unanswered=("card 2: MemoryInfo: Unknown Error",)))
    assert mute.state == "note"
    assert "card 2: MemoryInfo" in mute.found


@pytest.mark.parametrize(
    ("environment", "state", "says", "remedy"),
    [
        ({}, "good", "the same", ""),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, "good", "shows 2 of 4", ""),
        ({"CUDA_VISIBLE_DEVICES": "0,9"}, "note", "shows 1 of 4", "export CUDA_VISIBLE_DEVICES=GPU-"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "good", "shows 0 of 4", ""),
    ],
)
def test_order(environment, state, says, remedy):
    finding = doctor.order(machine("article").cards, environment)
    assert finding.state == state
    assert says in finding.found
    assert remedy in finding.remedy


def test_order_of_different_cards():
    cards = (Card(0, "GPU-0", "0:01:00.0", "one", GIB), Card(1, "GPU-1", "0:02:00.0", "other", GIB))
    finding = doctor.order(cards, {})
    assert finding.state == "note"
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in finding.remedy
    assert doctor.order(cards, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).state == "good"
    assert doctor.order((), {}).state == "unknown"


@pytest.mark.parametrize(
    ("name", "state", "says"),
    [
        ("article", "good", "2 of 6 pairs should have it, by the driver 2 do; not measured: a recorded"),
        ("nvswitch", "good", "28 of 28 pairs"),
        ("dgx1", "good", "by the driver 16 do"),
        ("consumer", "note", "missing for 0-1 (PHB), 2-3 (PHB)"),
        ("mig", "unknown", "takes two cards"),
    ],
)
def test_peer_access_by_label_against_the_driver(name, state, says):
    found = machine(name)
    finding = doctor.peer_access(found.topology, found.cards, doctor.RECORDED)
    assert finding.state == state
    assert says in finding.found


@pytest.mark.parametrize(
    ("bandwidth", "arrived", "state", "says"),
    [
        (11e9, True, "good", "measured: all copies arrive, at 11.0 to 11.0 GB/s"),
        (3e9, True, "note", "slower than it should be: 0 to 1 (PHB, 3.0 of 12.0 GB/s)"),
        (11e9, False, "blocks", "copies do not arrive: 0 to 1"),
    ],
)
def test_peer_access_by_label_against_measured(bandwidth, arrived, state, says):
    found = machine("article")
    said = TensorFlow("2.21.0", cards=4, copies=(Copy(0, 1, arrived, bandwidth),))
    finding = doctor.peer_access(found.topology, found.cards, said)
    assert finding.state == state
    assert says in finding.found


def test_memory_taken_and_by_whom(monkeypatch):
    def card(free, *processes):
        return Card(0, "GPU-0", "0:01:00.0", "card", 10 * GIB, free=free * GIB, processes=processes)

    assert doctor.leftover([card(9.9)], "ada").state == "good"
    assert doctor.leftover([], "ada").state == "unknown"
    mine = doctor.leftover([card(5, Process(7, "ada", 5 * GIB))], "ada")
    assert (mine.state, mine.remedy) == ("note", "kill 7")
    theirs = doctor.leftover([card(5, Process(7, "grace", 5 * GIB))], "ada")
    assert theirs.found == "card 0: 5.0 GiB, process 7 of grace"
    assert theirs.remedy == "ask grace about 7"
    assert doctor.leftover([card(0.5, Process(7, None, 9 * GIB))], "ada").state == "blocks"
    draws = doctor.leftover([card(9, Process(7, "root", GIB, computes=False))], "ada")
    assert (draws.found, draws.remedy) == ("card 0: 1.0 GiB, process 7 of root, which draws", "")
    with monkeypatch.context() as patched:
        patched.setattr(doctor, "is_mps_server", lambda pid: pid == 7)
        served = Process(8, "ada", GIB, through_mps=True)
        shared = doctor.leftover([card(8, Process(7, "ada", GIB), served)], "ada")
    assert shared.found.startswith(
        "card 0: 1.0 GiB, process 7 of ada, the server of MPS, through which others"
    )
    assert shared.remedy == "kill 8"
    hidden = doctor.leftover([card(4)], "ada")
    assert "6.0 GiB of no process" in hidden.found
    assert hidden.remedy == "sudo fuser -v /dev/nvidia0"


def sysfs(root: Path, *, kind: str = "DMA-FQ", config: bytes = b"\0" * 64) -> Path:
    """A /sys with two cards of the article's machine below one bridge."""
    listed = root / "bus" / "pci" / "devices"
    listed.mkdir(parents=True)
    bridge = root / "devices" / "pci0000:00" / "0000:00:02.0"
    for name in ("0000:01:00.0", "0000:05:00.0"):
        (bridge / name / "iommu_group").mkdir(parents=True)
        (bridge / name / "iommu_group" / "type").write_text(f"{kind}\n")
        (listed / name).symlink_to(bridge / name)
    (bridge / "config").write_bytes(config)
    return root


def test_iommu(tmp_path):
    cards = machine("article").cards[:2]
    finding = doctor.iommu(cards, sysfs(tmp_path / "on"))
    assert finding.state == "note"
    assert finding.found == "translates for card 0 (DMA-FQ), card 1 (DMA-FQ)"
    assert "iommu=pt" in finding.remedy
    assert doctor.iommu(cards, sysfs(tmp_path / "through", kind="identity")).state == "good"
    off = sysfs(tmp_path / "off")
    for each in (off / "bus" / "pci" / "devices").iterdir():
        shutil.rmtree(each.resolve() / "iommu_group")
    assert doctor.iommu(cards, off).state == "good"
    assert doctor.iommu(cards[:1], tmp_path / "on").state == "good"
    assert doctor.iommu(cards, tmp_path / "no such system").state == "unknown"
    old = sysfs(tmp_path / "old")
    for each in (old / "bus" / "pci" / "devices").iterdir():
        (each / "iommu_group" / "type").unlink()
    untold = doctor.iommu(cards, old)
    assert (untold.state, untold.found) == ("unknown", "the system does not tell for card 0, card 1")
    assert doctor.iommu([], tmp_path).state == "unknown"


def space(control: int | None) -> bytes:
    """A PCI configuration space: an extended capability that is another one, then ACS if there is one."""
    data = bytearray(4096)
    data[0x100:0x104] = ((0x140 << 20 if control is not None else 0) | 0x10001).to_bytes(4, "little")
    if control is not None:
        data[0x140:0x144] = (0x1000D).to_bytes(4, "little")
        data[0x146:0x148] = control.to_bytes(2, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("config", "state", "says"),
    [
        (space(0x1D), "note", "redirects at 0000:00:02.0"),
        (space(0x01), "good", "none redirects"),
        (space(None), "good", "none redirects"),
        (b"\0" * 64, "unknown", "1 of 1 bridges cannot be read without root"),
    ],
)
def test_access_control(tmp_path, config, state, says):
    finding = doctor.access_control(machine("article").cards[:2], sysfs(tmp_path, config=config))
    assert finding.state == state
    assert says in finding.found
    if state == "note":
        assert finding.remedy == "sudo setpci -s 0000:00:02.0 ECAP_ACS+0x6.w=0000"
    assert doctor.access_control([], tmp_path).state == "unknown"


def test_a_damaged_configuration_space_ends(tmp_path):
    data = bytearray(space(None))
    data[0x100:0x104] = (0x100 << 20 | 1).to_bytes(4, "little")  # the next one is itself
    (tmp_path / "config").write_bytes(data)
    assert doctor._acs_control(tmp_path / "config") == 0
    assert doctor._acs_control(tmp_path / "none") is None


def test_shared_memory(tmp_path, monkeypatch):
    size = SimpleNamespace(total=64 * 2**20, free=60 * 2**20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: size)
    small = doctor.shared_memory(tmp_path)
    assert (small.state, small.found) == ("note", "0.1 of 0.1 GiB free")
    assert "--shm-size" in small.remedy
    size.total = size.free = 8 * GIB
    assert doctor.shared_memory(tmp_path).state == "good"
    assert doctor.shared_memory(tmp_path / "none").state == "unknown"


def test_locked_memory():
    assert doctor.locked_memory(resource.RLIM_INFINITY, adapters=True).state == "good"
    assert doctor.locked_memory(8 * 2**20, adapters=False).state == "good"
    finding = doctor.locked_memory(8 * 2**20, adapters=True)
    assert (finding.state, finding.found) == ("note", "up to 8 MiB")
    assert "ulimit -l unlimited" in finding.remedy


def test_in_a_container_nobody_is_named_by_a_number_of_the_host():
    taken = Card(0, "GPU-0", "0:1", "card", 10 * GIB, free=5 * GIB, processes=(Process(7, "ada", 5 * GIB),))
    finding = doctor.leftover([taken], "ada", known_pids=False)
    assert finding.found == "card 0: 5.0 GiB, process 7 of the host"
    assert "kill" not in finding.remedy


def test_threads():
    assert doctor.threads(2, 1).found == "2 cores for 1 device"
    assert doctor.threads(1, 1).state == "good"
    assert doctor.threads(16, 8).state == "good"
    assert doctor.threads(8, 8).state == "note"


@pytest.mark.parametrize(
    ("on", "given", "state", "words"),
    [
        (True, {}, "good", "uses it"),
        (False, {}, "note", "leaves it off on this processor"),
        (False, {"TF_ENABLE_ONEDNN_OPTS": "0"}, "note", "switched off by TF_ENABLE_ONEDNN_OPTS=0"),
    ],
)
def test_faster_kernels(monkeypatch, on, given, state, words):
    monkeypatch.setattr("colonnade.hardware.onednn._ours", False)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    finding = doctor.faster_kernels(TensorFlow("2.21.0", onednn=on), given)
    assert finding.state == state
    assert words in finding.found


def test_no_faster_kernels_are_promised_for_other_processors(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert doctor.faster_kernels(TensorFlow("2.21.0"), {}).state == "good"


def test_every_check_says_why_it_matters_and_what_to_do():
    for name in MACHINES:
        for finding in doctor.examine(machine(name), GOOD):
            assert finding.why
            assert finding.state not in ("note", "blocks") or finding.remedy


def test_what_cannot_be_known_without_a_card_says_so():
    states = {finding.check: finding.state for finding in doctor.examine(NONE, TensorFlow("2.21.0"))}
    assert states["peer access"] == states["device order"] == states["memory taken"] == "unknown"
    assert "blocks" not in states.values()
