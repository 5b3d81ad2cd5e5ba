"""Asynchronous training: each slice's gradient is applied as soon as it is ready."""

import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, NotFinite, Problem
from colonnade.reason.staleness import Event
from colonnade.run.asynchronous.schedule_clock import paced
from colonnade.run.asynchronous.slice_call import SliceCall, SliceReport, SliceResults
from colonnade.run.asynchronous.step_record import Sliced
from colonnade.run.asynchronous.stream import Race
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.engine.protocols import Settings, Then
from colonnade.run.engine.traces import Descent, components, divided, divisor, gradient_specs
from colonnade.run.memory.estimate import Memory, of_replicas
from colonnade.run.step.objective import Objective, Share
from colonnade.run.step.untrainable import split_by_width
from colonnade.run.step.update import as_divided, as_keras
from colonnade.run.trace.captures import Capture
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.fast_call import Call
from colonnade.run.trace.sync_cut import refusals
from colonnade.run.trace.traced import Traced, trace
from colonnade.run.trace.xla import fast
from colonnade.run.variables.aggregation import undone
from colonnade.run.variables.homes import Bindings, Residence, copy_of
from colonnade.run.variables.saved_state import Item, State, bases, named, resume, state_of


class Stale:
    """The parameters, which all devices share, and the calls with which they are read and updated.

    A call that applies a gradient reads the parameters as well, and calls are made one at a time. So
    what is read is never half of an update, and no update is lost.
    """

    def __init__(
        self, settings: Settings, max_staleness: int | None, damping: bool, order: Iterable[Event] | None
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
        self._descent = Descent(settings)
        self._residence: Residence | None = None
        self._shared: list[tf.Variable] = []  # what a device reads when it reads the parameters
        self._counters: dict[Any, tf.Variable] = {}  # by the ref of the user's: these count updates
        self._pushes: dict[Hashable, Call] = {}
        self._sliced: dict[Hashable, Sliced] = {}
        self._look: Call | None = None
        self._scale: Traced | None = None  # what a loss is multiplied by, where that changes
        self._settles: dict[Hashable, Call] = {}
        self._worked: set[int] = set()
        self._running = self._paused = False
        self._pause = ExitStack()  # gives back the locks that are held while devices rest
        with tf.device("/device:CPU:0"):
            self._global_steps = tf.Variable(0, trainable=False, dtype=tf.int64, name="steps")  # when saved

    @property
    def optimizer(self) -> Any:
        return self._descent.optimizer

    @property
    def parameters(self) -> list[tf.Variable]:
        return self._descent.parameters

    def loop(self, then: Then) -> Race:
        return Race(self, then)

    def prepare(self, batch: Arguments) -> Sliced:
        """All that is needed for batches like this one. Must run in the main thread: it makes variables."""
        key = batch.key()
        if key not in self._sliced:
            self._sliced[key] = self._prepared(batch)
        return self._sliced[key]

    def _prepared(self, batch: Arguments) -> Sliced:
        rows = batch.size("the batch")
        assert rows is not None
        counts = sizes(rows, len(self.devices))
        self._descent.prepare(batch, counts, self._refused, self._memory)
        # Any device may take any slice.
        calls = {
            (i, count): self._slice_call(i, count, batch)
            for count in dict.fromkeys(counts)
            for i in range(len(self.devices))
        }
        _, dtype, metrics = self._descent.told(batch, counts)
        return Sliced(rows, counts, self._cut(batch, counts), calls, tuple(metrics), dtype)

    def _refused(self, traces: Sequence[Objective]) -> Iterator[Problem]:
        yield from split_by_width(traces[0])
        if len(self.devices) > 1:
            yield from refusals(traces[0])
            yield from undone(traces[0].assigned)

    def memory(self, batch: Arguments) -> Memory:
        rows = batch.size("the batch")
        assert rows is not None
        counts = sizes(rows, len(self.devices))
        return self._descent.estimate(batch, counts, self._refused, self._memory)

    def _memory(self, traced: Objective, part: Arguments, num_active: int) -> Memory:
        """Every device has the parameters that it read; the first has the shared ones too, and the slots."""
        found = of_replicas(traced, self.optimizer, part, self.devices, "mirrored", num_active)
        first, *others = found.devices
        first = replace(first, parameters=2 * first.parameters)
        return Memory((first, *(replace(other, slots=0) for other in others)))

    def _settled(self, traced: Traced) -> Residence:
        """What a device has of its own: a place for the parameters it reads, and the states."""
        if self._residence is None:
            slots = {slot.ref() for slot in self._descent.slots}
            # A loss that is scaled reads the scale, which is the optimizer's.
            scales = [variable for variable in traced.variables if variable.ref() in slots]
            self._shared = shared = [*self.parameters, *scales]
            self._residence = Residence("local", self.devices, shared, [])
            self._look = Call(lambda: [v.read_value() for v in shared], [], self.devices[0])
            if scales:
                self._scale = trace(unconverted(self._factor))
            for slot in self._descent.slots:
                if slot.shape.rank == 0 and not slot.dtype.is_floating and "iteration" in slot.name:
                    self._counters[slot.ref()] = copy_of(slot, slot.device)
        return self._residence

    def _factor(self) -> Any:
        """What a loss is multiplied by."""
        return self.optimizer.scale_loss(tf.constant(1.0))

    def _bindings(self, i: int, captures: Sequence[Capture]) -> Bindings:
        """The handles of device i: those of the variables themselves, so that what reads them waits for
        what wrote them.
        """
        assert self._residence is not None
        found = self._residence.bindings(i, captures)
        own = zip(self._shared, self._residence.own(i, self._shared), strict=True)
        direct = {variable.ref(): copy.handle for variable, copy in own}
        # What the function assigns to a parameter goes where all read, who are one device (see `undone`).
        return found | direct | {ref: variable.handle for ref, variable in self._residence.assigned.items()}

    def _cut(self, batch: Arguments, counts: Sequence[int]) -> Call:
        def cut(*tensors: Any) -> list[Any]:
            return [c for part in batch.with_components(tensors).parts(counts) for c in part.components()]

        loose = [[None, *c.shape[1:]] if c.shape.rank else c.shape for c in batch.components()]
        specs = [tf.TensorSpec(s, c.dtype) for s, c in zip(loose, batch.components(), strict=True)]
        return Call(cut, specs, self.devices[0])

    def _slice_call(self, i: int, count: int, batch: Arguments) -> SliceCall:
        """What device i does with a slice of `count` rows, given the parameters that it has read."""
        spec = batch.resized(count).prefixed(tf.TensorSpec([], tf.float64))
        traced = self._descent.objective(spec, i, len(self.devices))
        residence, device = self._settled(traced), self.devices[i]
        bindings = self._bindings(i, traced.captures)
        own = residence.own(i, self._shared)
        states = [state.copies[i] for state in residence.states.values() if not state.random]
        states += residence.assigned.values()
        gradients: list[Any] = []

        def compute(*tensors: Any) -> list[Any]:
            read, piece = tensors[: len(own)], tensors[len(own) :]
            with tf.device(device):
                before = [state.read_value() for state in states]
                for copy, value in zip(own, read, strict=True):
                    copy.assign(value)
                factor = tf.constant(1.0 / count, tf.float64)
            leaves = traced.on(device, [factor, *piece], bindings, replica=i)
            with tf.device(device):
                share = traced.pack(leaves)
                scale = self._scale_of(i)
                report, gradients[:] = self._report(i, share, count, scale)
                outputs = tf.nest.flatten(share.outputs, expand_composites=True)
                return SliceResults.packed(
                    report=report,
                    states=before,
                    gradient=[*scale, *components(gradients)],
                    outputs=[output for output in outputs if output is not None],
                )

        read = [tf.TensorSpec(v.shape, v.dtype) for v in own]
        piece = [tf.TensorSpec(c.shape, c.dtype) for c in spec.components()[1:]]
        call = Call(compute, [*read, *piece], device)
        push = self._push(gradient_specs(gradients, self.parameters))
        num_gradients = len(components(gradients)) + (self._scale is not None)
        structure = traced.structure
        return SliceCall(call, states, num_gradients, len(structure.metrics), structure.outputs, push)

    def _scale_of(self, i: int) -> list[Any]:
        """The scale that device i has read with the parameters, if the loss is scaled by one that changes."""
        if self._scale is None:
            return []
        return self._scale.on(self.devices[i], [], self._bindings(i, self._scale.captures), replica=i)

    def _report(self, i: int, share: Share, count: int, scale: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What a slice reports, packed, and its gradient: that of its own mean."""
        dtype = tf.float64 if share.loss.dtype == tf.float64 else tf.float32
        amount = tf.constant(count, dtype) if share.weight is None else tf.cast(share.weight, dtype)

        def mean(value: Any) -> Any:
            if share.weight is None:  # it is divided already
                return value
            return divided(value, divisor(amount))

        own = mean(share.loss)
        gradients, loss, penalty = self._descent.with_penalty(
            [mean(gradient) for gradient in share.gradients],
            own,
            self.devices[i],
            lambda captures: self._bindings(i, captures),
            (lambda value: value * tf.cast(scale[0], value.dtype)) if scale else None,
        )
        report = SliceReport.packed(
            amount=amount,
            loss=loss,
            metrics=[mean(value) for value in share.metrics.values()],
            own_loss=own,
            health=[self._descent.health(share), penalty],
            dtype=dtype,
        )
        return report, gradients

    def _push(self, specs: Sequence[Any]) -> Call:
        """Apply a gradient, then read the parameters.

        Takes the global step, the age, the scale that was read, if there is one, and the gradient.
        """
        key = tuple(specs)
        if key not in self._pushes:
            present = [i for i, spec in enumerate(specs) if spec is not None]
            packed = [specs[i] for i in present]
            optimizer, parameters = self._descent.optimizer, self.parameters
            targets = as_keras(parameters)
            scale = [] if self._scale is None else [tf.TensorSpec([], tf.float32)]

            def apply(step: Any, *tensors: Any) -> Any:
                scales, flat = tensors[: len(scale)], tensors[len(scale) :]
                gradients = tf.nest.pack_sequence_as(packed, flat, expand_composites=True)
                for read in scales:  # the optimizer divides by its scale of now
                    gradients = [divided(gradient, read / self._factor()) for gradient in gradients]
                with paced(optimizer, step):
                    optimizer.apply(as_divided(gradients, optimizer), [targets[i] for i in present])
                return tf.constant(0)

            whole_number = tf.TensorSpec([], tf.int64)
            flat = tf.nest.flatten(packed, expand_composites=True)
            applied = fast(apply, whole_number, *scale, *flat)

            def push(step: Any, age: Any, *tensors: Any) -> list[Any]:
                before = [p.read_value() for p in parameters] if self._damping else []
                applied(step, *tensors)
                for parameter, old in zip(parameters, before, strict=self._damping):
                    moved = parameter.read_value() - old
                    parameter.assign(old + moved / tf.cast(1 + age, parameter.dtype))
                return [variable.read_value() for variable in self._shared]

            call = Call(push, [whole_number, whole_number, *scale, *flat], self.devices[0], self._counters)
            # An optimizer around another one has a counter that nobody counts with.
            self._counters = {ref: own for ref, own in self._counters.items() if ref in call.used}
            if not self._pushes:  # later the user's counter is behind
                self.steps = max((int(ref.deref()) for ref in self._counters), default=0)
            self._pushes[key] = call
        return self._pushes[key]

    def look(self) -> list[Any]:
        """The parameters as they are."""
        assert self._look is not None
        return self._look()

    def worked(self, i: int) -> None:
        self._worked.add(i)

    def not_finite(self, i: int, step: int, watched: Any) -> NotFinite:
        applied = "This slice was not applied; other slices may have been."
        return self._descent.not_finite(self.devices[i], step, watched, applied)

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
        if self._residence is None:
            return
        if self._running and not self._paused:
            self._paused = True
            self._pause.enter_context(self.turn)
            for lock in self.at_work:
                self._pause.enter_context(lock)
        self._show()

    def _show(self) -> None:
        assert self._residence is not None
        for counter in self._counters:
            counter.deref().assign(tf.cast(self.steps, counter.deref().dtype))
        if self._worked and self._residence.states:
            self._settle_states()

    def _settle_states(self) -> None:
        assert self._residence is not None
        residence, worked = self._residence, sorted(self._worked)
        key = (tuple(worked), len(residence.states))
        if key not in self._settles:

            def settle() -> list[Any]:
                def mean(copies: Sequence[tf.Variable]) -> Any:
                    return tf.add_n([copies[i].read_value() for i in worked]) / len(worked)

                with tf.control_dependencies(residence.settle_states(mean, everywhere=False)):
                    return [tf.constant(0)]

            self._settles[key] = Call(settle, [], self.devices[0])
        self._settles[key]()

    def enter(self) -> None:
        """What the user assigned to variables counts: parameters at once, states when devices begin."""
        if self._residence is None:
            return
        for ref, counter in self._counters.items():
            if int(ref.deref()) != self.steps:
                self.steps = int(ref.deref())
                counter.assign(ref.deref())
        if self._running:
            self._go_on()
        else:
            self._residence.refresh(but=frozenset(variable.ref() for variable in self._shared))
            self._residence.restore_states()
            self._worked = set()

    def _go_on(self) -> None:
        self._paused = False
        self._pause.close()

    def state(self) -> State:
        """What a checkpoint keeps (see `Resumable`): every device's own averages too."""
        assert self._residence is not None
        self._show()
        self._global_steps.assign(self.made)
        lost = self._descent.lost()
        if self.order is not None:
            lost = [*lost, "the order of reads and updates begins again"]
        kept = state_of(self._residence, self._global_steps, lost)
        groups = {"parameters": self.parameters, "optimizer": self._descent.slots}
        shared = {
            f"{group}/{name}": Item(variable, variable)
            for group, variables in groups.items()
            for name, variable in named(variables).items()
        }
        counted = named([ref.deref() for ref in self._counters])
        pushes = zip(counted, counted.values(), self._counters.values(), strict=True)
        common = {
            **{name: item for name, item in kept.common.items() if not name.startswith("parameters/")},
            **shared,
            # In a mode that does not tell them apart, every step was one update.
            **{f"pushes/{name}": Item(own, own, user) for name, user, own in pushes},
        }
        return State(common, {**kept.own, **self._averages()}, kept.random, kept.lost)

    def _averages(self) -> dict[str, tuple[tf.Variable, ...]]:
        """By name, the states that a device has for itself and that are shown as their mean."""
        assert self._residence is not None
        averaged = {s.original.ref(): s.copies for s in self._residence.states.values() if s.averaged}
        originals = named([ref.deref() for ref in averaged])
        averages = {f"averages/{name}": averaged[variable.ref()] for name, variable in originals.items()}
        return averages | bases(self._residence)

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        """Go on from a saved step: devices with their own averages, or on another number with the mean."""
        assert self._residence is not None
        resume(self._residence, own)
        for name, copies in self._averages().items():
            if len(own.get(name, ())) == len(copies):
                self._worked = set(range(len(self.devices)))
                for copy, value in zip(copies, own[name], strict=True):
                    copy.assign(value)
        self.made = int(self._global_steps)
        self.steps = max((int(ref.deref()) for ref in self._counters), default=0)

    def next_join(self, step: int) -> int:
        return step

    def explained(self, error: tf.errors.InvalidArgumentError) -> Exception:
        return error

    def homes(self) -> dict[str, str]:
        return {v.name: v.device for v in (*self.parameters, *self._descent.slots)}

    def replicas(self) -> list[list[tf.Variable]]:
        return [self.parameters for _ in self.devices]

    def kept(self) -> list[tf.Variable]:
        streams = self._residence.streams() if self._residence is not None else []
        return [*self._counters.values(), *streams]

    def traffic(self) -> float:
        """As if every device took one slice of a step: but for device 0, parameters in and gradient out."""
        held = [p.shape.num_elements() * p.dtype.size for p in self.parameters]
        dense = [s for s in self._descent.specs if isinstance(s, tf.TensorSpec)]
        sent = [spec.shape.num_elements() * spec.dtype.size for spec in dense]
        return float((len(self.devices) - 1) * (sum(held) + sum(sent)))
