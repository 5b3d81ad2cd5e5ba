"""Simulates the reduction over replicas: which message leaves when, what of it the backward pass hides.

Gradients come up from the last layer to the first and are joined into messages. Where the software
overlaps, a message leaves as soon as its gradients are there; else all leave at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from colonnade.describe.layer_cost import LayerCost
from colonnade.describe.plan import Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.runtime import Runtime
from colonnade.reason.simulator.stages import Ran
from colonnade.reason.transfers import cost
from colonnade.reason.transfers.along import Hop, reduced
from colonnade.reason.transfers.reduction import reduction
from colonnade.reason.transfers.sharded import LayerGroup, exposed, gathers

# More messages than this are joined: they would not change the result by much, and take long to simulate.
MOST_MESSAGES = 128


@dataclass(frozen=True)
class Reduction:
    """What the reduction adds to a step."""

    exposed: float = 0.0  # seconds that nothing hides
    waited: float = 0.0  # seconds until the slowest replica is there
    moved: int = 0
    busiest: int = 0
    hops: list[Hop] = field(default_factory=list)


@dataclass(frozen=True)
class Messages:
    """Of one stage: bytes, and when each is ready, as a part of the last backward pass."""

    sizes: np.ndarray
    ready: np.ndarray  # from 0, where the backward pass begins, to 1, where it ends
    rows: float = 0.0  # bytes of sparse gradients, which are gathered row by row and not added up


def messages(
    workload: Workload, layers: Sequence[LayerCost], rows: float, width: int, bucket: int, wire: float
) -> Messages:
    """Gradients in the order in which they come up, joined into messages of about `bucket` bytes.

    A layer that is ready when a part of the backward pass is over is taken to be so by the FLOPs, or the
    times, of the layers behind it.
    """
    weights = [_weight(layer) for layer in layers]
    total = sum(weights) or 1.0
    sizes: list[float] = []
    ready: list[float] = []
    done, filled, at, gathered = 0.0, 0.0, 0.0, 0.0
    for layer, weight in zip(reversed(layers), reversed(weights), strict=True):
        done += weight
        split = width if layer.exchanged else 1
        left = workload.dense_gradient(layer) * wire / split
        gathered += workload.sparse_gradient(layer, round(rows)) * wire / split
        if bucket and filled and filled + left > bucket:
            sizes.append(filled)
            ready.append(at)
            filled = 0.0
        at = done / total
        filled += left
        if not bucket and filled:
            sizes.append(filled)
            ready.append(at)
            filled = 0.0
    if filled:
        sizes.append(filled)
        ready.append(at)
    if len(sizes) > MOST_MESSAGES:
        cuts = np.array_split(np.arange(len(sizes)), MOST_MESSAGES)
        ready = [ready[cut[-1]] for cut in cuts]
        sizes = [float(sum(sizes[i] for i in cut)) for cut in cuts]
    return Messages(np.array(sizes or [0.0]), np.array(ready or [1.0]), gathered)


def _weight(layer: LayerCost) -> float:
    if layer.timings:
        return layer.timings[-1].backward
    return layer.flops


def reduce_replicas(
    topology: Topology,
    workload: Workload,
    plan: Plan,
    runtime: Runtime,
    parts: Sequence[Sequence[LayerCost]],
    paces: np.ndarray,
    replicas: Sequence[Sequence[Ran]],
    finished: float,
    sharing: int,
) -> Reduction:
    """The reduction of every stage over all replicas; the stage that is ready last counts."""
    local = plan.sync in ("local", "diloco", "elastic")
    worst = np.zeros(len(paces))
    waited = np.zeros(len(paces))
    moved, busiest, hops = 0, 0, []
    ends = {key: _last_backward(ran, plan.stage) for key, ran in {id(r): r for r in replicas}.items()}
    for stage in range(plan.stage):
        layers = [layer for k, part in enumerate(parts) if k % plan.stage == stage for layer in part]
        made = messages(
            workload,
            layers,
            plan.batch / plan.data,
            plan.width,
            runtime.bucket,
            _wire(workload, runtime, local),
        )
        begins, closes, first = np.array([ends[id(ran)][stage] for ran in replicas]).T
        stretch = (paces - 1.0) * closes  # a slow step is late by as much as it is slow
        last = (closes + stretch).max(axis=1)
        waited = np.maximum(waited, last - finished)
        took, bytes_moved, most, hops_here = _one(
            topology, workload, plan, runtime, made, begins, closes, stage, sharing, float(first.max())
        )
        took += cost.gather_rows(_group_of(topology, plan, stage, sharing), made.rows) if made.rows else 0.0
        bytes_moved += round(plan.data * (plan.data - 1) * made.rows)
        worst = np.maximum(worst, last + took - np.maximum(finished, last))
        moved += bytes_moved * plan.width
        busiest = max(busiest, most)
        hops += hops_here
    added = float(np.maximum(worst, 0.0).mean())
    if local:
        added = _joined(plan, runtime, added, finished)
    return Reduction(added, float(np.maximum(waited, 0.0).mean()), moved, busiest, hops)


def _group_of(topology: Topology, plan: Plan, stage: int, sharing: int) -> cost.Group:
    return cost.group_of(topology, [plan.device(d, stage) for d in range(plan.data)], sharing)


def _wire(workload: Workload, runtime: Runtime, local: bool) -> float:
    """Bytes on the wire for a byte of gradient: a join of local training sends parameters in their place."""
    if not local or not workload.gradient_bytes:
        return runtime.wire
    return runtime.wire * workload.parameters / workload.gradient_bytes


def _last_backward(ran: Sequence[Ran], num_stages: int) -> list[tuple[float, float, float]]:
    """When the last backward pass of each stage begins and ends, and the seconds of a forward pass."""
    found = [(0.0, 0.0, 0.0)] * num_stages
    for device, begin, close, task in ran:
        if not task.backward:
            found[device] = (*found[device][:2], close - begin)
        elif close >= found[device][1]:
            found[device] = begin, close, found[device][2]
    return found


def _one(
    topology: Topology,
    workload: Workload,
    plan: Plan,
    runtime: Runtime,
    made: Messages,
    begins: np.ndarray,
    closes: np.ndarray,
    stage: int,
    sharing: int,
    forward: float,
) -> tuple[float, int, int, list[Hop]]:
    """Seconds beyond the backward pass, bytes in all, bytes over the busiest link, and the hops."""
    members = [plan.device(d, stage) for d in range(plan.data)]
    local = plan.sync in ("local", "diloco", "elastic")
    # Sums over micro-batches come up in the last backward pass; pipelines reduce when all are over.
    overlapped = runtime.overlap and (plan.micro_batches == 1 or plan.stage == 1) and not local
    part = made.ready if overlapped else np.ones_like(made.ready)
    size = float(made.sizes.sum())
    if (plan.sharded or plan.variables == "partitioned") and plan.reduce != "host":
        work = forward, float((closes - begins).max())
        return _divided(workload, plan, made, cost.group_of(topology, members, sharing), runtime, work)
    shared_memory = topology.links[members[0]][members[1]].kind == "MEM"
    if plan.reduce == "order":
        chosen = _topology_of(topology, members)
        rounds = [tuple((d, 0) for d in range(1, plan.data))] if shared_memory else list(reduction(chosen))
        ready = begins[:, None] + part[None, :] * (closes - begins)[:, None]
        kinds = dict.fromkeys(topology.devices[d] for d in members)
        adding = max(layer_time.addition_seconds(workload, device) for device in kinds)
        addition = adding * size / max(1, workload.gradient_bytes)
        ended, hops = reduced(chosen, rounds, ready, made.sizes, back=not shared_memory, addition=addition)
        named = [Hop(members[h.source], members[h.target], h.start, h.end, h.bytes) for h in hops]
        total = sum(hop.bytes for hop in hops) if not shared_memory else 0
        done = ended[0] if shared_memory else ended.max()
        return float(max(0.0, done - closes.max())), total, 0 if shared_memory else round(size), named
    group = cost.group_of(topology, members, sharing) if plan.reduce != "host" else None
    now = -np.inf
    for message, share in zip(made.sizes, part, strict=True):
        ready_at = float((begins + share * (closes - begins)).max())
        if group is None:
            now = max(now, ready_at) + cost.through_host(topology, members, float(message))
        else:
            now = max(now, ready_at) + cost.all_reduce(
                group, float(message), "best" if plan.reduce == "ring" else plan.reduce
            )
    each = round(2 * (plan.data - 1) / plan.data * size)
    return max(0.0, now - float(closes.max())), each * plan.data, each, []


def _divided(
    workload: Workload,
    plan: Plan,
    made: Messages,
    group: cost.Group,
    runtime: Runtime,
    work: tuple[float, float],
) -> tuple[float, int, int, list[Hop]]:
    """The same where replicas divide what they keep: gradients are scattered, parameters gathered."""
    sharded = plan.sharded or ("slots", "parameters")
    held = workload.parameters / workload.gradient_bytes if workload.gradient_bytes else 0.0
    parts = np.diff(made.ready, prepend=0.0)
    pieces = [
        LayerGroup(
            share * work[0],
            share * work[1],
            cost.all_gather(group, float(message) * held),
            cost.reduce_scatter(group, float(message)),
        )
        for message, share in zip(made.sizes[::-1], parts[::-1], strict=True)
    ]
    times = plan.micro_batches
    took = exposed(pieces, sharded, overlap=runtime.overlap, times=times)
    ahead, back, after = gathers(sharded)
    sent = (times * (ahead + back) + after) * held + (times if "gradients" in sharded else 1)
    each = round((plan.data - 1) / plan.data * float(made.sizes.sum()) * sent)
    return took, each * plan.data, each, []


def _topology_of(topology: Topology, members: Sequence[int]) -> Topology:
    whole = list(members) == list(range(len(topology)))
    return topology if whole else topology.select(members)


def _joined(plan: Plan, runtime: Runtime, seconds: float, compute: float) -> float:
    """Seconds that the joins of one period of local training add to it.

    In fragments, each is joined by itself, one after the other through the period; a join may be under way
    beside training for `delay` steps.
    """
    return runtime.fragments * max(0.0, seconds / runtime.fragments - runtime.delay * compute)
