"""`cn.Plan`: who does what in a training, by axes and devices, and what is expected of it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from colonnade.describe import fields, plan_text
from colonnade.describe.fields import FLAG, NUMBER, TEXT, Rule, one_of, optional, whole_from
from colonnade.describe.pictures.html import paragraphs, size, table
from colonnade.describe.timeline import Timeline
from colonnade.errors import Problem, check, is_whole

VERSION = 1
SYNCS = ("synchronous", "asynchronous", "local", "diloco", "elastic")
SHARDABLE = ("slots", "gradients", "parameters")
# `order` is that of the engine: the tree of `transfers.reduction` on links, a star where copies cost nothing.
# `host`: the processor adds up gradients and keeps the parameters, as a parameter server.
REDUCTIONS = ("order", "ring", "tree", "scatter", "hierarchical", "host")
SHOWN = 5  # layouts in a notebook; the others are folded away
FIX = "Take the plan that cn.plan() returned"


@dataclass(frozen=True)
class Prediction:
    """What a step is expected to take; seconds add up to `step`."""

    step: float  # seconds of one step
    examples_per_second: float
    efficiency: float  # part of what as many single devices would reach
    memory: int  # bytes on the fullest device
    moved: int  # bytes between devices in a step
    busiest: int  # bytes over the busiest link
    compute: float = 0.0  # seconds at work on examples
    waiting: float = (
        0.0  # seconds of the critical path in which a device waits for another, or for a micro-batch
    )
    reduction: float = 0.0  # seconds of the reduction that nothing hides
    update: float = 0.0
    overhead: float = 0.0
    memory_known: bool = True  # if not, `memory` lacks the activations, and nobody can say whether it fits


@dataclass(frozen=True)
class Candidate:
    """A layout that was looked at, and why it was not taken; no prediction where it does not fit."""

    layout: str
    reason: str
    predicted: Prediction | None = None


RULES: dict[str, Rule] = {
    **dict.fromkeys(("data", "stage", "width", "batch", "micro_batches", "chunks"), whole_from(1, 2**31)),
    "variables": one_of("shared", "mirrored", "partitioned"),
    "sync": one_of(*SYNCS),
    "every": whole_from(1, 2**31),
    "alpha": NUMBER,
    "max_staleness": optional(whole_from(0, 2**31)),
    "shares": one_of("even", "measured"),
    "schedule": one_of("sequential", "gpipe", "1f1b"),
    "reduce": one_of(*REDUCTIONS),
    "recompute": one_of("none", "selective", "full", "stage"),
    "sequence": FLAG,
    "advice": TEXT,
}
PREDICTION_RULES: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "step",
            "examples_per_second",
            "efficiency",
            "compute",
            "waiting",
            "reduction",
            "update",
            "overhead",
        ),
        NUMBER,
    ),
    **dict.fromkeys(("memory", "moved", "busiest"), whole_from(0)),
    "memory_known": FLAG,
}


@dataclass(frozen=True)
class Plan:
    """A layout over `data` x `stage` x `width` devices.

    `devices` are positions in a topology: width by width inside a stage, stage by stage inside a replica,
    unless they are given in another order; `device(d, s, w)` tells who is where.

    Example:
        >>> import colonnade as cn
        >>> plan = cn.Plan(batch=64, data=2, stage=2, micro_batches=8)
        >>> plan.device(1, 0), plan.layout
        (2, '2 replicas of 2 stages, 8 micro-batches, 1f1b')
        >>> cn.Plan.from_json(plan.to_json()) == plan
        True
    """

    batch: int  # examples of the global batch
    data: int = 1
    stage: int = 1
    width: int = 1
    devices: tuple[int, ...] = ()
    variables: str = "mirrored"
    sharded: tuple[str, ...] = ()  # what replicas divide among them: slots, gradients, parameters
    sync: str = "synchronous"
    every: int = 1  # steps between joins of local training
    alpha: float = 0.1  # the pull of elastic training
    max_staleness: int | None = None  # of asynchronous training
    shares: str = "even"
    micro_batches: int = 1
    schedule: str = "1f1b"
    chunks: int = 1  # parts of the model on each device of a pipeline, which take turns
    layers: tuple[int, ...] | None = None  # the stage of each layer
    reduce: str = "order"
    recompute: str = "none"
    sequence: bool = False  # between layers that are split by width, activations are split too
    predicted: Prediction | None = None
    advice: str = ""
    candidates: tuple[Candidate, ...] = ()
    # Of a step as it was simulated; JSON does not have it.
    timeline: Timeline | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("devices", "sharded", "candidates", "layers"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        if not self.devices and all(
            is_whole(getattr(self, axis), 1, 2**20) for axis in ("data", "stage", "width")
        ):
            object.__setattr__(self, "devices", tuple(range(self.data * self.stage * self.width)))
        check("Plan", _problems(self))

    @property
    def num_devices(self) -> int:
        return self.data * self.stage * self.width

    def device(self, data: int, stage: int = 0, width: int = 0) -> int:
        """The position of the device that has this part of the work."""
        return self.devices[(data * self.stage + stage) * self.width + width]

    @property
    def layout(self) -> str:
        """In a few words."""
        again = "" if self.recompute == "none" else f", {self.recompute} recomputing"
        if self.num_devices == 1:
            return f"one device{again}"
        parts = [
            f"{self.data} replicas" if self.data > 1 else "",
            f"{self.stage} stages" if self.stage > 1 else "",
        ]
        words = " of ".join(filter(None, parts))
        if self.width > 1:
            words = f"{words}, {self.width} wide" if words else f"layers {self.width} wide"
        if self.stage > 1:
            chunks = f" in {self.chunks} chunks" if self.chunks > 1 else ""
            words += f", {self.micro_batches} micro-batches, {self.schedule}{chunks}"
        elif self.micro_batches > 1:
            words += f", {self.micro_batches} micro-batches"
        if self.data > 1:
            sync = "" if self.sync == "synchronous" else f", {self.sync}"
            every = f" every {self.every}" if self.sync in ("local", "diloco", "elastic") else ""
            sharded = f" ({', '.join(self.sharded)} divided)" if self.sharded else ""
            again = (", measured slices" if self.shares == "measured" else "") + again
            words += f"{sync}{every}" if sync else "" if self.stage > 1 else f", {self.variables}{sharded}"
        return words + again

    def _repr_html_(self) -> str:
        """The advice, and what was looked at, for notebooks."""
        head = ["layout", "ms per step", "examples/s", "of as many devices", "memory"]
        looked_at = [(self.layout, self.predicted, "the plan")]
        looked_at += [(c.layout, c.predicted, c.reason) for c in self.candidates]
        rows = [[layout, *_figures(predicted)] for layout, predicted, _ in looked_at]
        best = table(head, rows[:SHOWN], title="Plan")
        if len(rows) > 1:
            every = [[*row, why] for row, (_, _, why) in zip(rows, looked_at, strict=True)]
            best += f"<details><summary>all {len(rows)} layouts, and why not</summary>"
            best += f"{table([*head, ''], every)}</details>"
        return paragraphs([self.advice] if self.advice else []) + best

    @property
    def not_runnable(self) -> str:
        """Why the engine of this version cannot run it, in words; empty where it can."""
        if self.width > 1:
            return "layers are split by width only where the model is written with cn.width"
        if self.recompute != "none":
            return "the engine does not recompute activations"
        if self.chunks > 1:
            return "the engine has one stage per device"
        if self.sequence:
            return "the engine does not split sequences"
        if self.stage > 1 and (self.sync != "synchronous" or self.sharded):
            return "the rows of pipelines work in lockstep, each with variables of its own"
        if self.stage == 1 and self.micro_batches > 1:
            return "without stages the engine takes a slice in one piece"
        if self.sharded and (self.variables != "partitioned" or set(self.sharded) != {"slots", "parameters"}):
            return "the engine divides parameters and slots together, and no gradients"
        if self.shares != "even" and (self.stage > 1 or self.sync != "synchronous"):
            return "slices are measured only where replicas without stages work in lockstep"
        if self.sync == "asynchronous" and self.variables != "shared":
            return "devices that do not wait for each other share the variables"
        if self.sync in ("local", "diloco", "elastic") and self.variables != "mirrored":
            return "replicas that train by themselves have variables of their own, mirrored"
        if self.sync == "elastic" and (self.alpha >= 1 or self.alpha * (self.data + 1) >= 2):
            return f"a pull of {self.alpha:g} moves the centre of {self.data} replicas past them for ever"
        if self.reduce != "order" and self.data > 1:
            return "the engine adds up gradients along its own order"
        return ""

    def with_(self, **changes: Any) -> "Plan":
        """The plan with some fields changed."""
        return replace(self, **changes)

    def __str__(self) -> str:
        return plan_text.text(self)

    def to_json(self) -> str:
        """As text that `from_json` reads."""
        plain = asdict(replace(self, timeline=None))
        del plain["timeline"]
        return json.dumps({"version": VERSION, **plain})

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        """What `to_json` wrote; all that is wrong with a text comes in one error."""
        where = "Plan.from_json()"
        plain = fields.loaded(text, where, VERSION)
        candidates = plain.get("candidates", [])
        listed = candidates if isinstance(candidates, list) else []
        wrong = [*fields.strangers(cls, plain)]
        if "timeline" in plain:
            rule = "is no field here: a timeline has a file of its own"
            wrong.append(Problem("timeline", fields.shown(plain["timeline"]), rule, "Leave it out"))
        if not isinstance(candidates, list):
            wrong.append(Problem("candidates", fields.shown(candidates), "must be a list", FIX))
        wrong += _strange_prediction(plain.get("predicted"), "predicted.")
        for i, one in enumerate(listed):
            wrong += fields.strangers(Candidate, one, f"candidates[{i}].")
            if isinstance(one, dict):
                wrong += _strange_prediction(one.get("predicted"), f"candidates[{i}].predicted.")
        check(where, wrong)
        known = {**plain, "predicted": _prediction(plain.get("predicted"))}
        if "candidates" in plain:
            known["candidates"] = tuple(
                Candidate(**{**one, "predicted": _prediction(one.get("predicted"))}) for one in listed
            )
        return cls(**known)


def _figures(predicted: Prediction | None) -> list[str]:
    if predicted is None:
        return ["", "", "", "does not fit"]
    speed, part = f"{predicted.examples_per_second:,.0f}", f"{predicted.efficiency:.0%}"
    memory = size(predicted.memory) if predicted.memory_known else "not known"
    return [f"{1000 * predicted.step:.2f}", speed, part, memory]


def _problems(plan: Plan) -> Iterator[Problem]:
    wrong = list(fields.amiss(RULES, vars(plan)))
    yield from wrong
    if wrong:
        return
    yield from _device_problems(plan)
    if not isinstance(plan.sharded, tuple) or not all(one in SHARDABLE for one in plan.sharded):
        rule = f"must be some of {', '.join(SHARDABLE)}"
        yield Problem("sharded", fields.shown(plan.sharded), rule, "Leave it out")
    if plan.batch < plan.data:
        rule = f"is less than one example for each of {plan.data} replicas"
        yield Problem("batch", plan.batch, rule, f"Use at most {plan.batch} replicas")
    yield from _layer_problems(plan)
    yield from _prediction_problems(plan.predicted, "predicted")
    if not isinstance(plan.candidates, tuple):
        yield Problem("candidates", fields.shown(plan.candidates), "must be a list", FIX)
        return
    for i, one in enumerate(plan.candidates):
        if not isinstance(one, Candidate) or not all(isinstance(t, str) for t in (one.layout, one.reason)):
            rule = "must have a layout and a reason, both text"
            yield Problem(f"candidates[{i}]", fields.shown(one), rule, FIX)
        else:
            yield from _prediction_problems(one.predicted, f"candidates[{i}].predicted")


def _device_problems(plan: Plan) -> Iterator[Problem]:
    count = plan.num_devices
    positions = isinstance(plan.devices, tuple) and all(is_whole(d, 0, 2**31) for d in plan.devices)
    if not positions:
        rule = "must be positions of devices in a topology, from 0 up"
        yield Problem("devices", fields.shown(plan.devices), rule, "Leave it out")
    elif len(plan.devices) != count or len(set(plan.devices)) != count:
        rule = f"must name data x stage x width = {plan.data} x {plan.stage} x {plan.width} different devices"
        yield Problem("devices", fields.shown(plan.devices), rule, "Leave it out")


def _layer_problems(plan: Plan) -> Iterator[Problem]:
    stages = plan.stage * plan.chunks
    if plan.layers is None:
        return
    listed = isinstance(plan.layers, tuple) and all(is_whole(stage, 0) for stage in plan.layers)
    if not listed or list(plan.layers) != sorted(plan.layers) or len(set(plan.layers)) != stages:
        rule = f"must name the stages 0 to {stages - 1} in order, each at least once, a stage for each layer"
        yield Problem("layers", fields.shown(plan.layers), rule, "Leave it out")
    elif plan.layers[-1] != stages - 1:
        yield Problem(
            "layers", fields.shown(plan.layers), f"must end with stage {stages - 1}", "Leave it out"
        )


def _prediction_problems(predicted: Any, at: str) -> Iterator[Problem]:
    if predicted is None:
        return
    if not isinstance(predicted, Prediction):
        yield Problem(at, fields.shown(predicted), "must be a Prediction, or None", FIX)
        return
    yield from fields.amiss(PREDICTION_RULES, vars(predicted), f"{at}.")


def _strange_prediction(plain: Any, at: str) -> Iterator[Problem]:
    if plain is not None:
        yield from fields.strangers(Prediction, plain, at)


def _prediction(plain: dict[str, Any] | None) -> Prediction | None:
    return None if plain is None else Prediction(**plain)


def even_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """The stage of each layer where every stage has as many, or nearly.

    >>> even_stages(5, 2)
    (0, 0, 0, 1, 1)
    """
    small, larger = divmod(num_layers, num_stages)
    return tuple(k for k in range(num_stages) for _ in range(small + (k < larger)))


def spans(stages: Sequence[int], num_stages: int) -> list[tuple[int, int]]:
    """For each stage the first layer and the one after the last.

    >>> spans([0, 0, 1], 2)
    [(0, 2), (2, 3)]
    """
    return [(stages.index(k), len(stages) - stages[::-1].index(k)) for k in range(num_stages)]
