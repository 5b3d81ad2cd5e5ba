from dataclasses import replace

import numpy as np
import pytest
from workloads import cards, timed

from colonnade.describe.layer_cost import LayerCost, Timing
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator.replicas import MOST_MESSAGES, messages
from colonnade.reason.simulator.runtime import ENGINE, Runtime
from colonnade.reason.simulator.simulate import simulate

QUIET = replace(ENGINE, jitter=0.0)


def test_gradients_come_up_from_the_last_layer_to_the_first():
    work = timed([3.0, 1.0], parameters=100)
    made = messages(work, work.layers, 8, 1, 0, 1.0)
    assert made.sizes.tolist() == [100, 100]
    assert made.ready.tolist() == [0.25, 1.0]


def test_small_gradients_are_joined_and_a_message_waits_for_its_last_one():
    work = timed([1.0] * 4, parameters=100)
    made = messages(work, work.layers, 8, 1, 250, 1.0)
    assert made.sizes.tolist() == [200, 200]
    assert made.ready.tolist() == [0.5, 1.0]


def test_no_byte_is_lost_however_many_messages_there_are():
    work = timed([1.0] * 1000, parameters=7)
    made = messages(work, work.layers, 8, 1, 0, 1.0)
    assert len(made.sizes) == MOST_MESSAGES
    assert made.sizes.sum() == 7000
    assert (np.diff(made.ready) >= 0).all()


def test_of_a_sparse_gradient_the_rows_travel():
    table = LayerCost("table", parameters=10**9, sparse=10**9, rows=100, timings=(Timing(8, 1.0, 1.0),))
    work = Workload.of([table], batch=8)
    made = messages(work, work.layers, 8, 1, 0, 1.0)
    assert made.rows == 800
    assert made.sizes.sum() == 0
    dense = timed([2.0], parameters=10**9)
    quick, slow = (simulate(cards(2), one, Plan(batch=8, data=2), QUIET) for one in (work, dense))
    assert quick.reduction < slow.reduction / 100
    assert quick.moved == 2 * 400  # each gets the rows of the other's four examples


def test_overlap_hides_what_comes_up_early():
    work = timed([0.1] * 10, parameters=400_000_000)
    plan = Plan(batch=8, data=2, reduce="ring")
    apart = simulate(cards(2), work, plan, replace(QUIET, overlap=False))
    beside = simulate(cards(2), work, plan, QUIET)
    assert apart.reduction == pytest.approx(0.1, rel=0.02)  # 4 GB at 40 GB/s
    assert beside.reduction == pytest.approx(0.01, rel=0.1)  # the last layer's


def test_sums_over_micro_batches_leave_in_the_last_backward_pass():
    """As DDP does it: four passes without a reduction, and the layers' sums in the fourth."""
    work = timed([0.1] * 10, parameters=400_000_000)
    plan = Plan(batch=8, data=2, micro_batches=4, reduce="ring")
    apart = simulate(cards(2), work, plan, replace(QUIET, overlap=False))
    beside = simulate(cards(2), work, plan, QUIET)
    last = 0.5 / 4 * 2 / 3
    assert apart.reduction == pytest.approx(0.1, rel=0.02)
    assert beside.reduction == pytest.approx(0.1 - last * 9 / 10, rel=0.1)


def test_local_training_pays_for_a_join_once_in_a_while():
    work = timed([0.1], parameters=4 * 10**9)
    every = [simulate(cards(2), work, Plan(batch=8, data=2, sync="local", every=n), QUIET) for n in (1, 10)]
    assert every[0].reduction == pytest.approx(10 * every[1].reduction)
    assert every[0].moved == pytest.approx(10 * every[1].moved)


def test_fragments_and_a_delay_hide_a_join():
    work = timed([0.1], parameters=4 * 10**9)
    plan = Plan(batch=8, data=2, sync="diloco", every=10)
    plain = simulate(cards(2), work, plan, Runtime("plain")).reduction
    assert simulate(cards(2), work, plan, Runtime("late", delay=0.5)).reduction < plain
    parts = Runtime("parts", delay=0.5, fragments=8)
    assert simulate(cards(2), work, plan, parts).reduction == pytest.approx(0, abs=1e-5)
    assert simulate(cards(2), work, plan, Runtime("half", wire=0.5)).reduction == pytest.approx(
        plain / 2, rel=0.01
    )


def test_partitioned_variables_move_as_a_scatter_and_a_gather():
    work = timed([0.1], parameters=4 * 10**9)
    plan = Plan(batch=8, data=4, variables="partitioned", sharded=("slots", "parameters"))
    parts = simulate(cards(4), work, plan, QUIET)
    ring = simulate(cards(4), work, Plan(batch=8, data=4, reduce="scatter"), QUIET)
    assert parts.reduction == pytest.approx(ring.reduction)


def test_dividing_parameters_costs_half_as_much_again():
    """Eight A100 on a network of 25 Gbit/s: ZeRO 1 to 3, the last of which is FSDP."""
    work = timed([0.1] * 4, parameters=10**9)
    box = Topology.machines(cards(1), 8, network="25Gb")
    apart = replace(QUIET, overlap=False)

    def reduction(*sharded):
        plan = Plan(batch=8, data=8, variables="partitioned", sharded=sharded)
        done = simulate(box, work, plan, apart)
        return done.reduction, done.busiest

    first, moved = reduction("slots")
    third, moved_third = reduction("slots", "gradients", "parameters")
    assert third == pytest.approx(1.5 * first, rel=0.01)
    assert moved_third == pytest.approx(1.5 * moved)
    assert moved == pytest.approx(2 * 7 / 8 * 4e9)
    assert reduction("slots", "gradients")[0] == first
