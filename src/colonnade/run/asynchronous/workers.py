"""The threads of asynchronous training: one per device, or one that follows a given order."""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem
from colonnade.hardware.placement import short
from colonnade.hardware.profile import mark, note
from colonnade.reason.simulator.staleness import Ledger, ReadOrApply
from colonnade.run.asynchronous.step_record import FinishedSlice, QueuedSlice


class SharedParameters(Protocol):
    """The parameters that all devices share, and what they need to work on them."""

    devices: tuple[str, ...]
    on_nan: str | None
    max_staleness: int | None
    order: Iterator[ReadOrApply] | None
    turn: threading.Condition  # held by whoever reads or updates the parameters
    at_work: Sequence[threading.Lock]  # each held by its device while it computes

    def read_parameters(self) -> list[Any]:
        """The parameters as they are."""

    def brought(self, device: int, read: list[Any]) -> list[Any]:
        """What a device has read, where it computes with it."""

    def worked(self, device: int) -> None:
        """The device has changed its states."""

    def not_finite(self, device: int, step: int, watched: Any) -> NotFinite:
        """What to raise."""


class ParameterAccess:
    """Where devices read the parameters and hand in gradients, one at a time."""

    def __init__(self, shared: SharedParameters) -> None:
        self._shared, self._turn = shared, shared.turn
        self.ledger = Ledger(shared.max_staleness)
        self.names = [short(device) for device in shared.devices]
        self._line: deque[int] = deque()  # devices that wait to read
        self._computed = [-math.inf] * len(shared.devices)  # until when; infinite for one that computes
        self._whole: dict[int, Any] = {}  # whole numbers as tensors, which take a while to make

    def read(self, device: int) -> list[Any]:
        """The parameters, as soon as the device may read them."""
        with self._turn:
            self._line.append(device)
            if self._must_wait(device):
                with mark(f"bound {self.names[device]}"):
                    while self._must_wait(device):
                        self._turn.wait()
            self._line.popleft()
            self.ledger.read(device)
            self._turn.notify_all()
            return self._shared.read_parameters()

    def _must_wait(self, device: int) -> bool:
        return self._line[0] != device or not self.ledger.may_read()

    def work(
        self, device: int, piece: QueuedSlice, parameters: Sequence[Any], *, more: bool = False
    ) -> tuple[FinishedSlice, list[Any] | None]:
        """Compute a slice and apply its gradient.

        With `more`, the device has another slice to work on; if it may read for it at once, the second
        result is what it read.
        """
        call, step, name = piece.call(device), piece.step, self.names[device]
        with self._shared.at_work[device]:
            self._computed[device] = math.inf
            try:
                with mark(f"slice {name} {step.number}"):
                    results = call([*parameters, *piece.tensors], step.schedule_step)
                    note(f"turned {name}", results.turned)
            finally:
                self._computed[device] = time.perf_counter()
            self._shared.worked(device)
            healthy = self._shared.on_nan is None or np.isfinite(results.report.watched).all()
            if not healthy:
                call.undo(results)
        if not healthy and self._shared.on_nan == "stop":
            raise self._shared.not_finite(device, step.number, results.report.watched)
        age, read = None, None
        with self._turn:
            if healthy:
                age = self.ledger.applied(device)
                with mark(f"update {name} {step.number} {call.gradient_bytes}"):
                    arrived, *read = call.push(step.schedule_step, self._tensor(age), *results.gradient)
                    note(f"arrived {name}", arrived)
            else:
                self.ledger.left_out(device)
            if more and not self._line and self.ledger.may_read():
                self.ledger.read(device)
                read = read or self._shared.read_parameters()
            else:
                read = None
            if self._line:
                self._turn.notify_all()
        return FinishedSlice(piece, device, results.report, age, call.outputs_of(results)), read

    @property
    def computed_until(self) -> float:
        """When the last device ended to compute; infinite while one computes."""
        return max(self._computed)

    def _tensor(self, age: int) -> Any:
        if age not in self._whole:
            self._whole[age] = tf.constant(age, tf.int64)
        return self._whole[age]

    def retire(self, device: int) -> None:
        """The device makes no other update: nobody is to wait for the one that it read for."""
        with self._turn:
            if self.ledger.is_reading(device):
                self.ledger.left_out(device)
            self._turn.notify_all()


class DeviceThreads:
    """A thread per device; each takes a slice from the queue whenever it is free."""

    def __init__(self, shared: SharedParameters) -> None:
        self._shared, self.access = shared, ParameterAccess(shared)
        self._queue: SimpleQueue[QueuedSlice | None] = SimpleQueue()
        self._results: deque[FinishedSlice | BaseException] = deque()
        self._few = 0
        # Rung when a step is complete, and few slices are left: waking up the main thread takes time.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._under_way = 0
        self._until = math.inf  # the number of a step; slices of it, and of later ones, are left alone
        self._threads = [
            threading.Thread(target=self._work, args=(i,), name=f"colonnade {device}", daemon=True)
            for i, device in enumerate(shared.devices)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Slices in the queue."""
        return self._queue.qsize()

    def give(self, piece: QueuedSlice) -> None:
        self._under_way += 1
        self._queue.put(piece)

    def next(self, few: int) -> list[FinishedSlice | BaseException]:
        """What was finished meanwhile, or what went wrong; nothing if nothing is under way.

        Waits until a step is complete and the queue has `few` slices, or less.
        """
        self._few = few
        results: list[FinishedSlice | BaseException] = []
        while self._under_way and not results:
            self._bell.get()  # which may have been rung for what was taken before
            results = self._taken()
        if any(isinstance(result, BaseException) for result in results):
            self._end()  # steps before the one that failed are completed
            results += self._taken()
        return results

    def _taken(self) -> list[FinishedSlice | BaseException]:
        results = [self._results.popleft() for _ in range(len(self._results))]
        self._under_way -= len(results)
        return results

    def stop(self) -> None:
        """Take no other slice, and wait for those that are being computed."""
        self._until = 0
        self._end()

    def _end(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, device: int) -> None:
        piece = self._next(device)
        parameters: list[Any] | None = None
        try:
            while piece is not None and piece.step.number < self._until:
                parameters = self._shared.brought(device, parameters or self.access.read(device))
                following = self._following()
                finished, parameters = self.access.work(device, piece, parameters, more=following is not None)
                self._results.append(finished)
                complete = next(piece.step.finished) == len(piece.step.slicing.counts)
                if complete and self.waiting <= self._few:
                    self._bell.put(None)
                piece = following or self._next(device)
        except BaseException as error:
            assert piece is not None
            with self._shared.turn:
                self._until = min(self._until, piece.step.number)
            self._results.append(located(error, self._shared.devices[device], piece.step.number))
            self._bell.put(None)
        finally:
            self.access.retire(device)

    def _next(self, device: int) -> QueuedSlice | None:
        """The next slice, for which the device may have to wait; None at the end."""
        with mark(f"queue {self.access.names[device]}"):
            return self._queue.get()

    def _following(self) -> QueuedSlice | None:
        """The slice to go on with, if one is there."""
        try:
            piece = self._queue.get_nowait()
        except Empty:
            return None
        if piece is None:  # the end, which every device must see once
            self._queue.put(None)
        return piece


class FixedOrder:
    """One thread that makes the reads and updates of all devices in a given order.

    A read when no slice is left, and the update that belongs to it, are passed over.
    """

    def __init__(self, shared: SharedParameters) -> None:
        self._shared, self.access = shared, ParameterAccess(shared)
        self._queue: deque[QueuedSlice] = deque()
        self._held: dict[int, tuple[QueuedSlice, list[Any]]] = {}

    @property
    def waiting(self) -> int:
        """Slices in the queue."""
        return len(self._queue)

    def give(self, piece: QueuedSlice) -> None:
        self._queue.append(piece)

    def next(self, few: int) -> list[FinishedSlice | BaseException]:
        """Make events up to the next update."""
        assert self._shared.order is not None
        while self._queue or self._held:
            event = next(self._shared.order, None)
            if problem := self._problem(event):
                return [InvalidArgument("Asynchronous()", [problem])]
            assert event is not None
            kind, device = event
            if kind == "read" and self._queue:
                read = self._shared.brought(device, self.access.read(device))
                self._held[device] = self._queue.popleft(), read
            elif kind == "apply" and device in self._held:
                piece, parameters = self._held.pop(device)
                try:
                    return [self.access.work(device, piece, parameters)[0]]
                except BaseException as error:
                    return [located(error, self._shared.devices[device], piece.step.number)]
        return []

    def _problem(self, event: ReadOrApply | None) -> Problem | None:
        fix = "Take colonnade.reason.simulator.staleness.race(seconds, max_staleness)"
        if event is None:
            left = len(self._queue) + len(self._held)
            return Problem("order", f"{left} slices", "are left at the end of the order", fix)
        known = ("read", "apply"), range(len(self._shared.devices))
        pair = isinstance(event, Sequence) and len(event) == len(known)
        if not pair or not all(part in among for part, among in zip(event, known, strict=True)):
            return Problem("order", event, "must be a read or an apply of one of the devices", fix)
        kind, device = event
        if kind == "read" and device in self._held:
            return Problem("order", event, "comes before the device has applied what it read", fix)
        if kind == "read" and self._queue and not self.access.ledger.may_read():
            return Problem("order", event, "comes where max_staleness lets the device wait", fix)
        return None

    def stop(self) -> None:
        self._queue.clear()
        self._held.clear()


def located(error: BaseException, device: str, step: int) -> BaseException:
    """The same error, which says on which device it came up."""
    where = f"on {device}, at step {step}"
    if isinstance(error, NotFinite):
        return error
    if isinstance(error, tf.errors.OpError):
        return type(error)(error.node_def, error.op, f"{where}: {error.message}")
    error.add_note(where)
    return error
