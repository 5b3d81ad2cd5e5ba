"""`cn.verify`: shows that a function on N devices equals the function on one, or why it does not.

Values and gradients are compared on several batch sizes: even, uneven, smaller than N. How much may
differ is found out on one device alone: inputs and variables are moved by the last digit of their floats,
and what that does to a result is rounding. A sum over the batch may also be added in another order, which
permuting the batch and splitting it again shows. A cause is never guessed: each is a run on one device that
shows it or does not.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from colonnade.errors import ColonnadeError, InvalidArgument, Problem
from colonnade.hardware import devices as hardware
from colonnade.run.batch.split import Arguments, flatten, is_tensor, parameter_names, sizes
from colonnade.run.model.training_step import TrainingStep, step_of
from colonnade.run.parallel.gap import dense, gap, nudged
from colonnade.run.parallel.join import check_join
from colonnade.run.parallel.parallel import Devices, Parallel
from colonnade.run.parallel.rounding import Rounding
from colonnade.run.parallel.tolerance import AGAIN, MOVES, Values, kind, margin, noise, scales, unlike
from colonnade.run.parallel.verify_report import Comparison, Report

# What a function raises for a number of examples that it does not take.
NOT_TAKEN = (ValueError, tf.errors.InvalidArgumentError)
# Runs in which numbers that are drawn must differ once: a few of them may be equal by chance.
DRAWS = 3


def verify(
    fn: Callable[..., Any], *args: Any, devices: Devices = None, join: str = "concat", **kwargs: Any
) -> Report:
    """Run `fn` on one device and on several, forward and gradient, and compare.

    Args:
        fn: the function, as for `cn.parallel`; variables that it changes are put back afterwards. Of a
            compiled Keras model with x and y, it is the training step: loss, gradients and metrics.
        *args, **kwargs: an example batch. Slices of it are used, so it should be larger than twice the
            number of devices.
        devices: how many devices, or which; all by default.
        join: as for `cn.parallel`.

    Returns:
        A `Report`, true when equal; it prints as a table and names the cause of a difference.

    Example:
        >>> import colonnade as cn, tensorflow as tf
        >>> bool(cn.verify(lambda x: 2 * x, tf.ones([9, 2]), devices=4))
        True
        >>> cn.verify(lambda x: x - tf.reduce_mean(x), tf.random.normal([9, 2]), devices=4).causes[0]
        'statistics'
    """
    check_join(join, "verify()")
    chosen = hardware.resolve(devices, "verify()")
    step = step_of(fn, args, kwargs, join)
    if step is not None:
        fn, join = step, "mean"
    experiment = _Experiment(fn, Arguments(args, kwargs, parameter_names(fn)), chosen, join)
    with experiment.state_kept():
        rows = tuple(row for batch in experiment.batches() for row in experiment.compare(batch))
        if not rows:
            experiment.evaluate(experiment.one, np.arange(experiment.total))  # for its own error
            rule = "is taken whole only, so that there is nothing to compare"
            sizes = " or ".join(map(str, experiment.left_out))
            fix = f"Pass an example of which the function also takes {sizes} rows"
            raise InvalidArgument("verify()", [Problem("example", f"{experiment.total} rows", rule, fix)])
    return Report(chosen, rows, tuple(experiment.left_out))


class _Experiment:
    """One function with one example batch, called in the ways that tell causes apart."""

    def __init__(self, fn: Callable[..., Any], example: Arguments, devices: Sequence[str], join: str) -> None:
        self.fn, self.example, self.devices, self.join = fn, example, tuple(devices), join
        self.total = example.size("verify()") or 1
        self.one = Parallel(fn, devices[:1], "sum")
        self.many = Parallel(fn, devices, join)
        self.each = Parallel(fn, devices, "stack" if join == "concat" else join)
        self._added: set[str] = set()  # leaves without a batch dim: scalars, gradients of variables
        self.left_out: list[int] = []  # sizes that the function does not take
        self._variables, self._steps = self._survey()

    def batches(self) -> list[int]:
        """Even, uneven and smaller than the number of devices, as far as the example batch reaches."""
        n, total = len(self.devices), self.total
        even = total // n * n
        wanted = (even, even - 1 if even > 1 else total, min(n - 1, total))
        return list(dict.fromkeys(size for size in wanted if size >= 1))

    def state_kept(self) -> "_StateKept":
        return _StateKept(self._variables)

    def _survey(self) -> tuple[list[tf.Variable], dict[str, float]]:
        """The variables that the function uses, and by leaf the coarsest step of the floats behind it."""
        example = self.example.rows(np.arange(self.batches()[0]))
        run = tf.function(lambda *c: self.one.run(example.with_components(c)), autograph=False)
        graph = run.get_concrete_function(*example.components()).graph
        traced = self.one.traces[0]
        follows = self.one.follows(example, traced, [example.size("verify()")])
        self._added |= {
            f"output{path}" for (path, _), batched in zip(traced.paths(), follows, strict=True) if not batched
        }
        rounding = Rounding(traced, example)
        outputs = {f"output{path}": step for path, step in rounding.outputs.items()}
        gradients = {f"gradient of {name}": step for name, step in rounding.gradients.items()}
        return list(graph.variables), outputs | gradients

    def evaluate(self, target: Parallel, rows: np.ndarray, weights: np.ndarray | None = None) -> Values:
        """Outputs and gradients by name; `weights` says how much each row counts in the gradient."""
        weights = np.ones(len(rows)) if weights is None else weights
        arguments = self.example.rows(rows)
        smooth = [leaf for leaf in arguments.tensors if _is_float(leaf.value)]
        with tf.GradientTape() as tape:
            tape.watch([leaf.value for leaf in smooth])
            result = target.run(arguments)
            leaves = [(path, leaf) for path, leaf in flatten(result) if is_tensor(leaf)]
            sums = [_weighted(leaf, rows, weights) for _, leaf in leaves if _is_float(leaf)]
            loss = tf.add_n(sums) if sums else None
        values = {f"output{path}": dense(leaf) for path, leaf in leaves}
        values |= self._metrics(result, arguments)
        if loss is None:
            return values
        sources = [(leaf.path, leaf.value, leaf.role == "whole") for leaf in smooth]
        sources += [(variable.name, variable, True) for variable in tape.watched_variables()]
        gradients = tape.gradient(loss, [source for _, source, _ in sources])
        for (name, _, added), gradient in zip(sources, gradients, strict=True):
            if gradient is None:
                continue
            leaf = unlike(values, f"gradient of {name}")
            values[leaf] = dense(gradient)
            if added:
                self._added.add(leaf)
        return values

    def _metrics(self, result: Any, arguments: Arguments) -> Values:
        """Those of a training step, for the whole batch."""
        if not isinstance(self.fn, TrainingStep):
            return {}
        args, kwargs = arguments.unpack(arguments.components())
        values = {f"metric {k}": np.asarray(v) for k, v in self.fn.metrics(result, *args, **kwargs).items()}
        self._added |= values.keys()
        return values

    def compare(self, batch: int) -> Iterator[Comparison]:
        """N devices against one on the first `batch` rows, leaf by leaf."""
        rows = np.arange(batch)
        reference = self._taken(lambda: self.evaluate(self.one, rows))
        if reference is None:
            self.left_out.append(batch)
            return
        many = self._taken(lambda: self._found(rows))
        if many is None:
            yield Comparison("output", batch, float("inf"), 0.0, "groups")
            return
        rounding = self._noise(rows, reference)
        causes: list[str] = []
        for leaf, expected in reference.items():
            tolerance = margin(self._step(leaf, expected)) * rounding[leaf]
            difference = gap(expected, many.get(leaf))
            cause = None
            if difference > tolerance and leaf.startswith("metric"):
                cause = (causes or ["parallel"])[0]  # that of the prediction, of which it is computed
            elif difference > tolerance:
                cause = self._cause(leaf, rows, expected, tolerance, many.get(leaf))
                causes.append(cause)
            yield Comparison(leaf, batch, difference, tolerance, cause)
        for leaf in many.keys() - reference.keys():
            yield Comparison(leaf, batch, float("inf"), 0.0, "parallel")

    def _taken(self, run: Callable[[], Values]) -> Values | None:
        """What it gives, or None if the function does not take that many rows."""
        try:
            return run()
        except ColonnadeError:
            raise
        except NOT_TAKEN:
            return None

    def _found(self, rows: np.ndarray) -> Values:
        """What N devices give; an output that cannot be concatenated is kept apart for each of them."""
        whole = self.join != "concat" or not any(leaf.startswith("output") for leaf in self._added)
        return self.evaluate(self.many if whole else self.each, rows)

    def _noise(self, rows: np.ndarray, reference: Values) -> dict[str, float]:
        """What rounding does to each leaf on one device; what is more than rounding is not counted."""
        steps = {leaf: self._step(leaf, expected) for leaf, expected in reference.items()}
        moved = {step: self._moved(rows, step) for step in set(steps.values()) if step}
        orders, kinds = self._in_other_orders(rows), scales(reference)
        by_leaf = {}
        for leaf, expected in reference.items():
            step = steps[leaf]
            others = orders if leaf in self._added else ()
            by_leaf[leaf] = noise(
                leaf, expected, kinds[kind(leaf)], step, moved.get(step, ()), others, len(rows)
            )
        return by_leaf

    def _moved(self, rows: np.ndarray, step: float) -> list[Values]:
        """One device with the last digits of all floats moved, those of inputs and of variables."""
        rng, example = np.random.default_rng(0), self.example
        floats = [(v, v.numpy()) for v in self._variables if v.dtype.is_floating]
        moved = []
        try:
            for _ in range(MOVES):
                values = [
                    nudged(leaf.value, step, rng) if _is_float(leaf.value) else leaf.value
                    for leaf in example.leaves
                ]
                self.example = example.with_values(values)
                for variable, before in floats:
                    variable.assign(nudged(before, step, rng))
                moved.append(self.evaluate(self.one, rows))
        finally:
            self.example = example
            for variable, before in floats:
                variable.assign(before)
        return moved

    def _in_other_orders(self, rows: np.ndarray) -> list[Values]:
        """One device with the rows permuted, and with the batch in two slices, if the function takes them."""
        order = np.random.default_rng(0).permutation(len(rows))
        permuted = self._unpermuted(self.evaluate(self.one, rows[order]), order)
        halves = sizes(len(rows), 2)
        again = self._taken(lambda: self._on_slices(rows, halves, average=self.join == "mean"))
        return [permuted] if again is None else [permuted, again]

    def _step(self, leaf: str, values: np.ndarray) -> float:
        """The relative step of floats; integers and strings have none, and must be equal."""
        if values.dtype.kind not in "fc":
            return 0.0
        # A metric is as coarse as what it is computed of.
        return self._steps.get(leaf.partition(AGAIN)[0], max(self._steps.values()))

    def _unpermuted(self, values: Values, order: np.ndarray) -> Values:
        back = np.argsort(order)
        return {
            leaf: value[back]
            if value.ndim and len(value) == len(order) and leaf not in self._added
            else value
            for leaf, value in values.items()
        }

    def _on_slices(self, rows: np.ndarray, counts: Sequence[int], average: bool = False) -> Values:
        """One device called on slices: batch outputs put together, scalars and gradients of variables added.

        With `average`, everything that is added, and every gradient, counts by the size of its slice.
        """
        starts = np.cumsum([0, *counts])
        parts = [self.evaluate(self.one, rows[a:b]) for a, b in pairwise(starts)]
        shares = np.asarray(counts) / len(rows) if average else np.ones(len(counts))
        joined = {}
        for leaf in parts[0]:
            pieces = [part[leaf] for part in parts if leaf in part]
            if pieces[0].dtype.kind in "fc" and (leaf.startswith("gradient") or leaf in self._added):
                pieces = [piece * share for piece, share in zip(pieces, shares, strict=False)]
            joined[leaf] = np.sum(pieces, axis=0) if leaf in self._added else np.concatenate(pieces)
        return joined

    def _cause(
        self, leaf: str, rows: np.ndarray, expected: np.ndarray, tolerance: float, parallel: np.ndarray | None
    ) -> str:
        """The first cause that a run on one device shows."""
        runs = (self.evaluate(self.one, rows) for _ in range(DRAWS))
        if any(gap(expected, one.get(leaf)) > tolerance for one in runs):
            return "randomness"
        counts = sizes(len(rows), len(self.devices))
        if any(name.startswith("output") for name in self._added):
            for cause, average in (("mean", True), ("sum", False)):
                sliced = self._on_slices(rows, counts, average).get(leaf)
                if gap(expected, sliced) <= tolerance:
                    return cause if cause != self.join else "parallel"
        order = np.random.default_rng(1).permutation(len(rows))
        permuted = self._unpermuted(self.evaluate(self.one, rows[order]), order)
        if gap(expected, permuted.get(leaf)) > tolerance:
            return "order"
        if self._changes_with(leaf, rows, self._exchanged(rows), tolerance):
            return "statistics"
        if self._heeds(leaf, rows, tolerance):
            return "statistics"
        if any(self._changes_with(leaf, rows, other, tolerance) for other in self._resized(rows)):
            return "size"
        if parallel is not None and gap(self._on_slices(rows, counts).get(leaf), parallel) <= tolerance:
            return "slices"
        return "parallel"

    def _resized(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """The same rows in a larger batch, and the first half of them alone, if the function takes that."""
        yield np.concatenate([rows, rows])
        half = rows[: max(1, len(rows) // 2)]
        if self._taken(lambda: self.evaluate(self.one, half)) is not None:
            yield half

    def _exchanged(self, rows: np.ndarray) -> np.ndarray:
        """The same rows with the second half replaced by copies of others."""
        half = max(1, len(rows) // 2)
        return np.concatenate([rows[:half], np.full(len(rows) - half, rows[0])])

    def _changes_with(self, leaf: str, rows: np.ndarray, others: np.ndarray, tolerance: float) -> bool:
        """Whether the first rows give something else in the company of other rows.

        Only the first half counts in the gradient (the others weigh nothing), so that every leaf
        may depend on that half alone.
        """
        half = max(1, len(rows) // 2)
        before = self.evaluate(self.one, rows, (np.arange(len(rows)) < half).astype(float))
        after = self.evaluate(self.one, others, (np.arange(len(others)) < half).astype(float))
        a, b = before.get(leaf), after.get(leaf)
        if a is not None and b is not None and leaf not in self._added:
            a, b = a[:half], b[:half]
        return gap(a, b) > tolerance

    def _heeds(self, leaf: str, rows: np.ndarray, tolerance: float) -> bool:
        """Whether the gradient of the first rows changes with what is asked of the gradient of others."""
        half = max(1, len(rows) // 2)
        if leaf in self._added or leaf.startswith("output"):
            return False
        alone = self.evaluate(self.one, rows, (np.arange(len(rows)) < half).astype(float)).get(leaf)
        beside = self.evaluate(self.one, rows).get(leaf)
        if alone is None or beside is None:
            return alone is not beside
        return gap(alone[:half], beside[:half]) > tolerance


class _StateKept:
    """Puts variables back to what they were."""

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._before = [(variable, variable.numpy()) for variable in variables]

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for variable, value in self._before:
            variable.assign(value)


def _is_float(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and tensor.dtype.is_floating


def _weighted(output: Any, rows: np.ndarray, weights: np.ndarray) -> Any:
    """A sum in which every number of the output counts differently, by its row and place."""
    output = tf.cast(output, tf.float64)
    if output.shape.rank == 0 or output.shape[0] != len(rows):
        return tf.reduce_sum(output)
    by_row = weights * (1.0 + np.cos(rows))
    places = int(np.prod(output.shape[1:]))
    by_place = 1.0 + 0.5 * np.sin(np.arange(places))
    return tf.reduce_sum(tf.reshape(output, [len(rows), places]) * by_row[:, None] * by_place[None, :])
