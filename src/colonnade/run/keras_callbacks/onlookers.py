"""Who looks at a model while `cn.fit` trains it: between cards, it shows what was reached only to them.

To show it, every card sends its moving averages, and variables that are kept elsewhere meanwhile come home.
So it is done after every batch only if a callback hears of batches; else when an epoch ends, when the model
is evaluated or saved, and at the end.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from colonnade.hardware import devices as hardware
from colonnade.run.keras_steps.keras_step import KerasStep
from colonnade.run.sync.lockstep import Synchronous

OF_BATCHES = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


class Showing(keras.callbacks.Callback):
    """The first of the callbacks: the model shows what was reached before others hear of anything."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self._step = step

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._step.show()

    def on_test_begin(self, logs: Any = None) -> None:
        self._step.show()

    def on_predict_begin(self, logs: Any = None) -> None:
        self._step.show()

    def on_train_end(self, logs: Any = None) -> None:
        self._step.show()


def shows_late(step: Any, sync: Any, data: Any, callbacks: Any) -> bool:
    """Whether the model may be behind what was reached: it trains on cards in step, and nobody sees it.

    Data that are made by Python code may look at the model too.
    """
    if not (
        isinstance(step, KerasStep) and isinstance(sync, Synchronous) and hardware.are_cards(step.devices)
    ):
        return False
    if isinstance(data, keras.utils.PyDataset) or hasattr(data, "__next__"):
        return False
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return False
    return not any(map(hears_of_batches, listed(callbacks)))


def listed(callbacks: Any) -> list[Any]:
    """What `model.fit` takes for callbacks, as a list."""
    if callbacks is None:
        return []
    return [*callbacks] if isinstance(callbacks, list | tuple) else [callbacks]


def hears_of_batches(callback: Any) -> bool:
    """What Keras itself calls in another thread looks at nothing that changes meanwhile."""
    if getattr(callback, "async_safe", False):
        return False
    default = keras.callbacks.Callback
    own = (
        getattr(getattr(callback, name), "__func__", None) is not getattr(default, name)
        for name in OF_BATCHES
    )
    return any(own)


@contextmanager
def unseen(step: Any, *, late: bool) -> Iterator[Sequence[Any]]:
    """While nobody looks but at times, if it is `late`; the callbacks to put in front of all others."""
    if not late:
        yield []
        return
    step.looked_at = False
    try:
        yield [Showing(step)]
    finally:
        step.looked_at = True
        step.show()
