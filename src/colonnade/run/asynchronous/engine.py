"""What happens at `sync=cn.Asynchronous()`: each slice's gradient is applied as soon as it is ready."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem
from colonnade.hardware import devices as hardware
from colonnade.reason.simulator.staleness import ReadOrApply
from colonnade.run.asynchronous.device_calls import DeviceCalls
from colonnade.run.asynchronous.step_record import Slicing
from colonnade.run.asynchronous.stream import AsynchronousLoop
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.engine.gradients import slice_specs
from colonnade.run.engine.guard import Guard
from colonnade.run.engine.protocols import Links, Settings, Then
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import Memory, of_replicas
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.step.objective import Objective, miscounted
from colonnade.run.step.untrainable import split_by_width
from colonnade.run.trace.raw_call import Call
from colonnade.run.trace_cut.sync_cut import refusals
from colonnade.run.variables.aggregation import undone, wide
from colonnade.run.variables.digests import equal
from colonnade.run.variables.saved_state import Item, SavedState, bases, named, resume, state_of

WORKED = "worked"  # in a checkpoint: which devices have averages of their own


class AsynchronousEngine:
    """The parameters, which all devices share, and the calls with which they are read and updated.

    A call that applies a gradient reads the parameters as well, and calls are made one at a time. So
    what is read is never half of an update, and no update is lost.
    """

    def __init__(
        self,
        settings: Settings,
        max_staleness: int | None,
        damping: bool,
        order: Iterable[ReadOrApply] | None,
    ) -> None:
        self.devices, self.on_nan, self.max_staleness = settings.devices, settings.on_nan, max_staleness
        self.order = None if order is None else iter(order)
        # Held by whoever reads or updates the parameters; devices that must not read yet wait for it.
        self.turn = threading.Condition(threading.Lock())
        # Each held by its device while it computes.
        self.at_work: Sequence[threading.Lock] = [threading.Lock() for _ in self.devices]
        self.steps = 0  # as the user's optimizer counts them
        self.made = 0  # global steps, those without an update included
        self._damping = damping
        # Looks at the first batch, once all is prepared for it and before anything is trained.
        self.examine: Callable[[Arguments], Any] | None = None
        # TensorFlow's profiler sees nothing of a slice, so the graph notes what a profile tells.
        self.traces = Traces(settings, turning=True)
        self._guard = Guard(settings, self.traces)
        self._calls: DeviceCalls | None = None  # from the first batch on
        self._slicings: dict[Hashable, Slicing] = {}
        self._settles: dict[Hashable, Call] = {}
        self._worked: set[int] = set()
        self._shown: dict[Any, Any] = {}  # by ref, the values of states that the user was last shown
        self._running = self._paused = False
        self._pause = ExitStack()  # gives back the locks that are held while devices rest
        with tf.device("/device:CPU:0"):
            # When saved: the steps, and for each device whether it has worked.
            self._global_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps")
            self._who_worked = [tf.Variable(0, trainable=False, name=WORKED) for _ in self.devices]

    @property
    def optimizer(self) -> Any:
        return self.traces.optimizer

    @property
    def num_replicas(self) -> int:
        """On all machines, of which there is one."""
        return len(self.devices)

    @property
    def parameters(self) -> list[tf.Variable]:
        return self.traces.parameters

    def loop(self, then: Then) -> AsynchronousLoop:
        return AsynchronousLoop(self, then)

    def prepare(self, batch: Arguments) -> Slicing:
        """All that is needed for batches like this one. Must run in the main thread: it makes variables."""
        key = batch.key()
        if key not in self._slicings:
            self._slicings[key] = self._prepared(batch)
        return self._slicings[key]

    def _prepared(self, batch: Arguments) -> Slicing:
        counts = self.cut(batch)
        self.traces.prepare(batch, counts, self._refused, self._memory)
        first = self.traces.objective(slice_specs(batch, counts)[0], 0, len(self.devices))
        calls = self._calls = self._calls or DeviceCalls(
            self.traces, self._guard, first, self.devices, damping=self._damping
        )
        # Any device may take any slice.
        each = {
            (i, count): calls.slice_call(i, count, batch)
            for count in dict.fromkeys(counts)
            for i in range(len(self.devices))
        }
        if not self._slicings:  # later the user's counter is behind
            self.steps = calls.pushes.steps()
        if self.examine is not None:
            examine, self.examine = self.examine, None
            examine(batch)
        _, dtype, metrics = self.traces.outcome_spec(batch, counts)
        return Slicing(sum(counts), counts, calls.cut(batch, counts), each, tuple(metrics), dtype)

    def cut(self, batch: Arguments) -> tuple[int, ...]:
        rows = batch.size("the batch")
        assert rows is not None
        return sizes(rows, len(self.devices))

    def _refused(self, traces: Sequence[Objective]) -> Iterator[Problem]:
        yield from split_by_width(traces[0])
        if len(self.devices) > 1:
            yield from refusals(traces[0])
            yield from undone(traces[0].assigned)

    def memory(self, batch: Arguments) -> Memory:
        return self.traces.estimated(batch, self.cut(batch), self._refused, self._memory)

    def _memory(self, traced: Objective, part: Arguments, num_active: int) -> Memory:
        """Every device has the parameters that it read; the first has the shared ones too, and the slots.

        Of cards the first also has those that others have read and that are on their way to them: if each
        has read after another update, as many.
        """
        mirrored = of_replicas(traced, self.optimizer, part, self.devices, "mirrored", num_active)
        first, *others = mirrored.devices
        sent = len(others) if hardware.are_cards(self.devices) else 0
        first = replace(first, parameters=(2 + sent) * first.parameters)
        return Memory((first, *(replace(other, slots=0) for other in others)))

    def read_parameters(self) -> list[Any]:
        """The parameters as they are."""
        assert self._calls is not None
        return self._calls.read_parameters()

    def brought(self, i: int, read: list[Any]) -> list[Any]:
        """What a device has read, on that device: the first card need not hold what others compute with."""
        if i == 0 or not hardware.is_card(self.devices[i]):
            return read
        with tf.device(self.devices[i]):
            return [tf.identity(tensor) for tensor in read]

    def worked(self, i: int) -> None:
        self._worked.add(i)

    def not_finite(self, i: int, step: int, watched: Any) -> NotFinite:
        applied = "This slice was not applied; other slices may have been."
        return self._guard.not_finite(self.devices[i], step, watched, applied)

    def begin(self) -> None:
        """Devices are about to work."""
        if self._running:
            rule, fix = "trains while the devices are at work for a fit", "Train when fit has returned"
            raise InvalidArgument("fit()", [Problem("callbacks", "a callback", rule, fix)])
        self._running = True

    def end(self) -> None:
        """Devices take no other slice."""
        self._running = False
        self._go_on()

    def leave(self) -> None:
        """The user's variables show what was reached; devices end their slices, and then rest until `enter`.

        They must not be in a call: an error that TensorFlow raises meanwhile, be it the end of a dataset
        that a callback goes through, may end calls of other threads with that error.
        """
        if self._calls is None:
            return
        if self._running and not self._paused:
            self._paused = True
            self._pause.enter_context(self.turn)
            for lock in self.at_work:
                self._pause.enter_context(lock)
        self._show()

    def _show(self) -> None:
        assert self._calls is not None
        for counter in self._calls.pushes.counters:
            counter.deref().assign(tf.cast(self.steps, counter.deref().dtype))
        if self._worked and self._calls.housed.states:
            self._settle_states()
        states = self._calls.housed.shared_states()
        self._shown = {state.original.ref(): state.original.read_value() for state in states}

    def _settle_states(self) -> None:
        assert self._calls is not None
        housed, worked = self._calls.housed, sorted(self._worked)
        key = (tuple(worked), len(housed.states))
        if key not in self._settles:

            def settle() -> list[Any]:
                def mean(copies: Sequence[tf.Variable]) -> Any:
                    values = [wide(copies[i].read_value()) for i in worked]
                    return tf.cast(tf.add_n(values) / len(worked), copies[0].dtype)

                with tf.control_dependencies(housed.settle_states(mean, everywhere=False)):
                    return [tf.constant(0)]

            self._settles[key] = Call(settle, [], self.devices[0])
        self._settles[key]()

    def enter(self) -> None:
        """What the user assigned to variables counts."""
        if self._calls is None:
            return
        for ref, counter in self._calls.pushes.counters.items():
            if int(ref.deref()) != self.steps:
                self.steps = int(ref.deref())
                counter.assign(ref.deref())
        self._calls.housed.refresh(but=frozenset(variable.ref() for variable in self._calls.shared))
        if self._running:
            shown = self._shown.items()
            assigned = {ref for ref, value in shown if not equal(ref.deref().read_value(), value)}
            self._calls.housed.restore_states(only=assigned)  # the others go on from what each device has
            self._go_on()
        else:
            self._calls.housed.restore_states()
            self._worked = set()

    def _go_on(self) -> None:
        self._paused = False
        self._pause.close()

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `Resumable`): every device's own averages too."""
        assert self._calls is not None
        self._show()
        self._global_steps.assign(self.made)
        lost = self.traces.lost()
        if self.order is not None:
            lost = [*lost, "the order of reads and updates begins again"]
        kept = state_of(self._calls.housed, self._global_steps, lost)
        groups = {"parameters": self.parameters, "optimizer": self.traces.slots}
        shared = {
            f"{group}/{name}": Item(variable, variable)
            for group, variables in groups.items()
            for name, variable in named(variables).items()
        }
        counted = named([ref.deref() for ref in self._calls.pushes.counters])
        pushes = zip(counted, counted.values(), self._calls.pushes.counters.values(), strict=True)
        common = {
            **{name: item for name, item in kept.common.items() if not name.startswith("parameters/")},
            **shared,
            # In a mode that does not tell them apart, every step was one update.
            **{f"pushes/{name}": Item(own, own, user) for name, user, own in pushes},
        }
        own = kept.own | self._averages()
        if own.keys() - kept.own.keys():
            own[WORKED] = tuple(self._who_worked)
            for i, variable in enumerate(self._who_worked):
                variable.assign(int(i in self._worked))
        return SavedState(common, own, kept.random, kept.lost)

    def _averages(self) -> dict[str, tuple[tf.Variable, ...]]:
        """By name, the states that a device has for itself and that are shown as their mean."""
        assert self._calls is not None
        averaged = {s.original.ref(): s.copies for s in self._calls.housed.states.values() if s.averaged}
        originals = named([ref.deref() for ref in averaged])
        averages = {f"averages/{name}": averaged[variable.ref()] for name, variable in originals.items()}
        return averages | bases(self._calls.housed)

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step: devices with their own averages, or on another number with the mean."""
        assert self._calls is not None
        resume(self._calls.housed, own)
        for name, copies in self._averages().items():
            if len(own.get(name, ())) == len(copies):
                # What was saved before that was told counts as the work of all.
                told = own.get(WORKED, ()) or [1] * len(copies)
                self._worked = {i for i, worked in enumerate(told) if int(worked)}
                for copy, value in zip(copies, own[name], strict=True):
                    copy.assign(value)
        self.made = int(self._global_steps)
        self.steps = self._calls.pushes.steps()

    def next_join(self, step: int) -> int:
        return step

    def explained(self, error: tf.errors.OpError) -> Exception:
        return miscounted(error)

    def homes(self) -> dict[str, str]:
        return {v.name: v.device for v in (*self.parameters, *self.traces.slots)}

    def replicas(self) -> list[list[tf.Variable]]:
        return [self.parameters for _ in self.devices]

    def links(self) -> Links:
        """As if every device took one slice of a step: but for device 0, parameters in and gradient out."""
        dense = [spec for spec in self.traces.specs if isinstance(spec, tf.TensorSpec)]
        read, sent = (float(sum(map(num_bytes, tensors))) for tensors in (self.parameters, dense))
        first, *others = self.devices
        return {(first, other): read for other in others} | {(other, first): sent for other in others}
