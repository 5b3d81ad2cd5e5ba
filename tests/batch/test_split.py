from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import colonnade as cn
from colonnade.run.batch.split import Arguments, flatten, pack, sizes


@dataclass
class Pair:
    left: Any
    right: Any


class Point(NamedTuple):
    x: Any
    y: Any


@given(st.integers(0, 500), st.integers(1, 64))
def test_sizes(total, parts):
    found = sizes(total, parts)
    assert sum(found) == total
    assert len(found) == min(total, parts)
    assert all(size >= 1 for size in found)
    assert max(found, default=0) - min(found, default=0) <= 1
    assert list(found) == sorted(found, reverse=True)


NESTS = [
    {"a": 1, "b": [2, (3, 4)]},
    Pair(1, Point(2, {"c": 3})),
    OrderedDict(z=1, a=2),
    (),
    [None, "text", 5],
]


@pytest.mark.parametrize("nest", NESTS)
def test_a_nest_is_rebuilt(nest):
    leaves = [leaf for _, leaf in flatten(nest)]
    same = pack(nest, iter(leaves))
    assert same == nest
    assert type(same) is type(nest)


def test_paths_and_kinds_of_dict():
    nest = defaultdict(list, x=[1, Pair(2, 3)])
    assert [path for path, _ in flatten(nest, "batch")] == [
        "batch['x'][0]",
        "batch['x'][1].left",
        "batch['x'][1].right",
    ]
    again = pack(nest, iter([4, 5, 6]))
    assert again["missing"] == []
    assert again["x"] == [4, Pair(5, 6)]


def parts_of(value, counts):
    return [part.leaves[0].value for part in Arguments((value,), {}).parts(counts)]


def test_every_kind_of_tensor_is_cut():
    counts = sizes(5, 2)
    dense = parts_of(np.arange(10).reshape(5, 2), counts)
    assert [part.shape[0] for part in dense] == [3, 2]
    assert dense[0].dtype == tf.int64
    strings = parts_of(tf.constant(["a", "b", "c", "d", "e"]), counts)
    assert strings[1].numpy().tolist() == [b"d", b"e"]
    ragged = parts_of(tf.ragged.constant([[1], [], [2, 3], [4], [5, 6]]), counts)
    assert [part.to_list() for part in ragged] == [[[1], [], [2, 3]], [[4], [5, 6]]]
    eye = tf.sparse.from_dense(np.eye(5))
    sparse = parts_of(eye, counts)
    assert np.array_equal(np.concatenate([tf.sparse.to_dense(part) for part in sparse]), np.eye(5))


def test_roles():
    arguments = Arguments(
        (tf.ones([4, 2]), tf.constant(3.0), cn.broadcast({"t": tf.ones(7)})), {"training": True}
    )
    assert [leaf.role for leaf in arguments.leaves] == ["split", "whole", "whole", "fixed"]
    (args, kwargs) = arguments.unpack(arguments.components())
    assert args[2]["t"].shape == [7]
    assert kwargs == {"training": True}


def test_arguments_that_do_not_agree_are_all_named():
    def f(a, b, c):
        return a

    with pytest.raises(cn.InvalidArgument) as caught:
        cn.parallel(f, devices=2)(tf.ones(3), {"k": tf.ones([4, 1])}, cn.broadcast(tf.ones(9)))
    text = str(caught.value)
    assert "a=(3,): has 3 rows" in text
    assert "b['k']=(4, 1): has 4 rows" in text
    assert "cn.broadcast(a)" in text
    assert "c=" not in text


@pytest.mark.parametrize(("args", "says"), [((), "none is a tensor"), ((np.zeros([0, 2]),), "has no rows")])
def test_nothing_to_split(args, says):
    with pytest.raises(cn.InvalidArgument, match=says):
        cn.parallel(lambda *a: a, devices=2)(*args)
