"""What fits: against published formulas."""

from collections import Counter
from dataclasses import replace

import pytest

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan
from colonnade.describe.workload import Workload
from colonnade.reason.schedules.schedule import SCHEDULES, alive, interleaved
from colonnade.reason.simulator.memory_need import alive_of, kept_of, needs


@pytest.mark.parametrize(
    ("sharded", "bytes_each"),
    [
        ((), 16),
        (("slots",), 4 + 12 / 8),
        (("slots", "gradients"), 2 + 14 / 8),
        (("slots", "gradients", "parameters"), 2),
    ],
)
def test_zero_divides_what_it_says(sharded, bytes_each):
    """Rajbhandari and others (2020): 2 + 2 + 12 bytes a parameter, divided by stages of ZeRO."""
    count = 10**9
    work = Workload.of([("all", 1.0, 2 * count)], batch=8, slots=12 * count)
    need = needs(work, Plan(batch=8, data=8, variables="partitioned", sharded=sharded))[0]
    assert need.total == pytest.approx(bytes_each * count)


def test_activations_of_a_stage_follow_the_schedule():
    layer = LayerCost("a", activations=100, output=10)
    work = Workload.of([layer] * 4, batch=8)
    early, late = needs(work, Plan(batch=8, stage=2, micro_batches=8))
    assert (early.activations, late.activations) == (2 * 200, 200)
    everything, also = needs(work, Plan(batch=8, stage=2, micro_batches=8, schedule="gpipe"))
    assert everything.activations == also.activations == 8 * 200


def test_recomputing_keeps_inputs_and_works_on_one_layer_or_one_stage():
    layer = LayerCost("a", activations=100, output=10)
    work = Workload.of([layer] * 4, batch=8)
    full = needs(work, Plan(batch=8, stage=2, micro_batches=8, recompute="full"))[0]
    assert (full.activations, full.working) == (2 * 20, 100)
    stage = needs(work, Plan(batch=8, stage=2, micro_batches=8, recompute="stage"))[0]
    assert (stage.activations, stage.working) == (2 * 10, 200)


def test_a_width_divides_what_can_be_split_and_sequences_the_rest():
    layer = LayerCost("a", activations=100, output=10, exchanged=1, exchanges=1, unsplit=40, cheap=20)
    assert kept_of(layer, Plan(batch=8, width=2)) == 30 + 40
    assert kept_of(layer, Plan(batch=8, width=2, sequence=True)) == 50
    assert kept_of(layer, Plan(batch=8, width=2, recompute="selective")) == 20 + 40


def test_interleaving_keeps_more():
    """By a factor 1 + (p - 1) / (p v) (Narayanan and others, 2021)."""
    plain, chunks = alive_of("1f1b", 8, 64), alive_of("1f1b", 8, 64, 3)
    assert max(chunks) / 3 == pytest.approx(max(plain) * (1 + 7 / 24))


@pytest.mark.parametrize("stages", [1, 2, 3, 5, 8])
def test_what_is_alive_is_that_of_the_schedule(stages):
    for name, schedule in SCHEDULES.items():
        for number in (1, 2, 3, 7, 20):
            assert alive_of(name, stages, number) == alive(schedule(stages, number))
    for chunks in (2, 3, 5):
        ever = alive_of("1f1b", stages, 4 * stages, chunks)
        assert ever == alive_of("1f1b", stages, 2**31 * stages, chunks)
        tasks = (task for slot in interleaved(stages, 9 * stages, chunks) for task in slot)
        kept = Counter[int]()
        most = Counter[int]()
        for task in tasks:
            device = task.stage % stages
            kept[device] += -1 if task.backward else 1
            most[device] = max(most[device], kept[device])
        assert ever == tuple(most[device] for device in range(stages))


def test_uneven_batches_round_up():
    work = Workload.of([LayerCost("a", activations=10)], batch=10)
    assert needs(work, Plan(batch=10, data=4))[0].activations == 30


def test_a_variable_is_not_divided_where_the_engine_deals_out_whole_ones():
    """One table of 20 bytes and four small ones: one device owns the table, and all others read it."""
    table, small = LayerCost("table", parameters=20), LayerCost("rest", parameters=4, pieces=(1, 1, 1, 1))
    work = Workload.of([table, small], batch=8, slots=48)
    engine = Plan(batch=8, data=4, variables="partitioned", sharded=("slots", "parameters"))
    need = needs(work, engine)[0]
    assert (need.parameters, need.gradients, need.slots) == (24, 24, 40)
    other = Plan(batch=8, data=4, variables="partitioned", sharded=("slots", "gradients", "parameters"))
    need = needs(work, other)[0]
    assert (need.parameters, need.gradients, need.slots) == (6, 6, 12)


def test_of_a_table_that_is_looked_up_others_have_the_rows():
    table = LayerCost("table", parameters=1000, sparse=1000, rows=10)
    work = Workload.of([table, LayerCost("rest", parameters=300)], batch=8)
    need = needs(work, Plan(batch=8, data=2, variables="partitioned", sharded=("slots", "parameters")))[0]
    assert need.parameters == 1000 + 300  # the owner of the table, with a copy of the rest
    lone = needs(replace(work, layers=(table,)), Plan(batch=8, data=2, variables="partitioned"))[0]
    assert lone.parameters == 1000


def test_the_largest_slice_counts():
    work = Workload.of([LayerCost("a", activations=10)], batch=10)
    assert needs(work, Plan(batch=10, data=2), largest=7.5)[0].activations == 80
