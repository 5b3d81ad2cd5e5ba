"""Cuts tensors into buckets of the same size, and puts them together again.

Seen as one row of numbers, the tensors are cut at equal distances, so a large one is in several buckets
and small ones share one:

    tensors   | a          | b   | c | d                     |
    buckets   | 0       | 1         | 2         | 3          |

A bucket needs nothing but the tensors that it holds numbers of. Given in the order in which a backward pass
makes them, the first bucket is full while the pass goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import tensorflow as tf


@dataclass(frozen=True)
class Piece:
    """Some consecutive numbers of a tensor."""

    tensor: int  # its position
    size: int


@dataclass(frozen=True)
class Buckets:
    """Where each tensor of one dtype goes.

    Args:
        shapes: those of the tensors, all known.
        count: how many buckets; fewer, if there are fewer numbers than that.
    """

    shapes: tuple[tuple[int, ...], ...]
    count: int

    @cached_property
    def pieces(self) -> list[list[Piece]]:
        """For each bucket what it holds.

        >>> Buckets(((2, 2), (), (3,)), 2).pieces
        [[Piece(tensor=0, size=4)], [Piece(tensor=1, size=1), Piece(tensor=2, size=3)]]
        """
        ends = list(accumulate(self._sizes))
        count = min(self.count, ends[-1])
        bounds = [ends[-1] * k // count for k in range(count + 1)]
        cuts = sorted({*bounds, *ends})
        buckets: list[list[Piece]] = [[] for _ in range(count)]
        at = bucket = 0
        for start, stop in zip([0, *cuts], cuts, strict=False):
            if stop == start:
                continue
            at += sum(end <= start for end in ends[at:])
            bucket += sum(bound <= start for bound in bounds[bucket + 1 :])
            buckets[bucket].append(Piece(at, stop - start))
        return buckets

    @cached_property
    def _sizes(self) -> list[int]:
        return [int(tf.TensorShape(shape).num_elements()) for shape in self.shapes]

    def packed(self, tensors: Sequence[Any]) -> list[Any]:
        """The buckets as vectors."""
        sizes: list[list[int]] = [[] for _ in self.shapes]
        for piece in (piece for bucket in self.pieces for piece in bucket):
            sizes[piece.tensor].append(piece.size)
        flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
        parts = [
            iter(tf.split(vector, cut) if len(cut) > 1 else [vector])
            for vector, cut in zip(flat, sizes, strict=True)
        ]
        return [_joined([next(parts[piece.tensor]) for piece in bucket]) for bucket in self.pieces]

    def unpacked(self, vectors: Sequence[Any]) -> list[Any]:
        """The tensors, from the buckets."""
        parts: list[list[Any]] = [[] for _ in self.shapes]
        for bucket, vector in zip(self.pieces, vectors, strict=True):
            cut = tf.split(vector, [piece.size for piece in bucket]) if len(bucket) > 1 else [vector]
            for piece, part in zip(bucket, cut, strict=True):
                parts[piece.tensor].append(part)
        return [tf.reshape(_joined(own), shape) for own, shape in zip(parts, self.shapes, strict=True)]


def _joined(vectors: Sequence[Any]) -> Any:
    return vectors[0] if len(vectors) == 1 else tf.concat(vectors, axis=0)


def fits(column: Sequence[Any]) -> bool:
    """Whether a gradient, as each device has it, can be cut: dense, of one known shape, and not empty."""
    return all(
        isinstance(g, tf.Tensor)
        and g.shape.is_fully_defined()
        and g.shape == column[0].shape
        and g.dtype == column[0].dtype
        and g.shape.num_elements() > 0
        for g in column
    )


def by_dtype(tensors: Sequence[Any], positions: Sequence[int], made: Sequence[int] = ()) -> list[list[int]]:
    """The positions of tensors of one dtype together, those first that are `made` first.

    Where that is not told, the last comes first: so a backward pass makes them if they are listed as used.
    """
    groups: dict[Any, list[int]] = {}
    for i in sorted(positions, key=lambda i: made[i] if made else -i):
        groups.setdefault(tensors[i].dtype, []).append(i)
    return list(groups.values())
