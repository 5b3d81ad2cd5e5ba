"""How far two results are apart, and inputs that are moved by a last digit."""

from typing import Any

import numpy as np
import tensorflow as tf


def nudged(values: Any, step: float, rng: np.random.Generator) -> Any:
    """Floats moved by about one step, up or down."""
    values = np.asarray(values)
    signs = rng.choice([-1.0, 1.0], size=values.shape)
    return tf.constant((values.astype(np.float64) * (1.0 + step * signs)).astype(values.dtype))


def dense(tensor: Any) -> np.ndarray:
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    elif isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_tensor()
    elif isinstance(tensor, tf.SparseTensor):
        tensor = tf.sparse.to_dense(tensor)
    return np.asarray((tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy())


def gap(expected: np.ndarray | None, actual: np.ndarray | None) -> float:
    """The largest difference; infinite where the shapes differ or only one has the value."""
    if expected is None or actual is None or expected.shape != actual.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind not in "fciu":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    with np.errstate(invalid="ignore", over="ignore"):  # of infinite numbers, which are looked at below
        gaps = np.abs(expected.astype(wide) - actual.astype(wide))
    same = (np.isnan(expected) & np.isnan(actual)) | (expected == actual)
    return float(np.where(same, 0.0, np.where(np.isnan(gaps), np.inf, gaps)).max())


def largest(values: np.ndarray) -> float:
    if not values.size or values.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0
