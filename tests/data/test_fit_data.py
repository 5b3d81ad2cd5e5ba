import pytest
import tensorflow as tf

from colonnade.run.data.fit_data import FitData

SEVEN = tf.data.Dataset.range(7)
ENDLESS = SEVEN.repeat()
UNKNOWN = SEVEN.filter(lambda i: i > 2)


@pytest.mark.parametrize(
    ("dataset", "passes", "steps", "expected"),
    [
        (SEVEN, 1, None, 7),
        (SEVEN, 3, None, 21),
        (SEVEN, 3, 9, 9),
        (SEVEN, 1, 9, 7),
        (ENDLESS, 1, 9, 9),
        (ENDLESS, 3, None, None),
        (UNKNOWN, 2, None, None),
        (UNKNOWN, 2, 5, 5),
    ],
)
def test_how_many_steps_are_expected(dataset, passes, steps, expected):
    assert FitData(dataset, ["x"], {}, passes).expected(steps) == expected


def test_batches_go_through_what_is_left_as_often_as_the_fit_does():
    fours = SEVEN.batch(4).map(lambda x: (x,))
    batches = FitData(fours, ["x"], {}, 2).batches(fours.skip(1), exact=False, ahead=True)
    values = [arguments.components()[0].numpy().tolist() for arguments in iter(batches.next, None)]
    assert values == [[4, 5, 6], [4, 5, 6]]
