"""Lets a step of `cn.fit` see the batch that comes next, which it sends to the cards while it computes.

Keras hands a step the iterator of an epoch. In between stands what fetches a batch early and keeps it until
Keras asks for it. It does not fetch what an epoch of so many steps leaves for the next one or for others: how
many there are, Keras tells its callbacks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras

from colonnade.hardware import devices as hardware
from colonnade.run.data.coming_batches import KerasBatches
from colonnade.run.machines.peers import Peers


class EpochBegins(keras.callbacks.Callback):
    """Tells how many batches an epoch takes."""

    def __init__(self, batches: KerasBatches) -> None:
        super().__init__()
        self._batches = batches

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._batches.left = self.params.get("steps")


@contextmanager
def looking_ahead(step: Any, callbacks: Any, peers: Peers) -> Iterator[tuple[Any, Sequence[Any]]]:
    """What Keras is to call for this step, and the callbacks to put in front of these.

    Where devices are no cards, a copy to them takes no time, and the step is called as it is; so too where
    other machines train along, for they count the time for data apart from the time of a step.
    """
    listening = not isinstance(callbacks, keras.callbacks.CallbackList)
    if peers.several or not (listening and hardware.are_cards(step.devices)):
        yield step, []
        return
    batches = KerasBatches()
    try:
        yield (lambda iterator: step(batches.along(iterator))), [EpochBegins(batches)]
    finally:
        batches.close()
