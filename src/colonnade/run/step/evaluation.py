"""`Trainer.evaluate`: the mean loss and metrics over a dataset, every example counted exactly once."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem, check
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.move.reduce import star
from colonnade.run.step.borrowed_homes import BorrowedHomes
from colonnade.run.step.objective import miscounted, total_of
from colonnade.run.step.update import as_keras, inside
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.concrete import hosted
from colonnade.run.trace.traced import Traced
from colonnade.run.trace_cut.sync_cut import call_with_sums, problems
from colonnade.run.variables.homes import Homes


class Score(Traced):
    """A loss function traced without its gradient: sums over a slice, and what to divide them by."""

    def _begin(self, arguments: Arguments, components: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        rows = arguments.size("the loss function")
        assert rows is not None

        def sums(result: Any) -> dict[str, Any]:
            share = total_of(result, tf.constant(1.0), rows)
            weight = tf.constant(float(rows)) if share.weight is None else share.weight
            return {"loss": share.loss, "weight": weight, "metrics": share.metrics}

        args, kwargs = arguments.unpack(components)
        return args, kwargs, self._context, self._ours(sums)


class Evaluation:
    """Runs a loss function over data on all devices; changes nothing, not even moving averages."""

    def __init__(self, loss: Callable[..., Any], devices: Sequence[str]) -> None:
        self._devices, self._sharded = tuple(devices), False
        self._scores = TraceCache(lambda part, voice: Score(loss, part, voice), devices)
        self._compiled: dict[Hashable, Any] = {}
        # Variables are read where they are; what the function changes, it changes in a copy.
        self._housed = BorrowedHomes("shared", devices)
        self._lender: Homes | None = None

    def read_from(self, lender: Homes | None) -> None:
        """From now on, read the copies that a training has on its cards."""
        if lender is not self._lender:
            mode = "shared" if lender is None else "mirrored"
            self._housed, self._lender = BorrowedHomes(mode, self._devices, lender), lender
            self._compiled = {}

    def run(
        self, dataset: tf.data.Dataset, names: Sequence[str], keywords: dict[str, Any], peers: Peers = ALONE
    ) -> tuple[float, dict[str, float], int]:
        """Mean loss, mean metrics, and how many examples there were: on all machines, if each has its own."""
        loss, weight, examples = 0.0, 0.0, 0
        self._sharded = peers.sharded
        self._housed.begin()
        metrics: dict[str, float] = {}
        for batch in dataset:
            arguments = Arguments(batch, keywords, names)
            sums = self._sums(arguments)
            loss += float(sums["loss"])
            weight += float(sums["weight"])
            examples += arguments.size("evaluate()") or 0
            for name, value in sums["metrics"].items():
                metrics[name] = metrics.get(name, 0.0) + float(value)
        if peers.sharded:
            loss, weight, examples, metrics = _added(peers, loss, weight, examples, metrics)
        if not examples:
            raise InvalidArgument(
                "evaluate()", [Problem("data", "a dataset", "gave no batch", "Pass at least one batch")]
            )
        weight = weight or 1.0  # where nothing has a weight, the mean is 0
        return loss / weight, {name: value / weight for name, value in metrics.items()}, examples

    def _sums(self, arguments: Arguments) -> Any:
        key = arguments.key()
        if key not in self._compiled:
            self._compiled[key] = self._compile(arguments)
        self._housed.restore_states()
        try:
            return self._compiled[key](*arguments.components())
        except tf.errors.OpError as error:
            raise miscounted(error) from None

    def _compile(self, arguments: Arguments) -> Any:
        counts = sizes(arguments.size("evaluate()") or 0, len(self._devices))
        traces = [self._trace(arguments.resized(count), i, len(counts)) for i, count in enumerate(counts)]
        check("the loss function", problems(traces))
        if self._sharded and traces[0].marks:
            rule = "is synchronised over the examples of a batch, which no machine has whole"
            fix = "Let the loss take training=, and call the model with it"
            name = traces[0].marks[0].rpartition("/")[0]
            raise InvalidArgument("evaluate()", [Problem("layer", name, rule, fix)])
        bindings = [self._housed.bindings(i, traced.captures) for i, traced in enumerate(traces)]
        for i, traced in enumerate(traces):
            if traced.facts.compiles:
                self._housed.make_stand_ins(i, traced.captures, compiled=True)

        def sums(*components: Any) -> Any:
            handles = [
                known | self._housed.stand_ins(i, traced.captures)
                for i, (known, traced) in enumerate(zip(bindings, traces, strict=True))
            ]
            parts = arguments.with_components(components).parts(counts)
            slices = [part.components() for part in parts]
            results = call_with_sums(traces, self._devices[: len(counts)], slices, handles, star(len(counts)))
            per_slice = [traced.pack(leaves) for traced, leaves in zip(traces, results, strict=True)]
            return tf.nest.map_structure(lambda *values: tf.add_n(values), *per_slice)

        specs = [tf.TensorSpec(c.shape, c.dtype) for c in arguments.components()]
        return hosted(sums, *specs)

    def _trace(self, part: Arguments, replica: int, num_replicas: int) -> Score:
        return self._scores.of_replica(part, replica, num_replicas)


def _added(
    peers: Peers, loss: float, weight: float, examples: int, metrics: dict[str, float]
) -> tuple[float, float, int, dict[str, float]]:
    """The sums over all machines; one without data has no metrics."""
    every = peers.exchange("evaluate()", [loss, weight, examples, metrics])
    names = dict.fromkeys(name for one in every for name in one[3])
    totals = {name: sum(one[3].get(name, 0.0) for one in every) for name in names}
    return sum(one[0] for one in every), sum(one[1] for one in every), sum(one[2] for one in every), totals


@contextmanager
def averaged(optimizer: Any, parameters: Sequence[tf.Variable], *, built_before: bool) -> Iterator[None]:
    """Put the averaged weights in place for a while, if the optimizer keeps them.

    One that was `built_before` the training may have its variables in another order.
    """
    keeping = [one for one in inside(optimizer) if getattr(one, "use_ema", False)]
    # Before the first update an average is zero, as Keras makes it: all may have been left out so far.
    if not parameters or not any(int(one.iterations) for one in keeping):
        yield
        return
    before = [parameter.numpy() for parameter in parameters]
    try:
        if built_before:
            several = any(hasattr(one, "optimizers") for one in inside(optimizer))
            for one in keeping:
                one.finalize_variable_values(_as_built(one, parameters, partly=several))
        else:
            getattr(optimizer, "inner_optimizer", optimizer).finalize_variable_values(parameters)
        yield
    finally:
        for parameter, value in zip(parameters, before, strict=True):
            parameter.assign(value)


def _as_built(optimizer: Any, parameters: Sequence[tf.Variable], *, partly: bool) -> list[tf.Variable]:
    """Parameters in the order of the optimizer's averages, which are named after them.

    With `partly`, it may keep those of some only.
    """
    ending = "_average"
    kept = [v.name.removesuffix(ending) for v in optimizer.variables if v.name.endswith(ending)]
    known = {_slot_name(p): v for p, v in zip(as_keras(parameters), parameters, strict=True)}
    right = len(known) == len(parameters) and {*kept} <= {*known} if partly else sorted(kept) == sorted(known)
    if not right:
        rule = (
            "was built before, for other variables than the loss trains or for several of one name, so it "
            "cannot be told which average is whose"
        )
        fix = "Pass an optimizer that is not built, or give each variable a name of its own"
        raise InvalidArgument("evaluate()", [Problem("optimizer", optimizer.name, rule, fix)])
    return [known[name] for name in kept]


def _slot_name(variable: Any) -> str:
    """How Keras begins the names of an optimizer's variables that belong to this one."""
    name = str(getattr(variable, "path", variable.name))
    return name.replace("/", "_").replace(":", "_")
