"""The simulator as a whole: speed, laws, and what it refuses."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import machine
from workloads import cards, drawn, timed, virtual

from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument
from colonnade.reason.simulator.runtime import ENGINE
from colonnade.reason.simulator.simulate import simulate

QUIET = replace(ENGINE, jitter=0.0)


def test_ten_thousand_devices_in_a_second():
    joined = Topology.machines(machine("dgx1").topology, 1250)
    work = Workload.convnet(parameters=25_000_000, flops=8e9, batch=640_000)
    plan = Plan(batch=640_000, data=10_000)
    begin = time.process_time()
    done = simulate(joined, work, plan)
    assert time.process_time() - begin < 1.0
    assert len(done.timeline.devices) == 10_000


def test_64_stages_and_256_micro_batches_in_a_second():
    work = Workload.transformer(hidden=1024, layers=64, heads=16, sequence=1024, vocabulary=51200, batch=256)
    joined = Topology.machines(machine("dgx1").topology, 8)
    begin = time.process_time()
    done = simulate(joined, work, Plan(batch=256, stage=64, micro_batches=256))
    assert time.process_time() - begin < 1.0
    assert len(done.timeline.events) == 2 * 64 * 256


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 8))
def test_replicas_never_beat_the_limit_and_the_parts_add_up(seed, count):
    work = drawn(seed)
    alone = simulate(cards(1), work, Plan(batch=work.batch), QUIET)
    done = simulate(cards(8), work, Plan(batch=work.batch, data=count), QUIET)
    assert done.step >= (alone.step - alone.update) / count * 0.999
    parts = done.compute + done.waiting + done.reduction + done.update + done.overhead
    assert done.step == pytest.approx(parts)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.sampled_from(["1f1b", "gpipe", "sequential"]), st.integers(1, 8))
def test_stages_do_all_of_the_work(seed, schedule, micro_batches):
    work = drawn(seed)
    stages = min(4, len(work.layers))
    plan = Plan(batch=work.batch, stage=stages, micro_batches=micro_batches, schedule=schedule)
    done = simulate(cards(4), work, plan, QUIET)
    at_work = sum(e.seconds for e in done.timeline.events if e.kind in ("forward", "backward"))
    alone = simulate(cards(1), work, Plan(batch=work.batch), QUIET)
    assert at_work == pytest.approx(alone.compute)
    assert done.step >= alone.compute / stages * 0.999


def test_the_timeline_ends_when_the_step_does():
    done = simulate(cards(4), timed([0.1] * 4, parameters=10**8), Plan(batch=8, data=4), QUIET)
    assert done.timeline.span == pytest.approx(done.step, rel=1e-6)
    assert {event.kind for event in done.timeline.events} == {"forward", "backward", "reduction"}
    (link, *_) = {e.link for e in done.timeline.events if e.kind == "reduction" and e.device == "device 0"}
    assert link.endswith(" -> device 0")


def test_a_race_is_told_of_the_devices_of_the_plan():
    plan = Plan(batch=8, data=2, devices=(1, 3), sync="asynchronous")
    done = simulate(cards(4), timed([0.1] * 4, parameters=10**8), plan, QUIET)
    assert set(done.timeline.devices) == {"device 1", "device 3"}
    sent = [event for event in done.timeline.events if event.kind == "reduction"]
    assert {(e.device, e.link) for e in sent} == {("device 3", "device 3 -> device 1")}
    assert sent[0].bytes > 0
    assert simulate(cards(4), timed([0.1] * 4), plan, QUIET, events=False).timeline.events == ()


def test_the_parts_of_a_race_add_up_where_devices_were_drawn_fast():
    work, plan = timed([1.0], overhead=0.01), Plan(batch=8, data=2, sync="asynchronous")
    for seed in range(8):
        done = simulate(cards(2), work, plan, replace(QUIET, jitter=0.5), seed=seed)
        parts = done.compute + done.waiting + done.reduction + done.update + done.overhead
        assert parts == pytest.approx(done.step)


def test_jitter_makes_replicas_wait_and_repeats_by_its_seed():
    work, plan = timed([1.0]), Plan(batch=8, data=8)
    once, again, other = (simulate(cards(8), work, plan, seed=seed).step for seed in (1, 1, 2))
    assert once == again != other
    assert (
        simulate(cards(8), work, plan, QUIET).step < once < 1.2 * simulate(cards(8), work, plan, QUIET).step
    )


def test_a_straggler_holds_up_the_others():
    slow = replace(QUIET, slow=((2, 3.0),))
    even, held = (simulate(cards(4), timed([1.0]), Plan(batch=8, data=4), r).step for r in (QUIET, slow))
    assert held == pytest.approx(3 * even, rel=0.01)
    loose = simulate(cards(4), timed([1.0]), Plan(batch=8, data=4, sync="asynchronous"), slow)
    assert loose.step < held
    assert max(loose.staleness) > 3  # the slow one's gradients are old


def test_the_largest_slice_sets_the_pace():
    even, uneven = (simulate(cards(8), timed([1.0]), Plan(batch=8, data=n), QUIET).step for n in (4, 5))
    assert uneven == pytest.approx(even, rel=1e-3)  # two examples each, or two and one


def test_measured_shares_give_a_slow_device_less():
    slow = replace(QUIET, slow=((2, 3.0),))
    plan = Plan(batch=8, data=4, shares="measured")
    assert simulate(cards(4), timed([1.0]), plan, slow).step == pytest.approx(1 / (3 + 1 / 3), rel=0.01)
    assert simulate(cards(4), timed([1.0]), plan, QUIET).step == pytest.approx(0.25, rel=0.01)


def test_virtual_devices_share_the_cores():
    work = timed([1.0], cores=2.0)
    steps = [simulate(virtual(4, 2), work, Plan(batch=8, data=n, variables="shared")).step for n in (1, 2, 4)]
    assert steps == pytest.approx([1.0, 1.0, 1.0])
    alone = timed([1.0], cores=1.0)
    steps = [
        simulate(virtual(4, 2), alone, Plan(batch=8, data=n, variables="shared")).step for n in (1, 2, 4)
    ]
    assert steps == pytest.approx([1.0, 0.5, 0.5])


def test_a_mirrored_update_is_made_by_every_device_and_a_shared_one_once():
    work = timed([1.0], cores=1.0, update=0.5)
    shared = simulate(virtual(4, 2), work, Plan(batch=8, data=4, variables="shared"))
    mirrored = simulate(virtual(4, 2), work, Plan(batch=8, data=4, variables="mirrored"))
    assert (shared.update, mirrored.update) == (0.5, 1.0)


def test_width_exchanges_inside_a_machine_cost_less_than_across():
    work = Workload.transformer(hidden=512, layers=4, heads=8, sequence=256, vocabulary=1000, batch=8)
    joined = Topology.machines(cards(2), 2)
    inside = simulate(joined, work, Plan(batch=8, width=2, devices=(0, 1)), QUIET)
    across = simulate(joined, work, Plan(batch=8, width=2, devices=(0, 2)), QUIET)
    assert across.step > inside.step
    assert across.moved == inside.moved > 0


def test_recomputing_costs_a_forward_pass_and_saves_memory():
    work = Workload.transformer(hidden=512, layers=8, heads=8, sequence=256, vocabulary=1000, batch=8)
    keep, again, some = (
        simulate(cards(2), work, Plan(batch=8, stage=2, micro_batches=4, recompute=how), QUIET)
        for how in ("none", "full", "selective")
    )
    assert keep.step < some.step < again.step
    assert again.memory < some.memory < keep.memory


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (Plan(batch=8, data=4), "other devices"),
        (Plan(batch=8, stage=2, layers=(0, 1, 1)), "deals out 3 layers"),
        (Plan(batch=8, devices=(7,)), "other devices"),
        (Plan(batch=8, stage=2, micro_batches=9), "more than 8 parts"),
        (Plan(batch=8, stage=2, chunks=2, micro_batches=3), "groups of 2"),
    ],
)
def test_what_does_not_go_together_is_refused(plan, said):
    with pytest.raises(InvalidArgument, match=said):
        simulate(cards(2), timed([1.0, 1.0]), plan)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(InvalidArgument, match="more stages"):
        simulate(cards(4), timed([1.0, 1.0]), Plan(batch=8, stage=4))
