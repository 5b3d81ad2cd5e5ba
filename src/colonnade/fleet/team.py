"""The workers of one start of a cluster: heard and kept alive together, and ended together."""

import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from colonnade.fleet.heard import HeardSignals
from colonnade.fleet.printer import Printer
from colonnade.fleet.supervise import END
from colonnade.fleet.worker import Place, Worker

BEAT = 2.0  # seconds between signs of life to the workers
LAST_WORDS = 10.0  # for a worker to end all it started, and to say so, once we have hung up


class Team:
    """Workers at all places; leave the `with` block, and none of them is left.

    `ending` are the signals that came and told the programs to end.
    """

    def __init__(self, places: Sequence[Place], heard: HeardSignals, printer: Printer) -> None:
        self._heard, self._printer = heard, printer
        self._selector = selectors.DefaultSelector()
        self._selector.register(heard.descriptor, selectors.EVENT_READ, self._pass_on)
        self._selector.register(printer.descriptor, selectors.EVENT_READ, printer.check)
        self._beat = time.monotonic()
        self.ending: list[int] = []
        self.finished: list[Worker] = []  # in the order in which they did
        self.workers: list[Worker] = []
        width = max(len(place.name) for place in places)
        for place in places:
            self._add(Worker(place, width, printer))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.dismiss(list(self.workers))
        self._selector.close()

    def wait(self, until: Callable[[], bool], seconds: float = float("inf")) -> bool:
        """Listen to all until something is so, or the time is over; whether it is so."""
        deadline = time.monotonic() + seconds
        while not until():
            now = time.monotonic()
            if now >= deadline:
                return False
            if now >= self._beat:
                self._beat = now + BEAT
                for worker in self.workers:
                    worker.tell()
            for key, _ in self._selector.select(min(deadline, self._beat) - now):
                key.data()
        return True

    def dismiss(self, workers: Iterable[Worker], seconds: float | None = None) -> None:
        """Hang up on some, wait until they have ended all they started, and forget them.

        One that cannot be reached any more is left to itself: it ends when it does not hear from us.
        """
        going = [worker for worker in workers if worker in self.workers]
        for worker in going:
            worker.hang_up()
        self.wait(lambda: all(worker.over for worker in going), LAST_WORDS if seconds is None else seconds)
        for worker in going:
            self._forget(worker)
            worker.close()
            self.workers.remove(worker)
        self.finished = [worker for worker in self.finished if worker in self.workers]

    def note(self, text: str) -> None:
        """Say something as the launcher, after all that was printed before."""
        if text:
            self._printer.print(f"colonnade: {text}", sys.stderr)

    def _add(self, worker: Worker) -> None:
        self.workers.append(worker)
        for name, stream in worker.streams.items():
            self._selector.register(stream, selectors.EVENT_READ, self._reader(worker, name, stream))

        def finish() -> None:
            worker.finish()
            self.finished.append(worker)
            self._forget(worker)

        self._selector.register(worker.ended, selectors.EVENT_READ, finish)

    def _reader(self, worker: Worker, name: str, stream: int) -> Callable[[], None]:
        def read() -> None:
            if not worker.read(name) and stream in self._selector.get_map():
                self._selector.unregister(stream)  # its end: the process itself is still waited for

        return read

    def _forget(self, worker: Worker) -> None:
        for descriptor in (worker.ended, *worker.streams.values()):
            if descriptor in self._selector.get_map():
                self._selector.unregister(descriptor)

    def _pass_on(self) -> None:
        for number in self._heard.taken():
            if signal.Signals(number) in END:
                self.ending.append(number)
            for worker in self.workers:
                worker.tell({"signal": number})
