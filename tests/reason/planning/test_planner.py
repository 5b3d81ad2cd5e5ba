"""Chosen plans: the best of all, within its time, with a reason for every other."""

import time
from dataclasses import replace

import pytest
from machines import machine
from workloads import cards, drawn, timed, virtual

from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument
from colonnade.reason.planning.planner import choose
from colonnade.reason.simulator.runtime import ENGINE
from colonnade.reason.simulator.simulate import simulate


def decoder(**more):
    sizes = {"hidden": 1536, "layers": 16, "heads": 24, "sequence": 2048, "vocabulary": 51200, "batch": 16}
    return Workload.transformer(**{**sizes, **more})


def test_a_plan_for_eight_devices_in_two_seconds():
    begin = time.process_time()
    plan = choose(machine("dgx1").topology, decoder())
    assert time.process_time() - begin < 2.0
    assert plan.predicted.memory <= 16160 * 2**20


def test_a_plan_for_1024_devices_in_thirty_seconds():
    joined = Topology.machines(machine("dgx1").topology, 128, network="200Gb", adapters=4)
    begin = time.process_time()
    plan = choose(joined, decoder(hidden=4096, layers=36, heads=32, batch=1024))
    assert time.process_time() - begin < 30.0
    assert plan.num_devices == 1024


@pytest.mark.parametrize("seed", range(12))
def test_the_beam_finds_what_looking_at_all_finds(seed):
    work, box = drawn(seed), cards(8, ["NV2", "PIX", "SYS"][seed % 3])
    everything, beam = choose(box, work), choose(box, work, beam=8)
    assert beam.predicted.step <= 1.02 * everything.predicted.step


@pytest.mark.parametrize("seed", range(12))
def test_nothing_that_can_be_run_is_faster_than_the_choice(seed):
    """Against a search that knows nothing of the planner's: all replicas, stages and micro-batches."""
    work, box = drawn(seed), cards(4, ["NV2", "PIX", "SYS"][seed % 3])
    chosen = choose(box, work)
    found = chosen.predicted.step
    for data, stage in [(d, s) for d in (1, 2, 4) for s in (1, 2, 4) if d * s <= 4]:
        if stage > len(work.layers):
            continue
        for micro_batches in [1] if stage == 1 else [stage, 2 * stage, 4 * stage, 8 * stage]:
            if micro_batches * data > work.batch:
                continue
            plan = Plan(batch=work.batch, data=data, stage=stage, micro_batches=micro_batches)
            assert found <= 1.021 * simulate(box, work, plan, events=False).step, plan.layout


def test_what_does_not_fit_is_named_with_its_numbers():
    plan = choose(machine("dgx1").topology, decoder())
    assert "one device is too small" in plan.advice
    (alone,) = [one for one in plan.candidates if one.layout == "one device"]
    assert alone.predicted is None
    assert alone.reason.startswith("does not fit: a device needs")
    assert "slots" in alone.reason


def test_every_layout_that_was_not_taken_has_a_reason():
    plan = choose(machine("dgx1").topology, decoder())
    assert len(plan.candidates) > 10
    assert all(one.reason for one in plan.candidates)
    assert len({one.layout for one in plan.candidates}) == len(plan.candidates)


def test_a_plan_that_cannot_be_run_is_not_proposed_where_another_fits():
    plan = choose(machine("dgx1").topology, decoder())
    assert not plan.not_runnable
    faster = [
        one for one in plan.candidates if one.predicted and one.predicted.step < 0.97 * plan.predicted.step
    ]
    assert all("cannot be run" in one.reason for one in faster)


def test_one_device_is_best_where_virtual_ones_add_nothing():
    plan = choose(virtual(8, 2), timed([0.1], batch=64, parameters=8, cores=2.0, addition=0.03))
    assert plan.num_devices == 1
    two = "2 devices (2 replicas, shared) would take 1.3 times as long"
    assert plan.advice == f"Stay on one device: {two}, because 30 ms of a step go into adding up gradients."


def test_devices_with_cores_of_their_own_are_used():
    assert choose(virtual(2, 2), timed([0.1], batch=64, cores=1.0)).data == 2


def test_a_slow_network_is_not_crossed():
    far = Topology.machines(cards(4), 4, network=1e6)
    assert choose(far, timed([0.1], batch=64, parameters=10**8)).num_devices == 4


def test_slow_links_ask_for_local_training_where_that_is_allowed():
    far = Topology.machines(cards(1), 4, network=1e8)
    work = timed([0.1], batch=64, parameters=10**7)
    assert choose(far, work).num_devices == 1
    loose = choose(far, work, keep={"sync": "diloco", "every": 100})
    assert (loose.sync, loose.every, loose.data) == ("diloco", 100, 4)


def test_what_is_kept_is_kept():
    plan = choose(cards(8), drawn(1), keep={"data": 2, "stage": 1, "variables": "mirrored"})
    assert (plan.data, plan.stage, plan.variables) == (2, 1, "mirrored")
    assert choose(cards(8), drawn(1), devices=2).num_devices <= 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"devices": 9}, "from 1 to 8"),
        ({"devices": 0}, "from 1 to 8"),
        ({"keep": {"colour": 1}}, "no part of a plan"),
        ({"keep": {"sync": "never"}}, "no way of training"),
        ({"keep": {"data": 9}}, "leaves no layout"),
    ],
)
def test_what_cannot_be_planned(arguments, said):
    with pytest.raises(InvalidArgument, match=said):
        choose(cards(8), timed(), **arguments)


def test_what_is_no_workload_and_no_topology():
    with pytest.raises(InvalidArgument) as error:
        choose("dgx1", "resnet")
    assert {problem.argument for problem in error.value.problems} == {"workload", "topology"}


def test_where_nothing_fits_the_smallest_need_is_told():
    with pytest.raises(InvalidArgument, match="no layout fits; the smallest is"):
        choose(cards(2, memory=100), timed([1.0], parameters=10**6))


def test_plans_do_not_depend_on_what_was_planned_before():
    box, quiet = cards(8), replace(ENGINE, jitter=0.0)
    assert choose(box, drawn(4), runtime=quiet) == choose(box, drawn(4), runtime=quiet)
