"""The machine that `colonnade plan` plans for, from the options of the command line; no TensorFlow."""

import json

from colonnade.describe.topology import Topology
from colonnade.errors import InvalidArgument, Problem
from colonnade.hardware.cards import detect
from colonnade.hardware.recorded import recorded
from colonnade.reason.planning.planner import KEEPABLE
from colonnade.run.plan.planning import here


def described(
    machine: str | None, machines: int | None, network: str, text: str | None, devices: int | None
) -> Topology | None:
    """A recorded machine, one from a file, several of them, or None for this one."""
    if machine is not None and text is not None:
        rule = "and --topology name two machines"
        raise InvalidArgument("plan", [Problem("--machine", machine, rule, "Leave one of them out")])
    box = None
    if machine is not None:
        box = detect(recorded(machine)).topology
    elif text is not None:
        box = Topology.from_json(text) if text.lstrip().startswith("{") else Topology.from_text(text)
    if box is not None and devices is not None and devices < len(box) and machines is None:
        box = box.select(box.best(devices)) if box.network is None else box
    if machines is None:
        return box
    return Topology.machines(here(devices) if box is None else box, machines, network=network)


def kept(settings: list[str]) -> dict[str, object]:
    """Parts of a plan that are settled, from `name=value`; what is no number and no `true` is a word.

    >>> kept(["stage=1", "sync=local", "alpha=0.5", "sequence=true"])
    {'stage': 1, 'sync': 'local', 'alpha': 0.5, 'sequence': True}
    """
    values: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or name not in KEEPABLE or name in values:
            rule = f"must be name=value, each name once, of {', '.join(KEEPABLE)}"
            raise InvalidArgument("plan", [Problem("--keep", setting, rule, "Try --keep stage=1")])
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values
