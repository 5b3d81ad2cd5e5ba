import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colonnade.reason.schedules.schedule import (
    SCHEDULES,
    StageTask,
    alive,
    drawn,
    forward,
    interleaved,
    needed,
)

counts = st.tuples(st.integers(1, 6), st.integers(1, 9))

SEQUENTIAL = """
slot    | 0  1  2  3  4  5  6  7  8  9  10 11
stage 0 | F0       B0 F1       B1 F2       B2
stage 1 |    F0 B0       F1 B1       F2 B2
"""
GPIPE = """
slot    | 0  1  2  3  4  5  6  7  8  9  10 11
stage 0 | F0 F1 F2 F3             B3 B2 B1 B0
stage 1 |    F0 F1 F2 F3       B3 B2 B1 B0
stage 2 |       F0 F1 F2 F3 B3 B2 B1 B0
"""
ONE_FORWARD_ONE_BACKWARD = """
slot    | 0  1  2  3  4  5  6  7  8  9  10 11
stage 0 | F0 F1 F2       B0 F3 B1    B2    B3
stage 1 |    F0 F1    B0 F2 B1 F3 B2    B3
stage 2 |       F0 B0 F1 B1 F2 B2 F3 B3
"""
FORWARD = """
slot    | 0  1  2  3  4  5
stage 0 | F0 F1 F2 F3
stage 1 |    F0 F1 F2 F3
stage 2 |       F0 F1 F2 F3
"""


def test_the_tables_in_the_comments():
    assert drawn(SCHEDULES["sequential"](2, 3)) == SEQUENTIAL.strip()
    assert drawn(SCHEDULES["gpipe"](3, 4)) == GPIPE.strip()
    assert drawn(SCHEDULES["1f1b"](3, 4)) == ONE_FORWARD_ONE_BACKWARD.strip()
    assert drawn(forward(3, 4)) == FORWARD.strip()


@pytest.mark.parametrize("name", SCHEDULES)
@settings(max_examples=40, deadline=None)
@given(counts)
def test_every_task_once_and_after_what_it_needs(name, numbers):
    stages, micro_batches = numbers
    seen = set()
    for slot in SCHEDULES[name](stages, micro_batches):
        assert len({task.stage for task in slot}) == len(slot)
        for k, m, backward in slot:
            before = [StageTask(k - 1, m)] if k and not backward else []
            if backward:
                before += [StageTask(k, m)] + [StageTask(k + 1, m, True)] * (k + 1 < stages)
            assert seen.issuperset(before)
        assert seen.isdisjoint(slot)
        seen.update(slot)
    assert len(seen) == 2 * stages * micro_batches


@settings(max_examples=40, deadline=None)
@given(counts)
def test_how_long_and_how_much_is_kept(numbers):
    stages, m = numbers
    slots = {name: list(schedule(stages, m)) for name, schedule in SCHEDULES.items()}
    assert len(slots["sequential"]) == 2 * stages * m
    assert len(slots["gpipe"]) == len(slots["1f1b"]) == 2 * (m + stages - 1)
    assert alive(slots["sequential"]) == (1,) * stages
    assert alive(slots["gpipe"]) == (m,) * stages
    assert alive(slots["1f1b"]) == tuple(min(m, stages - k) for k in range(stages))


def test_interleaved_stages_take_turns_as_the_table_draws_them():
    lines = [["--"] * 10 for _ in range(2)]
    for at, slot in enumerate(interleaved(2, 2, 2)):
        for task in slot:
            lines[task.stage % 2][at] = f"{task}.{task.stage}"
    assert [" ".join(line) for line in lines] == [
        "F0.0 F1.0 F0.2 F1.2 -- B0.2 -- B1.2 B0.0 B1.0",
        "-- F0.1 F1.1 F0.3 B0.3 F1.3 B1.3 B0.1 B1.1 --",
    ]


@pytest.mark.parametrize(("devices", "micro_batches", "chunks"), [(2, 4, 3), (4, 8, 2), (3, 9, 4), (1, 3, 2)])
def test_interleaving_does_every_task_once_after_what_it_needs(devices, micro_batches, chunks):
    done = set()
    for slot in interleaved(devices, micro_batches, chunks):
        assert len({task.stage % devices for task in slot}) == len(slot)
        for task in slot:
            need = needed(task, devices * chunks)
            assert need is None or need in done
        done |= set(slot)
    assert len(done) == 2 * devices * micro_batches * chunks
