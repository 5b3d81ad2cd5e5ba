"""The training step of a compiled Keras model on several devices, which `cn.fit` gives to Keras.

The loss of a batch is the mean of its slices' losses, weighted by their sizes, if it is a mean over examples.
If it is not, predictions are put together first (see `model.whole_batch`). Which it is, the names of losses
and the masks of outputs tell, and for all others the proof on the first batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from colonnade.errors import ColonnadeError, InvalidArgument, Problem, check
from colonnade.run.batch.split import Arguments, broadcast, flatten
from colonnade.run.engine.graph_loop import Loop
from colonnade.run.engine.protocols import Outcome, Settings, Sync
from colonnade.run.keras_steps.keras_losses import name_of, of_slices
from colonnade.run.keras_steps.split_inputs import SplitInputs
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.model.metrics import DeferredMetrics
from colonnade.run.model.training_step import BATCH, all_metrics, has_own, if_taken
from colonnade.run.model.user_line import Failures
from colonnade.run.model.whole_batch import (
    SUM,
    AddedLosses,
    gathered,
    joined,
    kinds,
    masks_of,
    unjoined,
    with_masks,
)
from colonnade.run.parallel.gap import dense
from colonnade.run.parallel.tolerance import Values
from colonnade.run.prove.proof import InSlices
from colonnade.run.prove.verdict import Prover
from colonnade.run.step.objective import Objective, Share
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.sync.over_machines import OTHER_BATCH, other_batch, sizes_told
from colonnade.run.trace.replica_context import remembered
from colonnade.run.variables.saved_state import Resumable, SavedState

# Beside the batch: the places of a slice's examples in it, and all of it.
GATHERED = (*BATCH, "positions", "batch")


class _NoMean(ColonnadeError):
    """Ends a trace of a slice that is seen to be of no use: its loss must be that of the whole batch."""


class KerasStep:
    """What Keras calls for every batch: one step on all devices."""

    def __init__(
        self,
        model: keras.Model,
        devices: tuple[str, ...],
        sync: Sync,
        mode: str,
        prover: Prover,
        split: SplitInputs,
        peers: Peers = ALONE,
    ) -> None:
        self._split, self._model, self.devices = split, model, devices
        self._sync, self._mode = sync, mode
        self._prover, self._peers = prover, peers
        self._added, self._knows_kinds = AddedLosses(), False
        self._masked = False  # whether an output has a mask
        # Whether every replica computes the loss of the whole batch.
        self._may_gather = self._several and isinstance(sync, Synchronous)
        no_mean = any(of_slices(model.loss)) or bool(masks_of(getattr(model, "outputs", None)))
        self._gathers = self._may_gather and no_mean
        self._examined, self._choosing, self._failures = False, False, Failures()
        self._spec: Any = None  # of the dataset
        # What the loss does to metrics; Keras has built them all by the first step.
        self._deferred = DeferredMetrics([])
        self._measured = tf.function(self._measure, autograph=False)
        self._begin()

    @property
    def _several(self) -> bool:
        return self._peers.several or len(self.devices) > 1

    def _begin(self) -> None:
        """An engine, with nothing traced."""
        settings = Settings(
            self._loss,
            self._model.optimizer,
            self.devices,
            self._mode,
            on_nan=None,  # Keras goes on, and its callbacks decide (TerminateOnNaN)
            trainable=self._trained,
            # All of them, as Keras does: by this order it saves an optimizer, and puts averages into weights.
            optimized=lambda: self._model.trainable_variables,
            peers=self._peers,
        )
        self._engine = self._sync.engine(settings)
        self._loop = self._engine.loop(self._metrics)

    def __call__(self, iterator: Any) -> dict[str, Any]:
        logs: dict[str, Any] = {}
        if not self._examined:
            self._spec = getattr(iterator, "element_spec", None)
        # The last execution of an epoch may have fewer steps.
        for batch in chain([next(iterator)], islice(iterator, self._model.steps_per_execution - 1)):
            logs = self.once(batch)
        return logs

    def once(self, data: Any) -> dict[str, Any]:
        """One step on one batch; what Keras tells of it."""
        arguments = self._checked(*keras.utils.unpack_x_y_sample_weight(data))
        self._engine.enter()
        try:
            with self._peers.stepping(0.0):
                logs: dict[str, Any] = self._loop.once(arguments)
        except tf.errors.InvalidArgumentError as error:
            if OTHER_BATCH not in error.message:
                raise
            raise other_batch(sizes_told(error.message)) from None
        self._engine.leave()
        return logs

    def _opened(self, batch: Arguments) -> Arguments:
        """With the dims open that vary from batch to batch, or whose size the dataset does not know."""
        if not isinstance(self._loop, Loop):
            return batch
        if self._spec is not None:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(self._spec)
            self._loop.expect(Arguments((x, y, weight, None, (x, y, weight)), {}, GATHERED))
            self._spec = None
        return self._loop.opened(batch)

    def _checked(self, x: Any, y: Any, weight: Any) -> Arguments:
        check("fit()", self._missing(y))
        if self._several:
            check("fit()", _uncut(self._plain(x, y, weight)))
        if self._several and not self._examined:
            self._examine(x, y, weight)
        return self._opened(self._arguments(x, y, weight))

    def prepare(self, data: Any) -> None:
        """Make the graph of a step on such a batch, with all its variables."""
        arguments = self._checked(*keras.utils.unpack_x_y_sample_weight(data))
        assert isinstance(self._loop, Loop)
        self._loop.built(arguments)

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `step_state`); the user may have assigned to variables."""
        self._engine.enter()
        return self._resumable.state()

    def resume(self, own: Mapping[str, Sequence[Any]]) -> None:
        self._resumable.resume(own)

    def next_join(self, step: int) -> int:
        return self._resumable.next_join(step)

    @property
    def _resumable(self) -> Resumable:
        assert isinstance(self._engine, Resumable)
        return self._engine

    def _arguments(self, x: Any, y: Any, weight: Any) -> Arguments:
        plain = self._plain(x, y, weight)
        if not self._gathers:
            return plain
        positions, marked = tf.range(plain.size("fit()")), self._split.marked(x)
        return Arguments((marked, y, weight, positions, broadcast((x, y, weight))), {}, GATHERED)

    def _plain(self, x: Any, y: Any, weight: Any) -> Arguments:
        return Arguments((self._split.marked(x), y, weight), {}, BATCH)

    @tf.autograph.experimental.do_not_convert  # Keras does not convert a model's code either
    def _loss(self, x: Any, y: Any, weight: Any, positions: Any = None, batch: Any = None) -> Any:
        with remembered(), self._failures.noted():
            return self._losses(x, y, weight, positions, batch, training=True)

    @tf.autograph.experimental.do_not_convert
    def _calm(self, x: Any, y: Any, weight: Any, positions: Any = None, batch: Any = None) -> Any:
        """Without what happens only in training: dropout, statistics of a batch."""
        with remembered():
            return self._losses(x, y, weight, positions, batch, training=False)

    def _losses(self, x: Any, y: Any, weight: Any, positions: Any, batch: Any, *, training: bool) -> Any:
        rows = self._rows(x, y, weight)
        total = rows if batch is None else self._rows(*batch)
        with self._added.noted(rows, total):
            prediction = self._predict(x, rows, training)
        masks = masks_of(prediction)
        self._masked = bool(masks)
        if self._choosing and self._no_mean and self._may_gather and not self._gathers:
            raise _NoMean
        self._deferred = DeferredMetrics(all_metrics(self._model))
        with self._deferred as noted:
            whole, given = prediction, (x, y, weight)
            if batch is not None:
                whole, given = self._put_together(prediction, masks, positions, total), batch
            loss = self._total(*given[:2], whole, given[2], training)
        outputs = prediction, masks, noted.values, tf.constant(rows), self._added.values
        return loss, {}, outputs

    def _put_together(self, prediction: Any, masks: dict[str, Any], positions: Any, total: int) -> Any:
        whole = tf.nest.map_structure(lambda p: gathered(p, positions, total), prediction)
        return with_masks(whole, {i: gathered(m, positions, total) for i, m in masks.items()})

    def _rows(self, *batch: Any) -> int:
        """How many examples a slice has."""
        return self._plain(*batch).size("fit()") or 0

    def _predict(self, x: Any, rows: int, training: bool) -> Any:
        prediction = self._model(x, **if_taken(self._model.call, training=training))
        if self._several:
            check("fit()", unjoined(prediction, rows))
        return prediction

    def _total(self, x: Any, y: Any, prediction: Any, weight: Any, training: bool) -> Any:
        options = if_taken(self._model.compute_loss, training=training)
        loss = self._model.compute_loss(x, y, prediction, weight, **options)
        self._check_scalar(loss)
        return loss

    def _check_scalar(self, loss: Any) -> None:
        shape = getattr(loss, "shape", ())
        if len(shape):
            rule = f"is a tensor of shape {tuple(shape)}, whose sum Keras would differentiate"
            name, value = self._source()
            raise InvalidArgument("fit()", [Problem(name, value, rule, "Return one number: the mean")])

    def _missing(self, y: Any) -> Iterator[Problem]:
        if y is None and self._model.loss is not None and not self._own_loss:
            rule = f"is missing, and the model is compiled with loss={self._source()[1]!r}"
            yield Problem("y", None, rule, "Pass y, or a dataset of (x, y)")

    def _examine(self, x: Any, y: Any, weight: Any) -> None:
        """Before anything is trained: find out how the loss is computed by slices, and prove it."""
        if self._rows(x, y, weight) < 2:
            return
        spec, self._choosing = self._spec, True
        while not self._settled(self._opened(self._arguments(x, y, weight))):
            self._begin()
            self._spec = spec
        self._examined, self._choosing = True, False

    def _settled(self, batch: Arguments) -> bool:
        """Whether the loss is computed right; if not, it is done in another way from now on."""
        counts, device = self._engine.cut(batch), self.devices[0]
        whole = partial(self._engine.traces.of_one_device, batch)
        try:
            with self._failures.told("fit()", self._model.name, counts, whole):
                self._engine.prepare(batch)
        except _NoMean:
            self._gathers = True
            return False
        if self._no_mean and not self._gathers:
            check("fit()", self._uncounted())
        if not self._prover.wanted or not self._prover.fits(self._engine.traces, batch):
            return True
        trained = self._prover.in_training(self._engine.traces, batch, counts, self._more)
        if self._added.calls and not self._knows_kinds:
            self._knows_kinds, before = True, dict(self._added.kinds)
            self._added.kinds |= self._kinds(trained)
            if self._added.kinds != before:
                self._gathers = self._may_gather and self._no_mean
                return False
        if self._prover.proved(trained.look):
            return True
        calm = InSlices.traced(self._calm_trace, counts, batch, device, self._more)
        if self._prover.proved_but_for_training(trained, calm):
            return True
        alike = calm.look.random or not any(row.leaf.startswith("prediction") for row in calm.look.unequal)
        if alike and not self._gathers and isinstance(self._sync, Synchronous):
            self._gathers = True
            return False
        self._prover.refuse(trained, calm, self._guilty(calm))
        return True

    @property
    def _no_mean(self) -> bool:
        """Whether the model was seen to give a mask, or layers that add sums."""
        return self._masked or SUM in self._added.kinds.values()

    def _calm_trace(self, part: Arguments) -> Objective:
        return Objective(self._calm, part, self._model.optimizer.scale_loss, None, self._trained)

    def _kinds(self, look: InSlices) -> dict[tuple[str, int], str]:
        """Whether layers add sums or means, told from the batch and its slices."""
        whole, parts = look.outputs()
        known = kinds(_added(whole), [_added(part) for part in parts], look.counts, 1e-6)
        return dict(zip(self._added.calls, known, strict=True))

    def _guilty(self, look: InSlices) -> tuple[str, Any]:
        """A layer that adds neither a mean nor a sum, or what says how the loss is computed."""
        whole, parts = look.outputs()
        added = zip(*(_added(part) for part in parts), strict=True)
        for layer, value, own in zip(self._added.layers, _added(whole), added, strict=False):
            mean = float(np.average(own, weights=look.counts))
            if min(abs(value - mean), abs(value - sum(own))) > 1e-4 * abs(value):
                return "add_loss", layer.name
        return self._source()

    def _more(self, shares: Sequence[Share], batch: Arguments) -> Values:
        """Predictions and metrics of a batch, told from what its slices gave; states stay as they are."""
        outputs = [share.outputs for share in shares]
        values = {
            f"prediction{path}": dense(leaf)
            for path, leaf in flatten(joined([one[0] for one in outputs]))
            if leaf is not None
        }
        metrics = all_metrics(self._model)
        before = [(variable, variable.numpy()) for metric in metrics for variable in metric.variables]
        self._model.reset_metrics()
        loss = tf.add_n([share.loss for share in shares])
        (x, y, weight, *_), _ = batch.unpack(batch.components())
        logs = self._measure(loss, outputs, x, y, weight, batch.size("fit()"))
        self._model.reset_metrics()  # those that were made just now
        for variable, value in before:
            variable.assign(value)
        return values | {f"metric {name}": np.asarray(value) for name, value in logs.items()}

    @property
    def _own_loss(self) -> bool:
        return has_own(self._model, "compute_loss")

    def _source(self) -> tuple[str, Any]:
        """What says how the loss is computed."""
        if self._own_loss:
            return "compute_loss", type(self._model).__name__
        names = [name_of(loss) for loss in tf.nest.flatten(self._model.loss)]
        return "loss", names[0] if len(names) == 1 else names

    def _uncounted(self) -> Iterator[Problem]:
        fix = "Use cn.Synchronous(), the default"
        if not isinstance(self._sync, Synchronous) and self._masked:
            rule = "has a mask at its output, so slices with more masked would count too much"
            yield Problem("model", self._model.name, rule, fix)
        elif not isinstance(self._sync, Synchronous):
            sums = [name for (name, _), kind in self._added.kinds.items() if kind == SUM]
            rule = "is a sum over the examples of a batch, so each slice would count too little"
            yield Problem("add_loss", sums[0], rule, fix)

    def _trained(self, used: Sequence[tf.Variable]) -> list[tf.Variable]:
        trained = {variable.value.ref() for variable in self._model.trainable_variables}
        return [variable for variable in used if variable.ref() in trained]

    def _metrics(self, outcome: Outcome, batch: Arguments) -> Any:
        """Loss and metrics of the whole batch, as Keras keeps them."""
        (x, y, weight, *_), _ = batch.unpack(batch.components())
        # Part of the graph of a step, or a graph of its own where a step is none.
        measure = self._measured if tf.executing_eagerly() else self._measure
        return measure(outcome.loss, outcome.outputs, x, y, weight, batch.size("fit()"))

    def _measure(self, loss: Any, outputs: Any, x: Any, y: Any, weight: Any, rows: int | None) -> Any:
        predictions, masks, noted, counts, _ = zip(*outputs, strict=True)
        if self._gathers:  # every slice has noted what the whole batch gives
            noted, counts = noted[:1], counts[:1]
        self._deferred.make(noted, counts)
        all_metrics(self._model)[0].update_state(loss, sample_weight=rows)
        prediction = with_masks(joined(predictions), joined(masks))
        return self._model.compute_metrics(x, y, prediction, sample_weight=weight)


def _uncut(batch: Arguments) -> Iterator[Problem]:
    """Inputs with different numbers of rows, as those of a batch that is one graph."""
    sizes = {leaf.path: leaf.size() for leaf in batch.split}
    if len(set(sizes.values()) - {None}) > 1:
        rule = "differ in their numbers of rows, so a batch is not examples one after the other, and "
        rule += "cannot be cut into slices"
        fix = (
            "Let every device take a batch of its own: per_device=True. Or name the inputs that are cut, and "
        )
        fix += "every device gets the others whole: split=[...]"
        yield Problem("inputs", sizes, rule, fix)


def _added(outputs: Any) -> list[float]:
    """What layers added, of what the loss function returns beside the loss."""
    return [float(value) for value in outputs[4]]
