"""`cn.Asynchronous`, a value of `sync=`: its arguments and their checks; `engine` trains by it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from colonnade.errors import InvalidArgument, Problem, check, whole
from colonnade.reason.simulator.staleness import ReadOrApply
from colonnade.run.asynchronous.engine import AsynchronousEngine
from colonnade.run.engine.protocols import Settings
from colonnade.run.step.update import inside


@dataclass(frozen=True)
class Asynchronous:
    """Each slice's gradient is applied as soon as it is ready; devices do not wait for each other.

    Args:
        max_staleness: the largest number of updates between the reading of the parameters and the update
            that comes of it. A device waits before it reads, so no gradient is computed in vain; at most
            `max_staleness + 1` devices work at the same time.
        damping: whether to divide a step by 1 + the age of its gradient.
        order: a fixed order of reads and updates, for tests and simulations: an iterable of
            `colonnade.reason.simulator.staleness.ReadOrApply`, such as `race` there gives. One thread
            makes them one by one.

    Example:
        >>> import colonnade as cn
        >>> sync = cn.Asynchronous(max_staleness=4)
    """

    max_staleness: int | None = None
    damping: bool = False
    order: Iterable[ReadOrApply] | None = None
    homes: ClassVar[tuple[str, ...]] = ("shared",)

    def __post_init__(self) -> None:
        amiss = (
            []
            if self.max_staleness is None
            else [*whole("max_staleness", self.max_staleness, 0, like=8, numpy=True)]
        )
        if not isinstance(self.damping, bool):
            amiss.append(Problem("damping", self.damping, "must be True or False", "Leave it out"))
        if self.order is not None and not isinstance(self.order, Iterable):
            rule = "must be an iterable of reads and updates"
            amiss.append(Problem("order", self.order, rule, "Leave it out to let the devices race"))
        check("Asynchronous()", amiss)

    def problems(self, num_devices: int) -> Iterator[Problem]:
        yield from ()

    def engine(self, settings: Settings) -> AsynchronousEngine:
        if self.damping and any(getattr(one, "use_ema", False) for one in inside(settings.optimizer)):
            rule = "does not go with an optimizer that has use_ema=True: its average follows undamped weights"
            raise InvalidArgument("Asynchronous()", [Problem("damping", True, rule, "Leave one of them out")])
        return AsynchronousEngine(settings, self.max_staleness, self.damping, self.order)
