"""Tables of schedules, played with times."""

import pytest

from colonnade.reason.schedules.schedule import gpipe, interleaved, one_forward_one_backward, sequential
from colonnade.reason.simulator.stages import StageCosts, run, run_shared


def length(ran):
    return max(end for _, _, end, _ in ran)


@pytest.mark.parametrize("schedule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 8), (4, 4), (4, 32), (7, 3)])
def test_equal_stages_take_as_many_slots_as_the_table(schedule, stages, micro_batches):
    costs = StageCosts((1.0,) * stages, (2.0,) * stages, (0.0,) * (stages - 1), stages)
    assert length(run(schedule(stages, micro_batches), costs)) == pytest.approx(
        3 * (micro_batches + stages - 1)
    )


def test_one_at_a_time_never_overlaps():
    costs = StageCosts((1.0, 1.0), (2.0, 2.0), (0.5,), 2)
    assert length(run(sequential(2, 3), costs)) == pytest.approx(3 * (6 + 2 * 0.5))


def test_a_slow_stage_sets_the_pace():
    costs = StageCosts((1.0, 3.0), (1.0, 3.0), (0.0,), 2)
    assert length(run(one_forward_one_backward(2, 10), costs)) == pytest.approx(10 * 6 + 2)
    even = StageCosts((1.0, 1.0), (1.0, 1.0), (0.0,), 2)
    straggling = length(run(one_forward_one_backward(2, 10), even, [1.0, 3.0]))
    assert straggling == pytest.approx(10 * 6 + 2)


def test_a_link_carries_one_message_at_a_time():
    costs = StageCosts((0.0, 0.0), (0.0, 0.0), (1.0,), 2)
    assert length(run(gpipe(2, 4), costs)) == pytest.approx(4 + 4)


def test_interleaving_shortens_the_ends():
    """By as much as a device has chunks (Narayanan and others, 2021)."""
    plain = StageCosts((1.0,) * 4, (2.0,) * 4, (0.0,) * 3, 4)
    halves = StageCosts((0.5,) * 8, (1.0,) * 8, (0.0,) * 7, 4)
    ideal = 3 * 16
    bubble = length(run(one_forward_one_backward(4, 16), plain)) - ideal
    assert length(run(interleaved(4, 16, 2), halves)) - ideal == pytest.approx(bubble / 2)


def test_devices_that_share_one_processor_gain_nothing_from_stages():
    costs = StageCosts((1.0, 1.0), (2.0, 2.0), (0.0,), 2)
    shared = run_shared(one_forward_one_backward(2, 8), costs, capacity=1.0)
    assert length(shared) == pytest.approx(2 * 8 * 3)
    enough = run_shared(one_forward_one_backward(2, 8), costs, capacity=2.0)
    assert length(enough) == pytest.approx(length(run(one_forward_one_backward(2, 8), costs)))


def test_what_is_recomputed_early_waits_for_nothing():
    """Two stages, one micro-batch: 1 + 1 there, 3 back, and 2 more: the first has recomputed meanwhile."""
    late = StageCosts((1.0, 1.0), (3.0, 3.0), (0.0,), 2)
    early = StageCosts((1.0, 1.0), (3.0, 3.0), (0.0,), 2, (1.0, 1.0))
    assert [max(end for _, _, end, _ in run(gpipe(2, 1), costs)) for costs in (late, early)] == [8.0, 7.0]


def test_a_link_carries_one_message_at_a_time_whichever_chunk_it_is_of():
    """Two chunks on two devices: of four micro-batches, 8 messages go on from device 0, and 4 come back."""
    costs = StageCosts((0.01,) * 4, (0.02,) * 4, (1.0,) * 3, 2)
    ran = run(interleaved(2, 4, 2), costs)
    # From 0 to 1: chunks 0 and 2 forward, chunk 2 backward; from 1 to 0 as many.
    assert max(end for _, _, end, _ in ran) >= 12.0
