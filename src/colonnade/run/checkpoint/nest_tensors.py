"""Makes tensors of a nest of plain Python values and arrays, and the nest of the tensors again.

Numbers, texts, lists, tuples and dicts become one text in JSON; every array in them is a tensor of its own.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

PLAIN = (bool, int, float, str)
NESTS = {"list": list, "tuple": tuple}


def is_plain(value: Any) -> bool:
    """Whether a value can be kept: nothing but numbers, texts and arrays, in lists, tuples and dicts."""
    if type(value) in (list, tuple):
        return all(map(is_plain, value))
    if type(value) is dict:
        return all(type(key) in PLAIN and is_plain(one) for key, one in value.items())
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufcSU"
    return value is None or type(value) in PLAIN or isinstance(value, tf.Tensor)


def to_tensors(name: str, value: Any) -> dict[str, Any]:
    """A plain value as tensors, whose names begin with this one."""
    arrays: list[Any] = []
    text = json.dumps(_described(value, arrays))
    return {name: tf.constant(text), **{f"{name}/{i}": tf.constant(a) for i, a in enumerate(arrays)}}


def from_tensors(name: str, tensors: Mapping[str, Any]) -> Any:
    """What `to_tensors` was given."""
    text = json.loads(tensors[name].numpy())
    return _value(text, lambda i: tensors[f"{name}/{i}"])


def _described(value: Any, arrays: list[Any]) -> Any:
    if value is None or type(value) in PLAIN:
        return value
    if type(value) in (list, tuple):
        return {type(value).__name__: [_described(one, arrays) for one in value]}
    if type(value) is dict:
        return {"dict": [[key, _described(one, arrays)] for key, one in value.items()]}
    arrays.append(value)
    kind = "tensor" if isinstance(value, tf.Tensor) else "number" if np.isscalar(value) else "array"
    # TensorFlow has texts of bytes alone.
    texts = not isinstance(value, tf.Tensor) and value.dtype.kind == "U"
    return {kind: len(arrays) - 1, "texts": texts}


def _value(said: Any, array: Any) -> Any:
    if not isinstance(said, dict):
        return said
    ((kind, content),) = [(key, one) for key, one in said.items() if key != "texts"]
    if kind in NESTS:
        return NESTS[kind](_value(one, array) for one in content)
    if kind == "dict":
        return {key: _value(one, array) for key, one in content}
    tensor = array(content)
    if kind == "tensor":
        return tensor
    numbers = tensor.numpy()
    if said["texts"]:
        numbers = np.char.decode(np.asarray(numbers).astype(bytes), "utf-8")
    return np.asarray(numbers)[()] if kind == "number" else np.asarray(numbers)
