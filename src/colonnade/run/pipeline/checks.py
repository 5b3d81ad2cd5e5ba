"""Checks the arguments of `cn.Pipeline` before anything is made."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from colonnade.describe.plan import Plan
from colonnade.errors import Problem, check, is_whole
from colonnade.hardware import devices as hardware
from colonnade.reason.schedules.schedule import SCHEDULES


def refs_of(tied: Any) -> Iterator[Any]:
    """The variables that a user names, or those of a layer that he names."""
    for variable in tied.variables if hasattr(tied, "variables") else [tied]:
        yield (variable.value if isinstance(variable, keras.Variable) else variable).ref()


def rows_of(devices: Any, num_layers: int) -> tuple[tuple[str, ...], ...]:
    """Device strings, pipeline by pipeline."""
    if devices is None:
        return (hardware.resolve(min(num_layers, len(hardware.names())), "Pipeline()"),)
    nested = isinstance(devices, list | tuple) and any(isinstance(row, list | tuple) for row in devices)
    if not nested:
        return (hardware.resolve(devices, "Pipeline()"),)
    check("Pipeline()", _row_problems(devices))
    flat = hardware.resolve([device for row in devices for device in row], "Pipeline()")
    length = len(devices[0])
    return tuple(tuple(flat[i : i + length]) for i in range(0, len(flat), length))


def _row_problems(devices: Sequence[Any]) -> Iterator[Problem]:
    if not all(isinstance(row, list | tuple) for row in devices) or len({len(row) for row in devices}) != 1:
        rule = "must be rows of the same length, each of them a pipeline"
        yield Problem("devices", devices, rule, "Try devices=[[0, 1], [2, 3]]")


def problems(
    num_layers: int, num_stages: int, micro_batches: Any, schedule: Any, placement: Any, tied: Any
) -> Iterator[Problem]:
    if num_stages > num_layers:
        rule = f"is more than there are layers to deal out, {num_layers}"
        yield Problem("devices", num_stages, rule, f"Name {num_layers} or fewer")
    whole = is_whole(micro_batches, 1)
    if micro_batches is not None and not whole:
        rule = "must be a whole number from 1 up"
        yield Problem("micro_batches", micro_batches, rule, "Try micro_batches=8")
    if schedule not in SCHEDULES:
        yield Problem("schedule", schedule, f"must be one of {', '.join(SCHEDULES)}", "Leave it out for 1f1b")
    if placement != "auto":
        yield from _placement_problems(num_layers, num_stages, placement)
    if not isinstance(tied, list | tuple) or not all(
        hasattr(one, "variables") or hasattr(one, "assign") for one in tied
    ):
        yield Problem("tied", tied, "must be a list of variables or layers", "Pass tied=[embedding]")


def rows_planned(plan: Plan) -> list[list[int]]:
    """For each replica of a plan the positions of the devices of its stages."""
    return [[plan.device(d, s) for s in range(plan.stage)] for d in range(plan.data)]


def plan_problems(
    plan: Any, num_layers: int, devices: Any, micro_batches: Any, placement: Any
) -> Iterator[Problem]:
    """Why a pipeline cannot be made by a plan."""
    if not isinstance(plan, Plan):
        yield Problem("plan", plan, "must be a cn.Plan", "Take what cn.plan() returned")
        return
    if plan.not_runnable:
        yield Problem(
            "plan", plan.layout, f"cannot be run: {plan.not_runnable}", "Plan with keep={'width': 1}"
        )
    have = len(hardware.names())
    if max(plan.devices) >= have:
        rule = f"is for device {max(plan.devices)}, and there are {have} here"
        yield Problem("plan", plan.layout, rule, "Plan for these devices, or make more with cn.setup()")
    if plan.layers is not None and len(plan.layers) != num_layers:
        rule = f"deals out {len(plan.layers)} layers, and here are {num_layers}"
        yield Problem("plan", plan.layout, rule, "Measure with layers= set to this model")
    for name, value, usual in (
        ("devices", devices, None),
        ("micro_batches", micro_batches, None),
        ("placement", placement, "auto"),
    ):
        if value != usual:
            yield Problem(name, value, "is settled by the plan", "Leave it out")


def _placement_problems(num_layers: int, num_stages: int, placement: Any) -> Iterator[Problem]:
    fix = f"For example {[min(i, num_stages - 1) for i in range(num_layers)]}"
    if not isinstance(placement, list | tuple) or not all(type(stage) is int for stage in placement):
        yield Problem("placement", placement, "must be auto, or a list with the stage of each layer", fix)
    elif len(placement) != num_layers:
        yield Problem("placement", placement, f"must have {num_layers} entries, one per layer", fix)
    elif sorted(placement) != list(placement) or set(placement) != set(range(num_stages)):
        rule = f"must name the stages 0 to {num_stages - 1} in order, each at least once"
        yield Problem("placement", placement, rule, fix)
