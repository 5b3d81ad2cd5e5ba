"""Finds the shuffles of a dataset and the seeds that each of them has drawn.

A shuffle draws seeds whenever it is begun, from a generator that all iterators over the dataset have in
common. The state of an iterator tells how many were drawn, but only of shuffles that are at work in it: not
of one that is at its end, nor of one that waits for another.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tensorflow as tf

# What TensorFlow says of a shuffle: the size of its buffer, its two seeds, how often it is repeated.
SHUFFLE = re.compile(r"Shuffle\w*DatasetOp\([-\d, ]+\)")

# Datasets without a function, in which there could be others.
PLAIN = re.compile(
    r": (Shuffle\w*|TensorSlice|Tensor|Range|Batch|PaddedBatch|Prefetch|Options|Take|Skip)Dataset(V\d)?Op\b"
)


@dataclass(frozen=True)
class Shuffles:
    """All shuffles below a dataset; those in the functions of its maps are not among them."""

    each: Sequence[tf.data.Dataset]
    words: Sequence[str]  # of each; the same in another process only where it has seeds
    repeated: bool = False  # whether one of them is begun again within a pass
    cached: bool = False  # whether what one of them gives is kept for later passes
    caches: bool = False  # whether anything is
    hidden: bool = True  # whether there may be others, which are not among them

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> "Shuffles":
        """The shuffles below a dataset.

        >>> Shuffles.of(tf.data.Dataset.range(9).shuffle(4, seed=1).batch(2).repeat()).words
        ['ShuffleDatasetOp(4, 87654321, 1, 1)']
        """
        kinds = [(one, _kind(one)) for one in _below(dataset)]
        shuffles = [(one, match[0]) for one, kind in kinds if (match := SHUFFLE.search(kind))]

        def above(word: str) -> bool:
            tops = [one for one, kind in kinds if word in kind]
            return any(SHUFFLE.search(_kind(below)) for top in tops for below in _below(top))

        each, words = [one for one, _ in shuffles], [words for _, words in shuffles]
        caches = any("CacheDatasetOp" in kind for _, kind in kinds)
        hidden = not all(PLAIN.search(kind) for _, kind in kinds)
        return cls(each, words, above("RepeatDatasetOp"), above("CacheDatasetOp"), caches, hidden)

    def begin(self, times: int) -> None:
        """Let each draw as many seeds as if it had been begun so often."""
        for _ in range(times):
            for one in self.each:
                iter(one)


def _below(dataset: tf.data.Dataset) -> Iterator[tf.data.Dataset]:
    """The dataset, and all from which it is made.

    Python's objects hold those from which they were made, and that is the only way to find them:
    the graph of a dataset has a copy of its data in it.
    """
    yield dataset
    held = {id(one): one for one in tf.nest.flatten(list(vars(dataset).values()))}
    for one in held.values():
        if isinstance(one, tf.data.Dataset):
            yield from _below(one)


def _kind(dataset: tf.data.Dataset) -> str:
    """What TensorFlow calls it."""
    (variant,) = tf.nest.flatten(dataset, expand_composites=True)
    return str(tf.strings.as_string(variant).numpy().decode())
