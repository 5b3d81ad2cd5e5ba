"""Every batch comes once and in order, whoever looks at the next; ends and errors come in their turn."""

import pytest

from colonnade.run.data.coming_batches import ComingBatches, KerasBatches, of_execution


def along(items, left=None):
    batches = KerasBatches().along(iter(items))
    batches.left = left
    return batches


def test_what_is_seen_is_what_comes():
    batches = along("abc")
    assert next(batches) == "a"
    assert (batches.at_hand, batches.seen_before) == ("a", False)
    assert batches.peek() == batches.peek() == "b"
    assert (next(batches), batches.seen_before) == ("b", True)
    assert (next(batches), batches.seen_before) == ("c", False)  # at which nobody looked
    assert batches.peek() is None
    with pytest.raises(StopIteration):
        next(batches)


def test_the_end_is_told_when_a_batch_is_asked_for_and_so_is_an_error():
    def failing():
        yield 1
        raise ValueError("the disk is gone")

    batches = along(failing())
    assert (next(batches), batches.peek()) == (1, None)
    assert batches.peek() is None
    with pytest.raises(ValueError, match="the disk is gone"):
        next(batches)
    with pytest.raises(StopIteration):
        next(batches)


def test_what_an_epoch_leaves_is_not_fetched():
    source = iter(range(10))
    batches = KerasBatches().along(source)
    assert (next(batches), batches.peek()) == (0, None)  # nobody said how many there are
    batches.left = 3
    seen = [(next(batches), batches.peek()) for _ in range(3)]
    assert seen == [(1, 2), (2, 3), (3, None)]
    assert (next(batches), batches.peek()) == (4, None)  # more than was said: an execution of several steps
    batches.left = None
    assert batches.peek() == 5
    assert next(source) == 6


def test_of_another_iterator_nothing_is_left():
    batches = along("ab")
    next(batches)
    assert batches.peek() == "b"
    assert batches.along(other := iter("cd")) is batches
    assert (next(batches), batches.seen_before, batches.peek()) == ("c", False, "d")
    assert next(batches.along(other)) == "d"  # the same one, in the next epoch


def test_whoever_sent_something_ahead_is_told_of_the_end():
    told = []
    batches = along("ab")
    next(batches)
    batches.peek()
    batches.at_end(lambda: told.append("left"))
    batches.close()
    batches.close()
    assert told == ["left"]
    assert batches.at_hand is None


def test_the_batches_of_an_execution():
    batches = along(range(5))
    assert [list(of_execution(batches, 2)) for _ in range(3)] == [[0, 1], [2, 3], [4]]
    with pytest.raises(StopIteration):
        of_execution(batches, 2)


def test_batches_that_are_at_hand_elsewhere():
    items = [1, 2]
    batches = ComingBatches(lambda: items.pop(0), lambda: items[0] if items else None)
    assert (next(batches), batches.peek(), items) == (1, 2, [2])
    assert (next(batches), batches.seen_before, batches.peek()) == (2, True, None)
    assert batches.element_spec is None
