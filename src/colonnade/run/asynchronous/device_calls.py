"""Builds the graphs that asynchronous devices call: to cut a batch, read the parameters, compute a slice."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from colonnade.run.asynchronous.push import INTEGER, Pushes, is_count
from colonnade.run.asynchronous.slice_call import SliceCall, SliceReport, SliceResults
from colonnade.run.batch.split import Arguments
from colonnade.run.engine.gradients import components, divided, divisor, slice_specs
from colonnade.run.engine.guard import Guard
from colonnade.run.engine.traces import Traces, gradient_specs
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.step.objective import Share
from colonnade.run.trace.captures import Capture
from colonnade.run.trace.concrete import unconverted
from colonnade.run.trace.raw_call import Call
from colonnade.run.trace.traced import Traced, trace
from colonnade.run.variables.homes import Bindings, Homes


class DeviceCalls:
    """What a device has of its own, a place for the parameters it reads and the states, and its calls.

    Args:
        traces: of the loss and of all around it.
        guard: knows what must be finite.
        traced: the first of the traces.
        devices: who works; the parameters that they share are on the first.
        damping: whether to divide a step by 1 + the age of its gradient.
    """

    def __init__(
        self, traces: Traces, guard: Guard, traced: Traced, devices: Sequence[str], *, damping: bool
    ) -> None:
        self._traces, self._guard, self._devices = traces, guard, devices
        slots = {slot.ref() for slot in traces.slots}
        of_optimizer = [variable for variable in traced.variables if variable.ref() in slots]
        # A loss that reads the count of updates is told the global step: the count itself goes by slices.
        self._counts = [variable for variable in of_optimizer if is_count(variable)]
        # A loss that is scaled reads the scale, which is the optimizer's.
        scales = [variable for variable in of_optimizer if not is_count(variable)]
        # What a device reads when it reads the parameters.
        self.shared = shared = [*traces.parameters, *scales]
        self.housed = Homes("local", devices, [*shared, *self._counts], [])
        self.read_parameters = Call(lambda: [v.read_value() for v in shared], [], devices[0])
        self.pushes = Pushes(
            traces.optimizer,
            traces.slots,
            traces.parameters,
            shared,
            devices[0],
            damping=damping,
            scaled=bool(scales),
        )
        # What a loss is multiplied by, where that changes.
        self._scale = trace(unconverted(self.pushes.factor)) if scales else None

    def cut(self, batch: Arguments, counts: Sequence[int]) -> Call:
        """Cut a batch like this one into slices of these sizes."""

        def cut(*tensors: Any) -> list[Any]:
            return [c for part in batch.with_components(tensors).parts(counts) for c in part.components()]

        loose = [[None, *c.shape[1:]] if c.shape.rank else c.shape for c in batch.components()]
        taken = [tf.TensorSpec(s, c.dtype) for s, c in zip(loose, batch.components(), strict=True)]
        return Call(cut, taken, self._devices[0])

    def slice_call(self, i: int, count: int, batch: Arguments) -> SliceCall:
        """What device i does with a slice of `count` rows, given the parameters that it has read."""
        (spec,) = slice_specs(batch, [count])
        traced = self._traces.objective(spec, i, len(self._devices))
        housed, device = self.housed, self._devices[i]
        bindings = self._bindings(i, traced.captures)
        own, counted = housed.own(i, self.shared), housed.own(i, self._counts)
        states = [state.copies[i] for state in housed.states.values() if not state.random]
        states += housed.assigned.values()
        gradients: list[Any] = []

        def compute(*tensors: Any) -> list[Any]:
            steps, tensors = tensors[: len(step)], tensors[len(step) :]
            read, piece = tensors[: len(own)], tensors[len(own) :]
            with tf.device(device):
                before = [state.read_value() for state in states]
                for copy in counted:
                    copy.assign(tf.cast(steps[0], copy.dtype))
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
                    turned=share.turned,
                    states=before,
                    gradient=[*scale, *components(gradients)],
                    outputs=[output for output in outputs if output is not None],
                )

        step = [INTEGER] if counted else []
        read = [tf.TensorSpec(v.shape, v.dtype) for v in own]
        piece = [tf.TensorSpec(c.shape, c.dtype) for c in spec.components()[1:]]
        return SliceCall(
            call=Call(compute, [*step, *read, *piece], device),
            states=states,
            num_gradients=len(components(gradients)) + (self._scale is not None),
            num_metrics=len(traced.structure.metrics),
            outputs=traced.structure.outputs,
            push=self.pushes.of(gradient_specs(gradients, self._traces.parameters)),
            gradient_bytes=sum(map(num_bytes, components(gradients))),
            paced=bool(counted),
        )

    def _bindings(self, i: int, captures: Sequence[Capture]) -> Bindings:
        """The handles of device i: those of the variables themselves, so that what reads them waits for
        what wrote them.
        """
        bindings = self.housed.bindings(i, captures)
        told = [*self.shared, *self._counts]
        own = zip(told, self.housed.own(i, told), strict=True)
        direct = {variable.ref(): copy.handle for variable, copy in own}
        # What the function assigns to a parameter goes where all read, who are one device (see `undone`).
        return bindings | direct | {ref: variable.handle for ref, variable in self.housed.assigned.items()}

    def _scale_of(self, i: int) -> list[Any]:
        """The scale that device i has read with the parameters, if the loss is scaled by one that changes."""
        if self._scale is None:
            return []
        return self._scale.on(self._devices[i], [], self._bindings(i, self._scale.captures), replica=i)

    def _report(self, i: int, share: Share, count: int, scale: Sequence[Any]) -> tuple[Any, list[Any]]:
        """What a slice reports, packed, and its gradient: that of its own mean."""
        dtype = tf.float64 if share.loss.dtype == tf.float64 else tf.float32
        amount = tf.constant(count, dtype) if share.weight is None else tf.cast(share.weight, dtype)

        def mean(value: Any) -> Any:
            if share.weight is None:  # it is divided already
                return value
            return divided(value, divisor(amount))

        own = mean(share.loss)
        gradients, loss, penalty = self._traces.with_penalty(
            [mean(gradient) for gradient in share.gradients],
            own,
            self._devices[i],
            lambda captures: self._bindings(i, captures),
            (lambda value: value * tf.cast(scale[0], value.dtype)) if scale else None,
        )
        report = SliceReport.packed(
            amount=amount,
            loss=loss,
            metrics=[mean(value) for value in share.metrics.values()],
            own_loss=own,
            health=[self._guard.health(share), penalty],
            dtype=dtype,
        )
        return report, gradients
