"""Layers split by width: `cn.width`, whose public names are here.

In come a layer's sizes and devices; out goes a Keras layer with a part of its weights on each device.
"""

from colonnade.run.width.layers import (
    Dense,
    Embedding,
    Parts,
    SparseDense,
    from_csr,
    loading_on,
    softmax_cross_entropy,
    top_k,
)

__all__ = [
    "Dense",
    "Embedding",
    "Parts",
    "SparseDense",
    "from_csr",
    "loading_on",
    "softmax_cross_entropy",
    "top_k",
]
