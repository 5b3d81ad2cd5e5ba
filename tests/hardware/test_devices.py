import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from fresh import fresh

import colonnade as cn
from colonnade.hardware import devices, gpu
from colonnade.hardware.cards import Card
from colonnade.hardware.devices import resolve
from colonnade.hardware.layout import Request, leased, plan

CARDS = tuple(Card(i, f"GPU-{i}{i}{i}{i}", f"0000:0{i}:00.0", "Test card", 16 * 2**30) for i in range(4))


def refused(cards=(), **settings):
    with pytest.raises(ValueError, match="cannot work with") as caught:
        plan(Request(**settings), cards)
    return {problem.argument for problem in caught.value.problems}, str(caught.value)


@pytest.mark.parametrize(
    ("settings", "visible", "parts", "growth"),
    [
        ({}, (0, 1, 2, 3), ((None,),) * 4, None),
        ({"devices": 2}, (0, 1), ((None,),) * 2, None),
        ({"devices": (3, 1)}, (1, 3), ((None,),) * 2, None),
        ({"devices": ("GPU-2222",)}, (2,), ((None,),), None),
        ({"devices": ("GPU-3333", 0)}, (0, 3), ((None,),) * 2, None),
        ({"devices": 1, "memory": 0.9}, (0,), ((14745,),), None),
        ({"devices": 2, "memory": 4096}, (0, 1), ((4096,),) * 2, None),
        ({"devices": 1, "memory": 1}, (0,), ((16384,),), None),
        ({"growth": True, "devices": 1}, (0,), ((None,),), True),
        ({"growth": True, "memory": 0.5, "devices": 1}, (0,), ((8192,),), True),
        ({"virtual": 4}, (0,), ((3686,) * 4,), None),
        ({"virtual": 2, "devices": (3,), "memory": 1000}, (3,), ((1000,) * 2,), None),
        ({"devices": np.int64(2)}, (0, 1), ((None,),) * 2, None),
        ({"devices": np.array([2, 0])}, (0, 2), ((None,),) * 2, None),
        ({"devices": "GPU-1111"}, (1,), ((None,),), None),
        ({"virtual": np.int64(2), "memory": 100}, (0,), ((100,) * 2,), None),
    ],
)
def test_plan_with_cards(settings, visible, parts, growth):
    layout = plan(Request(**settings), CARDS)
    assert (layout.kind, layout.visible, layout.parts, layout.growth) == ("GPU", visible, parts, growth)


@pytest.mark.parametrize(
    ("settings", "arguments", "says"),
    [
        ({"devices": 5}, {"devices"}, "4 cards"),
        ({"devices": 0}, {"devices"}, "from 1 up"),
        ({"devices": -1}, {"devices"}, "from 1 up"),
        ({"devices": ()}, {"devices"}, "names no device"),
        ({"devices": (1, 1)}, {"devices"}, "twice"),
        ({"devices": (4,)}, {"devices"}, "from 0 to 3"),
        ({"devices": (-1,)}, {"devices"}, "no such position"),
        ({"devices": ("GPU-9",)}, {"devices"}, "Known UUIDs: GPU-0000"),
        ({"devices": True}, {"devices"}, "from 1 up"),
        ({"virtual": 0}, {"virtual"}, "from 1 up"),
        ({"virtual": 2, "devices": 2}, {"devices"}, "divide one card"),
        ({"memory": 17000}, {"memory"}, "more than card 0"),
        ({"memory": 0}, {"memory"}, "above 0"),
        ({"memory": -0.5}, {"memory"}, "above 0"),
        ({"memory": 1.5}, {"memory"}, "whole number"),
        ({"memory": 9000, "virtual": 2}, {"memory"}, "2 x 9000 MiB"),
        ({"memory": "all"}, {"memory"}, "fraction"),
        ({"devices": (0, "GPU-0000")}, {"devices"}, "twice"),
        ({"devices": 2.0}, {"devices"}, "count from 1 up"),
        ({"devices": object()}, {"devices"}, "count from 1 up"),
        ({"devices": ([0],)}, {"devices"}, "no such position"),
        ({"memory": float("inf")}, {"memory"}, "fraction"),
        ({"memory": 1e-6}, {"memory"}, "too little"),
        ({"virtual": 100_000}, {"virtual"}, "Ask for fewer"),
        ({"threads": 0}, {"threads"}, "pair"),
        ({"threads": (1, 2, 3)}, {"threads"}, "pair"),
        ({"growth": "yes"}, {"growth"}, "True, False or None"),
        ({"devices": 9, "memory": 10**6, "threads": -1}, {"devices", "memory", "threads"}, "threads=-1"),
    ],
)
def test_plan_refuses_with_cards(settings, arguments, says):
    found, message = refused(CARDS, **settings)
    assert found == arguments
    assert says in message


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"devices": 2}, "virtual=2"),
        ({"memory": 0.5}, "a fraction is one of a card, and this process sees none"),
        ({"memory": 1.5}, "Name MiB, a whole number"),
        ({"growth": True}, "is for cards"),
        ({"devices": ("GPU-0000",)}, "no visible card has this UUID"),
    ],
)
def test_plan_refuses_without_cards(settings, says):
    assert says in refused((), **settings)[1]


def test_a_limit_on_the_cpu_is_kept_for_each_part():
    assert plan(Request(virtual=3, memory=512), ()).parts == ((512,) * 3,)


def test_a_limit_is_checked_on_the_cards_that_are_used():
    small = Card(4, "GPU-4444", "0000:09:00.0", "Small card", 4 * 2**30)
    assert plan(Request(devices=(0,), memory=8000), (*CARDS, small)).parts == ((8000,),)
    assert "Small card" in refused((*CARDS, small), memory=8000)[1]


@pytest.mark.parametrize(
    ("settings", "environment", "expected"),
    [
        ({}, {}, {}),
        ({}, {"COLONNADE_VIRTUAL": "3"}, {"virtual": 3}),
        ({"virtual": 2}, {"COLONNADE_VIRTUAL": "3"}, {"virtual": 2}),
        # Of half a card a tenth is left to CUDA, which takes memory in every process.
        ({}, {"COLONNADE_MEMORY": "0.5"}, {"memory": 0.45}),
        ({}, {"COLONNADE_MEMORY": "4096"}, {"memory": 4096}),
        ({"memory": 4096}, {"COLONNADE_MEMORY": "0.5"}, {"memory": 4096}),
        # Half a card was leased, so two devices on it share it.
        ({"virtual": 2}, {"COLONNADE_MEMORY": "0.5"}, {"virtual": 2, "memory": 0.225}),
    ],
)
def test_what_was_leased_stands_in_for_what_is_left_open(settings, environment, expected):
    assert leased(Request(**settings), environment, CARDS) == Request(**expected)


def test_a_share_of_a_card_that_tensorflow_does_not_see_is_told_and_left_out():
    with pytest.warns(UserWarning, match=r"COLONNADE_MEMORY=0.5 from colonnade run is not used: .* no card"):
        assert leased(Request(), {"COLONNADE_MEMORY": "0.5"}, ()) == Request()


def test_a_part_of_a_memory_that_is_not_known_is_refused():
    untold = replace(CARDS[0], memory=None)
    assert plan(Request(memory=4096), [untold]).parts == ((4096,),)
    assert plan(Request(), [untold]).parts == ((None,),)
    for settings in ({"memory": 0.5}, {"virtual": 2}, {"virtual": 2, "memory": 0.5}):
        assert "does not tell how much memory" in refused([untold], **settings)[1]


@pytest.mark.parametrize("bad", ["", "many", "0", "-1", "nan"])
def test_what_was_leased_must_be_a_number(bad):
    environment = {"COLONNADE_VIRTUAL": bad, "COLONNADE_MEMORY": bad}
    with pytest.raises(cn.InvalidArgument) as caught:
        leased(Request(), environment, CARDS)
    assert [problem.argument for problem in caught.value.problems] == list(environment)
    assert leased(Request(virtual=2, memory=0.5), environment, CARDS) == Request(virtual=2, memory=0.5)


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
    monkeypatch.setattr(devices, "visible_cards", lambda: [SimpleNamespace(mib=24 * 1024)] * 3)
    wanted = [23 * 1024, 2000, 23 * 512, 23 * 512]
    assert [devices.room(f"/device:GPU:{i}") for i in range(4)] == [mib * 2**20 for mib in wanted]
    assert devices.room("/device:GPU:4") is None
    assert devices.room("/device:CPU:0") is None
