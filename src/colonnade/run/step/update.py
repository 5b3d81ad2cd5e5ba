"""The optimizer's update: traced once over all parameters, and called wherever the variables live.

Applying an optimizer to a part of the variables would count a step and clip the gradient for every
part. So the whole update is one function. Called with other handles it updates copies; and where each
parameter has an owner, the ops that work for it are put on the owner's device.

Some of what an optimizer does needs no gradient: weight decay, an average that overwrites, a constraint.
It must wait all the same until every replica has read the parameter. The control inputs of a call do not
see to that: where the call is on another device than what it waits for, TensorFlow's optimiser loses them
(seen with 2.21). So an update has a gate, an argument for which all of its ops wait.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.step.rows_made_dense import CutUpdate, cut_update
from colonnade.run.step.xla import compiled, worth_compiling
from colonnade.run.trace.captures import READS, ancestors, captures, descendants
from colonnade.run.trace.concrete import concrete
from colonnade.run.trace.keras_owner import keras_variables
from colonnade.run.trace.raw_call import raw_call

GATE = tf.TensorSpec([], tf.int32)
# Of what is compiled: whole numbers of 32 bits are in the memory of the host, also for a card.
SMOOTH_GATE = tf.TensorSpec([], tf.float32)
# Optimizers that assign to their variables when these are made; older Keras has none.
ASSIGNING = tuple(filter(None, [getattr(keras.optimizers, "ScheduleFreeAdamW", None)]))


class Update:
    """What an optimizer does, as a function of the gradients and of the handles of all variables it touches.

    Args:
        optimizer: a Keras optimizer that is built.
        parameters: what it trains.
        specs: for each parameter the spec of its gradient, or None where there is none.
        unused: what it was built for besides, and the loss does not use.
    """

    def __init__(
        self,
        optimizer: Any,
        parameters: Sequence[tf.Variable],
        specs: Sequence[Any],
        unused: Sequence[Any] = (),
    ) -> None:
        present = [i for i, spec in enumerate(specs) if spec is not None]
        packed = [specs[i] for i in present]
        absent = [None] * len(unused)
        trained = [*as_keras(parameters), *unused]

        def apply(gate: Any, *components: Any) -> Any:
            given = iter(tf.nest.pack_sequence_as(packed, components, expand_composites=True))
            with tf.control_dependencies([gate]):
                gradients = [None if spec is None else next(given) for spec in specs]
                apply_to(optimizer, [*gradients, *absent], trained)
                return tf.constant(0)

        self._parameters = list(parameters)
        self._specs = tf.nest.flatten(packed, expand_composites=True)
        self._tables = _shapes_of_tables(packed, [parameters[i].shape for i in present])
        with tf.init_scope():
            self.concrete = _traced(apply, [GATE, *self._specs], optimizer)
        self.captures = captures(self.concrete)
        self._sums: dict[int, Any] = {}  # compiled, by the number of replicas
        self.owner_of_node: dict[str, int] = {}  # of those that work for one parameter, once they are placed

    def call(self, gradients: Sequence[Any], handles: Sequence[Any], function: Any = None) -> Any:
        """Apply the gradients, given as plain tensors, to the variables of these handles.

        Nothing is read or written before the gradients are there, and what else the caller waits for
        (`tf.control_dependencies`). `function` is `concrete`, or what `placed` made of it.
        """
        with tf.control_dependencies(gradients):
            gate = tf.constant(0)
        args = [gate, *gradients, *handles]
        return raw_call(function or self.concrete, args, [tf.int32])[0]

    @cached_property
    def sums(self) -> bool:
        """Whether `at_once` may be called with the gradients of all replicas, and is worth it."""
        return worth_compiling(self.concrete, self.captures)

    @property
    def compiles(self) -> bool:
        """Whether `at_once` may be called with one gradient, and is worth it."""
        return self.sums or self._cut is not None

    @cached_property
    def _cut(self) -> CutUpdate | None:
        """The update of sparse gradients in two, of which the second is worth compiling."""
        if not self._tables:
            return None
        with tf.init_scope():
            cut = cut_update(self.concrete, len(self._specs), self._tables)
        return cut if cut is not None and worth_compiling(cut.after, self.captures) else None

    def at_once(
        self, rows: Sequence[Sequence[Any]], handles: Sequence[Any], device: str, copy: int = 0
    ) -> Any:
        """Add up the gradients of replicas, given as plain tensors, and apply the sum: compiled.

        `device` is where all the variables are, which are copy so and so. Nothing is read or written before
        what the caller waits for, on whichever device that is.
        """
        if not self.sums:
            assert self._cut is not None
            assert len(rows) == 1
            return self._after_rows(self._cut, rows[0], handles, device, copy)
        num_replicas, each = len(rows), len(self._specs)
        if num_replicas not in self._sums:

            def summed(gate: Any, *args: Any) -> Any:
                own = [args[i * each : (i + 1) * each] for i in range(num_replicas)]
                totals = [functools.reduce(operator.add, column) for column in zip(*own, strict=True)]
                with tf.control_dependencies([gate]):
                    return self.call(totals, args[num_replicas * each :])

            handed = [tf.TensorSpec(handle.shape, handle.dtype) for handle in self._handles()]
            self._sums[num_replicas] = compiled(summed, SMOOTH_GATE, *self._specs * num_replicas, *handed)
        sent = sum(num_bytes(tensor) for row in rows[1:] for tensor in row)
        # By its name a profile knows it, and what it was sent.
        with tf.device(device), tf.name_scope(f"update_{copy}_sums_{sent}"):
            return self._sums[num_replicas](tf.constant(0.0), *chain(*rows), *handles)

    def _after_rows(
        self, cut: CutUpdate, gradients: Sequence[Any], handles: Sequence[Any], device: str, copy: int
    ) -> Any:
        if not self._sums:

            def rest(gate: Any, *args: Any) -> Any:
                with tf.control_dependencies([gate]):
                    waited = tf.constant(0)
                return cut.after(waited, *args)

            _, *specs = (tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in cut.after.inputs)
            self._sums[1] = compiled(rest, SMOOTH_GATE, *specs)
        with tf.device(device), tf.name_scope(f"update_{copy}"):
            return self._sums[1](tf.constant(0.0), *cut.before(*gradients), *handles)

    def bound(self, variables: Mapping[Any, Any]) -> list[Any]:
        """The handles for a call, with those of other variables by the `ref()` of the captured ones."""
        return [
            variables[capture.variable.ref()] if capture.variable is not None else capture.tensor
            for capture in self.captures
        ]

    def owners(self, places: Sequence[int]) -> dict[Any, int]:
        """The device of each variable, by its ref: parameters as given, slots with them.

        What serves several parameters, such as the learning rate, is device 0's.
        """
        owners = dict(zip([p.ref() for p in self._parameters], places, strict=True))
        served = self._served()
        for tensor, capture in zip(self._handles(), self.captures, strict=True):
            if capture.variable is not None and capture.variable.ref() not in owners:
                together = served.get(tensor.op.name, set())
                owners[capture.variable.ref()] = owners[next(iter(together))] if len(together) == 1 else 0
        return owners

    def without_gradient(self) -> set[Any]:
        """The refs of variables that are written, and from no gradient, such as a count of steps."""
        made = descendants(*(tensor.op for tensor in self.concrete.inputs[1 : 1 + len(self._specs)]))
        return {
            capture.variable.ref()
            for tensor, capture in zip(self._handles(), self.captures, strict=True)
            if capture.variable is not None and capture.written and _writers(tensor).isdisjoint(made)
        }

    def place(self, owners: Mapping[Any, int], devices: Sequence[str]) -> None:
        """Put every op that works for one parameter alone on the device of its owner."""
        # TensorFlow forgets the branches of a function, which the placed one has too, when it is freed.
        self._unplaced = self.concrete
        self.concrete = self.placed(owners, devices)

    def placed(self, owners: Mapping[Any, int], devices: Sequence[str]) -> Any:
        """The update with every op that works for one parameter alone on the device of its owner."""
        graph = self.concrete.graph.as_graph_def()
        served = self._served()
        for node in graph.node:
            together = served.get(node.name, set())
            if len(together) == 1 and node.op != "Placeholder":
                self.owner_of_node[node.name] = owners[next(iter(together))]
                node.device = devices[self.owner_of_node[node.name]]
        inputs = [tensor.op.name for tensor in self.concrete.inputs]
        output = self.concrete.outputs[0].name

        def placed(*args: Any) -> Any:
            mapped = {f"{name}:0": arg for name, arg in zip(inputs, args, strict=True)}
            mapped[f"^{inputs[0]}"] = args[0]  # the gate
            return tf.graph_util.import_graph_def(graph, input_map=mapped, return_elements=[output], name="")[
                0
            ]

        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in self.concrete.inputs]
        with tf.init_scope():
            return concrete(placed, *specs)

    def follow(self) -> None:
        """Put the work for each parameter where the parameter lives, if they live on several devices."""
        devices = list(dict.fromkeys(p.device for p in self._parameters))
        if len(devices) > 1:
            self.place({p.ref(): devices.index(p.device) for p in self._parameters}, devices)

    def _handles(self) -> list[Any]:
        return self.concrete.inputs[len(self.concrete.inputs) - len(self.captures) :]

    def _served(self) -> dict[str, set[Any]]:
        """By the name of an op: the parameters for which it works.

        An op works for a parameter if its result goes into what is written to the parameter, or if
        it comes from the parameter and goes into what is written to a slot.
        """
        served: dict[str, set[Any]] = {}
        writes = {}
        for tensor, capture in zip(self._handles(), self.captures, strict=True):
            if capture.variable is not None:
                writes[tensor.op.name] = [op for op in tensor.consumers() if "Read" not in op.type]
        names = {t.op.name: c.variable for t, c in zip(self._handles(), self.captures, strict=True)}
        parameters = {p.ref() for p in self._parameters}
        for handle, ops in writes.items():
            above = {op.name for write in ops for op in ancestors(write)}
            touched = {names[n].ref() for n in above if names.get(n) is not None} & parameters
            if names[handle].ref() in parameters:
                touched = {names[handle].ref()}
            for name in above | {op.name for op in ops} | {handle}:
                served.setdefault(name, set()).update(touched)
        return served


def _writers(handle: Any) -> set[str]:
    """The names of ops that may write to the variable of a handle."""
    return {op.name for op in handle.consumers() if op.type not in READS}


def _shapes_of_tables(specs: Sequence[Any], shapes: Sequence[tf.TensorShape]) -> dict[int, list[int]]:
    """By the number of a component of gradients, where it tells the shape of a table: that shape."""
    known, at = {}, 0
    for spec, shape in zip(specs, shapes, strict=True):
        parts = tf.nest.flatten(spec, expand_composites=True)
        at += len(parts)
        if isinstance(spec, tf.IndexedSlicesSpec) and len(parts) == 3 and shape.is_fully_defined():
            known[at - 1] = shape.as_list()
    return known


def apply_to(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
    """Hand gradients over as Keras's own step does: an optimizer may have an `apply_gradients` of its own.

    None is left out where a variable has no gradient; what has several optimizers in it counts what it gets.
    """
    counts = any(hasattr(one, "optimizers") for one in inside(optimizer))
    pairs = [(g, v) for g, v in zip(gradients, variables, strict=True) if g is not None or counts]
    given, variables = as_divided([g for g, _ in pairs], optimizer), [v for _, v in pairs]
    own = getattr(optimizer.apply_gradients, "__func__", None)
    if own is keras.optimizers.Optimizer.apply_gradients or not given:
        optimizer.apply(given, variables)
    else:
        optimizer.apply_gradients(zip(given, variables, strict=True))


def as_divided(gradients: Sequence[Any], optimizer: Any) -> list[Any]:
    """Dense gradients, where the optimizer divides them by a factor: Keras cannot divide a sparse one."""
    if all(one.loss_scale_factor is None for one in inside(optimizer)):
        return list(gradients)
    return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


def inside(optimizer: Any) -> list[Any]:
    """An optimizer and those that it hands gradients on to."""
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [optimizer, *(deeper for one in inner if one is not None for deeper in inside(one))]


def build(optimizer: Any, variables: Sequence[Any]) -> None:
    """Make the variables of an optimizer, as Keras does at its first step.

    Keras makes them in a trace of which TensorFlow keeps initial values, and makes no assignment (Keras
    3.15). So what this one assigns to its momenta is not there in a training of Keras, nor is it here.
    """
    if not any(isinstance(one, ASSIGNING) for one in inside(optimizer)):
        optimizer.build(variables)
        return
    concrete(lambda: None if optimizer.built else optimizer.build(variables))


def as_keras(variables: Sequence[tf.Variable]) -> list[Any]:
    """Each with the Keras variable around it, if there is one: that knows its constraint and its path."""
    owners = keras_variables(variables)
    return [v if owner is None else owner for v, owner in zip(variables, owners, strict=True)]


def _traced(apply: Any, specs: Sequence[Any], optimizer: Any) -> Any:
    try:
        return concrete(apply, *specs)
    except ValueError as error:
        if "Unknown variable" not in str(error):
            raise
        rule, fix = "is built for other variables than the loss trains", "Make a new optimizer for this loss"
        raise InvalidArgument("Trainer()", [Problem("optimizer", optimizer.name, rule, fix)]) from None
