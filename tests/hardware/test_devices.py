import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from fresh import fresh
from machines import CARDS

import colonnade as cn
from colonnade.hardware import devices, gpu
from colonnade.hardware.devices import resolve
from colonnade.hardware.layout import Request, plan


@pytest.mark.long
def test_what_was_leased_comes_too_late_as_an_argument_would():
    out = fresh("""
        import os
        os.environ["COLONNADE_VIRTUAL"] = "2"
        tf.constant(1) + 1
        try:
            cn.setup()
        except cn.AlreadyStarted as error:
            print(error)
    """)
    assert "asked:  setup(virtual=2)" in out


def test_visible_devices_of_the_environment():
    def seen(listed):
        return [card.index for card in gpu.visible(CARDS, {"CUDA_VISIBLE_DEVICES": listed})]

    assert [card.index for card in gpu.visible(CARDS, {})] == [0, 1, 2, 3]
    assert seen("2,0") == [2, 0]
    assert seen("GPU-3333,GPU-1") == [3, 1]
    assert seen("") == seen("-1") == seen("7,0") == []
    assert seen("0,-1,2") == [0]


class Recorder:
    """Stands in for tf.config and writes down what it is told."""

    def __init__(self, monkeypatch):
        self.told = []
        physical = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(4)]
        config = SimpleNamespace(
            list_physical_devices=lambda kind: physical if kind == "GPU" else [],
            set_visible_devices=lambda found, kind: self.told.append(
                ("visible", [d.name[-1] for d in found])
            ),
            set_logical_device_configuration=lambda d, parts: self.told.append(
                ("limits", d.name[-1], [part.memory_limit for part in parts])
            ),
            LogicalDeviceConfiguration=tf.config.LogicalDeviceConfiguration,
        )
        monkeypatch.setattr(devices, "tf", SimpleNamespace(config=config))
        monkeypatch.delenv("TF_FORCE_GPU_ALLOW_GROWTH", raising=False)

    def tell(self, **settings):
        request = Request(**settings)
        devices._tell_tensorflow(request, plan(request, CARDS))
        return self.told


def test_cards_are_told_to_tensorflow(monkeypatch):
    told = Recorder(monkeypatch).tell(devices=(1, 3), memory=0.5)
    assert told == [("visible", ["1", "3"]), ("limits", "1", [8192]), ("limits", "3", [8192])]


@pytest.mark.parametrize(("growth", "says"), [(True, "true"), (False, "false")])
def test_growth_reaches_the_allocator_with_and_without_a_limit(monkeypatch, growth, says):
    # set_memory_growth beside a limit is refused or dropped by TensorFlow, so it must not be called.
    for memory, limits in ((None, []), (1000, [("limits", "0", [1000])])):
        told = Recorder(monkeypatch).tell(devices=1, growth=growth, memory=memory)
        assert told == [("visible", ["0"]), *limits]
        assert os.environ.pop("TF_FORCE_GPU_ALLOW_GROWTH") == says


def test_fewer_cards_in_tensorflow_than_the_driver_lists(monkeypatch):
    recorder = Recorder(monkeypatch)
    monkeypatch.setattr(devices.tf.config, "list_physical_devices", lambda kind: [])
    with pytest.raises(cn.InvalidArgument, match="colonnade doctor"):
        recorder.tell(devices=1)


def test_another_order_of_cards_is_refused():
    environment = {}
    gpu.use_bus_order(environment)
    assert environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    with pytest.raises(cn.InvalidArgument, match="PCI bus order"):
        gpu.use_bus_order({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"})


def test_setup_in_a_new_process():
    out = fresh("""
        assert not __import__("colonnade.hardware.devices").hardware.devices.started()
        print(cn.setup(virtual=3, threads=(1, 2)))
        print(cn.setup(virtual=3, threads=(1, 2)) == cn.setup())
        print(len(tf.config.list_logical_devices("CPU")))
        threads = tf.config.threading
        print(threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads())
        try:
            cn.setup(virtual=2)
        except cn.AlreadyStarted as error:
            print(error)
    """)
    lines = out.splitlines()
    assert lines[:4] == ["('/device:CPU:0', '/device:CPU:1', '/device:CPU:2')", "True", "3", "1 2"]
    assert "asked:  setup(virtual=2)" in out
    assert "setup(virtual=3, threads=(1, 2)) was called before" in out
    assert "restart the kernel" in out


def test_setup_after_tensorflow_started():
    out = fresh("""
        tf.constant(1) + 1
        print(cn.setup())
        try:
            cn.setup(virtual=2)
        except RuntimeError as error:
            print(error)
    """)
    assert out.startswith("('/device:CPU:0',)")
    assert "started without setup()" in out


def test_devices_are_resolved():
    have = tuple(f"/device:CPU:{i}" for i in range(8))
    assert resolve(None, "f()") == have
    assert resolve(2, "f()") == resolve(np.int64(2), "f()") == have[:2]
    assert resolve([3, "/device:CPU:1"], "f()") == (have[3], have[1])
    assert resolve("CPU:5", "f()") == (have[5],)
    assert resolve(["/job:worker/task:1/device:CPU:0"], "f()") == ("/job:worker/task:1/device:CPU:0",)


@pytest.mark.parametrize(
    "bad", [0, -1, 9, 2.0, True, [], [0, 0], [8], [-1], [True], ["nonsense"], ["/device:GPU:7"], ["CPU:0", 0]]
)
def test_bad_devices_are_refused(bad):
    with pytest.raises(cn.InvalidArgument, match=r"f\(\) cannot work with"):
        resolve(bad, "f()")


def test_a_division_by_the_user_is_not_kept_silently():
    out = fresh("""
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
        print(cn.setup(virtual=1))
    """)
    assert out == "('/device:CPU:0',)\n"


def test_too_many_devices_names_the_line_that_helps():
    out = fresh("""
        try:
            cn.make_parallel(lambda x: x, 2, x=[1.0])
        except ValueError as error:
            print(error)
        print(cn.setup(virtual=2))
    """)
    assert "num_gpus=2" in out
    assert "cn.setup(virtual=2)" in out
    assert "('/device:CPU:0', '/device:CPU:1')" in out  # asking did not start TensorFlow


def test_the_room_of_cards(monkeypatch):
    """A limit where there is one, else what a card has less CUDA's own; parts share it."""
    physical = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(3)]
    divided = {0: None, 1: [SimpleNamespace(memory_limit=2000)], 2: [SimpleNamespace(memory_limit=None)] * 2}
    config = SimpleNamespace(
        get_visible_devices=lambda kind: physical if kind == "GPU" else [],
        get_logical_device_configuration=lambda device: divided[int(device.name[-1])],
    )
    monkeypatch.setattr(devices, "tf", SimpleNamespace(config=config))
    monkeypatch.setattr(devices, "started", lambda: False)
    monkeypatch.setattr(devices, "visible_cards", lambda: [SimpleNamespace(mib=24 * 1024)] * 3)
    wanted = [23 * 1024, 2000, 23 * 512, 23 * 512]
    assert [devices.room(f"/device:GPU:{i}") for i in range(4)] == [mib * 2**20 for mib in wanted]
    assert devices.room("/device:GPU:4") is None
    assert devices.room("/device:CPU:0") is None


def test_cards_that_tensorflow_ignores_are_told(monkeypatch):
    cards = ("/device:GPU:0", "/device:GPU:1")
    monkeypatch.setattr(devices, "_chosen", lambda kind: cards if kind == "GPU" else ("/device:CPU:0",))
    (problem,) = devices._ignored(["GPU:0"])
    assert problem.value == "1 of 2"
    assert not list(devices._ignored(["GPU:0", "GPU:1"]))
    # A program that did not call setup() is not offered what is not there.
    started = ["GPU:0"]
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: started)
    assert devices.names() == cards[:1]
    started.clear()
    assert devices.names() == ("/device:CPU:0",)


@pytest.fixture
def card_of_xla(monkeypatch):
    """A card whose abilities TensorFlow knows; what is compiled for it is compiled for the CPU."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: ["a card"])
    details = {"compute_capability": (8, 0)}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda card: details)
    monkeypatch.setattr(devices, "names", lambda: ("/device:CPU:0",))
    devices._has_compiled.cache_clear()
    yield details
    devices._has_compiled.cache_clear()


def test_cards_are_compiled_for_if_something_small_was(card_of_xla):
    assert devices.compiles_for("/device:GPU:0")
    card_of_xla.clear()
    assert not devices.compiles_for("/device:GPU:0")


def test_cards_for_which_nothing_compiles_are_told_of_once(card_of_xla, monkeypatch):
    def broken(*_, **__):
        def call(_):
            raise tf.errors.InternalError(None, None, "libdevice not found at ./libdevice.10.bc\nmore")

        return call

    monkeypatch.setattr(tf, "function", broken)
    with pytest.warns(UserWarning, match=r"op by op. TensorFlow says: libdevice not found at \S+$"):
        assert not devices.compiles_for("/device:GPU:0")
    assert not devices.compiles_for("/job:localhost/replica:0/task:0/device:GPU:1")
