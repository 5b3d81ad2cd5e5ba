"""The state of a dataset's iterator, and where TensorFlow does not tell all of it."""

import numpy as np
import pytest
import tensorflow as tf

import colonnade as cn
from colonnade.run.position import frozen, shuffles, thaw

IDS = np.arange(103)


def shuffled(**options):
    return tf.data.Dataset.from_tensor_slices(IDS).shuffle(50, **options).batch(10)


def rest(iterator):
    return [batch.numpy().tolist() for batch in iterator]


@pytest.mark.parametrize("taken", [0, 1, 5, 10, 11])
def test_a_seeded_shuffle_goes_on_with_the_same_batches(taken):
    first = iter(shuffled(seed=3).prefetch(2))
    for _ in range(taken):
        next(first)
    state = frozen(first, "fit()")
    wanted = rest(first)
    second = iter(shuffled(seed=3).prefetch(2))
    thaw(second, state, "fit()")
    assert rest(second) == wanted
    assert len(wanted) == 11 - taken


def test_a_shuffle_without_a_seed_uses_every_example_once():
    first = iter(shuffled().prefetch(2))
    seen = [next(first).numpy().tolist() for _ in range(6)]
    second = iter(shuffled().prefetch(2))
    thaw(second, frozen(first, "fit()"), "fit()")
    assert sorted(i for batch in seen + rest(second) for i in batch) == IDS.tolist()


def test_a_shuffle_leaves_no_trace_between_two_rounds():
    """The trap behind `Stream.position`; if this fails, TensorFlow tells more than it did."""
    counts = set()
    for taken in range(12):
        iterator = iter(shuffled(seed=3).repeat(3))
        for _ in range(taken):
            next(iterator)
        counts.add(shuffles(frozen(iterator, "fit()")))
    assert min(counts) == 0 < max(counts)
    assert len(counts) == 2


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(4).map(lambda x: tf.random.uniform([])),
        tf.data.Dataset.from_generator(lambda: iter([1]), output_signature=tf.TensorSpec([], tf.int32)),
    ],
)
def test_what_cannot_be_saved_is_an_error_with_the_choices(dataset):
    with pytest.raises(cn.InvalidArgument, match=r'is stateful.*"skip" goes through.*"restart" begins'):
        frozen(iter(dataset), "fit()")


def test_another_pipeline_is_an_error():
    first = iter(shuffled(seed=3))
    next(first)
    other = iter(tf.data.Dataset.range(10).filter(lambda x: x > 2).batch(3))
    with pytest.raises(cn.InvalidArgument, match="is not built like the one of the saved step"):
        thaw(other, frozen(first, "fit()"), "fit()")
