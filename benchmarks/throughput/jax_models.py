"""The seven models in JAX: layer by layer what models.py has in Keras, in Keras's shapes.

A model is a function of its parameters, the averages of its batch norms and a batch; it returns the output
and the averages after it. Under `jit` with a sharded batch, a batch norm is that of the whole batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

NORM = 1e-3  # epsilon of Keras's norms
MOMENTUM = 0.99  # of Keras's moving averages

Tree = Any
Apply = Callable[[Tree, Tree, Any], tuple[Any, Tree]]


@dataclass(frozen=True)
class Model:
    """Parameters and averages to begin with, and the function of them."""

    parameters: Tree
    averages: Tree
    apply: Apply


class Chance:
    """Arrays of parameters."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)

    def glorot(self, *shape: int) -> np.ndarray:
        inward, outward = np.prod(shape[:-1]), shape[-1] * np.prod(shape[:-2])
        limit = np.sqrt(6 / (inward + outward))
        return self._rng.uniform(-limit, limit, shape).astype("float32")

    def table(self, *shape: int) -> np.ndarray:
        return self._rng.uniform(-0.05, 0.05, shape).astype("float32")

    def dense(self, inward: int, outward: int) -> dict[str, np.ndarray]:
        return {"kernel": self.glorot(inward, outward), "bias": zeros(outward)}

    def conv(self, side: int, inward: int, outward: int) -> dict[str, np.ndarray]:
        return {"kernel": self.glorot(side, side, inward, outward), "bias": zeros(outward)}


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, "float32")


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, "float32")


def dense(p: Tree, x: Any) -> Any:
    return x @ p["kernel"] + p["bias"]


def conv(kernel: Any, x: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def layer_norm(p: Tree, x: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + NORM) * p["gamma"] + p["beta"]


def batch_norm(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    kept = {"mean": mean, "variance": variance}
    moved = jax.tree.map(lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new, averages, kept)
    return (x - mean) * (lax.rsqrt(variance + NORM) * p["gamma"]) + p["beta"], moved


def recurrent(p: Tree, x: Any) -> Any:
    """All outputs of an LSTM, the positions first in both."""
    inward = x @ p["kernel"] + p["bias"]  # for all positions at once
    units = p["recurrent"].shape[0]
    begin = jnp.zeros((x.shape[1], units), x.dtype)

    def turn(state: tuple[Any, Any], own: Any) -> tuple[tuple[Any, Any], Any]:
        hidden, cell = state
        i, f, c, o = jnp.split(own + hidden @ p["recurrent"], 4, axis=1)
        cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(c)
        hidden = jax.nn.sigmoid(o) * jnp.tanh(cell)
        return (hidden, cell), hidden

    return lax.scan(turn, (begin, begin), inward)[1]


def block(p: Tree, x: Any, heads: int = 4) -> Any:
    """A transformer block: attention and a small network, each added to what it got."""
    normed = layer_norm(p["first"], x)
    query, key, value = (
        dense(p[name], normed).reshape(*x.shape[:2], heads, -1) for name in ("query", "key", "value")
    )
    seen = jax.nn.dot_product_attention(query, key, value).reshape(x.shape)
    x = x + dense(p["outward"], seen)
    hidden = jax.nn.gelu(dense(p["hidden"], layer_norm(p["second"], x)), approximate=False)
    return x + dense(p["narrow"], hidden)


def polynomial(_: Chance) -> Model:
    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        return jnp.concatenate([x * x, x, jnp.ones_like(x)], 1) @ p, averages

    return Model(zeros(3, 1), {}, apply)


def mlp(chance: Chance) -> Model:
    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        x = x.reshape(x.shape[0], -1)
        return dense(p[2], jax.nn.relu(dense(p[1], jax.nn.relu(dense(p[0], x))))), averages

    return Model([chance.dense(784, 1024), chance.dense(1024, 1024), chance.dense(1024, 10)], {}, apply)


def cnn(chance: Chance) -> Model:
    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        for layer in p[:2]:
            x = pool(jax.nn.relu(conv(layer["kernel"], x) + layer["bias"]))
        x = x.reshape(x.shape[0], -1)
        return dense(p[3], jax.nn.relu(dense(p[2], x))), averages

    layers = [chance.conv(5, 1, 32), chance.conv(5, 32, 64), chance.dense(7 * 7 * 64, 256)]
    return Model([*layers, chance.dense(256, 10)], {}, apply)


def cifar(chance: Chance) -> Model:
    widths = (3, 16, 32, 64)

    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        moved = []
        for i, (layer, own) in enumerate(zip(p["layers"], averages, strict=True)):
            x, after = batch_norm(layer, own, conv(layer["kernel"], x if i == 0 else pool(x)))
            moved.append(after)
            x = jax.nn.relu(x)
        return dense(p["dense"], x.mean((1, 2))), moved

    layers = [
        {"kernel": chance.glorot(3, 3, a, b), "gamma": ones(b), "beta": zeros(b)} for a, b in pairwise(widths)
    ]
    averages = [{"mean": zeros(width), "variance": ones(width)} for width in widths[1:]]
    return Model({"layers": layers, "dense": chance.dense(64, 10)}, averages, apply)


def lstm(chance: Chance) -> Model:
    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        outputs = jnp.swapaxes(x, 0, 1)
        for layer in p["layers"]:
            outputs = recurrent(layer, outputs)
        return dense(p["dense"], outputs[-1]), averages

    layers = [
        {"kernel": chance.glorot(width, 256), "recurrent": chance.glorot(64, 256), "bias": zeros(256)}
        for width in (28, 64)
    ]
    return Model({"layers": layers, "dense": chance.dense(64, 10)}, {}, apply)


def embedding(chance: Chance) -> Model:
    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        mean = p["table"][x].mean(1)
        return dense(p["narrow"], jax.nn.relu(dense(p["dense"], mean))), averages

    layers = {"dense": chance.dense(64, 64), "narrow": chance.dense(64, 10)}
    return Model({"table": chance.table(50_000, 64), **layers}, {}, apply)


def transformer(chance: Chance) -> Model:
    def apply(p: Tree, averages: Tree, x: Any) -> tuple[Any, Tree]:
        x = p["table"][x] + p["positions"]
        for own in p["blocks"]:
            x = block(own, x)
        return dense(p["dense"], x.mean(1)), averages

    def made() -> Tree:
        norms = {name: {"gamma": ones(64), "beta": zeros(64)} for name in ("first", "second")}
        attention = {name: chance.dense(64, 64) for name in ("query", "key", "value", "outward")}
        return {**norms, **attention, "hidden": chance.dense(64, 256), "narrow": chance.dense(256, 64)}

    begin = {"table": chance.table(5_000, 64), "positions": chance.glorot(16, 64)}
    return Model({**begin, "blocks": [made(), made()], "dense": chance.dense(64, 10)}, {}, apply)


MODELS: dict[str, Callable[[Chance], Model]] = {
    made.__name__: made for made in (polynomial, mlp, cnn, cifar, lstm, embedding, transformer)
}


def loss(name: str, output: Any, y: Any) -> Any:
    """The mean over the examples."""
    if name == "polynomial":
        return ((output - y) ** 2).mean()
    return -jnp.take_along_axis(jax.nn.log_softmax(output), y[:, None], 1).mean()


def num_parameters(parameters: Tree) -> int:
    leaves: Sequence[np.ndarray] = jax.tree.leaves(parameters)
    return sum(leaf.size for leaf in leaves)
