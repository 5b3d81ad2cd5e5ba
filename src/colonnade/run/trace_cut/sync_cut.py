"""Cuts a trace where replicas exchange sums, as synchronised batch normalisation does.

The marks in a trace (see `replica_context`) stand for sums over the replicas. A mark that needs no other one
is of level 0, one that needs marks of level k is of level k + 1. What needs marks up to level k - 1 is
segment k, so a step goes

    segment 0 on every replica,  the sums of level 0,  segment 1 on every replica,  the sums of level 1, ...

Each segment is a function that is made once and called on every device, as an uncut trace is.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any
from weakref import WeakKeyDictionary

import keras
import tensorflow as tf

from colonnade.errors import Problem
from colonnade.run.move.reduce import Order, reduce, spread
from colonnade.run.move.ring import sums_everywhere
from colonnade.run.trace.captures import READS
from colonnade.run.trace.keras_owner import layers_of
from colonnade.run.trace.raw_call import raw_call
from colonnade.run.trace.traced import Traced, scope
from colonnade.run.trace_cut.subgraph import CuttableGraph, node_of, tensor_of


def call_with_sums(
    traces: Sequence[Traced],
    devices: Sequence[str],
    components: Sequence[Sequence[Any]],
    variables: Sequence[Mapping[Any, Any]],
    order: Order,
    across: Callable[[list[Any]], list[Any]] | None = None,
    *,
    compiled: bool = False,
) -> list[list[Any]]:
    """Call a trace on each device, with sums over the replicas where the traces have marks.

    Args:
        traces: one per replica, of the same function.
        devices: where each replica runs.
        components: what each is called with, as for `Traced.on`.
        variables: the handles of each replica, as for `Traced.on`.
        order: along which to sum.
        across: makes of the sums of these replicas those of all machines, where there are several.
        compiled: whether XLA compiles the traces, which have no marks then.

    Returns:
        For each replica the leaves of its result.
    """
    calls = list(zip(traces, devices, components, variables, strict=True))
    if (len(traces) == 1 and across is None) or not traces[0].marks:
        return [t.on(device, c, v, replica=i, compiled=compiled) for i, (t, device, c, v) in enumerate(calls)]
    replicas = [_Replica(i, t, device, c, v) for i, (t, device, c, v) in enumerate(calls)]
    for level in range(max(_cut(traced).depth for traced in traces)):
        for replica in replicas:
            replica.run(level)
        values = [replica.to_sum(level) for replica in replicas]
        if across is None:
            sums = sums_everywhere(values, devices, order)
        else:
            total = reduce(values, devices, order)
            sums = spread(across(total) if total else total, devices, order)
        for replica, summed in zip(replicas, sums, strict=True):
            replica.take(level, summed)
    return [replica.leaves() for replica in replicas]


def add_nothing(traced: Traced, across: Callable[[list[Any]], list[Any]]) -> None:
    """Take part in the sums over machines, on one that has no slice; `traced` is that of another slice."""
    if not traced.marks:
        return
    cut = _cut(traced)
    for level in range(cut.depth):
        tensors = [cut.tensor(source) for source in cut.sums[level].values()]
        if tensors:
            across([tf.zeros(tensor.shape, tensor.dtype) for tensor in tensors])


def problems(traces: Sequence[Traced]) -> Iterator[Problem]:
    """What is in the way of sums over replicas that run these traces."""
    if any(traced.stage_marks.pipelines for traced in traces):
        rule = "calls a pipeline, which has devices of its own"
        yield Problem("loss", "a function", rule, "Pass it: cn.Trainer(loss, optimizer, devices=pipeline)")
        return
    if len(traces) == 1:
        return
    yield from _remembering(traces[0])
    yield from differentiated_python(traces[0])
    fix = "Call the layer from the function itself, or leave synchronized=True out"
    for name in dict.fromkeys(name for traced in traces for name in traced.facts.called_marks):
        rule = "is synchronised inside a loop, a branch or a tf.function, where a trace cannot be cut"
        yield Problem("layer", name.rpartition("/")[0] or name, rule, fix)
        return
    for name in dict.fromkeys(name for traced in traces for name in _still_local(traced)):
        rule = "has synchronized=True, but its statistics are those of a slice: it is given a mask, which "
        rule += "Keras does not synchronise, or is called in a tf.function that was traced before"
        yield Problem("layer", name, rule, fix)
    levels = [_cut(traced).marks for traced in traces if traced.marks or traces[0].marks]
    if any(marks != levels[0] for marks in levels):
        rule = "asks for other sums over the replicas for slices of another size"
        yield Problem("loss", [len(marks) for marks in levels], rule, "Take batches that split evenly")


def refusals(traced: Traced) -> Iterator[Problem]:
    """What is in the way of replicas that run this trace without a word to each other."""
    if traced.stage_marks.pipelines:
        rule = "calls a pipeline, which has devices of its own"
        yield Problem("function", "a function", rule, "Call the pipeline by itself")
    yield from _remembering(traced)
    yield from differentiated_python(traced)
    names = [name.rpartition("/")[0] or name for name in (*traced.marks, *traced.facts.called_marks)]
    for name in dict.fromkeys([*names[:1], *_still_local(traced)]):
        rule = "has synchronized=True, but replicas run by themselves here"
        yield Problem("layer", name, rule, "Use cn.Trainer or cn.fit, or leave synchronized=True out")


def differentiated_python(traced: Traced) -> Iterator[Problem]:
    """Python code that a trace differentiates: TensorFlow keeps one tape for it, by its place in the trace.

    A call takes the tape of the last one, which may have been that of another replica: the gradient is then
    that of the other's values, or there is an error.
    """
    for name in traced.facts.tapes[:1]:
        rule = "is differentiated, and replicas or micro-batches would take each other's values"
        fix = "Write it with TensorFlow's ops, or as a tf.custom_gradient of tf.numpy_function"
        yield Problem("tf.py_function", name.rpartition("/")[2], rule, fix)


class _Cut:
    """The segments of a trace."""

    def __init__(self, traced: Traced) -> None:
        self._graph = CuttableGraph(traced)
        self._level = self._levels(traced.marks)
        self.marks = [self._level[mark] for mark in traced.marks]  # their levels
        self.depth = max(self._level.values()) + 1
        # By level: the names of sums in the trace, and what is to be summed.
        self.sums: dict[int, dict[str, str]] = defaultdict(dict)
        for mark, level in zip(traced.marks, self.marks, strict=True):
            self.sums[level][f"{mark}:0"] = tensor_of(self._graph.nodes[mark].input[0])
        members = {level: self._members(level, set(traced.marks)) for level in range(self.depth)}
        inputs = {level: self._graph.inputs(names) for level, names in members.items()}
        wanted = {tensor.name for tensor in traced.concrete.outputs}
        wanted.update(*(sums.values() for sums in self.sums.values()), *inputs.values())
        self.segments = {
            level: self._graph.part(names, inputs[level], self._outputs(level, names, wanted))
            for level, names in members.items()
            if names
        }

    def _levels(self, marks: Sequence[str]) -> dict[str, int]:
        """The segment of every node. Control inputs count, so that effects keep their order."""
        sources = self._graph.sources
        level_of: dict[str, int] = {}
        # Not in the order of the GraphDef: the gradient of a loop gives the loop inputs that come later.
        for name in TopologicalSorter(sources).static_order():
            level_of[name] = max((level_of[s] + (s in marks) for s in sources[name]), default=0)
        return level_of

    def _members(self, level: int, marks: set[str]) -> set[str]:
        outside = marks | self._graph.given
        return self._graph.with_constants(
            {name for name, at in self._level.items() if at == level and name not in outside}
        )

    def _outputs(self, level: int, members: set[str], wanted: set[str]) -> list[str]:
        return [t for t in wanted if node_of(t) in members and self._level[node_of(t)] == level]

    def tensor(self, name: str) -> Any:
        """A tensor of the trace."""
        return self._graph.tensor(name)


class _Replica:
    """One replica on its way through the segments."""

    def __init__(
        self,
        number: int,
        traced: Traced,
        device: str,
        components: Sequence[Any],
        variables: Mapping[Any, Any],
    ) -> None:
        self._traced, self._cut, self._device = traced, _cut(traced), device
        self._scope = scope(number, device)
        names = [tensor.name for tensor in traced.concrete.inputs]
        self._values = dict(zip(names, traced.bound(components, variables), strict=True))
        self._last: list[Any] = []  # an output of the call before

    def run(self, level: int) -> None:
        segment = self._cut.segments.get(level)
        if segment is None:
            return
        # The call before wrote and read variables that this one may read and write.
        with tf.device(self._device), tf.name_scope(self._scope), tf.control_dependencies(self._last):
            outputs = raw_call(
                segment.function,
                [self._values[name] for name in segment.inputs],
                [tensor.dtype for tensor in segment.function.outputs],
            )
        self._last = outputs[:1]
        for name, output in zip(segment.outputs, outputs, strict=False):
            output.set_shape(self._cut.tensor(name).shape)
            self._values[name] = output

    def to_sum(self, level: int) -> list[Any]:
        return [self._values[source] for source in self._cut.sums[level].values()]

    def take(self, level: int, sums: Sequence[Any]) -> None:
        self._values.update(zip(self._cut.sums[level], sums, strict=True))

    def leaves(self) -> list[Any]:
        outputs = [self._values[tensor.name] for tensor in self._traced.concrete.outputs]
        # Who waits for a result waits for all that the replica does, as for an uncut call.
        with tf.device(self._device), tf.name_scope(self._scope), tf.control_dependencies(self._last):
            return self._traced.leaves([tf.identity(output) for output in outputs])


def _cut(traced: Traced) -> _Cut:
    if traced not in _CUTS:
        _CUTS[traced] = _Cut(traced)
    return _CUTS[traced]


# A trace is cut once; the cut goes with the trace.
_CUTS: WeakKeyDictionary[Traced, _Cut] = WeakKeyDictionary()


def _remembering(traced: Traced) -> Iterator[Problem]:
    """Recurrent layers that carry a state for each row from batch to batch."""
    layers = {id(layer): layer for layer in layers_of(traced.written)}
    for layer in layers.values():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            rule = "has stateful=True: it keeps a state for each row, which several devices would mix up"
            yield Problem("layer", layer.name, rule, "Leave stateful=True out, or use one device")


def _still_local(traced: Traced) -> Iterator[str]:
    """Synchronised layers whose statistics depend on the slice other than through a sum."""
    owners = list(zip(traced.written, layers_of(traced.written), strict=True))
    means = [
        (variable, layer)
        for variable, layer in owners
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized
    ]
    if not means:
        return
    inputs = traced.concrete.inputs
    offset = len(inputs) - len(traced.captures)
    local = reached({tensor.op.name for tensor in inputs[:offset]}, traced)
    handles = {
        c.variable.ref(): t
        for c, t in zip(traced.captures, inputs[offset:], strict=True)
        if c.variable is not None
    }
    for variable, layer in means:
        writers = handles[variable.ref()].consumers()
        if any(op.type not in READS and op.name in local for op in writers):
            yield layer.name


def reached(sources: set[str], traced: Traced) -> set[str]:
    """The nodes that depend on some others, if it were not for the marks."""
    nodes = {node.name: node for node in traced.concrete.graph.as_graph_def().node}

    def origin(name: str) -> str:
        # A mark lies in an IdentityN that hands on the unsummed value as well, beside the mark.
        node, _, output = name.partition(":")
        while nodes[node].op == "IdentityN":
            node, _, output = nodes[node].input[int(output or 0)].partition(":")
        return node

    inputs = {name: [origin(i) for i in node.input if i[0] != "^"] for name, node in nodes.items()}
    reached = set(sources)
    for name in TopologicalSorter(inputs).static_order():
        if name not in traced.marks and not reached.isdisjoint(inputs[name]):
            reached.add(name)
    return reached
