"""The names of ops as a program has them."""

import re


def plain(op: str) -> str:
    """TensorFlow puts kernels of its own in place of some ops: fused ones, and those of oneDNN."""
    return re.sub("^_(Mkl)?(Native)?(Fused)?", "", op)
