"""Chosen plans: the best of all, within its time, with a reason for every other."""

import time
from dataclasses import replace

import pytest
from machines import machine
from workloads import V100, cards, drawn, timed, virtual

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.link import Device
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument
from colonnade.reason.planning.layouts import dealt
from colonnade.reason.planning.planner import choose
from colonnade.reason.simulator.memory_need import needs
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
    found = choose(box, work).predicted.step
    for data, stage in [(d, s) for d in (1, 2, 4) for s in (1, 2, 4) if d * s <= 4]:
        if stage > len(work.layers):
            continue
        for number in [1] if stage == 1 else range(1, work.batch // data + 1):
            plan = Plan(batch=work.batch, data=data, stage=stage, micro_batches=number)
            assert found <= 1.021 * simulate(box, work, plan, events=False).step, plan.layout


@pytest.mark.parametrize(("batch", "limit"), [(128, 2.7), (512, 10.3)])
def test_many_micro_batches_are_tried_where_only_they_fit(batch, limit):
    """Small micro-batches leave room: 4 x 2 with micro-batches of one example fits and can be run."""
    box, work = machine("dgx1").topology, decoder(batch=batch)
    plan = choose(box, work)
    assert not plan.not_runnable
    assert plan.predicted.step < limit
    other = dealt(box, work, Plan(batch=batch, data=4, stage=2, micro_batches=batch // 4))
    assert max(need.total for need in needs(work, other)) <= 16160 * 2**20
    assert plan.predicted.step <= 1.021 * simulate(box, work, other, events=False).step


@pytest.mark.long
def test_a_large_model_fits_on_a_thousand_devices_in_small_micro_batches():
    joined = Topology.machines(machine("dgx1").topology, 128, network="200Gb", adapters=4)
    begin = time.process_time()
    plan = choose(joined, decoder(hidden=8192, layers=96, heads=64, batch=4096))
    assert time.process_time() - begin < 30.0
    assert plan.micro_batches >= 512
    assert plan.predicted.memory <= 16160 * 2**20


def test_what_is_kept_is_set_on_the_plan():
    box, work = cards(8, name="NVIDIA A100-SXM4-80GB", memory=80 * 2**30), decoder(hidden=512, layers=8)
    for keep in (
        {"schedule": "gpipe"},
        {"shares": "measured"},
        {"reduce": "ring"},
        {"recompute": "selective"},
        {"sequence": True},
        {"chunks": 2},
        {"variables": "shared"},
        {"sharded": ["slots"]},
        {"sharded": "gradients"},
        {"stage": 2, "micro_batches": 6},
        {"alpha": 0.5},
        {"micro_batches": 4, "data": 4},
    ):
        plan = choose(box, work, keep=keep)
        for name, value in keep.items():
            as_kept = (value,) if value == "gradients" else tuple(value) if isinstance(value, list) else value
            assert getattr(plan, name) == as_kept, keep


@pytest.mark.parametrize(
    ("keep", "said"),
    [
        ({"data": 9, "variables": "mirrored"}, "data=9"),
        ({"data": 4, "stage": 4}, "data=4, stage=4"),
        ({"chunks": 2, "stage": 1}, "chunks=2, stage=1"),
        ({"schedule": "backwards"}, "schedule=backwards"),
        ({"stage": "two"}, "stage=two"),
        ({"sharded": ["weights"]}, "sharded="),
    ],
)
def test_the_kept_part_that_clashes_is_named(keep, said):
    with pytest.raises(InvalidArgument, match=said):
        choose(cards(8), drawn(1), keep=keep)


def test_a_faster_card_is_taken_before_a_slower_one():
    box = Topology(
        (Device("Tesla V100-SXM2-16GB"),) * 2 + (Device("NVIDIA A100-SXM4-80GB"),) * 2,
        Topology.uniform(4, "PIX").links,
    )
    work = Workload.convnet(parameters=25_600_000, flops=8.2e9, batch=256)
    assert choose(box, work, devices=1).devices in ((2,), (3,))
    even, measured = (
        choose(box, work, keep={"data": 4, "stage": 1, "shares": how}).predicted.step
        for how in ("even", "measured")
    )
    assert measured < 0.5 * even
    four = choose(box, work)
    assert four.predicted.step <= measured * 1.02


def test_a_plan_from_timings_of_a_processor_says_so():
    layer = LayerCost(
        "loss", flops=8e9, parameters=10**8, timings=(Timing(32, 0.6, 1.2), Timing(256, 4.8, 9.6))
    )
    plan = choose(cards(8), Workload.of([layer], batch=256, device="CPU:0", update=0.2))
    assert "timed on CPU:0, which tells nothing of Tesla V100" in plan.advice
    assert plan.predicted.step < 0.2
    assert "timed on" not in choose(cards(8), Workload.of([layer], batch=256, device=V100)).advice


def test_whether_it_fits_is_not_claimed_where_nobody_knows():
    work = Workload.convnet(parameters=25_600_000, flops=8.2e9, batch=8192)
    plan = choose(cards(1, memory=16 * 2**30), work)
    assert "Whether it fits is not known" in plan.advice
    assert "not known" in str(plan).splitlines()[3]
    with pytest.raises(InvalidArgument, match="no layout fits"):
        choose(
            cards(1, memory=16 * 2**30),
            Workload.convnet(parameters=25_600_000, flops=8.2e9, batch=8192, activations=90_000_000),
        )


def test_a_variable_that_does_not_fit_into_a_device_is_not_dealt_out():
    table = LayerCost("table", parameters=20 * 2**30, output=1000, timings=(Timing(256, 0.01, 0.02),))
    dense = LayerCost("dense", parameters=2**20, timings=(Timing(256, 0.1, 0.2),))
    work = Workload.of([table, dense], batch=256, gradients=2**20)
    with pytest.raises(InvalidArgument, match="no layout fits"):
        choose(machine("dgx1").topology, work, keep={"stage": 1})


def test_what_does_not_fit_is_named_with_its_numbers():
    plan = choose(machine("dgx1").topology, decoder())
    assert "one device is too small" in plan.advice
    (alone,) = [one for one in plan.candidates if one.layout == "one device"]
    assert alone.predicted is None
    assert alone.reason.startswith("does not fit: a device needs")
    assert "slots" in alone.reason


def test_many_devices_are_compared_with_one_that_is_large_enough():
    """Where hundreds of layouts are possible the one of a single device is among those that are simulated."""
    plan = choose(Topology.machines(cards(8), 16), decoder(hidden=512, layers=12, heads=8, batch=1024))
    assert plan.num_devices == 128
    assert "times as fast as one device" in plan.advice
    assert "too small" not in plan.advice


def test_what_is_kept_makes_no_device_too_small():
    plan = choose(cards(4), timed([1.0], batch=64), keep={"data": 3})
    assert plan.num_devices == 3
    assert "too small" not in plan.advice


def test_the_advice_and_the_table_agree_on_one_device():
    """As many single devices as there are would recompute too: what one of them takes is what counts."""
    plan = choose(cards(4), decoder(hidden=512, layers=4, heads=8), keep={"recompute": "full"})
    alone = next(one.predicted for one in plan.candidates if one.layout.startswith("one device"))
    assert alone.efficiency == pytest.approx(1.0)
    times = alone.step / plan.predicted.step
    assert plan.predicted.efficiency == pytest.approx(times / plan.num_devices)
    assert (
        f"{times:.3g} times as fast as one device ({plan.predicted.efficiency:.0%} efficiency)" in plan.advice
    )


@pytest.mark.parametrize(
    ("batch", "more", "said"),
    [
        (1, {}, "a batch of 1 cannot be divided over several"),
        (64, {"devices": 1}, "no other may be used"),
        (64, {"keep": {"data": 1, "stage": 1}}, "what is kept leaves nothing on several"),
        (
            64,
            {"keep": {"reduce": "ring"}},
            "nothing on several can be run: the engine adds up gradients along its own order",
        ),
    ],
)
def test_where_several_devices_are_no_choice_the_reason_is_told(batch, more, said):
    plan = choose(cards(4), timed([1.0], batch=batch), **more)
    assert plan.num_devices == 1
    assert f"{said}. A step takes" in plan.advice


def test_what_takes_no_time_stays_on_one_device():
    assert choose(cards(4), timed([0.0])).advice.startswith("Stay on one device")
    hardly = choose(cards(4), timed([1e-40]))  # more examples a second than a plan writes down
    assert Plan.from_json(hardly.to_json()) == hardly


def test_more_than_a_plan_can_hold_is_told_of_the_workload():
    with pytest.raises(InvalidArgument, match="workload='workload': takes more seconds, or bytes"):
        choose(cards(2), timed([1e30], batch=1).with_batch(10**6))


def test_any_number_of_micro_batches_is_planned_for_in_a_moment():
    """Of 1F1B in chunks, of GPipe and of unequal micro-batches too, whatever number is kept."""
    begin = time.process_time()
    for keep in (
        {"chunks": 2},
        {"schedule": "gpipe"},
        {"micro_batches": 2**20},
        {"micro_batches": 3 * 2**20},
    ):
        plan = choose(cards(2), timed([1e-3] * 4, batch=2**31), keep={"stage": 2, **keep})
        assert 0 < plan.predicted.step < 2**31 * 4e-3
    assert time.process_time() - begin < 1.5


def test_a_batch_too_large_to_be_written_down_is_told_with_the_largest():
    with pytest.raises(InvalidArgument, match="at most 2147483648"):
        choose(cards(4), timed([1.0], batch=2**60))


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


def test_a_pull_that_never_settles_is_not_proposed():
    """The engine takes an alpha of 0.1 for up to 18 replicas."""
    work = timed([0.1], batch=640, parameters=8)
    plan = choose(cards(32), work, keep={"sync": "elastic"})
    assert not plan.not_runnable
    assert plan.data == 16
    assert choose(cards(32), work, keep={"sync": "elastic", "alpha": 0.01}).data == 32


def test_a_pipeline_over_machines_is_not_proposed_where_something_can_be_run():
    """A pipeline of the engine is one machine's; replicas may be on several."""
    work = timed([0.1] * 4, batch=8, parameters=2**26)
    work = replace(work, layers=tuple(replace(layer, output=1000) for layer in work.layers))
    far = Topology.machines(cards(2, memory=2**30), 2, network="1Gb")
    plan = choose(far, work)
    assert plan.num_devices == 2
    piped = next(one for one in plan.candidates if one.layout.startswith("4 stages"))
    assert piped.predicted.step < plan.predicted.step
    assert piped.reason.endswith("but cannot be run: a pipeline is for the devices of one machine")
    kept = choose(far, work, keep={"stage": 4}).advice
    assert "It is for other software: a pipeline is for the devices of one machine" in kept
    assert choose(far, work, keep={"sync": "asynchronous", "stage": 1}).num_devices <= 2


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
        ({"keep": {"data": 9}}, "data=9.*leaves no layout for 8 devices"),
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
