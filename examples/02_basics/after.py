"""A^n + B^n, a power per device, the sum on the host."""

import time

import numpy as np
import tensorflow as tf

import colonnade as cn

devices = cn.setup(virtual=2)
N = 10
rng = np.random.default_rng(0)
a = rng.uniform(size=(1000, 1000)).astype("float32") / 500
b = rng.uniform(size=(1000, 1000)).astype("float32") / 500


def power(matrix, n):
    return matrix if n <= 1 else matrix @ power(matrix, n - 1)


@tf.function
def both(a, b):
    with tf.device(devices[0]):
        first = power(a, N)
    with tf.device(devices[1]):
        second = power(b, N)
    with tf.device("/device:CPU:0"):
        return first + second


both(a, b)
start = time.perf_counter()
total = both(a, b)
print(f"A^{N} + B^{N}: sum {float(tf.reduce_sum(total)):.4f} in {time.perf_counter() - start:.3f} s")
print(cn.placement(both, a, b))
