"""Moving averages that become one value when somebody looks, and not at every step.

A batch normalisation makes of its moving average m on replica i

    m_i = a m_i + b_i        with a that is the same everywhere, and b_i of the slice

If nothing else reads m, the mean over the replicas is the same whether they set out from it at every step or
each goes on from its own. So between cards nothing needs to be sent. What is found to be so in a trace is
left like that: each replica has its own value, and beside it the one that it had after the last step that
counts, for a step that is left out or fails.

Slices of several sizes count by their sizes. That is the same mean too while the sizes stay what they are, if
a is the same number in their traces. Before steps on other sizes replicas set out from one value again.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from colonnade.run.move.reduce import reduce, spread, star
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.aggregation import (
    ReplicatedState,
    is_random_state,
    rule_of,
    weighed,
    weights_of,
)
from colonnade.run.variables.slice_values import handles, is_local, tainted

# Bytes of a message in which many small averages travel when somebody looks.
MESSAGE = 4 * 2**20
# Through these a value passes as it is, or is added to; a product or quotient has to be looked at.
SUMS = ("AddV2", "Add", "Sub", "AddN", "Neg", "Identity")
WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
PRODUCTS = ("Mul", "RealDiv")
LOOKS = ("VariableShape", "VarIsInitializedOp")

States = Mapping[Any, ReplicatedState]  # by ref
Copy = Callable[[tf.Variable, str], tf.Variable]
Weights = tuple[float, ...]


class LateStates:
    """The states of which every replica has its own between looks.

    Args:
        states: all that the function changes.
        copy: makes a variable with the same value on a device.
    """

    def __init__(self, states: States, copy: Copy) -> None:
        self._states, self._copy = states, copy
        # By ref, what each replica has after the last step that counts; of a random stream the first only.
        self.kept: dict[Any, tuple[tf.Variable, ...]] = {}
        self._found: WeakKeyDictionary[Traced, frozenset[Any]] = WeakKeyDictionary()
        # By ref, how an average is multiplied in a trace, where that is known (see `factors`).
        self._factors: WeakKeyDictionary[Traced, dict[Any, Hashable]] = WeakKeyDictionary()
        self._weights: Weights = ()  # how much each replica counts in the means of what is kept
        self._calls: dict[Hashable, Any] = {}

    def prepare(self, traced: Traced) -> None:
        """In eager code: make what is needed for the states of a trace."""
        self._found[traced] = frozenset(ref for ref in independent(traced) if not self._states[ref].trained)
        self._factors[traced] = factors(traced, self._found[traced])
        for ref in self._found[traced] - self.kept.keys():
            state = self._states[ref]
            copies = state.copies[:1] if state.random else state.copies
            self.kept[ref] = tuple(self._copy(copy, copy.device) for copy in copies)

    def of(self, traces: Sequence[Traced], counts: Sequence[int]) -> frozenset[Any]:
        """The refs of states that need no settling in a step of these traces on slices of these sizes.

        Where some replicas have no slice, everything is settled.
        """
        independent_of = [self._found.get(traced, frozenset()) for traced in traces]
        late = frozenset.intersection(*independent_of) if independent_of else frozenset()
        return frozenset(ref for ref in late if self._is_late(ref, traces, counts))

    def _is_late(self, ref: Any, traces: Sequence[Traced], counts: Sequence[int]) -> bool:
        state = self._states[ref]
        if state.random:
            return True
        if len(state.copies) != len(counts):
            return False
        known = {self._factors[traced].get(ref) for traced in traces}
        return len(set(counts)) == 1 or (len(known) == 1 and None not in known)

    def begin(self, counts: Sequence[int]) -> None:
        """In eager code, before steps on slices of these sizes."""
        if not self.kept:
            return
        weights = self._by(counts)
        if self._weights and weights != self._weights:
            self._call(self._met, self._weights)
        self._weights = weights

    def _by(self, counts: Sequence[int]) -> Weights:
        """How much each replica counts; the same, where some have no slice and nothing is late."""
        number = max(len(self._states[ref].copies) for ref in self.kept)
        return tuple(weights_of(counts, counts)) if len(counts) == number else (1.0,) * number

    def before(self, late: frozenset[Any], counts: Sequence[int]) -> list[Any]:
        """Ops before a step in which only `late` are late: the others set out from one value."""
        ops = []
        for ref in self.kept:
            state = self._states[ref]
            if ref not in late and not state.random:
                value = self._value(ref, self._by(counts))
                ops += [copy.assign(value) for copy in state.copies]
        return ops

    def after(self, late: frozenset[Any]) -> list[Any]:
        """Ops after a step that counts: what replicas have now is kept."""
        pairs = [
            (kept, copy)
            for ref in self.kept
            if ref in late
            for kept, copy in zip(self.kept[ref], self._states[ref].copies, strict=False)
        ]
        return [_given(kept, copy) for kept, copy in pairs]

    def undo(self) -> list[Any]:
        """Ops for a step that does not count: replicas have what they had; random streams go on."""
        return [
            _given(copy, kept)
            for ref, own in self.kept.items()
            if not self._states[ref].random
            for kept, copy in zip(own, self._states[ref].copies, strict=True)
        ]

    def keep(self) -> None:
        """In eager code: what replicas have is the truth, as it was given to them from outside."""
        self.after(frozenset(self.kept))

    def settle(self) -> None:
        """In eager code: the user's variables take the values that there would be if all had been settled."""
        if self.kept:
            self._call(self._settled, self._weights)

    def _call(self, made: Callable[[Weights], None], weights: Weights) -> None:
        key = (made, weights, len(self.kept))
        if key not in self._calls:
            self._calls[key] = tf.function(unconverted(lambda: made(weights)), autograph=False)
        self._calls[key]()

    def _settled(self, weights: Weights) -> None:
        means = self._means(weights)
        for ref, own in self.kept.items():
            self._states[ref].original.assign(means[ref] if ref in means else own[0].read_value())

    def _met(self, weights: Weights) -> None:
        """All replicas have the mean."""
        means = self._means(weights)
        devices = self._devices(means)
        sent = spread(list(means.values()), devices, star(len(devices)), bucket_bytes=MESSAGE)
        for i, (device, values) in enumerate(zip(devices, sent, strict=True)):
            with tf.device(device):
                for ref, value in zip(means, values, strict=True):
                    self.kept[ref][i].assign(value)
                    self._states[ref].copies[i].assign(value)

    def _devices(self, averaged: Iterable[Any]) -> list[str]:
        return [copy.device for ref in list(averaged)[:1] for copy in self.kept[ref]]

    def _means(self, weights: Weights) -> dict[Any, Any]:
        """By ref, the mean of what replicas have, on the first of them."""
        averaged = [ref for ref in self.kept if self._is_averaged(ref)]
        rows, devices = [], self._devices(averaged)
        for i, device in enumerate(devices):
            with tf.device(device):
                own = [self.kept[ref][i].read_value() for ref in averaged]
                rows.append([weighed(value, weights[i] if weights else 1.0) for value in own])
        totals = reduce(rows, devices, star(len(devices)), bucket_bytes=MESSAGE) if averaged else []
        dtypes = {ref: self.kept[ref][0].dtype for ref in averaged}
        return {
            ref: tf.cast(total / len(devices), dtypes[ref])
            for ref, total in zip(averaged, totals, strict=True)
        }

    def _is_averaged(self, ref: Any) -> bool:
        state = self._states[ref]
        return not state.random and len(state.copies) > 1 and rule_of(state.original) == "mean"

    def _value(self, ref: Any, weights: Weights) -> Any:
        own = self.kept[ref]
        if not self._is_averaged(ref):
            return own[0].read_value()
        total = tf.add_n([weighed(k.read_value(), w) for k, w in zip(own, weights, strict=True)])
        return tf.cast(total / len(own), own[0].dtype)


def _given(target: tf.Variable, source: tf.Variable) -> Any:
    """An op that gives a variable the value of another one on the same device, where it stays."""
    with tf.device(source.device):
        return target.assign(source.read_value())


def independent(traced: Traced) -> list[Any]:
    """The refs of variables that a trace writes, and of which replicas may have their own between looks.

    They are states of random generators, what is the same on all replicas, and averages as above.
    """
    of_slice = tainted(traced)
    ops = {capture.variable.ref(): op for capture, op in handles(traced)}
    outputs = {tensor.ref() for tensor in traced.concrete.outputs}
    refs = []
    for capture in traced.captures:
        if capture.variable is None or not capture.written:
            continue
        ref, rule = capture.variable.ref(), rule_of(capture.variable)
        handle = ops[ref]
        same = rule != "sum" and not is_local(capture, of_slice)
        if is_random_state(capture) or same or (rule == "mean" and _is_affine(handle, of_slice, outputs)):
            refs.append(ref)
    return refs


def _is_affine(handle: Any, of_slice: set[str], outputs: set[Any]) -> bool:
    """Whether a variable is read only for a sum with a fixed multiple of it, which is written to it."""
    users = _users(handle)
    if not all(op.type in ("ReadVariableOp", *WRITES, *LOOKS) for op in users):
        return False
    seen = _read_from(handle)
    if any(ref in outputs for ref in seen):
        return False
    takers = {op for tensor in seen.values() for op in tensor.consumers()}
    return all(
        op.type in SUMS
        or (op.type in PRODUCTS and _is_fixed_multiple(op, seen, of_slice))
        or (op.type in WRITES and op.inputs[0] is handle.outputs[0])
        for op in takers
    )


def _users(handle: Any) -> list[Any]:
    return [op for output in handle.outputs for op in output.consumers()]


def _read_from(handle: Any) -> dict[Any, Any]:
    """By ref, what is read of a variable, and all sums and products that it goes into."""
    seen: dict[Any, Any] = {}
    waiting = [op.outputs[0] for op in _users(handle) if op.type == "ReadVariableOp"]
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() not in seen:
            seen[tensor.ref()] = tensor
            for op in tensor.consumers():
                waiting += op.outputs if op.type in (*SUMS, *PRODUCTS) else []
    return seen


def _is_fixed_multiple(op: Any, own: Mapping[Any, Any], of_slice: set[str]) -> bool:
    """Whether one factor is of the variable, and the other one neither of it nor of the slice."""
    factors: Sequence[Any] = op.inputs
    of_variable = [tensor.ref() in own for tensor in factors]
    if op.type == "RealDiv" and of_variable[1]:
        return False
    (other,) = [t for t, is_own in zip(factors, of_variable, strict=True) if not is_own] or [None]
    return other is not None and other.op.name not in of_slice


def factors(traced: Traced, refs: Iterable[Any]) -> dict[Any, Hashable]:
    """For each of these averages what becomes of it in a trace, in sums and products with known numbers.

    Two traces in which that is equal multiply the average by the same number. Averages that are multiplied
    by what a trace does not tell are left out, and so is what no mean is taken of.
    """
    of_slice = tainted(traced)
    outputs = {tensor.ref() for tensor in traced.concrete.outputs}
    ops = {capture.variable.ref(): op for capture, op in handles(traced)}
    place = {op: i for i, op in enumerate(traced.concrete.graph.get_operations())}
    known: dict[Any, Hashable] = {}
    for ref in refs:
        if rule_of(ref.deref()) != "mean" or not _is_affine(ops[ref], of_slice, outputs):
            continue
        seen = _read_from(ops[ref])
        number = {r: i for i, r in enumerate(sorted(seen, key=lambda r: place[seen[r].op]))}
        takers = {op for tensor in seen.values() for op in tensor.consumers()} | set(_users(ops[ref]))
        arithmetic = tuple(_told(op, number) for op in sorted(takers, key=place.__getitem__))
        if None not in arithmetic:
            known[ref] = arithmetic
    return known


def _told(op: Any, number: Mapping[Any, int]) -> Hashable | None:
    """What an op makes of tensors with these numbers; None if that is a product with an unknown one."""
    inputs: list[Hashable] = []
    for tensor in op.inputs:
        if tensor.ref() in number:
            inputs.append(number[tensor.ref()])
        elif op.type in PRODUCTS:
            value = tf.get_static_value(tensor)
            if value is None:
                return None
            inputs.append((value.shape, value.tobytes()))
        else:
            inputs.append("other")
    return op.type, tuple(inputs)
