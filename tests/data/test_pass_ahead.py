"""The next pass is begun before it is wanted, and the order of the data is as if it were not."""

import time

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.data import pass_ahead
from colonnade.run.data.batches import END, Batches
from colonnade.run.data.pass_ahead import EpochPace, PassAhead


def shuffled():
    return tf.data.Dataset.range(23).shuffle(30, seed=1).batch(5)


def taken(batches, most=10**9):
    found = []
    while len(found) < most and (arguments := batches.next()) is not None:
        found.append([int(row) for row in arguments.components()])
    return found


def opened(dataset, passes=3, **options):
    return Batches(dataset, ["x"], {}, passes, exact=True, **options)


@pytest.mark.parametrize("margin", [1e9, -1e9], ids=["asked early", "never asked"])
def test_batches_are_those_of_passes_one_after_the_other(monkeypatch, margin):
    monkeypatch.setattr(pass_ahead, "MARGIN", margin)
    dataset = shuffled()
    one_by_one = [batch.numpy().tolist() for _ in range(3) for batch in dataset]
    batches = opened(shuffled())
    first = taken(batches, 2)
    assert batches._following.asked == (margin > 0)
    assert first + taken(batches) == one_by_one
    assert batches._following is None  # there is no fourth pass


def test_a_pass_that_was_begun_and_not_wanted_draws_no_seeds(monkeypatch):
    monkeypatch.setattr(pass_ahead, "MARGIN", 1e9)
    plain = shuffled()
    next(iter(plain))
    second = [batch.numpy().tolist() for batch in plain]
    dataset = shuffled()
    batches = opened(dataset)
    taken(batches, 3)
    assert batches._following is not None
    batches.close()
    assert [batch.numpy().tolist() for batch in dataset] == second


def test_going_on_from_a_place_begins_the_next_pass_ahead_too():
    whole = taken(opened(shuffled()))
    cut = opened(shuffled())
    taken(cut, 6)
    place = cut.position(6)
    later = opened(shuffled(), ahead=False)
    later.seek(place, cut.begun, 6)
    assert later._following is not None
    assert taken(later) == whole[6:]


@pytest.mark.parametrize(
    ("dataset", "ahead"),
    [
        # Later rounds draw seeds within the pass.
        (lambda: tf.data.Dataset.range(9).shuffle(9, seed=1).batch(5).repeat(2), [False, False]),
        # The first pass fills it.
        (lambda: tf.data.Dataset.range(9).cache().shuffle(9, seed=1).batch(5), [False, True]),
        (lambda: tf.data.Dataset.range(9).batch(5), [True, True]),
    ],
    ids=["rounds", "cache", "plain"],
)
def test_only_where_it_changes_nothing(dataset, ahead):
    batches = opened(dataset())
    found = [batches._following is not None]
    while batches.begun == 1:
        batches.next()
    assert [*found, batches._following is not None] == ahead


def test_data_that_fail_say_so_when_their_pass_begins():
    broken = tf.data.Dataset.range(2).map(lambda i: 1 // i)
    assert PassAhead(broken).first() is None  # nobody asked
    ahead = PassAhead(broken)
    ahead.ask()
    with pytest.raises(tf.errors.InvalidArgumentError):
        ahead.first()


def test_what_fails_in_a_pass_that_nobody_wants_does_no_harm(monkeypatch, tmp_path):
    """A fit may end in its first epoch, and the file be gone that the second one reads."""
    monkeypatch.setattr(pass_ahead, "MARGIN", -1e9)
    plain, path = shuffled(), tmp_path / "rows"
    next(iter(plain))
    second = [batch.numpy().tolist() for batch in plain]
    path.write_text("")

    def there(batch):
        return batch + tf.cast(tf.strings.length(tf.io.read_file(tf.identity(str(path)))), tf.int64)

    dataset = shuffled().map(there)
    batches = opened(dataset)
    taken(batches, 3)
    path.unlink()
    ahead = batches._following
    ahead.ask()
    ahead._thread.join()
    batches.close()
    assert isinstance(ahead._failed, tf.errors.NotFoundError)
    path.write_text("")
    assert [batch.numpy().tolist() for batch in dataset] == second


def test_no_pass_is_begun_that_will_not_be_wanted():
    assert opened(shuffled(), most=5)._following is None
    assert opened(shuffled(), most=6)._following is not None


def test_the_first_batch_comes_once():
    ahead = PassAhead(tf.data.Dataset.range(2))
    ahead.ask()
    assert int(ahead.first().get_value()) == 0
    assert int(next(ahead.iterator)) == 1


def test_it_is_time_when_the_rest_takes_as_long_as_a_fill(monkeypatch):
    clock = iter(np.arange(0.0, 100.0, 10.0))
    monkeypatch.setattr(pass_ahead.time, "perf_counter", lambda: next(clock))
    pace = EpochPace(cardinality=-2)
    assert not pace.is_due(3)  # nobody knows how many there are
    pace.fill = 1.0
    pace.begin(5)  # at 10 s, after 5 batches
    assert not pace.is_due(1)  # 10 s each, 4 are left
    assert not pace.is_due(4)  # 5 s each, 1 is left: more than two fills and the margin
    assert not pace.is_due(0)
    assert pace.is_due(5)


def through(dataset):
    """What somebody else does who goes through the data."""
    return [batch.numpy().tolist() for batch in dataset]


def cached():
    return tf.data.Dataset.range(23).cache().shuffle(30, seed=1).batch(5)


@pytest.mark.parametrize("make", [shuffled, cached])
def test_whoever_else_goes_through_the_data_changes_nothing(make, monkeypatch):
    alone = taken(opened(make(), 4))
    true = pass_ahead.save_iterator  # tells of the seeds that all have drawn by then
    monkeypatch.setattr(pass_ahead, "save_iterator", lambda *of: (time.sleep(0.05), true(*of))[1])
    dataset = make()
    batches, found = opened(dataset, 4, watched=True), []
    while batches.size != END:
        through(dataset)
        found += taken(batches, 2)
        through(dataset)
        place, begun = batches.position(len(found)), batches.begun
        if len(found) == 8:
            later = opened(make(), 4, ahead=False, watched=True)
            later.seek(place, begun, 8)
            rest = taken(later)
    batches.close()
    assert found == alone
    assert rest == alone[8:]
    plain = make()
    for _ in range(4):
        through(plain)
    assert through(dataset) == through(plain)  # as if nobody else had been there
