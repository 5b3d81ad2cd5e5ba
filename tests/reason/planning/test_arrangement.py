from itertools import permutations

import pytest
from workloads import cards, timed

from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.planning.arrangement import arranged, kinds, only_kind
from colonnade.reason.planning.layouts import dealt
from colonnade.reason.planning.planner import choose
from colonnade.reason.simulator.simulate import simulate

A100 = "NVIDIA A100-SXM4-80GB"
AXES = [(2, 1, 2), (2, 2, 1), (1, 2, 2), (1, 4, 1), (4, 1, 1)]


def wired(groups, near="NV4", far="SYS", names=None):
    """Cards that are joined by NVLink inside groups."""
    home = {device: at for at, group in enumerate(groups) for device in group}
    n = range(len(home))
    kinds = [["X" if i == j else near if home[i] == home[j] else far for j in n] for i in n]
    return Topology.build([Device((names or [A100] * len(home))[i]) for i in n], kinds)


def decoder(batch=16):
    return Workload.transformer(
        hidden=2048, layers=24, heads=16, sequence=1024, vocabulary=50257, batch=batch
    )


def test_the_best_connected_devices_are_taken():
    box = Topology.groups([[0, 2], [1, 3]])
    assert set(arranged(box, timed(parameters=8), 2, 1, 1)) in ({0, 2}, {1, 3})
    assert arranged(cards(4), timed(), 4, 1, 1) == (0, 1, 2, 3)


@pytest.mark.parametrize("keep", [{"data": 2, "width": 2, "stage": 1}, {"data": 2, "stage": 2, "width": 1}])
def test_numbers_of_devices_do_not_matter(keep):
    """The same machine, its cards counted in another order."""
    one, other = (
        choose(wired(groups), decoder(), keep=keep) for groups in ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    )
    assert one.predicted.step == pytest.approx(other.predicted.step)


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        *(((data, stage, width), None) for data, stage, width in AXES),
        *(
            ((data, stage, 1), [A100, "Tesla V100-SXM2-16GB"] * 2)
            for data, stage, width in AXES
            if width == 1
        ),
    ],
)
def test_no_order_is_much_better_than_the_one_taken(axes, names):
    box, work = wired([[0, 3], [1, 2]], names=names), decoder()
    data, stage, width = axes

    def step(devices):
        plan = Plan(
            batch=16,
            data=data,
            stage=stage,
            width=width,
            devices=devices,
            micro_batches=4 if stage > 1 else 1,
        )
        return simulate(box, work, dealt(box, work, plan), events=False).step

    assert step(arranged(box, work, *axes)) <= 1.1 * min(map(step, permutations(range(4))))


def test_on_eight_devices_layers_are_split_over_the_best_joined():
    box = wired([[0, 7], [1, 6], [2, 5], [3, 4]])
    order = arranged(box, decoder(), 2, 2, 2)
    assert {frozenset(order[at : at + 2]) for at in range(0, 8, 2)} == {
        frozenset(pair) for pair in ((0, 7), (1, 6), (2, 5), (3, 4))
    }


def test_over_machines_each_one_puts_its_pairs_side_by_side_and_the_fastest_comes_first():
    slow = wired([[0, 2], [1, 3]], names=["Tesla V100-SXM2-16GB"] * 4)
    joined = Topology.machines([slow, wired([[0, 3], [1, 2]])])
    order = arranged(joined, decoder(), 4, 1, 2)
    assert set(order[:4]) == {4, 5, 6, 7}
    assert {frozenset(order[at : at + 2]) for at in range(0, 8, 2)} == {
        frozenset(pair) for pair in ((4, 7), (5, 6), (0, 2), (1, 3))
    }


def test_the_fastest_device_works_alone():
    names = ["Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB", A100, A100]
    assert arranged(wired([[0, 1], [2, 3]], names=names), decoder(), 1, 1, 1) == (2,)


def test_devices_that_differ_by_their_number_or_place_are_of_one_kind():
    box = Topology((Device("CPU:0", cores=2), Device("CPU:1", cores=2)), Topology.uniform(2).links)
    assert only_kind(box) == kinds(box)[1] == Device("CPU:0", cores=2)
    near = Topology((Device(A100, numa=0), Device(A100, numa=1)), Topology.uniform(2).links)
    assert only_kind(near) == Device(A100)
    assert only_kind(wired([[0], [1]], names=[A100, "Tesla T4"])) is None
