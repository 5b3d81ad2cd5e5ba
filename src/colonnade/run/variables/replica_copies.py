"""Copies of all variables that a step of the user's own writes: one set for each replica.

Replica 0 works on the variables themselves. The others set out from the same values, and those that depend on
the batch only through sums over the replicas end as the same values too. What is left is of a slice: moving
averages become the mean over the replicas, by the sizes of their slices, or what `aggregation=` says.

What a step only reads is read where it is. Between cards that is a message for every op that reads: an
optimizer reads its rate once for each variable. So there it may have copies too, which come along with the
others.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.run.move.reduce import bucket_for, order_for, reduce, spread
from colonnade.run.move.seed_places import seed_place
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.aggregation import (
    another_stream,
    is_random_state,
    mean_of,
    rule_of,
    wide,
    without_meaning,
)
from colonnade.run.variables.digests import can_digest
from colonnade.run.variables.homes import Bindings, copy_of
from colonnade.run.variables.saved_state import named
from colonnade.run.variables.slice_values import local_variables


class ReplicaCopies:
    """The variables of each replica.

    Args:
        devices: where replicas run.
        of_read: whether each card has what is only read, too.
    """

    def __init__(self, devices: Sequence[str], *, of_read: bool = False) -> None:
        self._devices = tuple(devices)
        self._on_cards = hardware.are_cards(devices)
        self._of_read = of_read and self._on_cards
        self._copies: list[dict[Any, tf.Variable]] = [{} for _ in devices]  # by ref
        self._aliases: list[dict[Any, Any]] = [{} for _ in devices]  # handles of what is only read
        self._random: dict[Any, None] = {}  # refs, in order: each replica has a stream of its own
        self.local: dict[Any, tf.Variable] = {}  # what replicas end with values of their own in

    def bindings(self, replica: int, traced: Traced) -> Bindings:
        """The handles for a trace, in eager code the first time."""
        return {
            capture.variable.ref(): self._own(replica, capture).handle
            if capture.written or self._comes_along(capture)
            else self._alias(replica, capture.variable)
            for capture in traced.captures
            if capture.variable is not None
        }

    def _comes_along(self, capture: Any) -> bool:
        """Whether what is only read has copies: if it can share messages, and is no state of a generator."""
        return self._of_read and can_digest(capture.variable) and not is_random_state(capture)

    def _own(self, replica: int, capture: Any) -> tf.Variable:
        variable, ref = capture.variable, capture.variable.ref()
        if replica == 0:
            return variable
        if ref not in self._copies[replica]:
            device, random = self._devices[replica], is_random_state(capture)
            copy = copy_of(variable, seed_place(device) if random else device)
            self._copies[replica][ref] = copy
            if random:
                self._random[ref] = None
                with tf.init_scope():
                    copy.assign(another_stream(variable, replica))
        return self._copies[replica][ref]

    def _alias(self, replica: int, variable: tf.Variable) -> Any:
        """Another tensor for each replica, so that TensorFlow does not take their reads for writes."""
        own = self._aliases[replica]
        if variable.ref() not in own:
            with tf.init_scope(), tf.device(variable.device):
                own[variable.ref()] = tf.identity(variable.handle)
        return own[variable.ref()]

    def note(self, traced: Traced, of_batch: Sequence[tf.Variable] = ()) -> None:
        """Find out which variables are of a slice after this trace; not those given, which are of the batch.

        A count of examples, which a trace knows as a number, is seen to be a sum by its own word only.
        """
        shared = {variable.ref() for variable in of_batch}
        sums = [v for v in traced.written if v.aggregation.name == "SUM" and v.ref() not in shared]
        self.local |= {variable.ref(): variable for variable in (*local_variables(traced), *sums)}

    def problems(self) -> Iterator[Problem]:
        """Of what replicas end with values of their own in: that of which there is no one value."""
        for ref, variable in self.local.items() if len(self._devices) > 1 else ():
            if ref not in self._random:
                yield from without_meaning(variable)

    def forget_local(self) -> None:
        """What earlier traces have left of a slice: there are others from now on."""
        self.local = {}

    def every(self) -> list[tf.Variable]:
        """All copies."""
        return [copy for copies in self._copies for copy in copies.values()]

    def streams(self) -> dict[str, tuple[tf.Variable, ...]]:
        """By name, of each random generator the state of every replica; all must have been made."""
        originals = named(ref.deref() for ref in self._random)
        return {
            name: (variable, *(copies[variable.ref()] for copies in self._copies[1:]))
            for name, variable in originals.items()
        }

    def go_on(self, saved: Mapping[str, Sequence[Any]]) -> None:
        """Random streams take the states that were saved; a replica that had none gets one of its own."""
        for name, (first, *copies) in self.streams().items():
            for i, copy in enumerate(copies, 1):
                values = saved.get(name, ())
                copy.assign(values[i] if i < len(values) else another_stream(first, i))

    def begin(self) -> None:
        """All replicas set out from the variables; random streams go on."""
        working = [i for i, copies in enumerate(self._copies) if i == 0 or copies]
        refs = {ref: None for copies in self._copies for ref in copies if ref not in self._random}
        numbers = [ref for ref in refs if can_digest(ref.deref())] if self._on_cards else []
        sent = self._spread([ref.deref() for ref in numbers], working)
        for copies, values in zip([self._copies[i] for i in working], sent, strict=True):
            given = dict(zip(numbers, values, strict=True))
            for ref, copy in copies.items():
                if ref not in self._random:
                    copy.assign(given[ref] if ref in given else ref.deref().read_value())

    def _spread(self, variables: Sequence[tf.Variable], working: Sequence[int]) -> list[list[Any]]:
        """Their values for each of these replicas, in few messages."""
        devices = [self._devices[i] for i in working]
        if not variables or len(devices) == 1:
            return [[] for _ in devices]
        with tf.device(devices[0]):
            values = [variable.read_value() for variable in variables]
        return spread(values, devices, order_for(devices), bucket_bytes=bucket_for(devices))

    def before(self) -> dict[Any, Any]:
        """The values from which sums set out."""
        return {ref: v.read_value() for ref, v in self.local.items() if rule_of(v) == "sum"}

    @property
    def settled(self) -> list[tf.Variable]:
        """Those of which one value is made of what replicas end with."""
        return [v for ref, v in self.local.items() if ref not in self._random and rule_of(v) != "first"]

    def settle(self, shares: Sequence[float], before: dict[Any, Any]) -> list[Any]:
        """Ops that make one value of those that are of a slice; `shares` are the sizes of the slices."""
        if len(shares) == 1:  # only the first replica worked, on the variables themselves
            return []
        ops = []
        means = [v for v in self.settled if rule_of(v) == "mean"] if self._on_cards else []
        for variable, value in zip(means, self._means(means, shares), strict=True):
            ops.append(variable.assign(value))
        done = {variable.ref() for variable in means}
        for variable in [v for v in self.settled if v.ref() not in done]:
            ref, rule = variable.ref(), rule_of(variable)
            copies = [variable, *(self._copies[i][ref] for i in range(1, len(shares)))]
            values = [copy.read_value() for copy in copies]
            if rule == "sum":
                value = before[ref] + tf.add_n([v - before[ref] for v in values])
            else:
                value = mean_of(values, shares)
            ops.append(variable.assign(value))
        return ops

    def _means(self, variables: Sequence[tf.Variable], shares: Sequence[float]) -> list[Any]:
        """Of what replicas on cards end with, by the sizes of their slices: in few messages."""
        rows, devices = [], self._devices[: len(shares)]
        for i, (share, device) in enumerate(zip(shares, devices, strict=True)):
            own = [v if i == 0 else self._copies[i][v.ref()] for v in variables]
            with tf.device(device):
                values = [wide(v.read_value()) for v in own]
                rows.append([value * tf.constant(share, value.dtype) for value in values])
        order = order_for(devices) if len(devices) > 1 else ()
        means = reduce(rows, devices, order, bucket_bytes=bucket_for(devices)) if variables else []
        return [tf.cast(mean, v.dtype) for mean, v in zip(means, variables, strict=True)]
