"""A synchronous step on several machines: what each computed, made what one machine with all devices has.

All that is dense travels in one message for each dtype: gradients, loss, metrics, weights, what must be
finite, and states such as moving averages. What belongs to one slice is a row of a table in which the other
machines have zeros. Sparse gradients follow, row by row.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.batch.split import Arguments, flatten, is_tensor, pack
from colonnade.run.machines.collective import can_travel
from colonnade.run.machines.peers import Peers
from colonnade.run.machines.same_batch import digest
from colonnade.run.step.gradient_rows import DENSE, SAME
from colonnade.run.step.gradient_sums import Recipe, Totals
from colonnade.run.step.objective import Objective, Share
from colonnade.run.sync.slice_sums import SliceSums
from colonnade.run.variables.aggregation import ReplicatedState, rule_of, weighed, weights_of, wide
from colonnade.run.variables.parts import home_of

# Begins the message of the assertion that all machines have the same batch.
OTHER_BATCH = "colonnade: the machines have different batches before them"


def idle_share(traced: Objective) -> Share:
    """What a machine adds that has no slice of a batch: nothing. `traced` is that of another slice."""
    share = traced.structure
    gradients = [nothing_of(g, p) for g, p in zip(share.gradients, traced.parameters, strict=True)]
    sizes = [None if one is None else [0] * len(one) for one in share.sizes]
    weight = None if share.weight is None else tf.zeros([], share.weight.dtype)
    metrics = {name: tf.zeros([], value.dtype) for name, value in share.metrics.items()}
    health = tf.zeros(share.health.shape, share.health.dtype)
    return Share(tf.zeros([], share.loss.dtype), weight, metrics, None, gradients, health, sizes=sizes)


def nothing_of(gradient: Any, parameter: tf.Variable) -> Any:
    """A gradient of the same kind that adds nothing."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return tf.IndexedSlices(
            tf.zeros([0, *parameter.shape[1:]], gradient.dtype),
            tf.zeros([0], gradient.indices.dtype),
            None if shape is None else tf.constant(parameter.shape.as_list(), shape.dtype),
        )
    return tf.zeros(parameter.shape, gradient.dtype)


def filled(totals: Totals, traces: Sequence[Objective], how: Sequence[Recipe]) -> Totals:
    """The sums of this machine, with nothing where only slices of others have a gradient."""
    kinds: list[Any] = []
    for i, parameter in enumerate(traces[0].parameters):
        some = next((t.structure.gradients[i] for t in traces if t.structure.gradients[i] is not None), None)
        if some is not None and how[i] == DENSE:
            kinds.append(tf.zeros(parameter.shape, some.dtype))
        else:
            kinds.append(nothing_of(some, parameter))
    pieces = [len(recipe) if isinstance(recipe, tuple) else 1 for recipe in how]
    return [
        [
            kind if total is None and k < n else total
            for total, kind, n in zip(layer, kinds, pieces, strict=True)
        ]
        for k, layer in enumerate(totals)
    ]


def over_machines(
    peers: Peers,
    batch: Arguments,
    sums: SliceSums,
    totals: Totals,
    states: Sequence[ReplicatedState],
    counts: Sequence[int],
) -> tuple[SliceSums, Totals, dict[Any, Any]]:
    """The sums over all machines, and by the ref of its variable the one value of each state.

    Args:
        peers: the machines.
        batch: the batch, which all of them have whole.
        sums, totals: what the slices of this machine add up to.
        states: what replicas have changed, after they have.
        counts: the sizes of all slices.
    """
    if peers.sharded:
        return _of_own_data(peers, sums, totals, states, counts)
    names = list(sums.metrics)
    dense = [t for layer in totals for t in layer if isinstance(t, tf.Tensor)]
    weight = [] if sums.weight is None else [sums.weight]
    seen = peers.row(tf.cast(digest(batch.components()), sums.loss.dtype))
    tables = [peers.placed(sums.replicas, len(counts)), peers.placed(sums.health, len(counts))]
    own = [_part(state, peers, counts) for state in states]
    added = iter(peers.sum([seen, sums.loss, *sums.metrics.values(), *weight, *tables, *dense, *own]))
    same = _all_the_same(next(added))
    with tf.control_dependencies([same]):
        loss = tf.identity(next(added))
    metrics = {name: next(added) for name in names}
    total_weight = next(added) if weight else None
    replicas, health = next(added), next(added)
    dense = [next(added) for _ in dense]
    values = {state.original.ref(): _value(state, next(added), len(counts)) for state in states}
    whole = _with_rows_of_all(peers, totals, dense)
    return SliceSums(loss, metrics, total_weight, replicas, health), whole, values


def _of_own_data(
    peers: Peers,
    sums: SliceSums,
    totals: Totals,
    states: Sequence[ReplicatedState],
    counts: Sequence[int],
) -> tuple[SliceSums, Totals, dict[Any, Any]]:
    """The same where each machine has rows of its own: how many there are in all is a sum too.

    Nothing is divided by the number of examples yet, so that number is the weight, if there is no other.
    """
    dense = [t for layer in totals for t in layer if isinstance(t, tf.Tensor)]
    weight = tf.constant(sum(counts), sums.loss.dtype) if sums.weight is None else sums.weight
    working = tf.constant(len(counts), sums.loss.dtype)
    tables = [peers.placed(sums.replicas, peers.total), peers.placed(sums.health, peers.total)]
    own = [_part(state, peers, counts) for state in states]
    numbers = [sums.loss, *sums.metrics.values(), weight, working, *tables]
    added = iter(peers.sum([*numbers, *dense, *own]))
    loss, metrics = next(added), {name: next(added) for name in sums.metrics}
    weight, working, replicas, health = (next(added) for _ in range(4))
    dense = [next(added) for _ in dense]
    values = {state.original.ref(): _value(state, next(added), working) for state in states}
    return SliceSums(loss, metrics, weight, replicas, health), _with_rows_of_all(peers, totals, dense), values


def _with_rows_of_all(peers: Peers, totals: Totals, dense: Sequence[Any]) -> Totals:
    """Totals of all machines: what is dense is summed by now, rows are gathered here."""
    sparse = [t for layer in totals for t in layer if isinstance(t, tf.IndexedSlices)]
    both = iter(dense), iter(peers.gathered(sparse))
    return [
        [None if t is None else next(both[isinstance(t, tf.IndexedSlices)]) for t in row] for row in totals
    ]


def outputs_of_all(
    peers: Peers, outputs: Sequence[Any], traces: Sequence[Objective], num_slices: int
) -> list[Any]:
    """What else the function returned for every slice of a batch, those of other machines too."""
    like = [tensor_leaves(traced.structure.outputs) for traced in traces]
    own = [tensor_leaves(one) for one in outputs]
    tables = []
    for place in range(len(like[0])):
        most = max(leaves[place].shape.num_elements() for leaves in like)
        rows = [tf.reshape(leaves[place], [-1]) for leaves in own]
        padded = [tf.pad(row, [[0, most - row.shape[0]]]) for row in rows]
        stacked = tf.stack(padded) if padded else tf.zeros([0, most], like[0][place].dtype)
        tables.append(peers.placed(stacked, num_slices))
    everything = peers.sum(tables) if tables else []
    packed = []
    for i, (traced, leaves) in enumerate(zip(traces, like, strict=True)):
        parts = zip(everything, leaves, strict=True)
        own_rows = iter([tf.reshape(table[i, : n.shape.num_elements()], n.shape) for table, n in parts])
        whole = [next(own_rows) if is_tensor(leaf) else leaf for _, leaf in flatten(traced.structure.outputs)]
        packed.append(pack(traced.structure.outputs, iter(whole)))
    return packed


def tensor_leaves(outputs: Any) -> list[Any]:
    """The tensors among what a function returned."""
    return [leaf for _, leaf in flatten(outputs) if is_tensor(leaf)]


def refused(traces: Sequence[Objective]) -> Iterator[Problem]:
    """What cannot be trained on several machines."""
    for parameter in traces[0].parameters:
        if home_of(parameter) is not None:
            rule = "is of a layer that is split by width, which is for the devices of one machine"
            yield Problem("variable", parameter.name, rule, "Use the whole layer, or train on one machine")
    for variable in traces[0].written:
        if not can_travel(variable.dtype):
            rule = f"is changed by the function, and {variable.dtype.name} cannot be summed over machines"
            yield Problem("variable", variable.name, rule, "Keep it as floats, or train on one machine")
    for traced in traces:
        for leaf in tensor_leaves(traced.structure.outputs):
            dense = isinstance(leaf, tf.Tensor)
            if not (dense and leaf.shape.is_fully_defined() and can_travel(leaf.dtype)):
                rule = "is not a dense tensor of numbers of known shape, so machines cannot exchange it"
                yield Problem("prediction", str(leaf), rule, "Return dense tensors, or train on one machine")
                return


def sizes_told(message: str) -> list[str]:
    """The sizes of batches that the message of the assertion tells."""
    words = re.search(rf"{OTHER_BATCH}\] \[([\d ]+)\]", message)
    return words[1].split() if words else []


def other_batch(sizes: Sequence[Any]) -> InvalidArgument:
    """What to raise if machines do not have the same batch, but some of these sizes."""
    rule = (
        "is not the same on all machines: each must read all of the data in the same order (a list of files "
        "in the order of the disk, a generator of random numbers or a clock may differ)"
    )
    rows = f"batches of {' and '.join(map(str, sizes))} rows" if sizes else "a batch"
    fix = "Sort the files, seed what is random, and read the same files everywhere"
    return InvalidArgument("fit()", [Problem("data", rows, rule, fix)])


def of_own_data(traces: Sequence[Objective], recipes: Sequence[Sequence[Recipe]]) -> Iterator[Problem]:
    """What cannot be trained where each machine brings data of its own."""
    for i, parameter in enumerate(traces[0].parameters):
        used = [recipe[i] for recipe in recipes]
        if any(isinstance(one, tuple) and SAME in one for one in used):
            rule = "is looked up at rows that do not come from the batch, which takes batches that all have"
            yield Problem("variable", parameter.name, rule, 'Use data="whole", or look at all of its rows')
        elif any(one != used[0] for one in used):
            rule = "has a gradient of another kind for batches of another size"
            yield Problem("variable", parameter.name, rule, 'Use data="whole"')
    if tensor_leaves(traces[0].structure.outputs):
        rule = "are metrics of a whole batch, which no machine has"
        yield Problem("outputs", "of the loss", rule, 'Use data="whole"')


def _part(state: ReplicatedState, peers: Peers, counts: Sequence[int]) -> Any:
    """What this machine adds to the one value of a state."""
    working = state.copies[: len(peers.own(counts))]
    if state.base is not None:
        before = state.base.read_value()
        return _added([copy.read_value() - before for copy in state.copies], before)
    if rule_of(state.original) == "mean":
        # With data of its own, no machine knows the sizes of all slices.
        own = peers.own(counts)
        weights = [1.0] * len(own) if peers.sharded else weights_of(own, counts)
        values = [weighed(copy.read_value(), w) for copy, w in zip(working, weights, strict=True)]
        return _added(values, wide(state.original.read_value()))
    first = state.copies[0].read_value()
    return first if peers.is_first else tf.zeros_like(first)


def _added(values: Sequence[Any], like: Any) -> Any:
    return tf.add_n(values) if values else tf.zeros_like(like)


def _value(state: ReplicatedState, total: Any, num_slices: Any) -> Any:
    """The one value of a state, from the sum of what the machines add to it."""
    if state.base is not None:
        return state.base.read_value() + total
    if rule_of(state.original) != "mean":
        return total
    return tf.cast(total / tf.cast(num_slices, total.dtype), state.original.dtype)


def _all_the_same(seen: Any) -> Any:
    """An assertion that all rows of the table are equal."""
    equal = tf.reduce_all(seen == seen[:1])
    return tf.debugging.Assert(equal, [OTHER_BATCH, tf.cast(seen[:, 0], tf.int32)], summarize=-1)
