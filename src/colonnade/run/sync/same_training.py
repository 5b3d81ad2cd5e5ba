"""Sees that machines train the same: the same model on batches of the same kind, from the same values."""

import base64
import hashlib
import zlib
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.traces import Traces
from colonnade.run.machines.peers import Peers
from colonnade.run.trace.captures import nodes
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import REPLICAS, SavedState, named

SEED = "Set the same values on every machine: seed with keras.utils.set_random_seed after cn.setup()"
SPOILT = "A machine computed something else, or was told to: look into that, and go on from the last save"
SHOWN = 3  # of the variables that differ
STEP = "the first step on such a batch"


def same_training(peers: Peers, batch: Arguments, counts: Sequence[int], traces: Traces) -> None:
    """Raise, on every machine, if one of them trains something else."""
    parameters = traces.parameters
    shapes = [f"{p.name}{tuple(p.shape)}{p.dtype.name}" for p in parameters]
    optimizer = traces.optimizer
    facts = {
        "model": f"{len(parameters)} variables, {sum(p.shape.num_elements() for p in parameters)} numbers, "
        f"{_short(shapes)}",
        "optimizer": f"{type(optimizer).__name__}, {len(traces.slots)} variables",
        "batch": str([f"{leaf.path}{_dims(leaf.value, peers)}" for leaf in batch.tensors]),
        "slices": "of its own" if peers.sharded else str(tuple(counts)),
        "graph": f"ops {_short(sorted(_ops(traces.objectives).items()))}",
        "update": f"ops {_short(sorted(_ops([traces.update(traces.specs)]).items()))}",
    }
    peers.agree(STEP, facts)


def _dims(tensor: Any, peers: Peers) -> tuple[int | None, ...]:
    """Of a tensor of a batch; with data of their own machines have batches of other sizes."""
    dims = tuple(tensor.shape)
    return (None, *dims[1:]) if peers.sharded and dims else dims


def _ops(traces: Sequence[Traced | Any]) -> Counter[str]:
    """How many ops of each kind there are. Names and their order may differ from process to process."""
    kinds: Counter[str] = Counter()
    for traced in traces:
        kinds.update(f"{n.op} {n.attr['T'].type}" for n in nodes(traced.concrete.graph.as_graph_def()))
    return kinds


def same_values(peers: Peers, housed: Homes, where: str) -> None:
    """Raise, on every machine, if parameters, slots or states are not bit for bit the same on all."""
    random = {state.original.ref() for state in housed.states.values() if state.random}
    states = [s.original for s in housed.states.values() if s.original.ref() not in random]
    variables = named([*housed.parameters, *housed.slots, *states])
    compared(peers, {name: housed.current(v).read_value() for name, v in variables.items()}, where)


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
    """Before a save: see that what is saved once is the same on all machines."""
    skipped = {f"states/{name}" for name in state.random}
    values = {name: item.current.read_value() for name, item in state.common.items() if name not in skipped}
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
