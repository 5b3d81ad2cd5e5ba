"""Puts a ranking into words: what to do, and why every other layout was not taken."""

from colonnade.describe.plan import Plan, Prediction
from colonnade.describe.plan_text import duration, size
from colonnade.reason.simulator.memory_need import Need

# Layouts whose times differ by less than this part are as good as each other: fewer devices are then better.
EQUAL = 0.02


def too_large(need: Need, room: int) -> str:
    """Why a layout does not fit."""
    kinds = ("parameters", "gradients", "slots", "activations", "working")
    parts = ", ".join(f"{kind} {size(getattr(need, kind))}" for kind in kinds if getattr(need, kind))
    return f"does not fit: a device needs {size(need.total)} ({parts}) and has {size(room)}"


def why_slower(
    plan: Plan, predicted: Prediction, best: Plan, least: Prediction, blocked: str | None = None
) -> str:
    """Why a layout that fits was not taken; `blocked` is why it cannot be run, where more is known."""
    ratio = predicted.step / least.step if least.step else 1.0
    blocked = plan.not_runnable if blocked is None else blocked
    if blocked and ratio <= 1 + EQUAL:
        return f"would take {longer(ratio)}, but cannot be run: {blocked}"
    if ratio > 1 + EQUAL:
        return f"takes {longer(ratio)}: {cause(plan, predicted, best, least)}"
    if plan.num_devices > best.num_devices:
        return f"takes {longer(ratio)} and {plan.num_devices} devices instead of {best.num_devices}"
    more = f"moves {size(predicted.moved)} a step instead of {size(least.moved)}"
    return f"takes {longer(ratio)}, and {more}" if predicted.moved > least.moved else f"takes {longer(ratio)}"


def longer(ratio: float) -> str:
    """How long something takes against another thing.

    >>> longer(1.3), longer(1.04), longer(0.92)
    ('1.3 times as long', '4% longer', '8% less time')
    """
    if ratio >= 1.1:
        return f"{ratio:.2g} times as long"
    percent = round(100 * (ratio - 1))
    return f"{percent}% longer" if percent > 0 else f"{-percent}% less time" if percent else "as long"


def cause(plan: Plan, predicted: Prediction, best: Plan, least: Prediction) -> str:
    """What makes a layout slower than another, by the part of a step that grew most."""
    grown = {
        "reduction": predicted.reduction - least.reduction,
        "waiting": predicted.waiting - least.waiting,
        "update": predicted.update - least.update,
        "compute": predicted.compute - least.compute,
    }
    most = max(grown, key=lambda name: grown[name])
    if most == "reduction" and not predicted.busiest:
        return f"{duration(predicted.reduction)} of a step go into adding up gradients"
    if most == "reduction":
        return f"{duration(predicted.reduction)} of a step go into the reduction of {size(predicted.busiest)}"
    if most == "waiting":
        part = predicted.waiting / predicted.step if predicted.step else 0.0
        return f"{_waiting(plan)} for {part:.0%} of a step"
    if most == "update":
        return f"the update takes {duration(predicted.update)}, because {_updaters(plan)}"
    if plan.num_devices < best.num_devices:
        return f"it has {_devices(plan.num_devices)} for the work instead of {best.num_devices}"
    if plan.recompute != "none" and best.recompute == "none":
        return "the forward pass is computed twice"
    if plan.width > best.width:
        return "the devices that a layer is split over exchange what they have in every layer"
    if plan.stage > 1:
        return f"the slowest stage is at work for {duration(predicted.compute)}"
    work = f"the work on examples takes {duration(predicted.compute)} instead of {duration(least.compute)}"
    return f"{work}: every slice has the fixed costs of a call, and virtual devices share the cores"


def advice(
    best: Plan,
    least: Prediction,
    alone: Prediction | None,
    next_best: tuple[Plan, Prediction] | None,
    missing: str | None = None,
    blocked: str | None = None,
) -> str:
    """The first line: what to do.

    Args:
        best: what was chosen.
        least: what it takes.
        alone: what one device takes, if it can.
        next_best: what else can be run on several devices.
        missing: why there is nothing to compare with, where it is not that there is one device only, or that
            one device is too small.
        blocked: why it cannot be run, where more is known of that than by the plan itself.
    """
    if best.num_devices == 1:
        if next_best is None:
            why = "there is no other" if missing is None else missing
            return f"Stay on one device: {why}. A step takes {duration(least.step)}."
        plan, predicted = next_best
        how = longer(predicted.step / least.step if least.step else 1.0)
        why = f", because {cause(plan, predicted, best, least)}" if predicted.step > least.step else ""
        return f"Stay on one device: {_devices(plan.num_devices)} ({plan.layout}) would take {how}{why}."
    words = f"Use {_devices(best.num_devices)} as {best.layout}: a step takes {duration(least.step)}"
    if alone is not None and least.step:
        words += (
            f", {alone.step / least.step:.3g} times as fast as one device ({least.efficiency:.0%} efficiency)"
        )
    elif alone is None:
        words += "; one device is too small" if missing is None else missing
    blocked = best.not_runnable if blocked is None else blocked
    if blocked:
        words += f". It is for other software: {blocked}"
    return words + "."


def _waiting(plan: Plan) -> str:
    if plan.stage > 1:
        return "stages wait for each other"
    if plan.sync == "asynchronous":
        return "devices wait for each other's updates"
    return "replicas wait for the slowest"


def _updaters(plan: Plan) -> str:
    return (
        "every device makes all of it"
        if plan.variables == "mirrored" and plan.data > 1
        else "one device makes it"
    )


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} devices"
