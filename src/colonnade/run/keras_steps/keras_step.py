"""The training step of a compiled Keras model on several devices, which `cn.fit` gives to Keras.

The loss of a batch is the mean of its slices' losses, weighted by their sizes, if it is a mean over examples.
If it is not, predictions are put together first (see `model.whole_batch`). Which it is, the names of losses
and the masks of outputs tell, and for all others the proof on the first batch.
"""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property, partial
from typing import Any

import keras
import tensorflow as tf

from colonnade.errors import ColonnadeError, check
from colonnade.run.batch.split import Arguments, broadcast, flatten
from colonnade.run.batch.widths import kind_of
from colonnade.run.data.coming_batches import of_execution
from colonnade.run.data.feed import unpacked
from colonnade.run.engine.gradients import slice_specs
from colonnade.run.engine.graph_engine import GraphEngine
from colonnade.run.engine.graph_loop import Loop, once_of
from colonnade.run.engine.protocols import Outcome, Settings, Sync
from colonnade.run.keras_steps.added_kinds import AddedKinds, guilty
from colonnade.run.keras_steps.batch_metrics import BatchMetrics
from colonnade.run.keras_steps.jit_compile import asks_for_xla
from colonnade.run.keras_steps.keras_losses import missing, of_slices, source_of, uncounted
from colonnade.run.keras_steps.split_inputs import SplitInputs, uncut
from colonnade.run.machines.peers import ALONE, Peers
from colonnade.run.model.optional_values import without_optionals
from colonnade.run.model.training_step import BATCH, deferred, if_taken
from colonnade.run.model.user_line import Failures
from colonnade.run.model.whole_batch import (
    joined,
    masks_of,
    nothing,
    put_together,
    unjoined,
    untrained,
)
from colonnade.run.parallel.compilation import Compilation
from colonnade.run.parallel.gap import dense
from colonnade.run.parallel.tolerance import Values
from colonnade.run.prove import slice_failure
from colonnade.run.prove.judgement import judged
from colonnade.run.prove.look import FIRST, POSITIONS, Look
from colonnade.run.prove.proof import InSlices
from colonnade.run.prove.second_looks import ProvedSizes, with_gaps
from colonnade.run.prove.verdict import Prover
from colonnade.run.step.objective import Objective, Share
from colonnade.run.sync.lockstep import Synchronous
from colonnade.run.sync.same_training import same_kind
from colonnade.run.trace.replica_context import remembered
from colonnade.run.variables.homes import Homes
from colonnade.run.variables.saved_state import Resumable, SavedState

# Beside the batch: the places of a slice's examples in it, and all of it.
GATHERED = (*BATCH, POSITIONS, "batch")
# How many batches are looked at, where they show nothing.
LOOKS = 3


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
        self._added = AddedKinds()  # by layers
        self._masked = self._summed = False  # whether an output has a mask, or the loss is no number
        # Whether every replica computes the loss of the whole batch.
        self._may_gather = self._several and isinstance(sync, Synchronous)
        no_mean = any(of_slices(model.loss)) or bool(masks_of(getattr(model, "outputs", None)))
        self._gathers = self._may_gather and no_mean
        self._begun, self._sizes = set[Hashable](), ProvedSizes()  # kinds of batches, and their slices
        self._untold = 0  # how often a batch was looked at that showed nothing
        self._choosing, self._failures = False, Failures()
        self._spec: Any = None  # of the dataset
        # What the model and its loss do to metrics; Keras has built them all by the first step.
        self._batch_metrics = BatchMetrics(model)
        # Whether somebody may look at the model after every step, and whether it is behind what was reached.
        self.looked_at, self._apart = True, False
        self._begin()

    @property
    def _several(self) -> bool:
        return self._peers.several or len(self.devices) > 1

    def _begin(self) -> None:
        """An engine, with nothing traced."""
        self._batch_metrics.gathers = self._gathers
        settings = Settings(
            self._loss,
            self._model.optimizer,
            self.devices,
            self._mode,
            on_nan=None,  # Keras goes on, and its callbacks decide (TerminateOnNaN)
            trainable=self._trained,
            # All of them, as Keras does: by this order it saves an optimizer, and puts averages into weights.
            optimized=lambda: self._trainable,
            compilation=Compilation(asks_for_xla(self._model), "fit()", "jit_compile"),
            peers=self._peers,
        )
        self._engine = self._sync.engine(settings)
        self._loop = self._engine.loop(self._metrics)
        self._expects = False  # whether the loop was told what the dataset knows

    def __call__(self, iterator: Any) -> dict[str, Any]:
        logs: dict[str, Any] = {}
        if not self._begun:
            self._spec = without_optionals(getattr(iterator, "element_spec", None))
        for batch in of_execution(self._peers.fetched(iterator), self._model.steps_per_execution):
            logs = self.once(batch, iterator)
        return logs

    def once(self, data: Any, coming: Any = None) -> dict[str, Any]:
        """One step on one batch, which comes from there; what Keras tells of it."""
        given = unpacked(data)
        same_kind(self._peers, self._plain(*given), "fit()")
        arguments = self._checked(*given)
        if not self._apart:
            self._engine.enter()
        self._apart = True
        try:
            with self._peers.stepping(), self._telling(arguments):
                logs: dict[str, Any] = once_of(
                    self._loop, arguments, coming, lambda other: self._opened(*unpacked(other))
                )
        except tf.errors.OpError as error:
            with self._told(*given):
                raise self._engine.explained(error) from None
        if self.looked_at:
            self.show()
        return logs

    def show(self) -> None:
        """The model shows what was reached, and what is assigned to it from now on counts."""
        if self._apart:
            self._engine.leave()
        self._apart = False

    def lends(self) -> Homes | None:
        """Copies of the model's variables on cards, which show what it shows."""
        return self._engine.lends() if isinstance(self._engine, GraphEngine) and not self._apart else None

    def _opened(self, x: Any, y: Any, weight: Any) -> Arguments:
        """A batch with the dims open that vary, or whose size the dataset does not know."""
        batch = self._arguments(x, y, weight)
        if not isinstance(self._loop, Loop):
            return batch
        if self._spec is not None and not self._expects:
            x, y, weight = keras.utils.unpack_x_y_sample_weight(self._spec)
            self._loop.expect(Arguments((x, y, weight, None, (x, y, weight)), {}, GATHERED))
            self._expects = True
        return self._loop.opened(batch)

    def _checked(self, x: Any, y: Any, weight: Any) -> Arguments:
        check("fit()", missing(self._model, y))
        if self._several:
            plain = self._plain(x, y, weight)
            check("fit()", uncut(plain))
            kind, counts = kind_of(plain), self._engine.cut(plain)
            new = kind not in self._begun or (self._prover.wanted and self._sizes.shows_more(kind, counts))
            if new and (plain.size("fit()") or 0) > 1:
                self._examine(x, y, weight)
            elif self._added.doubtful and self._prover.wanted and len(counts) > 1:
                self._look_again(x, y, weight)
        return self._opened(x, y, weight)

    def prepare(self, data: Any) -> None:
        """Make the graph of a step on such a batch, with all its variables."""
        arguments = self._checked(*keras.utils.unpack_x_y_sample_weight(without_optionals(data)))
        assert isinstance(self._loop, Loop)
        self._loop.ready(arguments)

    def state(self) -> SavedState:
        """What a checkpoint keeps (see `step_state`); the user may have assigned to variables."""
        self.show()
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
        known, added = len(self._model.variables), self._added.trained if training else self._added.calm
        with added.noted(rows, total), deferred(self._model, rows) as called:
            prediction = self._predict(x, rows, training)
        masks = masks_of(prediction)
        self._masked = bool(masks)
        # A trace that makes variables must go on to its end, or nobody would give them their values.
        if self._choosing and self._must_gather and len(self._model.variables) == known:
            raise _NoMean
        with deferred(self._model, total) as noted:
            whole, given = prediction, (x, y, weight)
            if batch is not None:
                whole, given = put_together(prediction, masks, positions, total), batch
            loss = self._total(*given[:2], whole, given[2], training)
        self._batch_metrics.note(called, noted)
        told = noted.values, tf.constant(rows), added.values, called.values, tf.size(loss)
        # Of a loss that is no number Keras differentiates the sum, and tells the mean.
        self._summed |= bool(loss.shape.rank)
        return tf.reduce_sum(loss) if self._summed else loss, {}, (prediction, masks, *told)

    def _rows(self, *batch: Any) -> int:
        """How many examples a slice has."""
        return self._plain(*batch).size("fit()") or 0

    def _predict(self, x: Any, rows: int, training: bool) -> Any:
        prediction = self._model(x, **if_taken(self._model.call, training=training))
        check(
            "fit()", [*nothing(prediction, self._model.loss), *untrained(self._model.name, self._trainable)]
        )
        if self._several:
            check("fit()", unjoined(prediction, rows))
        return prediction

    def _total(self, x: Any, y: Any, prediction: Any, weight: Any, training: bool) -> Any:
        options = if_taken(self._model.compute_loss, training=training)
        return tf.convert_to_tensor(self._model.compute_loss(x, y, prediction, weight, **options))

    def _telling(self, batch: Arguments) -> Any:
        """Around whatever may trace slices of a size that was not there before."""
        whole = partial(self._engine.traces.of_one_device, batch)
        return self._failures.told("fit()", self._model.name, self._engine.cut(batch), whole)

    def _examine(self, *given: Any) -> None:
        """Before such batches are trained: find out how the loss is computed by slices, and prove it."""
        self.show()
        self._choosing, self._prover.told = True, True
        with self._told(*given):
            while not self._settled(given):
                self._begin()
        kind, counts = kind_of(self._plain(*given)), self._engine.cut(self._opened(*given))
        self._begun.add(kind)
        self._untold += not self._prover.told
        if self._prover.told or self._untold >= LOOKS:
            self._sizes.note(kind, counts)
        self._choosing = False

    def _look_again(self, *given: Any) -> None:
        """At what layers add, which was 0 until now; whether it is a sum decides how all is computed."""
        self.show()
        batch = self._opened(*given)
        look = self._prover.in_training(self._engine.traces, batch, self._engine.cut(batch), self._more)
        with self._told(*given):
            new = self._added.shown_by(look) and self._added.tells(look, self._prover, self._engine.traces)
        if new:
            self._gathers = self._may_gather and (self._gathers or self._no_mean)
            self._begin()
            self._examine(*given)

    def _told(self, *given: Any) -> AbstractContextManager[None]:
        """Around what computes a batch in slices."""
        if len(self.devices) == 1 or self._peers.several:
            return nullcontext()
        return slice_failure.told("fit()", self._model.name, partial(self._look, *given))

    def _look(self, *given: Any) -> Look:
        batch = self._opened(*given)
        counts = self._engine.cut(batch)
        return self._prover.in_training(self._engine.traces, batch, counts, self._more).look

    def _settled(self, given: Sequence[Any]) -> bool:
        """Whether the loss is computed right; if not, it is done in another way from now on."""
        batch = self._opened(*given)
        counts = self._engine.cut(batch)
        with suppress(_NoMean), self._telling(batch):
            self._engine.prepare(batch)
        if self._must_gather:
            self._gathers = True
            return False
        if self._no_mean and not self._gathers and not isinstance(self._sync, Synchronous):
            kinds = self._added.trained.kinds
            check("fit()", uncounted(self._model.name, kinds, masked=self._masked, summed=self._summed))
        if not self._prover.wanted or len(counts) < 2:
            return True
        where = f"{FIRST} of {sum(counts)} examples" if self._begun else FIRST
        found = self._prover.in_training(self._engine.traces, batch, counts, self._more, where)
        if self._added.doubtful and self._added.tells(found, self._prover, self._engine.traces):
            self._gathers = self._may_gather and (self._gathers or self._no_mean)
            return False
        if self._prover.fits(self._engine.traces, batch):
            plain = self._plain(*given)
            varied = with_gaps(plain, counts)
            other, _ = varied.unpack(varied.components())
            with self._prover.within_memory():
                return self._equal(found, batch if varied is plain else self._opened(*other))
        return True

    def _equal(self, found: InSlices, varied: Arguments) -> bool:
        """Whether slices give what one device does; if that cannot be, it is refused."""
        judge = partial(judged, self._prover, calm=self._calm_trace)
        amiss = self._prover.wrong(found, varied, judge)
        if amiss is None:
            return True
        trained, calm = amiss
        shown = (calm or trained).look
        alike = shown.random or not any(row.leaf.startswith("prediction") for row in shown.unequal)
        if alike and not self._gathers and isinstance(self._sync, Synchronous):
            self._gathers = True
            return False
        trained, calm = self._prover.told_wrong(found, amiss, judge)
        layer = guilty(self._added, calm)
        unequal = (calm or trained).look.unequal
        if any(row.leaf.startswith("prediction") for row in unequal):
            source: tuple[str, Any] = "model", self._model.name
        else:
            source = source_of(self._model) if layer is None else ("add_loss", layer)
        self._prover.refuse(trained, calm, source)
        return True

    @property
    def _no_mean(self) -> bool:
        """Whether the model was seen to give a mask, or layers that add sums, or a loss that is no number."""
        return self._masked or self._summed or self._added.has_sums

    @property
    def _must_gather(self) -> bool:
        return self._no_mean and self._may_gather and not self._gathers

    def _calm_trace(self, part: Arguments) -> Objective:
        return Objective(self._calm, part, self._model.optimizer.scale_loss, None, self._trained)

    def _more(
        self, shares: Sequence[Share], traces: Sequence[Objective], whole: Objective, batch: Arguments
    ) -> Values:
        """Predictions and metrics of a batch, told from what its slices gave; states stay as they are."""
        outputs = [share.outputs for share in shares]
        values = {
            f"prediction{path}": dense(leaf)
            for path, leaf in flatten(joined([one[0] for one in outputs]))
            if leaf is not None
        }
        loss = tf.add_n([share.loss for share in shares])
        given = self._given(batch)
        logs = self._batch_metrics.looked_at(traces, lambda: whole, loss, outputs, given)
        return values | {f"metric {name}": value for name, value in logs.items()}

    def _given(self, batch: Arguments) -> tuple[Any, ...]:
        (x, y, weight, *_), _ = batch.unpack(batch.components())
        return x, y, weight, batch.size("fit()")

    @cached_property
    def _trainable(self) -> list[Any]:
        """What was to be trained at the first step: with Keras too, freezing counts after `compile`."""
        return list(self._model.trainable_variables)

    def _trained(self, used: Sequence[tf.Variable]) -> list[tf.Variable]:
        trained = {variable.value.ref() for variable in self._trainable}
        return [variable for variable in used if variable.ref() in trained]

    def _metrics(self, outcome: Outcome, batch: Arguments) -> Any:
        """Loss and metrics of the whole batch, as Keras keeps them."""
        counts, traces = self._engine.cut(batch), self._engine.traces
        own = [traces.objective(p, i, len(counts)) for i, p in enumerate(slice_specs(batch, counts))]
        whole, given = partial(traces.of_one_device, batch), self._given(batch)
        return self._batch_metrics.of_batch(own, whole, outcome.loss, outcome.outputs, given, self._engine)
