import math

import numpy as np
import pytest
import tensorflow as tf

from colonnade.run.checkpoint.nest_tensors import from_tensors, is_plain, to_tensors

NESTS = [
    None,
    [1, 2.5, "three", True, None],
    {"a": (1, [2, {"b": ()}]), 3: "number as a key", 0.1: math.inf},
    {"history": {"loss": [0.1 + 0.2, 1e-300, -0.0]}},
]


@pytest.mark.parametrize("nest", NESTS)
def test_a_nest_comes_back(nest):
    assert is_plain(nest)
    again = from_tensors("here", to_tensors("here", nest))
    assert again == nest
    assert str(again) == str(nest)  # the same types, and -0.0


def test_arrays_come_back_bit_by_bit_with_dtype_and_kind():
    nest = {
        "weights": [np.arange(6, dtype="float32").reshape(2, 3) / 7, np.array([], "int64")],
        "best": np.float32(0.1),
        "count": np.int64(2**60),
        "names": np.array(["ä", "bc"]),
        "tensor": tf.constant([1.5], tf.bfloat16),
        "nan": math.nan,
    }
    assert is_plain(nest)
    again = from_tensors("x", to_tensors("x", nest))
    for one, other in zip(nest["weights"], again["weights"], strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()
    assert type(again["best"]) is np.float32
    assert again["best"] == nest["best"]
    assert type(again["count"]) is np.int64
    assert again["count"] == 2**60
    assert again["names"].tolist() == ["ä", "bc"]
    assert again["tensor"].dtype == tf.bfloat16
    assert math.isnan(again["nan"])


@pytest.mark.parametrize("value", [object(), len, {"a": {1, 2}}, [np.array([object()])], {(1, 2): 3}])
def test_what_is_not_plain_is_told(value):
    assert not is_plain(value)
