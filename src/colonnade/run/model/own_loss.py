"""`compute_loss` of a model as its own step calls it on a slice: it is given the batch, where that matters.

A loss that is a mean over the examples is computed from the slice. Of sums, masks at an output and
comparisons of examples every replica computes that of the whole batch, and the gradient goes back to where a
prediction came from (see `whole_batch`).
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from colonnade.run.model.training_step import has_own
from colonnade.run.model.whole_batch import masks_of
from colonnade.run.trace.concrete import unconverted

LOSS = "compute_loss"


class OwnLoss:
    """A scope in which a model computes its loss for the whole batch.

    Args:
        model: whose step is traced.
        whole: gives what the whole batch has in the place of something of a slice.
        gathers: whether it is known to matter; else only masks tell.
    """

    def __init__(self, model: keras.Model, whole: Callable[[Any], Any], *, gathers: bool) -> None:
        self._model, self._whole, self._gathers = model, whole, gathers
        # Keras's own does not look at the inputs.
        self._reads_inputs = has_own(model, LOSS)
        self._graph: Any = None
        self.called = False  # whether the step asks for it

    @contextmanager
    def entered(self) -> Iterator["OwnLoss"]:
        """While the step is traced."""
        self._graph = tf.compat.v1.get_default_graph()
        original, before = getattr(self._model, LOSS), vars(self._model).get(LOSS)
        # An attribute of the model itself, past Keras's own way of setting attributes.
        vars(self._model)[LOSS] = unconverted(self._of_batch(original))
        try:
            yield self
        finally:
            if before is None:
                del vars(self._model)[LOSS]
            else:
                vars(self._model)[LOSS] = before

    def _of_batch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            # Values of a loop or a branch stay inside of it.
            if tf.compat.v1.get_default_graph() is not self._graph:
                return original(*args, **kwargs)
            self.called = True
            given = signature.bind(*args, **kwargs).arguments
            if not self._gathers and not masks_of(list(given.values())):
                return original(*args, **kwargs)
            if not self._reads_inputs:
                given.pop("x", None)
            return original(**tf.nest.map_structure(self._whole, dict(given)))

        return compute_loss
