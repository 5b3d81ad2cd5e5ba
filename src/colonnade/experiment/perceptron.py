"""A small network in NumPy with its gradient by hand: the model that the experiment trains."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Perceptron:
    """One hidden layer of tanh, then a softmax; all its parameters in one vector.

    Every method takes a stack of models as well: parameters [..., size], each with images
    [..., batch, inputs] of its own. So many seeds and rates are trained at once.

    >>> net = Perceptron(inputs=2, hidden=3, classes=2)
    >>> parameters = np.stack([net.start(np.random.default_rng(seed)) for seed in (0, 1)])
    >>> net.gradient(parameters, np.ones([2, 5, 2]), np.zeros([2, 5], int)).shape
    (2, 17)
    """

    inputs: int
    hidden: int
    classes: int

    @property
    def size(self) -> int:
        return (self.inputs + 1) * self.hidden + (self.hidden + 1) * self.classes

    def start(self, rng: np.random.Generator) -> Array:
        """Random kernels that keep the size of what goes through them; biases of zero."""
        parameters = np.zeros(self.size)
        for kernel in self.views(parameters)[::2]:
            kernel[...] = rng.normal(size=kernel.shape) / np.sqrt(len(kernel))
        return parameters

    def views(self, parameters: Array) -> tuple[Array, Array, Array, Array]:
        """Kernel, bias, kernel, bias; to write to them is to write to the vector."""
        first, start = self._view(parameters, 0, self.inputs, self.hidden)
        bias, start = self._view(parameters, start, 1, self.hidden)
        second, start = self._view(parameters, start, self.hidden, self.classes)
        last, _ = self._view(parameters, start, 1, self.classes)
        return first, bias, second, last

    def _view(self, parameters: Array, start: int, rows: int, columns: int) -> tuple[Array, int]:
        end = start + rows * columns
        return parameters[..., start:end].reshape(*parameters.shape[:-1], rows, columns), end

    def logits(self, parameters: Array, images: Array) -> Array:
        return self._forward(parameters, images)[1]

    def _forward(self, parameters: Array, images: Array) -> tuple[Array, Array]:
        first, bias, second, last = self.views(parameters)
        hidden = np.tanh(images @ first + bias)
        return hidden, hidden @ second + last

    def gradient(self, parameters: Array, images: Array, labels: Array) -> Array:
        """Of the mean cross-entropy over the batch."""
        hidden, logits = self._forward(parameters, images)
        error = (softmax(logits) - np.eye(self.classes)[labels]) / labels.shape[-1]
        back = error @ self.views(parameters)[2].swapaxes(-1, -2) * (1 - hidden * hidden)
        gradient = np.empty_like(parameters)
        first, bias, second, last = self.views(gradient)
        first[...] = images.swapaxes(-1, -2) @ back
        bias[...] = back.sum(axis=-2, keepdims=True)
        second[...] = hidden.swapaxes(-1, -2) @ error
        last[...] = error.sum(axis=-2, keepdims=True)
        return gradient

    def accuracy(self, parameters: Array, images: Array, labels: Array) -> Array:
        """The part of the images whose label gets the largest logit."""
        return (self.logits(parameters, images).argmax(axis=-1) == labels).mean(axis=-1)

    def loss(self, parameters: Array, images: Array, labels: Array) -> Array:
        """The mean cross-entropy."""
        logits = self.logits(parameters, images)
        logits = logits - logits.max(axis=-1, keepdims=True)
        right = np.take_along_axis(logits, np.broadcast_to(labels, logits.shape[:-1])[..., None], axis=-1)
        return (np.log(np.exp(logits).sum(axis=-1)) - right[..., 0]).mean(axis=-1)


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
