"""Moving averages that become one value when somebody looks, and not at every step.

A batch normalisation makes of its moving average m on replica i

    m_i = a m_i + b_i        with a that is the same everywhere, and b_i of the slice

If nothing else reads m, the mean over the replicas is the same whether they set out from it at every step or
each goes on from its own. So between cards nothing needs to be sent. What is found to be so in a trace is
left like that: each replica has its own value, and beside it the one that it had after the last step that
counts, for a step that is left out or fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from colonnade.run.move.reduce import reduce, star
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.aggregation import ReplicatedState, is_random_state, rule_of
from colonnade.run.variables.slice_values import handles, is_local, tainted

# Bytes of a message in which many small averages travel when somebody looks.
MESSAGE = 4 * 2**20
# Through these a value passes as it is, or is added to; a product or quotient has to be looked at.
SUMS = ("AddV2", "Add", "Sub", "AddN", "Neg", "Identity")
WRITES = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
LOOKS = ("VariableShape", "VarIsInitializedOp")

States = Mapping[Any, ReplicatedState]  # by ref
Copy = Callable[[tf.Variable, str], tf.Variable]


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
        self._settle: tuple[int, Any] | None = None

    def prepare(self, traced: Traced) -> None:
        """In eager code: make what is needed for the states of a trace."""
        self._found[traced] = frozenset(ref for ref in independent(traced) if not self._states[ref].trained)
        for ref in self._found[traced] - self.kept.keys():
            state = self._states[ref]
            copies = state.copies[:1] if state.random else state.copies
            self.kept[ref] = tuple(self._copy(copy, copy.device) for copy in copies)

    def of(self, traces: Iterable[Traced], counts: Sequence[int]) -> frozenset[Any]:
        """The refs of states that need no settling in a step of these traces, on slices of these sizes.

        Where some replicas have no slice, or slices differ in size, replicas do not count alike in the mean,
        and everything is settled.
        """
        found = [self._found.get(traced, frozenset()) for traced in traces]
        late = frozenset.intersection(*found) if found else frozenset()
        even = len(set(counts)) == 1
        return frozenset(
            ref
            for ref in late
            if self._states[ref].random or (even and len(self._states[ref].copies) == len(counts))
        )

    def before(self, late: frozenset[Any]) -> list[Any]:
        """Ops before a step in which only `late` are late: the others set out from one value."""
        ops = []
        for ref in self.kept:
            state = self._states[ref]
            if ref not in late and not state.random:
                value = self._value(ref)
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
        if not self.kept:
            return
        if self._settle is None or self._settle[0] != len(self.kept):
            self._settle = len(self.kept), tf.function(self._settled, autograph=False)
        self._settle[1]()

    def _settled(self) -> None:
        averaged = [ref for ref in self.kept if self._is_averaged(ref)]
        devices = [copy.device for copy in self.kept[averaged[0]]] if averaged else []
        rows = []
        for i, device in enumerate(devices):
            with tf.device(device):
                rows.append([self.kept[ref][i].read_value() for ref in averaged])
        totals = reduce(rows, devices, star(len(devices)), bucket_bytes=MESSAGE) if averaged else []
        for ref, total in zip(averaged, totals, strict=True):
            self._states[ref].original.assign(total / len(devices))
        for ref, own in self.kept.items():
            if ref not in averaged:
                self._states[ref].original.assign(own[0].read_value())

    def _is_averaged(self, ref: Any) -> bool:
        state = self._states[ref]
        return not state.random and len(state.copies) > 1 and rule_of(state.original) == "mean"

    def _value(self, ref: Any) -> Any:
        own = self.kept[ref]
        if not self._is_averaged(ref):
            return own[0].read_value()
        return tf.add_n([kept.read_value() for kept in own]) / len(own)


def _given(target: tf.Variable, source: tf.Variable) -> Any:
    """An op that gives a variable the value of another one on the same device, where it stays."""
    with tf.device(source.device):
        return target.assign(source.read_value())


def independent(traced: Traced) -> list[Any]:
    """The refs of variables that a trace writes, and of which replicas may have their own between looks.

    They are states of random generators, what is the same on all replicas, and averages as above.
    """
    of_slice = tainted(traced)
    ops = {variable.ref(): op for variable, op in handles(traced)}
    outputs = {tensor.ref() for tensor in traced.concrete.outputs}
    found = []
    for capture in traced.captures:
        if capture.variable is None or not capture.written:
            continue
        ref, rule = capture.variable.ref(), rule_of(capture.variable)
        handle = ops[ref]
        same = rule != "sum" and not is_local(handle, of_slice)
        if is_random_state(capture) or same or (rule == "mean" and _is_affine(handle, of_slice, outputs)):
            found.append(ref)
    return found


def _is_affine(handle: Any, of_slice: set[str], outputs: set[Any]) -> bool:
    """Whether a variable is read only for a sum with a fixed multiple of it, which is written to it."""
    users = [op for output in handle.outputs for op in output.consumers()]
    if not all(op.type in ("ReadVariableOp", *WRITES, *LOOKS) for op in users):
        return False
    reads = [op.outputs[0] for op in users if op.type == "ReadVariableOp"]
    seen: dict[Any, Any] = {}
    waiting = list(reads)
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen:
            continue
        seen[tensor.ref()] = tensor
        if tensor.ref() in outputs:
            return False
        for op in tensor.consumers():
            if op.type in SUMS or op.type in ("Mul", "RealDiv"):
                waiting += op.outputs
            elif op.type not in WRITES or op.inputs[0] is not handle.outputs[0]:
                return False
    products = {op for t in seen.values() for op in t.consumers() if op.type in ("Mul", "RealDiv")}
    return all(_is_fixed_multiple(op, seen, of_slice) for op in products)


def _is_fixed_multiple(op: Any, own: Mapping[Any, Any], of_slice: set[str]) -> bool:
    """Whether one factor is of the variable, and the other one neither of it nor of the slice."""
    factors: Sequence[Any] = op.inputs
    of_variable = [tensor.ref() in own for tensor in factors]
    if op.type == "RealDiv" and of_variable[1]:
        return False
    (other,) = [t for t, is_own in zip(factors, of_variable, strict=True) if not is_own] or [None]
    return other is not None and other.op.name not in of_slice
