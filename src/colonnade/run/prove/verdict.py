"""What becomes of the proof on the first batch (`prove=`): a line that says it, an error, or a warning.

What is documented to differ is told apart by testing: what draws random numbers differs from itself, and
what happens only in training (dropout, statistics of a batch) is not there without it. The rest is a mistake.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import keras
import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import slice_specs, slices
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import limited, misfits, of_replicas
from colonnade.run.parallel.verify_report import Comparison
from colonnade.run.prove import slice_failure
from colonnade.run.prove.look import STATE, Look
from colonnade.run.prove.proof import ROWS, InSlices, More, nothing_more
from colonnade.run.prove.step_in_slices import StepInSlices
from colonnade.run.step.objective import Objective
from colonnade.run.sync.lockstep import Lockstep
from colonnade.run.trace.keras_owner import layers_of
from colonnade.run.trace.traced import Traced

Trace = Callable[[Arguments], Objective]
Found = InSlices | StepInSlices
F = TypeVar("F", InSlices, StepInSlices)

TOO_LARGE = "not proved on the first batch: it is too large for one device"
GO_ON = 'prove="warn" goes on all the same'


def of_prove(prove: Any) -> Iterator[Problem]:
    """What is wrong with a value of `prove=`."""
    if not any(prove is value for value in (True, False)) and prove != "warn":
        yield Problem("prove", prove, 'must be True, False or "warn"', "Leave it out to prove")


class Prover:
    """Makes the proof on a first batch, and says what came of it.

    Args:
        prove: True, False or "warn".
        where: who asks, for messages.
        say: prints a line.
        step: the name of the step, where it is one of a model's own.
    """

    def __init__(
        self, prove: bool | str, where: str, say: Callable[[str], Any], step: str = "train_step"
    ) -> None:
        self.wanted, self._warns = prove is not False, prove == "warn"
        self._where, self._say, self._step = where, say, step

    def in_training(
        self, traces: Traces, batch: Arguments, counts: Sequence[int], more: More = nothing_more
    ) -> InSlices:
        """The batch as the training computes it, from the traces that it uses."""
        parts = [traces.objective(p, i, len(counts)) for i, p in enumerate(slice_specs(batch, counts))]
        in_slices = InSlices(traces.of_one_device(batch), parts, counts, batch, traces.devices[0], more)
        return quiet(in_slices)

    def fits(self, traces: Traces, batch: Arguments) -> bool:
        """Whether one device, whose limit is known, can hold the whole batch; if not, that is said."""
        device = traces.devices[:1]
        if not limited(device):
            return True
        whole, rows = traces.of_one_device(batch), batch.size(self._where) or 0
        (part,) = slices(with_zeros(batch), [rows])
        if not any(misfits(of_replicas(whole, traces.optimizer, part, device, "shared", 1))):
            return True
        self._say(TOO_LARGE)
        return False

    @contextmanager
    def raising(self) -> Iterator[None]:
        """While what differs is told to whoever asks, and not to the user."""
        warns, self._warns = self._warns, False
        try:
            yield
        finally:
            self._warns = warns

    def proved(self, look: Look) -> bool:
        """Whether nothing differs; then it is said."""
        if not look.silent:
            self.unproved("it calls Python or writes files, which would happen once more")
            return True
        try:
            if look.unequal:
                return False
        except tf.errors.ResourceExhaustedError:
            self._say(TOO_LARGE)
            return True
        self._say(f"proved on the first batch: {_largest(look.rows)}")
        return True

    def proved_but_for_training(self, trained: Found, calm: Found) -> bool:
        """Whether what differs is there only in training: random numbers, or statistics that it keeps."""
        if calm.look.unequal or not (trained.look.random or trained.changes_states):
            return False
        if not trained.look.random and (_only_states(trained) or trained.look.summed_states):
            return False
        what = "random numbers" if trained.look.random else "statistics of the slices"
        self._say(f"proved on the first batch, without the {what} of training: {_largest(calm.look.rows)}")
        return True

    def without_draws(self, trained: Found) -> Found | None:
        """What draws random numbers, with fixed ones; None if it draws none, or in loops too."""
        if not trained.look.random:
            return None
        fixed = trained.with_fixed_draws()
        return None if fixed.look.random else fixed

    def _without_draws(self, trained: Found, calm: Found | None) -> Found | None:
        """The same of what was computed without training, if that is there; where it is not equal yet."""
        computed = calm or trained
        return (self.without_draws(computed) if computed.look.unequal else None) or calm

    def unproved(self, why: str) -> None:
        """Nothing can be compared: said to all, for a mistake would go unseen."""
        warnings.warn(f"{self._where}: not proved on the first batch: {why}", stacklevel=2)

    def examine(self, engine: Lockstep, trace: Trace, name: str, batch: Arguments) -> None:
        """Prove what a function computes; raise, if it is not the same on several devices.

        Args:
            engine: what trains.
            trace: traces the function, for nobody else's use.
            name: of the function.
            batch: the first one.
        """
        counts = engine.cut(batch)
        if len(counts) < 2 or not self.fits(engine.traces, batch):
            return
        trained = self.in_training(engine.traces, batch, counts)
        with slice_failure.told(self._where, name, lambda: trained.look, slice_failure.WHOLE):
            proved = self.proved(trained.look)
        if proved:
            return
        calm: Found | None = _without_training(trained, trace)
        calm = self._without_draws(trained, calm)
        if calm is None or not self.proved_but_for_training(trained, calm):
            self.refuse(trained, calm, ("loss", name))

    def examine_step(self, trained: StepInSlices, again: Callable[[], StepInSlices], name: str) -> None:
        """Prove what a step of a model's own does; raise, if it is not the same on several devices.

        `again` traces it once more, as it is by then.
        """
        trained = quiet(trained)
        if self.proved(trained.look):
            return
        norms = _norms(trained.whole)
        calm: Found | None = None
        if norms:
            with _frozen(norms):
                calm = quiet(again())
        calm = self._without_draws(trained, calm)
        if calm is None or not self.proved_but_for_training(trained, calm):
            self.refuse(trained, calm, (self._step, name))

    def examine_forward(
        self, look: Look, by_rounding: Callable[[], bool], problem: Callable[[], Problem]
    ) -> None:
        """Prove what a model predicts; raise, if it is not the same on several devices.

        Args:
            look: at the first batch.
            by_rounding: whether all that differs is what a last digit decides, such as a class.
            problem: what differs, in words.
        """
        if self.proved(look):
            return
        if look.random:
            self._say("not proved on the first batch: it draws random numbers, others on each device")
        elif by_rounding():
            self._say("proved on the first batch, but for choices that last digits decide")
        else:
            self._told(problem())

    def refuse(self, trained: Found, calm: Found | None, source: tuple[str, Any]) -> None:
        """Say what differs and why, unless that is because of random numbers."""
        shown = calm if calm is not None and calm.look.unequal else trained
        if shown.look.random and not (isinstance(shown, StepInSlices) and shown.summed):
            self.unproved("it draws random numbers, which are others on each device")
        else:
            self._told(_problem(shown, source))

    def _told(self, problem: Problem) -> None:
        if not self._warns:
            raise InvalidArgument(self._where, [problem])
        warnings.warn(f"{self._where}: {problem}", stacklevel=2)


def quiet(comparison: F) -> F:
    """What was found, with nothing printed when it is run once more."""
    return comparison if comparison.look.silent else comparison.muted()


def _without_training(trained: InSlices, trace: Trace) -> InSlices | None:
    """The same without what happens only in training, if the function can be asked for that."""
    leaves = trained.batch.leaves
    if any(leaf.path == "training" and leaf.role == "fixed" for leaf in leaves):
        values = [False if leaf.path == "training" else leaf.value for leaf in leaves]
        batch = trained.batch.with_values(values)
        return quiet(InSlices.traced(trace, trained.counts, batch, trained.device))
    norms = _norms(trained.whole)
    if not norms:
        return None
    with _frozen(norms):
        return quiet(InSlices.traced(trace, trained.counts, trained.batch, trained.device))


def _norms(traced: Traced) -> list[Any]:
    """Batch normalisations whose statistics are those of the slice."""
    layers = {id(layer): layer for layer in layers_of(traced.written)}
    norm = keras.layers.BatchNormalization
    return [layer for layer in layers.values() if isinstance(layer, norm) and not layer.synchronized]


@contextmanager
def _frozen(norms: Sequence[Any]) -> Iterator[None]:
    """While they do as without training: they take the moving averages."""
    for layer in norms:
        layer.trainable = False
    try:
        yield
    finally:
        for layer in norms:
            layer.trainable = True


def _only_states(comparison: Found) -> bool:
    """Whether it differs in statistics by which nothing else differs, so that nothing would show it later."""
    return all(row.leaf.startswith(STATE) for row in comparison.look.unequal)


def _largest(rows: Sequence[Comparison]) -> str:
    """Of the value that comes nearest to its tolerance."""
    if not rows:
        return "it gives nothing to compare"
    worst = max(rows, key=lambda row: row.difference / row.tolerance if row.tolerance else 0.0)
    return f"largest difference {worst.difference:.1g}, allowed {worst.tolerance:.1g} ({worst.leaf})"


def _problem(comparison: Found, source: tuple[str, Any]) -> Problem:
    """In the words of what was found: the first value that differs, and what shows why."""
    unequal = comparison.look.unequal
    worst = next((row for row in unequal if row.leaf.startswith("prediction")), unequal[0])
    if not comparison.look.random:  # what is kept as a sum makes the rest differ
        worst = next((row for row in unequal if row.leaf in comparison.look.summed_states), worst)
    seen = f"{worst.leaf} differs by {worst.difference:.2g} from one device on the first batch, and "
    seen += f"{worst.tolerance:.1g} is rounding"
    if worst.leaf.startswith("prediction"):
        rule = f"lets examples influence each other, and a slice has only some of them: {seen}"
        fix = f"Take batches apart, train on one device (devices=1), or {GO_ON}"
        return Problem("model", source[1], rule, fix)
    if worst.leaf.startswith(STATE):
        name = worst.leaf.removeprefix(f"{STATE} ")
        rule = f"is given what is no mean over the examples, and the mean of the slices is kept: {seen}"
        fix = "Give it a mean, say aggregation= of the variable if it is a sum, count examples with a "
        fix += f"keras.metrics.Sum, or train on one device (devices=1); {GO_ON}"
        return Problem("variable", name, rule, fix)
    if worst.leaf.startswith(ROWS):
        rule = "is looked up at rows of which a slice has others, or more of them, than the whole batch, and "
        rule += f"optimizers take rows one by one: {seen}"
        fix = "Look it up by the ids of examples, or read it as a whole: "
        fix += "tf.gather(tf.convert_to_tensor(table), ids)"
        return Problem("variable", worst.leaf.removeprefix(f"{ROWS} "), rule, f"{fix}; {GO_ON}")
    logs = [row for row in unequal if row.leaf.startswith("log")]
    if isinstance(comparison, StepInSlices) and logs == unequal:  # what it trains is equal
        rule = f"tells what is no mean over the examples, and the mean of the slices is told: {seen}"
        fix = "Give a metric one value for each example and tell its result, or leave it out of the logs; "
        return Problem(*source, rule, f"{fix}{GO_ON}")
    if isinstance(comparison, StepInSlices) and not logs and not comparison.summed:
        # The losses that it tells are equal.
        rule = f"makes of gradients what is not the mean of what slices give, as clipping does: {seen}"
        fix = "Let the optimizer do it (clipnorm=, global_clipnorm=, clipvalue=), which is given those of "
        fix += f"all slices, or train on one device (devices=1); {GO_ON}"
        return Problem(*source, rule, fix)
    if comparison.summed:
        rule = f"is a sum over the examples of a batch, so each slice would count too little: {seen}"
        fix = f"Take the mean over the examples, or train on one device (devices=1); {GO_ON}"
    elif isinstance(comparison, StepInSlices):
        rule = f"has a loss that is not the mean of the losses of slices: {seen}"
        fix = "Leave the step to Keras and override compute_loss, which is given the predictions of the "
        fix += f"whole batch, or train on one device (devices=1); {GO_ON}"
    else:
        rule = f"is not the mean of the losses of slices: {seen}"
        fix = "Where examples are left out, return cn.Weighted(losses, weights) to cn.Trainer; where they "
        fix += f"influence each other, train on one device (devices=1); {GO_ON}"
    return Problem(*source, rule, fix)
