"""Joins replicas that trained on their own: averages their variables, or pulls them to a centre."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import tensorflow as tf

from colonnade.run.move.reduce import Order, bucket_for, reduce, spread
from colonnade.run.step.update import Update
from colonnade.run.variables.aggregation import wide
from colonnade.run.variables.homes import copy_of


class Join(Protocol):
    """How replicas are joined."""

    centred: bool  # whether the user's variables are a centre, and not the average of the replicas

    def settle(self, parameters: Sequence[tf.Variable], device: str) -> None:
        """Make what variables the join needs."""

    def refresh(self, assigned: Set[Any]) -> None:
        """The user assigned to the variables of these refs: go on from there."""

    def ops(self, held: "Held", weights: Any) -> list[Any]:
        """The graph of a join; the weights are those of the replicas in an average."""

    def kept(self) -> list[tf.Variable]:
        """Variables of its own, if any; those that stand for the parameters come first, one for each."""


@dataclass(frozen=True)
class Held:
    """The parameters as they are held: the user's, and those of each replica."""

    parameters: Sequence[tf.Variable]
    copies: Sequence[Sequence[tf.Variable]]
    devices: tuple[str, ...]
    order: Order

    def reduced(self, value: Callable[[int, int], Any]) -> list[Any]:
        """The sum over replicas i of `value(i, k)`, for each parameter k, on the first device."""
        rows = []
        for i, device in enumerate(self.devices):
            with tf.device(device):
                rows.append([value(i, k) for k in range(len(self.parameters))])
        return reduce(rows, self.devices, self.order, bucket_bytes=bucket_for(self.devices))

    def average(self, weights: Any) -> list[Any]:
        def part(i: int, k: int) -> Any:
            value = wide(self.copies[i][k].read_value())
            return value * tf.cast(weights[i], value.dtype)

        means = self.reduced(part)
        return [tf.cast(mean, p.dtype) for mean, p in zip(means, self.parameters, strict=True)]

    def assigned(self, values: Sequence[Any]) -> list[Any]:
        """Ops that give every replica these values, which are on the first device."""
        everywhere = spread(values, self.devices, self.order)
        return [
            copy.assign(value)
            for own, received in zip(self.copies, everywhere, strict=True)
            for copy, value in zip(own, received, strict=True)
        ]


class Averaged:
    """The replicas go on from their average, or from where the outer optimizer goes with it."""

    centred = False

    def __init__(self, outer: Any) -> None:
        self._outer = outer
        self._users: list[tf.Variable] = []
        self._anchors: list[tf.Variable] = []  # the parameters after the last join

    def settle(self, parameters: Sequence[tf.Variable], device: str) -> None:
        self._users = list(parameters)
        if self._outer is not None:
            self._anchors = [copy_of(parameter, device) for parameter in parameters]
            self._outer.build(self._anchors)

    def refresh(self, assigned: Set[Any]) -> None:
        for anchor, user in zip(self._anchors, self._users, strict=bool(self._anchors)):
            # The others have moved since the last join, and the outer optimizer is yet to see by how much.
            if user.ref() in assigned:
                anchor.assign(user)

    def ops(self, held: Held, weights: Any) -> list[Any]:
        values = held.average(weights)
        done: list[Any] = []
        if self._outer is not None:
            # What the replicas moved by, backwards, is the gradient that the outer optimizer descends.
            moved = [a.read_value() - v for a, v in zip(self._anchors, values, strict=True)]
            update = Update(self._outer, self._anchors, [tf.TensorSpec(m.shape, m.dtype) for m in moved])
            done = [update.call(moved, [capture.tensor for capture in update.captures])]
            with tf.control_dependencies(done):
                values = [anchor.read_value() for anchor in self._anchors]
        users = [user.assign(value) for user, value in zip(held.parameters, values, strict=True)]
        return [*done, *users, *held.assigned(values)]

    def kept(self) -> list[tf.Variable]:
        slots = self._outer.variables if self._outer is not None else []
        return [*self._anchors, *(getattr(slot, "value", slot) for slot in slots)]


class Pulled:
    """Replicas and the centre move towards each other."""

    centred = True

    def __init__(self, alpha: float) -> None:
        self._alpha = alpha

    def settle(self, parameters: Sequence[tf.Variable], device: str) -> None:
        pass

    def refresh(self, assigned: Set[Any]) -> None:
        pass

    def ops(self, held: Held, weights: Any) -> list[Any]:
        centre = spread([p.read_value() for p in held.parameters], held.devices, held.order)

        def pull(i: int, k: int) -> Any:
            own = held.copies[i][k]
            return tf.constant(self._alpha, own.dtype) * (own.read_value() - centre[i][k])

        pulls = [[pull(i, k) for k in range(len(own))] for i, own in enumerate(held.copies)]
        moved = held.reduced(lambda i, k: pulls[i][k])
        # All of it from where replicas and centre were before the join.
        with tf.control_dependencies([*moved, *(p for own in pulls for p in own)]):
            return [
                *(p.assign_add(m) for p, m in zip(held.parameters, moved, strict=True)),
                *(
                    copy.assign_sub(p)
                    for own, mine in zip(held.copies, pulls, strict=True)
                    for copy, p in zip(own, mine, strict=True)
                ),
            ]

    def kept(self) -> list[tf.Variable]:
        return []
