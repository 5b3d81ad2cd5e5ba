"""Sees that machines train the same: the same model on batches of the same kind, from the same values."""

import base64
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.traces import Traces
from colonnade.run.machines.peers import Peers
from colonnade.run.machines.same_batch import kind_of
from colonnade.run.sync.over_machines import other_batch
from colonnade.run.trace.ops import nodes
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import METRICS, REPLICAS, SavedState, named

SEED = "Set the same values on every machine: seed with keras.utils.set_random_seed after cn.setup()"
SPOILT = "A machine computed something else, or was told to: look into that, and go on from the last save"
SHOWN = 3  # of the variables that differ
STEP = "the first step on such a batch"
# What ops are told that says where something is, or how it is called, and not what is computed. A seed of
# tf.random belongs to a replica, and so does the beginning of what tf.print prints.
NAMES = ("shared_name", "container", "message", "token", "template", "seed", "seed2")


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
    facts = {
        "model": f"{len(parameters)} variables, {sum(p.shape.num_elements() for p in parameters)} numbers, "
        f"{_short(shapes)}",
        "optimizer": f"{type(optimizer).__name__}, {len(traces.slots)} variables",
        "batch": str([f"{leaf.path}{_dims(leaf.value, peers)}" for leaf in batch.tensors]),
        "slices": "of its own" if peers.sharded else str(tuple(counts)),
        "graph": f"ops {_short(_ops(traces.objectives) if alike else _kinds(traces.objectives[0]))}",
        "update": f"ops {_short(_ops([traces.update(traces.specs)]))}",
    }
    peers.agree(STEP, facts)


def _dims(tensor: Any, peers: Peers) -> tuple[int | None, ...]:
    """Of a tensor of a batch; with data of their own machines have batches of other sizes."""
    dims = tuple(tensor.shape)
    return (None, *dims[1:]) if peers.sharded and dims else dims


def _ops(traces: Sequence[Traced | Any]) -> list[str]:
    """A digest of each op, with what it is told. Names and their order may differ from process to process."""
    graphs = [traced.concrete.graph.as_graph_def() for traced in traces]
    return sorted(_digest(node) for graph in graphs for node in nodes(graph))


def _digest(node: Any) -> str:
    digest = hashlib.sha256(node.op.encode())
    for name in sorted(node.attr):
        value = node.attr[name]
        if name.startswith("_") or name in NAMES or value.WhichOneof("value") == "func" or value.list.func:
            continue
        if name == "value" and node.attr["dtype"].type == tf.string.as_datatype_enum:
            continue  # words, with names in them
        digest.update(name.encode() + value.SerializeToString(deterministic=True))
    return digest.hexdigest()


def _kinds(traced: Traced | Any) -> list[tuple[str, int]]:
    """How many ops of each kind there are, whatever the sizes of what they are given."""
    ops = nodes(traced.concrete.graph.as_graph_def())
    return sorted(Counter(f"{node.op} {node.attr['T'].type}" for node in ops).items())


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
    """Raise, on every machine, if parameters, slots or states are not bit for bit the same on all."""
    random = {state.original.ref() for state in housed.states.values() if state.random}
    states = [s.original for s in housed.states.values() if s.original.ref() not in random]
    variables = named([*housed.parameters, *housed.slots, *states])
    compared(peers, {name: housed.current(v).read_value() for name, v in variables.items()}, where, fix)


def compared(peers: Peers, values: dict[str, Any], where: str, fix: str = SEED) -> None:
    """Raise, on every machine, if one of these values is another on some machine: it names both."""
    sums = {name: zlib.crc32(value.numpy().tobytes()) for name, value in values.items()}
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
