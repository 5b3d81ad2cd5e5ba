"""The loss function with its gradient: losses per example, `cn.Weighted`, metrics; a mean over the batch.

A loss function returns one loss per example, or a scalar that is the mean of its slice, or
`cn.Weighted(losses, weights)`; beside it, if it likes, a dict of metrics of the same form. The
gradient is that of the weighted mean over the global batch, for any split of that batch.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import tensorflow as tf

from colonnade.describe.run_folder import FIGURES
from colonnade.errors import InvalidArgument, Problem, check
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import COMPOSITE, Arguments, is_tensor
from colonnade.run.step.gradient_rows import (
    DENSE,
    SAME,
    Form,
    Source,
    is_known,
    made_up,
    pieces,
    sections,
    sizes_of,
)
from colonnade.run.trace.traced import Traced, Voice

# Of the ops that look at gradients; a profile counts them to the backward pass.
HEALTH = "health_of_gradients"
# Begins the message of an assertion about numbers of values that are known only when a step is made.
MISCOUNTED = "colonnade: other than one value for each example"


@dataclass(frozen=True)
class Weighted:
    """Losses that do not all count the same, such as those of tokens with a mask.

    The loss of a batch is `sum(losses * weights) / sum(weights)` over the whole global batch,
    whichever devices its parts are on. If all weights of a batch are 0, its loss and gradient are 0.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> def loss(tokens, mask):
        ...     return cn.Weighted(losses=tf.cast(tokens, tf.float32), weights=mask)
    """

    losses: Any
    weights: Any


@dataclass(frozen=True)
class Share:
    """What one replica adds to a step; sums over the replicas are the values of the global batch.

    `loss` and `metrics` are already divided by the number of examples in the global batch, unless
    `weight` is there to divide by.
    """

    loss: Any
    weight: Any  # the sum of weights, or None
    metrics: dict[str, Any]
    outputs: Any  # what else the function returned, for metrics of the whole batch
    gradients: list[Any]
    health: Any  # a number per gradient that is finite only if the gradient is; None if not examined
    seconds: Any = None  # how long the replica took, where that is measured
    sizes: Any = None  # for each gradient that is sparse, how many rows each lookup has; else None
    turned: Any = None  # when the loss was there and the way back began, where that is noted


class Objective(Traced):
    """A loss function traced together with its gradient.

    Its first argument is the reciprocal of the global batch's size; `parameters` are the trainable
    variables that were found, in the order of the gradients.
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        arguments: Arguments,
        scale_loss: Callable[[Any], Any],
        voice: Voice | None = None,
        trainable: Callable[[Sequence[tf.Variable]], Sequence[tf.Variable]] = list,
        *,
        timed: bool = False,
        turning: bool = False,
        examined: bool = True,
    ) -> None:
        self._arguments, self._scale_loss, self._trainable = arguments, scale_loss, trainable
        self._timed, self._turning, self._examined = timed, turning, examined
        self.parameters: list[tf.Variable] = []
        self.watched: list[tf.Variable] = []  # of which parameters are those that are not frozen
        super().__init__(loss, arguments, voice)

    @property
    def assigned(self) -> list[tf.Variable]:
        """The parameters that the function assigns to itself."""
        written = {variable.ref() for variable in self.written}
        return [parameter for parameter in self.parameters if parameter.ref() in written]

    def _begin(self, arguments: Arguments, components: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        components, begin = self._begun(components)
        (factor, *args), kwargs = arguments.unpack(components)
        rows, tape = arguments.size("the loss function"), tf.GradientTape()
        assert rows is not None, "a loss that is a scalar counts by the size of its slice"

        @contextmanager
        def recorded() -> Iterator[None]:
            with tape, self._context:
                yield

        def share(result: Any) -> Share:
            with tape:
                own_share, differentiated = self._total(result, factor, rows)
            return self._share(tape, own_share, differentiated, begin)

        return args, kwargs, recorded(), self._ours(share)

    def _total(self, result: Any, factor: Any, rows: int) -> tuple[Share, Any]:
        share = total_of(result, factor, rows)
        return share, self._context.stage_marks.turn(self._scale_loss(share.loss))

    def _begun(self, components: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        """The arguments, and the time at which they were there. A stamp outside would serialise replicas."""
        if not self._timed:
            return components, None
        with tf.control_dependencies(components):
            begin = now()
        with tf.control_dependencies([begin]):
            return [tf.identity(component) for component in components], begin

    def _share(self, tape: tf.GradientTape, share: Share, differentiated: Any, begin: Any) -> Share:
        # Whole numbers have no gradient, though TensorFlow calls variables of them trainable.
        known = tape.watched_variables()
        self.watched = [v for v in known if v.dtype.is_floating or v.dtype.is_complex]
        self.parameters = list(self._trainable(self.watched))
        turned, upstream = self._turned(differentiated)
        with self._context.around_gradient():
            gradients = tape.gradient(differentiated, self.parameters, output_gradients=upstream)
            if share.weight is not None:
                # Not by a tape: with one for two gradients, TensorFlow makes those of functions at each call.
                of_weights = tf.gradients(share.weight, self.parameters)
                check("the loss function", _trained(self.parameters, of_weights))
        with tf.name_scope(HEALTH):
            health = stacked([vital(g) for g in gradients]) if self._examined else None
        seconds = None
        if begin is not None:
            done = tf.nest.flatten([share.loss, [g for g in gradients if g is not None]], True)
            with tf.control_dependencies(done):
                seconds = now() - begin
        sizes = [sizes_of(g.indices) if isinstance(g, tf.IndexedSlices) else None for g in gradients]
        return replace(share, gradients=gradients, health=health, seconds=seconds, turned=turned, sizes=sizes)

    def _turned(self, differentiated: Any) -> tuple[Any, Any]:
        """When the forward pass was over, and what the way back begins with, which waits for that note."""
        if not self._turning:
            return None, None
        with tf.control_dependencies([differentiated]):
            turned = now()
        with tf.control_dependencies([turned]):
            return turned, tf.ones_like(differentiated)

    @cached_property
    def forms(self) -> list[Form]:
        """For each gradient its pieces, if it is sparse."""
        return [self._form(gradient) for gradient in self.structure.gradients]

    @cached_property
    def made(self) -> list[int]:
        """For each gradient when the backward pass has made it: the place of its op among those of the trace.

        A tape lists variables as they were made, which need not be the order in which they are used.
        """
        place = {op.name: i for i, op in enumerate(self.concrete.graph.get_operations())}
        values = [getattr(gradient, "values", gradient) for gradient in self.structure.gradients]
        return [len(place) if value is None else place.get(value.op.name, 0) for value in values]

    def _form(self, gradient: Any) -> Form:
        if not isinstance(gradient, tf.IndexedSlices):
            return None if gradient is None else DENSE
        rows = zip(sections(gradient.indices), pieces(gradient.indices, self._source), strict=True)
        return tuple(
            replace(one, shape=made_up(part)) if one.kind == SAME and not is_known(one.shape) else one
            for part, one in rows
        )

    @cached_property
    def _source(self) -> Source:
        placeholders = [tensor.op.name for tensor in self.concrete.inputs]
        names = iter(placeholders)
        split: set[str] = set()
        loose: set[str] = set()
        for leaf in self._arguments.tensors:
            parts = [next(names) for _ in tf.nest.flatten(leaf.value, expand_composites=True)]
            if leaf.role == "split":
                split.update(parts)
                loose.update(parts if len(parts) > 1 else ())
        handles = placeholders[len(placeholders) - len(self.captures) :]
        own = [c.variable is not None and c.written for c in self.captures]
        changed = {name for name, changes in zip(handles, own, strict=True) if changes}
        return Source(frozenset(split | changed), frozenset(loose))


def total_of(result: Any, factor: Any, rows: int) -> Share:
    """What a slice of `rows` examples adds to the global batch; `factor` is one over its size."""
    losses, metrics, outputs = _parts(result)
    if isinstance(losses, Weighted):
        each = _floats(losses.losses, "loss")
        weights = tf.cast(_floats(losses.weights, "weights"), each.dtype)
        metrics = {name: _floats(value, name) for name, value in metrics.items()}
        check("the loss function", _other_shapes(each, weights, metrics))
        weights = _counted(weights, tf.shape(each), "weights", each)
        metrics = {
            name: value if value.shape.rank == 0 else _counted(value, tf.shape(each), name, each)
            for name, value in metrics.items()
        }
        loss, weight = tf.reduce_sum(each * weights), tf.reduce_sum(weights)
        values = {
            name: tf.reduce_sum(tf.cast(value, each.dtype) * weights) for name, value in metrics.items()
        }
    else:
        loss, weight = _mean(losses, factor, rows, "loss"), None
        values = {name: _mean(value, factor, rows, name) for name, value in metrics.items()}
    return Share(loss, weight, values, outputs, [], None)


def _parts(result: Any) -> tuple[Any, dict[str, Any], Any]:
    """The losses, the metrics, and whatever else comes third."""
    losses, metrics, outputs = result, {}, None
    if isinstance(result, tuple) and 2 <= len(result) <= 3:
        losses, metrics, *rest = result
        outputs = rest[0] if rest else None
    named = isinstance(metrics, dict) and all(isinstance(name, str) for name in metrics)
    if not named or not (isinstance(losses, Weighted) or is_tensor(losses)):
        rule = "must be losses, or (losses, {name: metric}), with one loss per example"
        kind = type(result).__name__
        raise InvalidArgument(
            "the loss function", [Problem("return value", kind, rule, "Return the losses unreduced")]
        )
    check("the loss function", [_taken(name) for name in metrics if name in FIGURES])
    return losses, metrics, outputs


def _taken(name: str) -> Problem:
    rule = "is what a figure of every step is called, in metrics.jsonl and TensorBoard"
    return Problem("metric", name, rule, f"Call it something else, such as own_{name}")


def _floats(values: Any, name: str) -> Any:
    """Numbers that can be added up: whole ones become floats, and halves lose too much in a sum."""
    check("the loss function", _not_numbers(values, name))
    values = tf.convert_to_tensor(values)
    # A shape that was set by set_shape is known to Python only; what is around a trace could not see it.
    values = tf.ensure_shape(values, values.shape)
    exact = values.dtype.is_floating and values.dtype.size >= 4
    return values if exact else tf.cast(values, tf.float32)


def _not_numbers(values: Any, name: str) -> Iterator[Problem]:
    """What cannot be added up to a loss."""
    kind, fix = type(values).__name__, "Take the mean of each example over the other dims"
    if isinstance(values, COMPOSITE):
        yield Problem(name, kind, "must be a dense tensor of one value per example, or a scalar", fix)
        return
    values = tf.convert_to_tensor(values)
    if values.dtype.is_complex:
        yield Problem(name, values.dtype.name, "must be real", "Return tf.abs or tf.math.real of it")
    if values.shape.rank is None:
        rule = "has a shape that TensorFlow does not know, as what a py_function returns"
        yield Problem(name, "a tensor", rule, "Say it: tf.ensure_shape(losses, [None])")


def _other_shapes(losses: Any, weights: Any, metrics: dict[str, Any]) -> Iterator[Problem]:
    """What would be broadcast when it is multiplied by weights; a metric that is one number may be."""
    if not _same_shape(weights, losses):
        rule = f"must have the shape of the losses, {tuple(losses.shape)}"
        yield Problem("weights", tuple(weights.shape), rule, "Give every loss its weight")
    for name, value in metrics.items():
        values = tf.convert_to_tensor(value)
        if values.shape.rank != 0 and not _same_shape(values, losses):
            rule = f"must be a number or have the shape of the losses, {tuple(losses.shape)}"
            yield Problem(name, tuple(values.shape), rule, "It is weighted like the losses")


def _trained(parameters: Sequence[tf.Variable], gradients: Sequence[Any]) -> Iterator[Problem]:
    """Weights that depend on what is trained: their sum is one number, of which nobody has the gradient."""
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            rule = f"depend on {parameter.name}, which is trained, and count as numbers in sum(weights)"
            fix = "Pass tf.stop_gradient(weights), or return losses that are weighted already"
            yield Problem("weights", "a tensor", rule, fix)
            return


def _same_shape(one: Any, other: Any) -> bool:
    return bool(one.shape.rank == other.shape.rank and one.shape.is_compatible_with(other.shape))


def _mean(values: Any, factor: Any, rows: int, name: str) -> Any:
    """What a slice adds to the mean over the global batch; `factor` is one over that batch's size."""
    values = _floats(values, name)
    factor = tf.cast(factor, values.dtype)
    if values.shape.rank == 0:
        return values * (factor * rows)
    if values.shape.rank != 1 or values.shape[0] not in (None, rows):
        rule = f"must hold one value for each of the {rows} examples, or be a scalar"
        fix = "Take the mean over the other dims, or return cn.Weighted(losses, weights)"
        raise InvalidArgument("the loss function", [Problem(name, tuple(values.shape), rule, fix)])
    return tf.reduce_sum(_counted(values, tf.constant([rows]), name)) * factor


def _counted(values: Any, wanted: Any, name: str, like: Any = None) -> Any:
    """Values that are of the wanted shape: where a trace does not tell, such as after a filter, a step does.

    What has that shape is `like`, if it is a tensor and not a number of examples.
    """
    told = values.shape.is_fully_defined() and (like is None or like.shape.is_fully_defined())
    if told:
        return values
    shape = tf.shape(values)
    with tf.device("/device:CPU:0"):
        said = [MISCOUNTED, name, shape, wanted]
        right = tf.raw_ops.Assert(condition=tf.reduce_all(shape == wanted), data=said, summarize=-1)
    with tf.control_dependencies([right]):
        return tf.identity(values)


def miscounted(error: tf.errors.OpError) -> Exception:
    """The user's own mistake, if a step failed because of the number of values; else the error as it is."""
    words = re.search(rf"{MISCOUNTED}\] \[(.*?)\] \[([\d ]*)\] \[([\d ]*)\]", error.message)
    if not words:
        return error
    name, given, wanted = words[1], *(tuple(map(int, one.split())) for one in words.groups()[1:])
    rule = f"must hold one value for each example or each loss, as many as {wanted}"
    fix = "For losses that do not count return cn.Weighted(losses, weights), with a weight of 0"
    return InvalidArgument("the loss function", [Problem(name, given, rule, fix)])


def vital(gradient: Any) -> Any:
    """A number that is finite only if a gradient is; None where there is no gradient."""
    if gradient is None:
        return None
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    # Where the gradient is, which may be large: a part of a layer that is split by width.
    with tf.device(values.device):
        # Half floats overflow in a sum of their own.
        whole = tf.reduce_sum(tf.cast(values, tf.float32) if values.dtype.size < 4 else values)
        if whole.dtype == tf.float64:  # what is finite may be too large for what it becomes here
            whole = tf.where(tf.math.is_finite(whole), tf.zeros_like(whole), whole)
    return tf.cast(whole, tf.float32)


def now() -> Any:
    """The time. Cards have no kernel for it; beside a CPU device it is read there, to send nothing."""
    with tf.device("/device:CPU:0" if hardware.has_cards() else ""):
        return tf.timestamp()


def stacked(vitals: Sequence[Any]) -> Any:
    """The health of some gradients: what `vital` says of each, and 0 for one that is not there.

    A slice of another size may have a gradient that this one has not.
    """
    return tf.stack([tf.zeros([]) if v is None else v for v in vitals]) if vitals else tf.zeros([0])
