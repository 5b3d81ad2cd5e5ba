"""What fits: against published formulas."""

import pytest

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan
from colonnade.describe.workload import Workload
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


def test_uneven_batches_round_up():
    work = Workload.of([LayerCost("a", activations=10)], batch=10)
    assert needs(work, Plan(batch=10, data=4))[0].activations == 30
