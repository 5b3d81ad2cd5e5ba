from types import SimpleNamespace

import pytest

import colonnade as cn
from colonnade.run.engine.protocols import MOST_SKIPPED
from colonnade.run.train.counts import Counts


def test_counts_add_up_and_a_record_holds_them():
    counts = Counts(SimpleNamespace(rows=4, idle=0))
    counts.add(2, 8, 0.5, {"error": 3}, 1, {1: 2})
    record = counts.add(1, 4, 0.25, {"error": 2}, 0, {0: 1, 1: 1})
    assert record == cn.Record(0.25, {"error": 2.0}, 3, 12, 1, {0: 1, 1: 3})
    assert list(record.staleness) == [0, 1]


def test_a_record_does_not_change_with_later_steps():
    counts = Counts(SimpleNamespace(rows=4, idle=0))
    record = counts.add(1, 4, 0.5, {}, 0, {0: 1})
    counts.add(1, 4, 0.5, {}, 0, {0: 1})
    assert record.staleness == {0: 1}


def test_a_saved_step_replaces_the_counts():
    counts = Counts(SimpleNamespace(rows=4, idle=0))
    counts.add(1, 4, 0.5, {}, 0, {0: 1})
    saved = SimpleNamespace(
        step=7, examples=28, skipped=2, staleness={"10": 1, "2": 3}, loss=0.1, metrics={"m": 1.0}
    )
    assert counts.go_on_from(saved) == cn.Record(0.1, {"m": 1.0}, 7, 28, 2, {2: 3, 10: 1})
    assert counts.staleness == {2: 3, 10: 1}


def test_as_many_idle_steps_may_follow_again():
    loop = SimpleNamespace(rows=4, idle=0)
    counts = Counts(loop)
    counts.note_idle(MOST_SKIPPED - 1)
    assert loop.idle == MOST_SKIPPED - 1
    with pytest.raises(cn.NotFinite, match=f"{MOST_SKIPPED} steps in a row"):
        counts.note_idle(MOST_SKIPPED)
    assert loop.idle == 0
