"""Where a function that trains nothing reads variables: on its own card, from copies that are there already.

Between cards, a replica that reads the user's variable sends for it at every batch. So it reads the copy that
a training has on its card, or one that is made for it, and what was assigned since is copied before a batch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.run.trace.captures import Capture
from colonnade.run.variables.digests import Digests, can_digest
from colonnade.run.variables.homes import Bindings, Homes
from colonnade.run.variables.parts import home_of


class BorrowedHomes(Homes):
    """What the function changes, replicas change in copies of their own, as in a training.

    Args:
        mode: `shared` to read variables where they are, `mirrored` to have them on every device.
        devices: where the replicas run.
        lender: the copies of a training on the same devices, whose variables are shown to the user now.
    """

    def __init__(self, mode: str, devices: Sequence[str], lender: Homes | None = None) -> None:
        super().__init__(mode, devices, [], [])
        self._lender = lender
        self._looked: tuple[list[tf.Variable], Digests] | None = None
        self._seen: Any = None  # the digests of what was read when copies were last known to be right
        self._used: dict[Any, tf.Variable] = {}  # by ref, what is read elsewhere than where it is

    def bindings(self, replica: int, captures: Iterable[Capture]) -> Bindings:
        known = list(captures)
        for variable in [c.variable for c in known if c.variable is not None and not c.written]:
            if self._lent(replica, variable) is not None or self._has_copy(replica, variable):
                self._used[variable.ref()] = variable
        return super().bindings(replica, known)

    def own(self, replica: int, variables: Iterable[tf.Variable]) -> list[tf.Variable]:
        wanted = list(variables)
        lent = [self._lent(replica, variable) for variable in wanted]
        pairs = zip(super().own(replica, wanted), lent, strict=True)
        return [own if other is None else other for own, other in pairs]

    def _lent(self, replica: int, variable: tf.Variable) -> tf.Variable | None:
        """The training's copy, unless replicas have values of their own there."""
        if self._lender is None or variable.ref() in self._lender.states:
            return None
        (copy,) = self._lender.own(replica, [variable])
        return None if copy is variable else copy

    def _has_copy(self, replica: int, variable: tf.Variable) -> bool:
        if home_of(variable) is not None:  # a part of a layer that is split by width stays where it is
            return False
        return super()._has_copy(replica, variable) and self._lent(replica, variable) is None

    def begin(self) -> None:
        """In eager code, before a batch: all copies have what the user's variables have."""
        if not self._used:
            return
        known = [variable for variable in self._used.values() if can_digest(variable)]
        if self._looked is None or len(self._looked[0]) != len(known):
            self._looked, self._seen = (known, Digests(known)), None
        now = self._looked[1].now()
        trusted = self._lender is None or self._lender.trusted
        if trusted and len(known) == len(self._used) and np.array_equal(now, self._seen):
            return
        if self._lender is not None:
            self._lender.freshen()
        self.refresh()
        self._seen = now
