"""Sees that machines train the same: the same model on batches of the same kind, from the same values."""

import base64
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.traces import Traces
from colonnade.run.machines.graph_digest import GraphDigest
from colonnade.run.machines.peers import Peers
from colonnade.run.machines.same_batch import kind_of
from colonnade.run.sync.over_machines import other_batch
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import METRICS, REPLICAS, SavedState, named

SEED = "Set the same values on every machine: seed with keras.utils.set_random_seed after cn.setup()"
SPOILT = "A machine computed something else, or was told to: look into that, and go on from the last save"
SHOWN = 3  # of the variables that differ
STEP = "the first step on such a batch"
OPAQUE = (tf.resource, tf.variant)  # what has no value that could be read
LOOKUP = "LookupTableFindV2"


def same_training(
    peers: Peers, batch: Arguments, counts: Sequence[int], traces: Traces, *, alike: bool
) -> None:
    """Raise, on every machine, if one of them trains something else.

    Args:
        peers: the machines.
        batch: one of this machine's.
        counts: the sizes of its slices.
        traces: what this machine has traced.
        alike: whether all machines trace the same slices. If each has traced its own, sizes are not compared.
    """
    parameters = traces.parameters
    shapes = [f"{p.name}{tuple(p.shape)}{p.dtype.name}" for p in parameters]
    optimizer = traces.optimizer
    known = {p.ref(): f"parameter {i}" for i, p in enumerate(parameters)}
    known |= {slot.ref(): f"slot {i}" for i, slot in enumerate(traces.slots)}
    compared = traces.objectives if alike else traces.objectives[:1]
    facts = {
        "model": f"{len(parameters)} variables, {sum(p.shape.num_elements() for p in parameters)} numbers, "
        f"{_short(shapes)}",
        "optimizer": f"{type(optimizer).__name__}, {len(traces.slots)} variables",
        "batch": str([f"{leaf.path}{_dims(leaf.value, peers)}" for leaf in batch.tensors]),
        "slices": "of its own" if peers.sharded else str(tuple(counts)),
        "graph": f"ops {_short(_ops(compared, known, sizes=alike))}",
        "update": f"ops {_short(_ops([traces.update(traces.specs)], known))}",
    }
    peers.agree(STEP, facts)


def _dims(tensor: Any, peers: Peers) -> tuple[int | None, ...]:
    """Of a tensor of a batch; with data of their own machines have batches of other sizes."""
    dims = tuple(tensor.shape)
    return (None, *dims[1:]) if peers.sharded and dims else dims


def _ops(traces: Sequence[Traced | Any], known: Mapping[Any, str], *, sizes: bool = True) -> list[str]:
    """A digest of each op, with what it is told and what it is computed from."""
    digests = []
    for traced in traces:
        graph = traced.concrete.graph.as_graph_def()
        labels = _labels(traced.concrete, known, _kinds_of_tables(graph))
        digests += GraphDigest(graph, labels, sizes=sizes).ops
    return sorted(digests)


def _labels(
    concrete: Any, known: Mapping[Any, str], tables: Iterable[tuple[tf.DType, tf.DType]]
) -> dict[str, str]:
    """What the inputs of a traced function are, by name.

    Args:
        concrete: the function.
        known: by their refs, what variables are.
        tables: of what those that it looks into are keys and values.
    """
    of_variables = {
        id(variable.handle): known.get(variable.ref()) or _described(variable)
        for variable in concrete.graph.variables
    }
    tensors = concrete.captured_inputs
    given = len(concrete.inputs) - len(tensors)
    labels = {tensor.op.name: f"argument {i}" for i, tensor in enumerate(concrete.inputs[:given])}
    for tensor, placeholder in zip(tensors, concrete.inputs[given:], strict=True):
        labels[placeholder.op.name] = of_variables.get(id(tensor)) or _value(tensor, tables)
    return labels


def _described(variable: Any) -> str:
    """Of a variable that is neither trained nor the optimizer's; Keras counts names up, on each machine."""
    return f"{re.sub(r'_[0-9]+', '', variable.name)}{tuple(variable.shape)}{variable.dtype.name}"


def _value(tensor: Any, tables: Iterable[tuple[tf.DType, tf.DType]]) -> str:
    """Of a tensor that the function has from around it."""
    kind = f"a tensor {tensor.dtype.name}{tensor.shape}"
    if not hasattr(tensor, "numpy"):
        return kind
    if tensor.dtype in OPAQUE:
        rows = next((rows for pair in tables if (rows := _rows_of_table(tensor, *pair)) is not None), None)
        return kind if rows is None else f"a table {_short(rows)}"
    return f"{kind} {zlib.crc32(_bytes(tensor))}"


def _kinds_of_tables(graph: Any) -> set[tuple[tf.DType, tf.DType]]:
    """Of what the tables that a graph looks into are keys and values, as those of `StringLookup` are."""
    bodies = [graph.node, *(function.node_def for function in graph.library.function)]
    looks = [node for body in bodies for node in body if node.op == LOOKUP]
    return {tuple(tf.as_dtype(node.attr[name].type) for name in ("Tin", "Tout")) for node in looks}


def _rows_of_table(handle: Any, keys: tf.DType, values: tf.DType) -> list[tuple[Any, Any]] | None:
    """What is in a table; None if this is none of such keys and values."""
    try:
        # To ask for the contents of another kind of table ends the process; to look into it is an error.
        tf.raw_ops.LookupTableFindV2(
            table_handle=handle, keys=tf.zeros([0], keys), default_value=tf.zeros([], values)
        )
        pairs = tf.raw_ops.LookupTableExportV2(table_handle=handle, Tkeys=keys, Tvalues=values)
    except tf.errors.OpError:
        return None
    return sorted(zip(*(part.numpy().tolist() for part in pairs), strict=True))


def _bytes(value: Any) -> bytes:
    """What a value is, bit for bit; of words an array has but the places in memory."""
    array = value.numpy()
    if value.dtype == tf.string:
        return repr(array.tolist() if isinstance(array, np.ndarray) else array).encode()
    return bytes(np.asarray(array).tobytes())


def unequal_batches(names: Sequence[str], every: Sequence[Sequence[int]]) -> Iterator[Problem]:
    """What is wrong where machines read the same data, and do not have the same batch before them.

    Args:
        names: of the machines.
        every: of each its rows, its kind (0 where the data are at their end), and more that tells it apart.
    """
    if all(list(one) == list(every[0]) for one in every):
        return
    ended = [name for name, (_, kind, *_) in zip(names, every, strict=True) if not kind]
    if ended:
        others = ", ".join(name for name in names if name not in ended)
        rule = f"{', '.join(ended)} has come to the end of its data, and {others} trains on"
        yield Problem("data", "of different lengths", rule, "Read the same data on every machine")
    else:
        yield from other_batch([rows for rows, *_ in every]).problems


def unequal_steps(names: Sequence[str], steps: Sequence[int]) -> Iterator[Problem]:
    """What is wrong where machines that train by themselves did not make the same number of steps."""
    if len(set(steps)) > 1:
        made = ", ".join(f"{name} made {count}" for name, count in zip(names, steps, strict=True))
        rule = f"of the last steps {made}: there the data end, or batches have another size"
        yield Problem("data", "of different lengths", rule, "Read the same data on every machine")


def same_kind(peers: Peers, batch: Arguments, where: str) -> None:
    """Before a step that is made by itself: raise, on every machine, if one has another kind of batch.

    It would make its step in another graph, in which nobody meets it.
    """
    if peers.several and not peers.sharded:
        _same_batch(peers, [batch.size(where) or 0, kind_of(batch.tensors)], where)


def same_end(peers: Peers, where: str) -> None:
    """In place of such a step, at the end of the data: raise, on every machine, if one has another batch."""
    if peers.several and not peers.sharded:
        _same_batch(peers, [0, 0], where)


def _same_batch(peers: Peers, own: Sequence[int], where: str) -> None:
    check(where, unequal_batches(peers.names, peers.exchange(f"a batch of {where}", own)))


def same_values(peers: Peers, housed: Homes, where: str, fix: str = SEED) -> None:
    """Raise, on every machine, if a parameter, slot, state or constant is not bit for bit the same on all."""
    random = {state.original.ref() for state in housed.states.values() if state.random}
    states = [s.original for s in housed.states.values() if s.original.ref() not in random]
    constants = [v for v in housed.constants() if v.dtype not in OPAQUE]  # such as layers that are frozen
    variables = named([*housed.parameters, *housed.slots, *states, *constants])
    compared(peers, {name: housed.current(v).read_value() for name, v in variables.items()}, where, fix)


def compared(peers: Peers, values: dict[str, Any], where: str, fix: str = SEED) -> None:
    """Raise, on every machine, if one of these values is another on some machine: it names both."""
    sums = {name: zlib.crc32(_bytes(value)) for name, value in values.items()}
    everyone = peers.exchange(where, sums)
    problems = []
    for name in sums:
        here = [one.get(name) for one in everyone]
        most = max(dict.fromkeys(here), key=here.count)
        who = ", ".join(n for n, value in zip(peers.names, here, strict=True) if value != most)
        if who:
            rule = f"has other values on {who} than on the other machines"
            problems.append(Problem("variable", name, rule, fix))
    if len(problems) > SHOWN:
        more = Problem("variables", f"{len(problems) - SHOWN} more", "differ too", fix)
        problems = [*problems[:SHOWN], more]
    if problems:
        raise InvalidArgument(where, problems)


def one_of_all(peers: Peers, state: SavedState, where: str) -> None:
    """Before a save: see that what is saved once is the same on all machines.

    But for the metrics of Keras, which each machine computes by itself: those of the first one count.
    """
    skipped = {f"states/{name}" for name in state.random}
    values = {
        name: item.current.read_value()
        for name, item in state.common.items()
        if name not in skipped and not name.startswith(METRICS)
    }
    compared(peers, values, where, SPOILT)


def replicas_of_all(peers: Peers, state: SavedState) -> dict[str, Any]:
    """What replicas have of their own, of all machines, by the names of the tensors in a checkpoint."""
    own = {name: [_text(copy.read_value()) for copy in copies] for name, copies in state.own.items()}
    every = peers.exchange("what replicas have of their own", own)
    return {
        f"{REPLICAS}{i}/{name}": tf.io.parse_tensor(base64.b64decode(text), state.own[name][0].dtype)
        for name in own
        for i, text in enumerate(chain(*(machine[name] for machine in every)))
    }


def _text(value: Any) -> str:
    return base64.b64encode(tf.io.serialize_tensor(value).numpy()).decode()


def _short(facts: Any) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
