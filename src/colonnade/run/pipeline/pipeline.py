"""`cn.Pipeline`: a model spread over devices by its layers, called and trained in micro-batches."""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from colonnade.describe.plan import Plan
from colonnade.describe.timeline import Event, Timeline
from colonnade.errors import ColonnadeError, InvalidArgument, Problem, check
from colonnade.hardware.devices import estimated_limit, room
from colonnade.hardware.placement import short
from colonnade.reason.schedules.layer_split import misfits, place, rooms_of
from colonnade.reason.schedules.schedule import SCHEDULES, Schedule
from colonnade.run.batch.split import Arguments, sizes
from colonnade.run.move.num_bytes import num_bytes
from colonnade.run.parallel.join import join_leaf
from colonnade.run.pipeline.checks import plan_problems, problems, refs_of, rows_of, rows_planned
from colonnade.run.pipeline.layer_costs import measured
from colonnade.run.pipeline.layers import MISTAKES, Stage, layers_of, misfit, refused
from colonnade.run.pipeline.tasks import Stamp
from colonnade.run.trace.cache import TraceCache
from colonnade.run.trace.concrete import concrete, unconverted
from colonnade.run.trace.replica_context import TracingContext
from colonnade.run.trace.traced import Traced, Voice
from colonnade.run.variables.parts import home_of

# Micro-batches per stage, where the user does not say: the ends of a step, at which stages wait, are then
# a fifth of it at most.
PER_STAGE = 4


class Pipeline:
    """A model whose layers live on several devices; used like the model that it came from.

    Call it, or hand it to a trainer, `cn.Trainer(loss, optimizer, devices=pipeline)`, with a loss
    function that calls it.

    Args:
        stages: a list of functions or Keras layers, each taking what the one before returns; a
            `keras.Sequential`; or a functional model, which is cut between layers.
        devices: how many devices, or which; a stage lives on each. A list of lists is several pipelines
            side by side, which share every batch: `[[0, 1], [2, 3]]`. By default as many as there are
            layers, at most all.
        micro_batches: into how many parts a batch is cut; four per stage by default.
        schedule: the order in which stages take them: `sequential`, `gpipe` or `1f1b`.
        placement: `auto` balances the measured time of the layers, under the memory of the devices;
            or the stage of each layer, such as `[0, 0, 1]`.
        tied: variables or layers that several stages use.
        plan: what `cn.plan` returned; it settles devices, micro-batches, schedule and placement.

    Example:
        >>> import colonnade as cn, keras, tensorflow as tf
        >>> model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
        >>> pipeline = cn.Pipeline(model, devices=2, micro_batches=4)
        >>> pipeline(tf.ones([10, 3])).shape
        TensorShape([10, 1])
    """

    def __init__(
        self,
        stages: Any,
        devices: Any = None,
        *,
        micro_batches: int | None = None,
        schedule: str = "1f1b",
        placement: str | Sequence[int] = "auto",
        tied: Sequence[Any] = (),
        plan: Plan | None = None,
    ) -> None:
        self._layers = layers_of(stages)
        num_layers = len(self._layers.names)
        if plan is not None:
            check("Pipeline()", plan_problems(plan, num_layers, devices, micro_batches, placement))
            devices, micro_batches, schedule = rows_planned(plan), plan.micro_batches, plan.schedule
            placement = "auto" if plan.layers is None else plan.layers
        self.rows = rows_of(devices, num_layers)
        self.num_stages = len(self.rows[0])
        check("Pipeline()", problems(num_layers, self.num_stages, micro_batches, schedule, placement, tied))
        self.micro_batches = PER_STAGE * self.num_stages if micro_batches is None else micro_batches
        self.schedule: Schedule = SCHEDULES[schedule]
        self.tied = {ref for one in tied for ref in refs_of(one)}
        self.placement: tuple[int, ...] | None = None  # the stage of each layer, once it is settled
        self._stages: list[Stage] = []
        self.optimizer: Any = None  # whose slots count where memory is short; a trainer sets it
        if not isinstance(placement, str):
            self._settle(tuple(placement))
        elif num_layers == self.num_stages:
            self._settle(tuple(range(num_layers)))
        self._traces: dict[tuple[int, bool | None], TraceCache[Traced]] = {}
        self._compiled: dict[Hashable, Any] = {}
        with tf.device("/device:CPU:0"):
            # A line per task of the last training step: row, stage, micro-batch, backward, start, end.
            self._stamps = tf.Variable(tf.zeros([0, 6], tf.float64), shape=[None, 6], trainable=False)

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices, pipeline by pipeline."""
        return tuple(device for row in self.rows for device in row)

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of the layers that are dealt out, in order."""
        return tuple(self._layers.names)

    def counts(self, total: int) -> list[tuple[int, ...]]:
        """For each pipeline that has work, the sizes of the micro-batches of a batch of `total` examples.

        >>> import colonnade as cn, tensorflow as tf
        >>> cn.Pipeline([tf.identity], [[0], [1]], micro_batches=2).counts(7)
        [(2, 2), (2, 1)]
        """
        return [sizes(count, self.micro_batches) for count in sizes(total, len(self.rows))]

    def __str__(self) -> str:
        """Who holds what: a line per stage."""
        if self.placement is None:
            return f"{len(self.layers)} layers, not dealt out yet, on {', '.join(map(short, self.devices))}"
        homes = [", ".join(short(row[k]) for row in self.rows) for k in range(self.num_stages)]
        width = max(map(len, homes))
        return "\n".join(f"{home:{width}}  {s.name}" for home, s in zip(homes, self._stages, strict=True))

    def __call__(self, *inputs: Any, training: bool | None = None) -> Any:
        context = tf.distribute.get_replica_context()
        if isinstance(context, TracingContext):
            return self._traced(context, inputs, training)
        return self._run(inputs, training)

    # AutoGraph comes through here to the user's functions, so this is left to it.
    def _traced(self, context: TracingContext, inputs: tuple[Any, ...], training: bool | None) -> Any:
        """Inside a trace of Colonnade's: all stages, with marks between them at which the trace is cut."""
        values, origins = self._begin(context, inputs, training)
        for number, stage in enumerate(self._stages):
            taken = self._entered(context, stage, number, values, origins)
            try:
                results = stage.call(taken, training)
            except MISTAKES as error:
                self._refuse(stage, number, taken, error)
            self._note(stage, number, results, values, origins)
        return self._layers.given(values)

    @unconverted
    def _begin(
        self, context: TracingContext, inputs: tuple[Any, ...], training: bool | None
    ) -> tuple[dict[Hashable, Any], dict[Any, int]]:
        values = self._layers.taken(inputs)
        context.stage_marks.enter(self, self.num_stages)
        try:
            self.settle(values, training)
        except ColonnadeError as mistake:
            context.mistakes.append(mistake)
            raise
        return values, dict.fromkeys(values, 0)

    @unconverted
    def _entered(
        self,
        context: TracingContext,
        stage: Stage,
        number: int,
        values: dict[Hashable, Any],
        origins: dict[Any, int],
    ) -> list[Any]:
        """What a stage takes; a value that comes from another stage is marked, and is then this one's."""
        for key in stage.takes:
            if origins[key] != number:
                values[key] = context.stage_marks.cross(values[key], origins[key], number, self.num_stages)
                origins[key] = number
        return [values[key] for key in stage.takes]

    @unconverted
    def _note(
        self,
        stage: Stage,
        number: int,
        results: Sequence[Any],
        values: dict[Hashable, Any],
        origins: dict[Any, int],
    ) -> None:
        values.update(zip(stage.gives, results, strict=True))
        origins.update(dict.fromkeys(stage.gives, number))

    @unconverted
    def _refuse(self, stage: Stage, number: int, taken: Any, error: Exception) -> None:
        source = f"what stage {number - 1} returns" if number else "the input of the pipeline"
        raise refused(misfit(f"stage {number}", stage.name, source, taken, error))

    @unconverted
    def _run(self, inputs: tuple[Any, ...], training: bool | None) -> Any:
        """By itself: every stage on its device, for one micro-batch after the other."""
        arguments = Arguments(inputs, {})
        if not tf.executing_eagerly():
            return self._forward(arguments, training)
        key = (arguments.key(), training)
        if key not in self._compiled:
            structure: list[Any] = []
            known = arguments.resized(arguments.size("the pipeline") or 0)

            def forward(*components: Any) -> Any:
                result = self._forward(known.with_components(components), training)
                structure.append(result)
                return tf.nest.flatten(result, expand_composites=True)

            specs = [tf.TensorSpec(c.shape, c.dtype) for c in known.components()]
            try:
                function = concrete(forward, *specs)
            except ColonnadeError as mistake:
                # The user's own mistake, without the frames of TensorFlow's tracing around it.
                raise mistake.with_traceback(None) from None
            self._compiled[key] = function, structure[-1]
        function, result = self._compiled[key]
        return tf.nest.pack_sequence_as(result, function(*arguments.components()), expand_composites=True)

    def _forward(self, arguments: Arguments, training: bool | None) -> Any:
        total = arguments.size("the pipeline")
        if total is None:
            counts = arguments.counts(self.micro_batches * len(self.rows))
            rows = [self.rows[i // self.micro_batches] for i in range(len(counts))]
        else:
            split = self.counts(total)
            counts = [count for row in split for count in row]
            rows = [self.rows[i] for i, row in enumerate(split) for _ in row]
        parts = arguments.parts(counts)
        results = []
        for i, (part, row) in enumerate(zip(parts, rows, strict=True)):
            results.append(self._through(part, row, i, training))
        flat = [tf.nest.flatten(result) for result in results]
        joined = [
            join_leaf(
                f"[{i}]",
                column,
                [row[-1] for row in rows],
                counts,
                "concat",
                _follows(column, counts),
                "the pipeline",
            )
            for i, column in enumerate(zip(*flat, strict=True))
        ]
        return tf.nest.pack_sequence_as(results[0], joined)

    def _through(self, part: Arguments, row: Sequence[str], micro_batch: int, training: bool | None) -> Any:
        """One micro-batch through the stages."""
        args, _ = part.unpack(part.components())
        values = self._layers.taken(tuple(args))
        self.settle(values, training)
        for number, (stage, device) in enumerate(zip(self._stages, row, strict=True)):
            taken = Arguments(([values[key] for key in stage.takes],), {})
            traced = self._trace(stage, number, taken, micro_batch, training)
            results = traced.pack(traced.on(device, taken.components(), replica=micro_batch))
            values.update(zip(stage.gives, results, strict=True))
        return self._layers.given(values)

    def _trace(
        self, stage: Stage, number: int, taken: Arguments, micro_batch: int, training: bool | None
    ) -> Traced:
        if (number, training) not in self._traces:
            make = partial(self._traced_stage, stage, number, training)
            self._traces[number, training] = TraceCache(make, [self.rows[0][number]])
        total = self.micro_batches * len(self.rows)
        return self._traces[number, training].of_micro_batch(taken, micro_batch, total)

    def _traced_stage(
        self, stage: Stage, number: int, training: bool | None, taken: Arguments, voice: Voice | None
    ) -> Traced:
        def call(values):  # type: ignore[no-untyped-def]
            return stage.call(values, training)

        try:
            traced = Traced(call, taken, voice)
        except MISTAKES as error:
            source = f"what stage {number - 1} returns" if number else "the input of the pipeline"
            given = [leaf.value for leaf in taken.leaves]
            raise misfit(f"stage {number}", stage.name, source, given, error) from None
        check("Pipeline()", self._too_heavy(stage, number, traced.variables))
        return traced

    def _too_heavy(self, stage: Stage, number: int, variables: Sequence[Any]) -> Iterator[Problem]:
        """A stage whose weights alone are more than a device may hold; a trainer looks at the rest too."""
        size = sum(num_bytes(variable) for variable in variables if home_of(variable) is None)
        for row in self.rows:
            limit = estimated_limit(row[number])
            if limit is not None and size > limit:
                needed = f"{size / 2**20:.1f} MiB of weights that {short(row[number])} gets with {stage.name}"
                rule, fix = f"is below the {needed}", 'Leave placement="auto", or take more devices'
                yield Problem("memory", limit // 2**20, rule, fix)

    def note(self, stamps: Sequence[Stamp]) -> Any:
        """Keep the times of a step, for `timeline`; call it in the graph of the step."""
        tasks = tf.constant([stamp.task for stamp in stamps], tf.float64)
        times = tf.reshape(tf.stack([t for s in stamps for t in (s.start, s.end)]), [-1, 2])
        return self._stamps.assign(tf.concat([tasks, times], axis=1))

    def timeline(self) -> Timeline:
        """When each stage worked on which micro-batch in the last training step, by its own clock.

        Every task notes the time inside the graph: when all that it takes is there, and when all that
        it gives is. On cards the end of a task is when a value computed after all others has come back
        to the host, so it is the time of execution and not that of enqueueing; this has not been tried
        on a card yet.

        Example:
            >>> import colonnade as cn, keras, tensorflow as tf
            >>> pipeline = cn.Pipeline([keras.layers.Dense(4), keras.layers.Dense(1)], 2, micro_batches=3)
            >>> loss = lambda x: tf.squeeze(pipeline(x), axis=1) ** 2
            >>> trainer = cn.Trainer(loss, keras.optimizers.SGD(0.1), devices=pipeline)
            >>> record = trainer.train_on_batch(tf.ones([6, 2]))
            >>> len(pipeline.timeline().events)  # 2 stages, 3 micro-batches, there and back
            12
        """
        events = [
            Event(
                short(self.rows[int(row)][int(stage)]),
                start,
                end,
                "backward" if backward else "forward",
                int(stage),
                int(micro_batch),
                int(row),
            )
            for row, stage, micro_batch, backward, start, end in self._stamps.numpy().tolist()
        ]
        if not events:
            rule, fix = "no step has been trained yet", "Call trainer.train_on_batch() or fit() first"
            raise InvalidArgument("Pipeline.timeline()", [Problem("pipeline", "new", rule, fix)])
        return Timeline.of(events)

    def settle(self, values: dict[Hashable, Any], training: bool | None) -> None:
        """Decide which layer goes where, if that is still open, for micro-batches like these."""
        if self.placement is not None:
            return
        limits = [room(device) for device in self.rows[0]]
        layers = measured(
            self._layers,
            values,
            training,
            self.rows[0][0],
            self.optimizer,
            with_memory=any(limit is not None for limit in limits),
        )
        rooms = rooms_of([short(d) for d in self.rows[0]], limits, self.schedule, self.micro_batches)
        placement = place(layers, rooms)
        check(
            "Pipeline()",
            misfits(layers, rooms, self.schedule, self.micro_batches) if placement is None else (),
        )
        assert placement is not None
        self._settle(placement)

    def _settle(self, placement: tuple[int, ...]) -> None:
        self.placement = placement
        starts = [placement.index(stage) for stage in range(self.num_stages)]
        ends = [*starts[1:], len(placement)]
        self._stages = [self._layers.stage(begin, end) for begin, end in zip(starts, ends, strict=True)]


def _follows(values: Sequence[Any], counts: Sequence[Any]) -> bool:
    """Whether the first dim of an output is that of the micro-batches, as far as is known."""
    if not all(tf.is_tensor(value) and value.shape.rank != 0 for value in values):
        return False
    sizes = [None if value.shape.rank is None else value.shape[0] for value in values]
    known = zip(sizes, counts, strict=True)
    return all(size is None or not isinstance(count, int) or size == count for size, count in known)
