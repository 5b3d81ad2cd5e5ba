"""Layers split by width: `cn.width`, whose public names are here.

In come a layer's sizes and devices; out goes a Keras layer with a part of its weights on each device.
"""

from colonnade.run.variables.parts import Parts
from colonnade.run.width.dense import Dense
from colonnade.run.width.embedding import Embedding
from colonnade.run.width.sparse_dense import SparseDense, from_csr
from colonnade.run.width.split_layer import loading_on
from colonnade.run.width.vocabulary import softmax_cross_entropy, top_k

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
