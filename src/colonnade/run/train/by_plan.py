"""What a plan means for `cn.Trainer`: its devices, where variables live, and how replicas work together."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from colonnade.describe.plan import Plan
from colonnade.describe.timeline import Timeline
from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.placement import short
from colonnade.run.asynchronous.asynchronous import Asynchronous
from colonnade.run.engine.protocols import Sync
from colonnade.run.pipeline.checks import rows_planned
from colonnade.run.pipeline.pipeline import Pipeline
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.sync.periodic import DiLoCo, Elastic, LocalSGD


@dataclass(frozen=True)
class Settled:
    """The arguments of a trainer that a plan settles."""

    devices: Any
    sync: Sync
    variables: str


def problems(plan: Any, devices: Any, sync: Any, variables: Any) -> Iterator[Problem]:
    """Why a trainer cannot run a plan."""
    if not isinstance(plan, Plan):
        yield Problem("plan", plan, "must be a cn.Plan", "Take what cn.plan() returned")
        return
    if plan.not_runnable:
        yield Problem(
            "plan", plan.layout, f"cannot be run: {plan.not_runnable}", "Plan with keep={'width': 1}"
        )
    have = hardware.names()
    if max(plan.devices) >= len(have):
        rule = f"is for device {max(plan.devices)}, and there are {len(have)} here ({', '.join(have)})"
        fix = f"Right after the imports: cn.setup(virtual={1 + max(plan.devices)}), or plan for these devices"
        yield Problem("plan", plan.layout, rule, fix)
    if sync is not None:
        yield Problem("sync", sync, "is settled by the plan", "Leave it out, or plan with keep={'sync': ...}")
    if variables != "auto":
        yield Problem(
            "variables", variables, "is settled by the plan", "Leave it out, or keep it in the plan"
        )
    if plan.stage > 1 and not isinstance(devices, Pipeline):
        rule = "has stages, and the loss must call a pipeline for that"
        fix = "pipeline = cn.Pipeline(model, plan=plan), call it in the loss, and pass devices=pipeline"
        yield Problem("plan", plan.layout, rule, fix)
    elif plan.stage == 1 and devices is not None:
        yield Problem("devices", devices, "are settled by the plan", "Leave them out")
    elif plan.stage > 1 and max(plan.devices) < len(have):
        yield from _pipeline_problems(plan, devices)


def _pipeline_problems(plan: Plan, pipeline: Pipeline) -> Iterator[Problem]:
    have = hardware.names()
    wanted = tuple(tuple(have[position] for position in row) for row in rows_planned(plan))
    if pipeline.rows != wanted or pipeline.micro_batches != plan.micro_batches:
        rule = f"is another pipeline than the plan's: {plan.layout} on {wanted}"
        yield Problem("devices", str(pipeline), rule, "Make it with cn.Pipeline(model, plan=plan)")


def settled(plan: Plan, devices: Any) -> Settled:
    """The arguments of a trainer for a plan without problems."""
    if plan.stage > 1:
        return Settled(devices, Synchronous(), "auto")
    have = hardware.names()
    return Settled([have[d] for d in plan.devices], sync_of(plan), plan.variables)


def named_here(timeline: Timeline | None) -> Timeline | None:
    """The timeline of a simulation, with the names of devices as they are here."""
    if timeline is None:
        return None
    names = {f"device {i}": short(device) for i, device in enumerate(hardware.names())}

    def named(words: str) -> str:
        return " -> ".join(names.get(one, one) for one in words.split(" -> "))

    return Timeline(
        tuple(
            replace(event, device=named(event.device), link=event.link and named(event.link))
            for event in timeline.events
        )
    )


def sync_of(plan: Plan) -> Sync:
    """The way of training that a plan names."""
    if plan.sync == "asynchronous":
        return Asynchronous(max_staleness=plan.max_staleness)
    if plan.sync == "local":
        return LocalSGD(plan.every)
    if plan.sync == "diloco":
        return DiLoCo(plan.every)
    if plan.sync == "elastic":
        return Elastic(plan.every, plan.alpha)
    return Synchronous(shares=plan.shares)


def plan_of(devices: Sequence[str], sync: Sync, variables: str, batch: int) -> Plan | None:
    """The plan that a trainer's arguments amount to, for batches of so many rows; None if it is none.

    >>> plan_of(["/device:CPU:0", "/device:CPU:1"], LocalSGD(4), "mirrored", 8).layout
    '2 replicas, local every 4'
    """
    have = hardware.names()
    how = _how(sync)
    if how is None or not set(devices) <= set(have) or len(set(devices)) < len(devices):
        return None
    positions = tuple(have.index(device) for device in devices[:batch])
    home = variables if variables in ("shared", "mirrored", "partitioned") else "mirrored"
    return Plan(batch=batch, data=len(positions), devices=positions, variables=home, **how)


def _how(sync: Sync) -> dict[str, Any] | None:
    if isinstance(sync, Asynchronous):
        return {"sync": "asynchronous", "max_staleness": sync.max_staleness}
    if isinstance(sync, Synchronous):
        return {"shares": sync.shares}
    if isinstance(sync, Elastic):
        return {"sync": "elastic", "every": sync.every, "alpha": float(sync.alpha)}
    if isinstance(sync, LocalSGD | DiLoCo):
        return {"sync": "local" if isinstance(sync, LocalSGD) else "diloco", "every": int(sync.every)}
    return None
