"""Cuts some nodes out of a traced graph and makes a function of them.

Whoever cuts says which nodes belong to a part; the tensors that go in and come out follow from that.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from colonnade.run.trace.captures import READS
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.traced import Traced

# Begins the names of a part's inputs.
INPUT = "colonnade_input"


@dataclass(frozen=True)
class Subgraph:
    """A function made of some nodes of a trace."""

    function: Any
    inputs: tuple[str, ...]  # names of tensors in the trace
    outputs: tuple[str, ...]
    stamped: bool = False  # its first two outputs are the times of its start and its end


class CuttableGraph:
    """The graph of a trace, ready to be cut."""

    def __init__(self, traced: Traced) -> None:
        self._graph, self._definition = traced.concrete.graph, traced.concrete.graph.as_graph_def()
        self.nodes = {node.name: node for node in self._definition.node}
        self.given = {tensor.op.name for tensor in traced.concrete.inputs}
        self.sources = {name: [node_of(i) for i in node.input] for name, node in self.nodes.items()}

    def has_effect(self, name: str) -> bool:
        """Whether a node does more than to compute: it writes a variable, prints, draws a number."""
        op = self._graph.get_operation_by_name(name)
        return op.op_def.is_stateful and op.type not in READS and op.type != "Placeholder"

    def with_constants(self, own: set[str]) -> set[str]:
        """Constants are repeated where they are used: shapes and axes stay known to the optimiser."""
        used = {source for name in own for source in self.sources[name]}
        return own | {name for name in used if self.nodes[name].op == "Const"}

    def inputs(self, members: set[str]) -> list[str]:
        """The tensors that a part takes from outside."""
        data = (i for n in self._order(members) for i in self.nodes[n].input if not i.startswith("^"))
        return list(dict.fromkeys(tensor_of(i) for i in data if node_of(i) not in members))

    def part(
        self,
        members: set[str],
        inputs: Sequence[str],
        outputs: Iterable[str],
        *,
        stamped: bool = False,
        on_card: bool = False,
    ) -> Subgraph:
        """Some nodes as a function; `stamped` adds when it started and ended to what it returns."""
        wanted = sorted(outputs)
        definition = self._extract(members)

        @tf.autograph.experimental.do_not_convert
        def part(*tensors: Any) -> Any:
            if stamped:
                start, tensors = _started(tensors, on_card)
            given = dict(zip(inputs, tensors, strict=True))
            imported = tf.graph_util.import_graph_def(
                definition, input_map=given, return_elements=wanted, name=""
            )
            results = [
                _of_plain_type(tensor, self.tensor(name).shape)
                for tensor, name in zip(imported, wanted, strict=True)
            ]
            if stamped:
                return [start, _ended(results, on_card), *results]
            # A call without outputs could not be waited for.
            return results or [tf.constant(0)]

        known = [self.tensor(name) for name in inputs]
        specs = [tf.TensorSpec(t.shape, t.dtype, name=f"{INPUT}_{i}") for i, t in enumerate(known)]
        with tf.init_scope():
            function = concrete(part, *specs)
        return Subgraph(function, tuple(inputs), tuple(wanted), stamped)

    def _extract(self, members: set[str]) -> Any:
        part = tf.compat.v1.GraphDef(versions=self._definition.versions, library=self._definition.library)
        for name in self._order(members):
            node = part.node.add()
            node.CopyFrom(self.nodes[name])
            # A control input from another part goes: whoever cuts runs the parts in order.
            node.input[:] = [i for i in node.input if not i.startswith("^") or i[1:] in members]
            # So does the wish to sit beside a node that is elsewhere; that is always a variable's handle,
            # and ops on a variable sit beside it anyway.
            beside = node.attr["_class"].list.s
            beside[:] = [group for group in beside if group.decode().removeprefix("loc:@") in members]
            if not beside:
                del node.attr["_class"]
        return part

    def _order(self, names: set[str]) -> list[str]:
        return [name for name in self.nodes if name in names]

    def tensor(self, name: str) -> Any:
        """A tensor of the trace."""
        return self._graph.get_tensor_by_name(name)


def _of_plain_type(tensor: Any, shape: Any) -> Any:
    """Whole numbers, without the type of a shape: with it, TensorFlow 2.21 does not run a part eagerly.

    The shape is that of the trace: a part does not know that of a variable that it is given, and to be called
    with `EnsureShape` of an unknown shape in it TensorFlow 2.21 refuses.
    """
    if tensor.dtype != tf.int32:
        return tensor
    return tensor + 0 if shape.rank is None else tf.ensure_shape(tensor, shape)


def _started(tensors: tuple[Any, ...], on_card: bool) -> tuple[Any, tuple[Any, ...]]:
    """The time when all inputs are there, and the inputs, which wait for it; handles are there before."""
    values = [tensor for tensor in tensors if tensor.dtype != tf.resource]
    with tf.control_dependencies(values):
        start = _now(on_card)
    with tf.control_dependencies([start]):
        return start, tuple(t if t.dtype == tf.resource else tf.identity(t) for t in tensors)


def _ended(results: Sequence[Any], on_card: bool) -> Any:
    with tf.control_dependencies(results):
        # A whole number says nothing of a card: TensorFlow keeps some of them in the memory of the host.
        floats = [t for t in results if t.dtype.is_floating]
        if not on_card or not floats:
            return _now(on_card)
        # A card takes its work in order and TensorFlow does not wait for it; a number that is cut out
        # last and comes back to the host says that everything before it is done.
        witness = tf.reshape(floats[0], [-1])[:1]
    with tf.device("/device:CPU:0"):
        arrived = tf.identity(witness)
    with tf.control_dependencies([arrived]):
        return _now(on_card)


def _now(on_card: bool) -> Any:
    """The time, by the clock of the host. Beside a CPU device it is read there, to send nothing."""
    with tf.device("/device:CPU:0" if on_card else ""):
        return tf.timestamp()


def node_of(name: str) -> str:
    """The node of an input: `x`, `x:1` or `^x`."""
    return name.removeprefix("^").partition(":")[0]


def tensor_of(name: str) -> str:
    """The name of an input with the number of the output."""
    return name if ":" in name else f"{name}:0"
