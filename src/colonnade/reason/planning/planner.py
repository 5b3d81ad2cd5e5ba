"""Chooses a plan: lists layouts, drops what does not fit, simulates the rest, and says why.

Where there are few layouts all are simulated. Where there are many, all are estimated in closed form, and
the best kinds of them are simulated: a beam. Layouts of one kind differ by their micro-batches alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from colonnade.describe import fields as fields_of
from colonnade.describe.fields import amiss
from colonnade.describe.plan import PREDICTION_RULES, RULES, SHARDABLE, SYNCS, Candidate, Plan
from colonnade.describe.topology import Topology
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.reason.planning.advice import EQUAL, advice, too_large, why_slower
from colonnade.reason.planning.arrangement import arranged, known_topology, known_workload, only_kind
from colonnade.reason.planning.layouts import axes, counts, dealt, variants
from colonnade.reason.planning.long_pipelines import predicted as predicted_of
from colonnade.reason.planning.step_estimate import estimated
from colonnade.reason.simulator import layer_time
from colonnade.reason.simulator.memory_need import Need, needs
from colonnade.reason.simulator.runtime import ENGINE, Runtime
from colonnade.reason.simulator.simulate import simulate

# With so many layouts or fewer, all of them are simulated.
EXHAUSTIVE = 160
# How many kinds of layout are simulated otherwise, of those that can be run and of the others, and the best
# with each set of axes.
BEAM = 24
# Of a kind, some numbers of micro-batches: the fewest that are estimated to be as good, and so many
# more that are estimated to be near.
ALIKE, NEAR, NUMBERS = 1.01, 1.15, 2
# A kind that is estimated to take so many times as long as the best one is not simulated.
HOPELESS = 8.0
# A plan for more devices has no timeline, which nobody could look at.
DRAWN = 64
# A step of more tasks than this is not simulated as a whole, which would take minutes.
WHOLE = 2**17
# How many of those that were not taken a plan keeps.
KEPT = 40
KEEPABLE = tuple(
    f.name
    for f in fields(Plan)
    if f.name not in ("predicted", "advice", "candidates", "batch", "devices", "layers", "timeline")
)


@dataclass(frozen=True)
class Looked:
    """A layout that was looked at, and what its fullest device needs and has."""

    plan: Plan
    need: Need
    room: int | None  # bytes, where they are known

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
    settled = {name: tuple(v) if isinstance(v, list) else v for name, v in (keep or {}).items()}
    if isinstance(settled.get("sharded"), str):
        settled["sharded"] = (settled["sharded"],)
    check("plan()", _problems(topology, workload, devices, settled))
    topology, workload = known_topology(topology), known_workload(workload)
    most = devices or len(topology)
    looked = [_looked(topology, workload, plan) for plan in _listed(topology, workload, most, settled)]
    if not looked:
        raise InvalidArgument("plan()", list(_clashes(topology, workload, most, settled)))
    fitting = [one for one in looked if one.fits]
    if not fitting:
        raise InvalidArgument("plan()", [_nothing_fits(looked)])
    chosen = _shortlist(topology, workload, fitting, runtime, beam)
    alone = _alone(topology, workload, [one.plan for one in chosen if one.plan.num_devices == 1], runtime)
    ranked = [(one.plan, predicted_of(topology, workload, one.plan, runtime, alone)) for one in chosen]
    ranked = [pair for pair in ranked if not any(amiss(PREDICTION_RULES, vars(pair[1])))]
    if not ranked:
        rule = "takes more seconds, or bytes, than a plan can have, in every layout"
        fix = "Look over its costs, and the links"
        raise InvalidArgument("plan()", [Problem("workload", workload.name, rule, fix)])
    ranked.sort(key=lambda pair: (pair[1].step, pair[0].num_devices))
    runnable = [pair for pair in ranked if not _blocked(topology, pair[0])] or ranked
    least = runnable[0][1].step
    best, predicted = min(
        (pair for pair in runnable if pair[1].step <= least * (1 + EQUAL)),
        key=lambda pair: (*_intricate(pair[0]), pair[1].step),
    )
    # Of layouts that differ by their micro-batches alone, the best one is told of.
    kinds = {_kind(plan): (plan, prediction) for plan, prediction in reversed(ranked)}
    others = sorted(
        (pair for kind, pair in kinds.items() if kind != _kind(best)), key=lambda pair: pair[1].step
    )
    single = next((p for plan, p in ranked if plan.num_devices == 1), None)
    # What one device is compared with: the fewest devices beyond it, in their best layout.
    several = [pair for pair in others if pair[0].num_devices > 1 and not _blocked(topology, pair[0])]
    next_best = min(several, key=lambda pair: (pair[0].num_devices, pair[1].step), default=None)
    listed = [
        Candidate(plan.layout, why_slower(plan, p, best, predicted, _blocked(topology, plan)), p)
        for plan, p in others[:KEPT]
    ]
    fitted = {_kind(one.plan) for one in fitting}
    unfit = {_kind(one.plan): one for one in looked if _kind(one.plan) not in fitted}
    listed += [Candidate(one.plan.layout, _unfitting(one)) for one in list(unfit.values())[:KEPT]]
    missing = _missing(topology, most, looked, best, [plan for plan, _ in others], bool(settled))
    words = advice(best, predicted, single, next_best, missing, _blocked(topology, best))
    words += _beside(topology, workload, best)
    timeline = None
    if best.micro_batches * best.stage * best.chunks <= WHOLE:
        few = best.num_devices <= DRAWN
        whole = simulate(topology, workload, best, runtime, events=few)
        predicted, timeline = whole.prediction(best, alone), whole.timeline if few else None
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
        elif name == "sharded" and not set(_tuple(value)) <= set(SHARDABLE):
            rule = f"must be some of {', '.join(SHARDABLE)}"
            yield Problem("keep", f"sharded={fields_of.shown(value)}", rule, "Leave it out")
        elif name != "sync" and name in RULES and not RULES[name].holds(value):
            broken = RULES[name]
            yield Problem("keep", f"{name}={fields_of.shown(value)}", broken.words, broken.fix)


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _listed(topology: Topology, workload: Workload, most: int, keep: Mapping[str, Any]) -> Iterator[Plan]:
    """Every layout that there is with what is kept."""
    for count in counts(most):
        for data, stage, width in axes(count, workload):
            yield from variants(topology, workload, data, stage, width, keep)


def _looked(topology: Topology, workload: Workload, plan: Plan) -> Looked:
    """A layout with its layers dealt out, and what it needs on the device that it fills most."""
    complete = dealt(topology, workload, plan) or plan
    largest = None
    if plan.shares == "measured":
        devices = [topology.devices[plan.device(d)] for d in range(plan.data)]
        largest = max(layer_time.slices(workload, devices, float(plan.batch)))
    rooms: list[int | None] = []
    only = only_kind(topology)
    for stage in range(plan.stage):
        if only is not None:
            rooms.append(only.memory)
            continue
        places = ((d, w) for d in range(plan.data) for w in range(plan.width))
        memory = {topology.devices[plan.device(d, stage, w)].memory for d, w in places}
        rooms.append(None if None in memory else min(m for m in memory if m is not None))
    pairs = list(zip(needs(workload, complete, largest), rooms, strict=True))
    need, room = max(pairs, key=lambda pair: pair[0].total / (pair[1] or 2**62))
    return Looked(complete, need, room)


def _shortlist(
    topology: Topology, workload: Workload, fitting: list[Looked], runtime: Runtime, beam: int | None
) -> list[Looked]:
    """What is simulated: all, or the best kinds by the estimate, and the best with each set of axes.

    Those that can be run have a beam of their own, so that others, however fast, do not crowd them out.
    """
    if beam is None and len(fitting) <= EXHAUSTIVE:
        return fitting
    rated = [(estimated(topology, workload, one.plan, runtime), one) for one in fitting]
    rated.sort(key=lambda pair: pair[0])
    kinds: dict[Any, list[tuple[float, Looked]]] = {}
    for pair in rated:
        kinds.setdefault(_kind(pair[1].plan), []).append(pair)
    chosen: list[Looked] = []
    axes_seen = set()
    room = dict.fromkeys((True, False), beam or BEAM)
    for numbers in kinds.values():
        least, first = numbers[0]
        runnable = not _blocked(topology, first.plan)
        axes = runnable, _axes(first.plan)
        if room[runnable] <= 0 and (axes in axes_seen or least > HOPELESS * rated[0][0]):
            continue
        room[runnable] -= 1
        axes_seen.add(axes)
        alike = [one for took, one in numbers if took <= ALIKE * least]
        fewest = min(alike, key=lambda one: one.plan.micro_batches)
        near = [one for took, one in numbers if took <= NEAR * least and one is not fewest]
        chosen += [fewest, *near[:NUMBERS]]
    if not any(one.plan.num_devices == 1 for one in chosen):  # with which all are compared
        chosen += [one for _, one in rated if one.plan.num_devices == 1][:1]
    return chosen


def _axes(plan: Plan) -> Any:
    return plan.data > 1, plan.stage > 1, plan.width > 1, plan.num_devices


def _alone(topology: Topology, workload: Workload, plans: list[Plan], runtime: Runtime) -> float:
    """Seconds of the same batch on one device, in the best layout that fits there; if none does, on the
    fastest device as if it did."""
    plans = plans or [Plan(batch=workload.batch, devices=arranged(topology, workload, 1, 1, 1))]
    return min(simulate(topology, workload, plan, runtime, events=False).step for plan in plans)


def _missing(
    topology: Topology, most: int, looked: list[Looked], best: Plan, others: list[Plan], kept: bool
) -> str | None:
    """What the advice says where it has nothing to compare with; None for what it says by itself."""
    if best.num_devices > 1:
        return None if any(one.plan.num_devices == 1 for one in looked) else ""
    if most == 1:
        return None if len(topology) == 1 else "no other may be used"
    blocked = next((_blocked(topology, plan) for plan in others if plan.num_devices > 1), "")
    if blocked:
        return f"nothing on several can be run: {blocked}"
    if any(one.plan.num_devices > 1 for one in looked):
        return "nothing on several fits"
    if kept:
        return "what is kept leaves nothing on several"
    return f"a batch of {best.batch} cannot be divided over several"


def _unfitting(one: Looked) -> str:
    if one.room is not None and one.need.total > one.room:
        return too_large(one.need, one.room)
    return "does not fit: no cut between layers gives every stage what it needs"


def _intricate(plan: Plan) -> tuple[int, int, int]:
    """Of layouts that are as good the plain one is better: few devices, no stages, a copy on every device,
    few micro-batches."""
    parts = (plan.stage > 1) + (plan.variables == "partitioned") + (plan.sync != "synchronous")
    return plan.num_devices, parts, plan.micro_batches


def _kind(plan: Plan) -> Any:
    """Equal for layouts that differ by their micro-batches alone."""
    return plan.data, plan.stage, plan.width, plan.variables, plan.sync, plan.recompute, plan.shares


def _beside(topology: Topology, workload: Workload, best: Plan) -> str:
    """What the advice has to say of what it is built on."""
    words = layer_time.converted(workload, [topology.devices[d] for d in best.devices])
    limited = any(topology.devices[d].memory is not None for d in best.devices)
    unknown = "Whether it fits is not known: the workload does not say what its layers keep"
    parts = [words, unknown if limited and not workload.fits_known else ""]
    return "".join(f" {part}." for part in parts if part)


def _blocked(topology: Topology, plan: Plan) -> str:
    """Why the engine cannot run a plan, in words; empty where it can. Over machines it can less."""
    ways = (
        (plan.stage > 1, "a pipeline is"),
        (plan.sync in ("asynchronous", "elastic"), f"{plan.sync} training is"),
    )
    what = next((words for holds, words in ways if holds), "")
    if plan.not_runnable or not what:
        return plan.not_runnable
    homes = {topology.machine_of(device) for device in plan.devices}
    return f"{what} for the devices of one machine" if len(homes) > 1 else ""


def _clashes(topology: Topology, workload: Workload, most: int, keep: Mapping[str, Any]) -> Iterator[Problem]:
    """Which kept parts leave no layout: those without which there would be one, or else all."""

    def possible(names: Mapping[str, Any]) -> bool:
        return any(True for _ in _listed(topology, workload, most, names))

    alone = [name for name in keep if not possible({name: keep[name]})]
    without = [name for name in keep if possible({n: v for n, v in keep.items() if n != name})]

    def shown(name: str) -> str:
        return f"{name}={fields_of.shown(keep[name])}"

    counted = f"{most} devices, {len(workload.layers)} layers and a batch of {workload.batch}"
    for name in alone:
        yield Problem("keep", shown(name), f"leaves no layout for {counted}", "Leave it out")
    if not alone:
        parts = ", ".join(map(shown, without or keep))
        rule = f"leaves no layout for {counted}: these do not go together"
        yield Problem("keep", parts, rule, "Leave one of them out")


def _nothing_fits(looked: list[Looked]) -> Problem:
    closest = min(looked, key=lambda one: one.need.total)
    why = too_large(closest.need, closest.room or 0)
    rule = f"no layout fits; the smallest is {closest.plan.layout}, and it {why}"
    return Problem(
        "devices", closest.plan.num_devices, rule, "Take more devices, larger ones, or a smaller batch"
    )
