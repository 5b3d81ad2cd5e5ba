"""Chooses a plan: lists layouts, drops what does not fit, simulates the rest, and says why.

Where there are few layouts all are simulated. Where there are many, all are estimated in closed form, and
the best of each kind and of all are simulated: a beam.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from colonnade.describe.plan import SYNCS, Candidate, Plan, Prediction
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.reason.planning.advice import EQUAL, advice, too_large, why_slower
from colonnade.reason.planning.layouts import axes, counts, dealt, variants
from colonnade.reason.planning.step_estimate import estimated
from colonnade.reason.simulator.memory_need import Need, needs
from colonnade.reason.simulator.runtime import ENGINE, Runtime
from colonnade.reason.simulator.simulate import simulate

# With so many layouts or fewer, all of them are simulated.
EXHAUSTIVE = 160
# How many are simulated otherwise, beside the best of each kind of layout.
BEAM = 24
# How many of those that were not taken a plan keeps.
# A plan for more devices has no timeline, which nobody could look at.
DRAWN = 64
KEPT = 40
KEEPABLE = tuple(
    f.name
    for f in fields(Plan)
    if f.name not in ("predicted", "advice", "candidates", "batch", "devices", "layers")
)


@dataclass(frozen=True)
class Looked:
    """A layout that was looked at, and what it needs."""

    plan: Plan
    need: Need
    room: int | None  # bytes of the smallest device, where it is known

    @property
    def fits(self) -> bool:
        return self.room is None or self.need.total <= self.room


def choose(
    topology: Topology,
    workload: Workload,
    *,
    devices: int | None = None,
    keep: Mapping[str, Any] | None = None,
    runtime: Runtime = ENGINE,
    beam: int | None = None,
) -> Plan:
    """The best plan for a workload on a topology, with a prediction, advice, and all that was not taken.

    Args:
        topology: the machine or machines.
        workload: what a step costs.
        devices: how many devices may be used; all by default.
        keep: parts of the plan that are settled, such as `{"stage": 1}`; `sync` is kept synchronous unless it
            names another way, or `any`.
        runtime: how the software runs a step.
        beam: simulate only so many layouts; by default all where there are few.

    >>> import colonnade as cn
    >>> from colonnade.describe.link import Device
    >>> cards = cn.Topology([Device("Tesla V100")] * 4, cn.Topology.uniform(4, "NV2").links)
    >>> net = cn.Workload.convnet(parameters=25_000_000, flops=8e9, batch=256)
    >>> choose(cards, net).layout
    '4 replicas, mirrored'
    """
    settled = dict(keep or {})
    check("plan()", _problems(topology, workload, devices, settled))
    looked = list(_looked(topology, workload, devices or len(topology), settled))
    fitting = [one for one in looked if one.fits]
    if not fitting:
        raise InvalidArgument("plan()", [_nothing_fits(looked)])
    chosen = _shortlist(topology, workload, fitting, runtime, beam)
    alone = _alone(topology, workload, runtime)
    ranked = [(one.plan, _predicted(topology, workload, one.plan, runtime, alone)) for one in chosen]
    ranked.sort(key=lambda pair: (pair[1].step, pair[0].num_devices))
    runnable = [pair for pair in ranked if not pair[0].not_runnable] or ranked
    least = runnable[0][1].step
    best, predicted = min(
        (pair for pair in runnable if pair[1].step <= least * (1 + EQUAL)),
        key=lambda pair: (pair[0].num_devices, _intricate(pair[0]), pair[1].step),
    )
    # Of layouts that differ by their micro-batches alone, the best one is told of.
    kinds = {_kind(plan): (plan, prediction) for plan, prediction in reversed(ranked)}
    others = sorted(
        (pair for kind, pair in kinds.items() if kind != _kind(best)), key=lambda pair: pair[1].step
    )
    single = next((p for plan, p in ranked if plan.num_devices == 1), None)
    # What one device is compared with: the fewest devices beyond it, in their best layout.
    several = [pair for pair in others if pair[0].num_devices > 1 and not pair[0].not_runnable]
    next_best = min(several, key=lambda pair: (pair[0].num_devices, pair[1].step), default=None)
    listed = [Candidate(plan.layout, why_slower(plan, p, best, predicted), p) for plan, p in others[:KEPT]]
    fitted = {_kind(one.plan) for one in fitting}
    unfit = {_kind(one.plan): one for one in looked if _kind(one.plan) not in fitted}
    listed += [Candidate(one.plan.layout, _unfitting(one)) for one in list(unfit.values())[:KEPT]]
    words = advice(best, predicted, single, next_best)
    few = best.num_devices <= DRAWN
    timeline = simulate(topology, workload, best, runtime).timeline if few else None
    return best.with_(predicted=predicted, advice=words, candidates=tuple(listed), timeline=timeline)


def _problems(topology: Any, workload: Any, devices: Any, keep: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(workload, Workload):
        yield Problem("workload", workload, "must be a Workload", "Measure one with cn.workload()")
    if not isinstance(topology, Topology):
        yield Problem("topology", topology, "must be a Topology", "Leave it out for this machine")
    elif devices is not None and (type(devices) is not int or not 1 <= devices <= len(topology)):
        rule = f"must be a whole number from 1 to {len(topology)}, as many as the topology has"
        yield Problem("devices", devices, rule, "Leave it out for all")
    for name, value in keep.items():
        if name not in KEEPABLE:
            yield Problem(
                "keep", name, "is no part of a plan that can be kept", f"One of: {', '.join(KEEPABLE)}"
            )
        elif name == "sync" and value not in (*SYNCS, "any"):
            yield Problem("keep", value, "is no way of training", f"One of: {', '.join(SYNCS)}, any")


def _looked(topology: Topology, workload: Workload, most: int, keep: Mapping[str, Any]) -> Iterator[Looked]:
    """Every layout, with what it needs on a device."""
    for count in counts(most):
        for data, stage, width in axes(count, workload):
            for plan in variants(topology, workload, data, stage, width, keep):
                rooms = {topology.devices[d].memory for d in plan.devices}
                room = None if None in rooms else min(r for r in rooms if r is not None)
                complete = dealt(topology, workload, plan)
                if complete is None:
                    yield Looked(plan, max(needs(workload, plan), key=lambda need: need.total), room)
                    continue
                yield Looked(complete, max(needs(workload, complete), key=lambda need: need.total), room)


def _shortlist(
    topology: Topology, workload: Workload, fitting: list[Looked], runtime: Runtime, beam: int | None
) -> list[Looked]:
    """What is simulated: all, or the best by the estimate, and the best with each set of axes."""
    if beam is None and len(fitting) <= EXHAUSTIVE:
        return fitting
    rated = sorted(fitting, key=lambda one: estimated(topology, workload, one.plan, runtime))
    chosen = rated[: beam or BEAM]
    kinds = {
        (one.plan.data > 1, one.plan.stage > 1, one.plan.width > 1, one.plan.num_devices) for one in chosen
    }
    for one in rated:
        kind = (one.plan.data > 1, one.plan.stage > 1, one.plan.width > 1, one.plan.num_devices)
        if kind not in kinds:
            kinds.add(kind)
            chosen.append(one)
    return chosen


def _alone(topology: Topology, workload: Workload, runtime: Runtime) -> float:
    """Seconds of the same batch on one device, whether it fits there or not."""
    return simulate(topology, workload, Plan(batch=workload.batch), runtime, events=False).step


def _predicted(
    topology: Topology, workload: Workload, plan: Plan, runtime: Runtime, alone: float
) -> Prediction:
    return simulate(topology, workload, plan, runtime, events=False).prediction(plan, alone)


def _unfitting(one: Looked) -> str:
    if one.room is not None and one.need.total > one.room:
        return too_large(one.need, one.room)
    return "does not fit: no cut between layers gives every stage what it needs"


def _intricate(plan: Plan) -> int:
    """Of layouts that are as good the plain one is better: no stages, a copy on every device."""
    return (plan.stage > 1) + (plan.variables == "partitioned") + (plan.sync != "synchronous")


def _kind(plan: Plan) -> Any:
    """Equal for layouts that differ by their micro-batches alone."""
    return plan.data, plan.stage, plan.width, plan.variables, plan.sync, plan.recompute


def _nothing_fits(looked: list[Looked]) -> Problem:
    if not looked:
        return Problem("keep", "these", "leaves no layout to look at", "Keep less")
    closest = min(looked, key=lambda one: one.need.total)
    why = too_large(closest.need, closest.room or 0)
    rule = f"no layout fits; the smallest is {closest.plan.layout}, and it {why}"
    return Problem(
        "devices", closest.plan.num_devices, rule, "Take more devices, larger ones, or a smaller batch"
    )
