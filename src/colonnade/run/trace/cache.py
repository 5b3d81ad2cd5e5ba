"""Traces that are kept: one for arguments of one shape, or one for each replica where it must be."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from colonnade.run.batch.split import Arguments
from colonnade.run.trace.traced import Traced, Voice

T = TypeVar("T", bound=Traced)


class TraceCache(Generic[T]):
    """The traces of one function.

    Args:
        make: traces the function for such arguments, as one replica speaks, or (None) as all do.
        devices: of the replicas.
        first: the number of the first of them, where other machines have some too.
        version: tells of something else that a trace depends on; each has traces of its own.
    """

    def __init__(
        self,
        make: Callable[[Arguments, Voice | None], T],
        devices: Sequence[str] = (),
        version: Callable[[], Hashable] = lambda: None,
        first: int = 0,
    ) -> None:
        self._make, self._devices, self._version, self._first = make, tuple(devices), version, first
        self._traces: dict[Hashable, T] = {}

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._traces.values()))

    def __contains__(self, part: Arguments) -> bool:
        """Whether there is a trace for such arguments, as all replicas speak."""
        return (part.key(), None, self._version()) in self._traces

    def get(self, part: Arguments, voice: Voice | None = None) -> T:
        """The trace for such arguments; one that captured something of the graph around it is not kept."""
        key = (part.key(), voice, self._version())
        if key in self._traces:
            return self._traces[key]
        traced = self._make(part, voice)
        if traced.portable:
            self._traces[key] = traced
        return traced

    def of_replica(self, part: Arguments, replica: int, num_replicas: int) -> T:
        """One trace for all slices of one shape; one each where replicas speak or draw seeded numbers."""
        common = self.get(part)
        return common if num_replicas == 1 else self.voiced(common, part, replica)

    def voiced(self, common: T, part: Arguments, replica: int) -> T:
        """What a replica runs where there are several, given what all could run."""
        # A replica of another machine is only looked at here, as one of this machine's devices.
        device = self._devices[(replica - self._first) % len(self._devices)]
        voice = common.voice(replica, device)
        return common if voice is None else self.get(part, voice)

    def of_micro_batch(self, part: Arguments, number: int, num_micro_batches: int) -> T:
        """One trace for all micro-batches of one shape; one each where they draw seeded numbers."""
        common = self.get(part)
        if num_micro_batches == 1 or not common.facts.repeats:
            return common
        return self.get(part, Voice(number, self._devices[0], True))

    def forget(self) -> None:
        """Trace anew whatever is asked for from now on."""
        self._traces = {}
