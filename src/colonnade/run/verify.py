"""Prove that a function on N devices is still the function on one, and say why when it is not.

Values and gradients are compared on several batch sizes: even, uneven, smaller than N. How much may
differ is found out on one device alone: permuting a batch and splitting it again changes the order
in which floats are added, and that much is rounding. A cause is never guessed: each is a run on one
device that shows it or does not.
"""

import json
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from colonnade.hardware import devices as hardware
from colonnade.run.join import check_join
from colonnade.run.parallel import Devices, Parallel
from colonnade.run.rounding import Rounding
from colonnade.run.split import Arguments, flatten, is_tensor, parameter_names, sizes

Values = dict[str, np.ndarray]

# A difference up to this many times what one device does to itself is rounding.
MARGIN = 4.0
# Between a name and its number, where several variables have the same name.
AGAIN = " #"
# Rounding that calibration may not see, in units of the dtype's epsilon times the largest value.
FLOOR = 32.0
# Runs in which numbers that are drawn must differ once: a few of them may be equal by chance.
DRAWS = 3

CAUSES = {
    "randomness": "it draws random numbers: two runs on the same batch on one device differ",
    "mean": 'it takes a mean over the batch: the mean over slices, weighted by size, is right: join="mean"',
    "sum": 'it takes a sum over the batch: the sum over slices is right: join="sum"',
    "order": "it depends on the order of the examples: permuting them on one device changes the result",
    "statistics": "examples influence each other (batch statistics): exchanging some changes the others",
    "size": "it depends on the size of the batch: the same examples in a larger batch give other results",
    "slices": "one device called on the same slices gives what N devices give: the function differs",
    "parallel": "one device agrees with itself on the same slices, but N devices do not: please report this",
}


@dataclass(frozen=True)
class Comparison:
    """One output or gradient at one batch size."""

    leaf: str
    batch: int
    difference: float
    tolerance: float
    cause: str | None = None

    @property
    def equal(self) -> bool:
        return self.cause is None


@dataclass(frozen=True)
class Report:
    """What `verify` found; true when N devices equal one. Prints as a table."""

    devices: tuple[str, ...]
    rows: tuple[Comparison, ...]

    def __bool__(self) -> bool:
        return all(row.equal for row in self.rows)

    @property
    def causes(self) -> tuple[str, ...]:
        """Why it is not the same function: keys of `CAUSES`."""
        return tuple(dict.fromkeys(row.cause for row in self.rows if row.cause))

    def to_json(self) -> str:
        """The report as JSON; an infinite difference (another shape, a missing value) is null."""
        rows = [
            {**asdict(row), "difference": row.difference if np.isfinite(row.difference) else None}
            for row in self.rows
        ]
        facts = {"equal": bool(self), "causes": self.causes, "devices": self.devices, "rows": rows}
        return json.dumps(facts, indent=2)

    def __str__(self) -> str:
        table = Table(title=f"{len(self.devices)} devices against one", title_justify="left")
        for column, side in (
            ("what", "left"),
            ("batch", "right"),
            ("difference", "right"),
            ("tolerance", "right"),
        ):
            table.add_column(column, justify=side)  # type: ignore[arg-type]
        table.add_column("equal")
        for row in self.rows:
            verdict = "yes" if row.equal else f"NO: {row.cause}"
            table.add_row(row.leaf, str(row.batch), f"{row.difference:.1e}", f"{row.tolerance:.1e}", verdict)
        console = Console(width=120, highlight=False)
        with console.capture() as text:
            console.print(table)
            verdict = "equal" if self else "not the same function"
            console.print(f"{len(self.devices)} devices and one: {verdict}.")
            for cause in self.causes:
                console.print(f"  {cause}: {CAUSES[cause]}.")
        return text.get().rstrip("\n")


def verify(
    fn: Callable[..., Any], *args: Any, devices: Devices = None, join: str = "concat", **kwargs: Any
) -> Report:
    """Run `fn` on one device and on several, forward and gradient, and compare.

    Args:
        fn: the function, as for `cn.parallel`; variables that it changes are put back afterwards.
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
    experiment = _Experiment(fn, Arguments(args, kwargs, parameter_names(fn)), chosen, join)
    with experiment.state_kept():
        rows = tuple(row for batch in experiment.batches() for row in experiment.compare(batch))
    return Report(chosen, rows)


class _Experiment:
    """One function with one example batch, called in the ways that tell causes apart."""

    def __init__(self, fn: Callable[..., Any], example: Arguments, devices: Sequence[str], join: str) -> None:
        self.fn, self.example, self.devices, self.join = fn, example, tuple(devices), join
        self.total = example.size("verify()") or 1
        self.one = Parallel(fn, devices[:1], "sum")
        self.many = Parallel(fn, devices, join)
        self.each = Parallel(fn, devices, "stack" if join == "concat" else join)
        self._added: set[str] = set()  # leaves without a batch dim: scalars, gradients of variables
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
        example = self.example.rows(np.arange(min(self.total, 2)))
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
            leaves = [(path, leaf) for path, leaf in flatten(target.run(arguments)) if is_tensor(leaf)]
            sums = [_weighted(leaf, rows, weights) for _, leaf in leaves if _is_float(leaf)]
            loss = tf.add_n(sums) if sums else None
        values = {f"output{path}": _dense(leaf) for path, leaf in leaves}
        if loss is None:
            return values
        sources = [(leaf.path, leaf.value, leaf.role == "whole") for leaf in smooth]
        sources += [(variable.name, variable, True) for variable in tape.watched_variables()]
        gradients = tape.gradient(loss, [source for _, source, _ in sources])
        for (name, _, added), gradient in zip(sources, gradients, strict=True):
            if gradient is None:
                continue
            leaf = _unlike(values, f"gradient of {name}")
            values[leaf] = _dense(gradient)
            if added:
                self._added.add(leaf)
        return values

    def compare(self, batch: int) -> Iterator[Comparison]:
        """N devices against one on the first `batch` rows, leaf by leaf."""
        rows = np.arange(batch)
        reference = self.evaluate(self.one, rows)
        found = self._found(rows)
        noise = self._noise(rows, reference)
        for leaf, expected in reference.items():
            tolerance = MARGIN * noise[leaf] + FLOOR * self._step(leaf, expected) * _scale(expected)
            difference = _difference(expected, found.get(leaf))
            cause = (
                None
                if difference <= tolerance
                else self._cause(leaf, rows, expected, tolerance, found.get(leaf))
            )
            yield Comparison(leaf, batch, difference, tolerance, cause)
        for leaf in found.keys() - reference.keys():
            yield Comparison(leaf, batch, float("inf"), 0.0, "parallel")

    def _found(self, rows: np.ndarray) -> Values:
        """What N devices give; an output that cannot be concatenated is kept apart for each of them."""
        whole = self.join != "concat" or not any(leaf.startswith("output") for leaf in self._added)
        return self.evaluate(self.many if whole else self.each, rows)

    def _noise(self, rows: np.ndarray, reference: Values) -> dict[str, float]:
        """What permuting and splitting again do on one device; more than rounding is not counted."""
        order = np.random.default_rng(0).permutation(len(rows))
        permuted = self._unpermuted(self.evaluate(self.one, rows[order]), order)
        again = self._on_slices(rows, sizes(len(rows), 2))
        largest = {leaf.split()[0]: 0.0 for leaf in reference}
        for leaf, expected in reference.items():
            largest[leaf.split()[0]] = max(largest[leaf.split()[0]], _scale(expected))
        noise = {}
        for leaf, expected in reference.items():
            # A gradient that cancels to nearly nothing keeps the rounding of the large terms in it.
            step = self._step(leaf, expected)
            ceiling = max(np.sqrt(step) * _scale(expected), FLOOR * step * largest[leaf.split()[0]])
            seen = [_difference(expected, other.get(leaf)) for other in (permuted, again)]
            noise[leaf] = max([0.0, *(d for d in seen if d <= ceiling)])
        return noise

    def _step(self, leaf: str, values: np.ndarray) -> float:
        """The relative step of floats; integers and strings have none, and must be equal."""
        return self._steps[leaf.partition(AGAIN)[0]] if values.dtype.kind in "fc" else 0.0

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
        self, leaf: str, rows: np.ndarray, expected: np.ndarray, tolerance: float, found: np.ndarray | None
    ) -> str:
        """The first cause that a run on one device shows."""
        runs = (self.evaluate(self.one, rows) for _ in range(DRAWS))
        if any(_difference(expected, one.get(leaf)) > tolerance for one in runs):
            return "randomness"
        counts = sizes(len(rows), len(self.devices))
        if any(name.startswith("output") for name in self._added):
            for cause, average in (("mean", True), ("sum", False)):
                sliced = self._on_slices(rows, counts, average).get(leaf)
                if _difference(expected, sliced) <= tolerance:
                    return cause if cause != self.join else "parallel"
        order = np.random.default_rng(1).permutation(len(rows))
        permuted = self._unpermuted(self.evaluate(self.one, rows[order]), order)
        if _difference(expected, permuted.get(leaf)) > tolerance:
            return "order"
        if self._changes_with(leaf, rows, self._exchanged(rows), tolerance):
            return "statistics"
        if self._changes_with(leaf, rows, np.concatenate([rows, rows]), tolerance):
            return "size"
        if found is not None and _difference(self._on_slices(rows, counts).get(leaf), found) <= tolerance:
            return "slices"
        return "parallel"

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
        return _difference(a, b) > tolerance


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


def _unlike(taken: Container[str], name: str) -> str:
    """A name that is not taken: two variables may have the same."""
    numbered = (name if i == 1 else f"{name}{AGAIN}{i}" for i in count(1))
    return next(other for other in numbered if other not in taken)


def _weighted(output: Any, rows: np.ndarray, weights: np.ndarray) -> Any:
    """A sum in which every number of the output counts differently, by its row and place."""
    output = tf.cast(output, tf.float64)
    if output.shape.rank == 0 or output.shape[0] != len(rows):
        return tf.reduce_sum(output)
    by_row = weights * (1.0 + np.cos(rows))
    places = int(np.prod(output.shape[1:]))
    by_place = 1.0 + 0.5 * np.sin(np.arange(places))
    return tf.reduce_sum(tf.reshape(output, [len(rows), places]) * by_row[:, None] * by_place[None, :])


def _dense(tensor: Any) -> np.ndarray:
    if isinstance(tensor, tf.IndexedSlices):
        tensor = tf.convert_to_tensor(tensor)
    elif isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_tensor()
    elif isinstance(tensor, tf.SparseTensor):
        tensor = tf.sparse.to_dense(tensor)
    return np.asarray((tf.cast(tensor, tf.float32) if tensor.dtype == tf.bfloat16 else tensor).numpy())


def _difference(expected: np.ndarray | None, found: np.ndarray | None) -> float:
    """The largest difference; infinite where the shapes differ or only one has the value."""
    if expected is None or found is None or expected.shape != found.shape:
        return float("inf")
    if expected.size == 0:
        return 0.0
    if expected.dtype.kind not in "fciu":
        return 0.0 if np.array_equal(expected, found) else float("inf")
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    gaps = np.abs(expected.astype(wide) - found.astype(wide))
    same = (np.isnan(expected) & np.isnan(found)) | (expected == found)
    return float(np.where(same, 0.0, np.where(np.isnan(gaps), np.inf, gaps)).max())


def _scale(values: np.ndarray) -> float:
    if not values.size or values.dtype.kind not in "fc":
        return 0.0
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size else 0.0
