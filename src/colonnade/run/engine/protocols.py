"""What a mode of training must offer: the interface between trainer and mode.

    sync       a frozen value that the user passes, such as cn.LocalSGD(8); it makes the engine
    engine     holds the variables that its way needs, and shows the user's variables what was reached
    loop       makes steps, one by one or as a stream; an engine comes with the loop that fits it

Engines whose step is a graph share one loop (see `graph_loop`); the asynchronous one has its own.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from colonnade.errors import Problem
from colonnade.hardware import devices as hardware
from colonnade.hardware.clusters.whereabouts import Progress
from colonnade.run.batch.split import Arguments
from colonnade.run.data.batches import Batches
from colonnade.run.data.fit_data import FitData
from colonnade.run.machines.call_pace import CallPace
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.memory.estimate import Memory
from colonnade.run.move.reduce import Order, order_for, tree_for
from colonnade.run.move.reductions import AUTO, TREE
from colonnade.run.move.slices_ahead import SlicesAhead
from colonnade.run.parallel.compilation import Compilation
from colonnade.run.trace.keras_owner import not_frozen
from colonnade.run.variables.homes import MODES


@dataclass(frozen=True)
class Settings:
    """What every engine is made from: the user's function and optimizer, and the choices around them."""

    loss: Callable[..., Any]
    optimizer: Any
    devices: tuple[str, ...]
    mode: str  # where variables live
    penalty: Callable[[], Any] | None = None
    on_nan: str | None = "stop"
    dealt: str = "size"  # how partitioned variables are dealt
    # Which of the variables that the function uses are trained; by default those that are not frozen.
    trainable: Callable[[Sequence[tf.Variable]], Sequence[tf.Variable]] = not_frozen
    # What the optimizer is made for; by default the trained variables, in the order of their use.
    optimized: Callable[[], Sequence[Any]] | None = None
    compilation: Compilation = field(default_factory=Compilation)
    peers: Peers = ALONE  # the machines that train together
    reduce: str = AUTO  # how gradients are summed

    @property
    def num_replicas(self) -> int:
        """On all machines."""
        return self.peers.total if self.peers.several else len(self.devices)

    @property
    def order(self) -> Order:
        return tree_for(self.devices) if self.reduce == TREE else order_for(self.devices)


@dataclass(frozen=True)
class Outcome:
    """What a step tells: means over the global batch, and the loss of each replica's own slice."""

    loss: Any
    metrics: dict[str, Any]
    replicas: Any  # the mean loss of each replica's slice
    skipped: Any  # how many updates were left out because of a NaN
    outputs: Any = None  # a list per slice of what else the function returned
    ages: dict[int, int] = field(default_factory=dict)  # how many gradients of each age were applied


@dataclass(frozen=True)
class Chunk:
    """Some steps, one after the other."""

    seconds: float  # without the time that tracing took
    steps: int
    examples: int
    losses: list[float]
    metrics: dict[str, float]  # of the last step
    replicas: list[float]  # losses of the last step, by replica
    skipped: int
    updates: int
    ages: dict[int, int] = field(default_factory=dict)  # how many gradients of each age were applied
    waited: float = 0.0  # seconds of these in which the next batch was waited for
    idle: int = 0  # steps in a row without an update: up to the end, or up to the first time it was too many


# Bytes by the devices that they go from and to.
Links = dict[tuple[str, str], float]

# With on_nan="skip", this many steps in a row without an update end the training.
MOST_SKIPPED = 20

# What becomes of a step: called with its outcome and its batch, where the step is made.
Then = Callable[[Outcome, Arguments], Any]


class Stream(Protocol):
    """Steps on the batches of one fit, taken some at a time."""

    @property
    def resting(self) -> bool:
        """Whether nothing is under way beyond the steps that were taken."""

    def hold(self, steps: int) -> None:
        """Begin no more than so many steps beyond those that were taken, until told otherwise."""

    def take(self, steps: int) -> Chunk | None:
        """Up to so many steps; None at the end of the data."""

    def settle(self) -> Chunk | None:
        """Complete the steps that were begun beyond those that were taken, so that nothing is under way."""

    def close(self) -> None:
        """Begin nothing more, and wait until nothing is under way."""


class Steps(Protocol):
    """Makes steps."""

    rows: int  # of the batch at hand
    idle: int  # steps in a row without an update, up to now

    def once(self, arguments: Arguments) -> Any:
        """One step; what `then` made of it."""

    def stream(self, data: FitData, limit: int | None = None) -> Stream:
        """Steps on batch after batch, at most `limit` of them."""

    def along(self, batches: Batches) -> Stream:
        """The same, on batches of which the place in the data can be told wherever the stream rests."""


class Engine(Protocol):
    """A way of training."""

    devices: tuple[str, ...]
    # Called with the first batch, once all is prepared for it and before anything is trained.
    examine: Callable[[Arguments], Any] | None

    @property
    def parameters(self) -> list[tf.Variable]:
        """What is trained; empty before the first step."""

    @property
    def traces(self) -> Any:
        """Of the loss, and of the update."""

    def prepare(self, batch: Arguments) -> Any:
        """Make all that is needed for batches like this one, in eager code."""

    def cut(self, batch: Arguments) -> tuple[int, ...]:
        """The sizes of the slices of such a batch."""

    def loop(self, then: Then) -> Steps:
        """The loop in which this engine's steps are made."""

    def enter(self) -> None:
        """Before steps: what the user assigned to variables counts."""

    def leave(self) -> None:
        """After steps, and wherever the user may look: his variables show what was reached."""

    def explained(self, error: tf.errors.OpError) -> Exception:
        """What is to be raised for an error of a step."""

    def memory(self, batch: Arguments) -> Memory:
        """An estimate of what a step on such a batch takes on each device; makes no variables."""

    def homes(self) -> dict[str, str]:
        """The device of every parameter and slot, by name."""

    def replicas(self) -> list[list[tf.Variable]]:
        """For each device the variables that it reads as the parameters."""

    def links(self) -> Links:
        """Bytes that a step moves from device to device, on average; rows of sparse gradients not counted."""


@runtime_checkable
class Sync(Protocol):
    """What `sync=` takes."""

    @property
    def homes(self) -> tuple[str, ...]:
        """The values of `variables=` that have a meaning; the first is preferred."""

    def problems(self, num_devices: int) -> Iterator[Problem]:
        """What does not go with this number of devices."""

    def engine(self, settings: Settings) -> Engine: ...


def home(sync: Sync, variables: str, devices: Sequence[str]) -> str:
    """Where variables live: as asked for, or as it suits the devices and the way of training."""
    if variables != "auto":
        return variables
    preferred = hardware.preferred_variables(devices)
    return preferred if preferred in sync.homes else sync.homes[0]


def sync_problems(sync: Any, variables: Any, num_devices: int) -> Iterator[Problem]:
    """What is wrong with `sync=` and `variables=`, each by itself and together."""
    known = variables in ("auto", *MODES)
    if not known:
        yield Problem("variables", variables, f"must be one of auto, {', '.join(MODES)}", "Leave it out")
    if not isinstance(sync, Sync) or isinstance(sync, type):
        values = "cn.Synchronous(), cn.Asynchronous(), cn.LocalSGD(8), cn.DiLoCo() or cn.Elastic(8, 0.1)"
        yield Problem("sync", sync, f"must be a value such as {values}", "Leave it out for cn.Synchronous()")
        return
    if known and variables not in ("auto", *sync.homes):
        rule = f"has no meaning with {type(sync).__name__}, whose variables are {' or '.join(sync.homes)}"
        yield Problem("variables", variables, rule, "Leave it out")
    yield from sync.problems(num_devices)


class Stepped(Protocol):
    """An engine whose step is a graph."""

    def prepare(self, batch: Arguments) -> None:
        """In eager code, before a step on such a batch is built."""

    def step(self, batch: Arguments) -> Outcome:
        """The graph of a step."""

    def outcome_spec(self, batch: Arguments) -> tuple[int, Any, dict[str, Any]]:
        """Of such a step: how many replicas work, the dtype of the loss, those of the metrics."""

    def key(self, batch: Arguments) -> Hashable:
        """Equal for batches that one graph serves, at this moment."""

    def begin(self, batch: Arguments) -> None:
        """In eager code, before steps on batches like this one."""

    def took(self, rows: int, steps: int, seconds: float) -> None:
        """So many steps, on batches of so many rows, took so long."""

    def ahead(self, batch: Arguments) -> SlicesAhead | None:
        """Places for the slices of such batches, where a copy to a device takes time. In eager code."""

    def inputs(self, batch: Arguments) -> Sequence[Any]:
        """What the trace of the first slice of such a batch, which is prepared, has for its plain tensors."""

    def distrust(self) -> None:
        """A step has failed, and may have left copies of variables that differ."""

    def calling(self, progress: Progress, pace: CallPace) -> AbstractContextManager[None]:
        """Around a call of steps, which other machines may be part of."""
