"""What becomes of the proof on the first batch (`prove=`): a line that says it, an error, or a warning.

What is documented to differ is told apart by testing: what draws random numbers differs from itself, and
what happens only in training (dropout, statistics of a batch) is not there without it. The rest is a mistake.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import tensorflow as tf

from colonnade.errors import InvalidArgument, Problem
from colonnade.run.batch.split import Arguments
from colonnade.run.batch.zeros import with_zeros
from colonnade.run.engine.gradients import slice_specs, slices
from colonnade.run.engine.traces import Traces
from colonnade.run.memory.estimate import limited, misfits, of_replicas
from colonnade.run.model.batch_norms import frozen, norms_of_slices
from colonnade.run.parallel.verify_report import Comparison
from colonnade.run.prove import slice_failure
from colonnade.run.prove.look import FIRST, NOT_FINITE, STATE, Look
from colonnade.run.prove.proof import ROWS, InSlices, More, nothing_more
from colonnade.run.prove.second_looks import bounds_said, with_gaps
from colonnade.run.prove.step_in_slices import StepInSlices
from colonnade.run.step.objective import Objective
from colonnade.run.sync.lockstep import Lockstep
from colonnade.run.trace.traced import Traced
from colonnade.run.variables.saved_state import named

Trace = Callable[[Arguments], Objective]
Found = InSlices | StepInSlices
F = TypeVar("F", InSlices, StepInSlices)
# What was compared, and what in place of that where it differs for a good reason.
W = TypeVar("W", bound=tuple[Any, Any])

TOO_LARGE = "not proved on the first batch: it is too large for one device"
GO_ON = 'prove="warn" goes on all the same'
# How often other numbers are taken in the place of drawn ones, of which the first may show nothing.
SALTS = 3
# Of the loss, where halves cannot hold its gradients; an optimizer would scale it down after some steps.
SMALLER = (2.0**-8, 2.0**-16, 2.0**-24)


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
        self._where, self._said, self._step = where, say, step
        # Whether the last batch that was looked at showed anything; and whether nothing is said now.
        self.told, self._aside = True, False

    def in_training(
        self,
        traces: Traces,
        batch: Arguments,
        counts: Sequence[int],
        more: More = nothing_more,
        where: str = FIRST,
    ) -> InSlices:
        """The batch as the training computes it, from the traces that it uses."""
        parts = [traces.objective(p, i, len(counts)) for i, p in enumerate(slice_specs(batch, counts))]
        whole = traces.of_one_device(batch)
        return quiet(InSlices(whole, parts, counts, batch, traces.devices[0], more, where))

    def _say(self, line: str) -> None:
        if not self._aside:
            self._said(line)

    @contextmanager
    def _silently(self) -> Iterator[None]:
        """While it is looked at what is not to be told."""
        before, told, self._aside = self._aside, self.told, True
        try:
            yield
        finally:
            self._aside, self.told = before, told

    @contextmanager
    def within_memory(self) -> Iterator[None]:
        """Around what one device computes of a whole batch, which may be too large: that is said."""
        try:
            yield
        except tf.errors.ResourceExhaustedError:
            self._say(TOO_LARGE)

    def wrong(self, found: F, varied: Arguments, judge: Callable[[F], W | None]) -> W | None:
        """What is wrong with a first batch, or would be with other values; None if nothing is.

        Args:
            found: the batch.
            varied: with other values, which show more (see `second_looks`).
            judge: tells what is wrong with one of them.
        """
        self.told = True
        if not found.look.silent:
            return judge(found)
        seen = found
        if varied is not found.batch:
            gaps = found.anew(varied, f"{found.where} with gaps in its first slice")
            seen = gaps if gaps.look.tells else found
        seen = _in_range(seen)
        amiss = judge(seen)
        if amiss is not None and seen.batch is varied and not (amiss[1] or amiss[0]).look.clear:
            seen = _in_range(found)  # values that are all the same are rounded in ways of their own
            amiss = judge(seen)
        self._warn_of_bounds(found.whole)
        resting = seen.resting
        if amiss is not None or not resting or not self.told:
            return amiss
        names = ", ".join(named(resting))
        with seen.look.kept(resting), self._silently():
            for variable in resting:
                variable.assign(tf.ones_like(variable))
            raised = seen.anew(seen.batch, f"{seen.where} where {names} is 1 and not 0")
            return judge(raised) if raised.look.tells else None

    def _warn_of_bounds(self, traced: Traced) -> None:
        """Of what is kept and goes on being a mean only as long as no slice alone reaches a bound."""
        of_norms = {v.value.ref() for norm in norms_of_slices(traced) for v in norm.variables}
        for said in bounds_said(traced, of_norms):
            warnings.warn(f"{self._where}: {said}", stacklevel=2)

    def told_wrong(self, found: F, amiss: W, judge: Callable[[F], W | None]) -> W:
        """The same of the batch as it is, if that is wrong as well: that is easier to understand."""
        if not found.look.silent:
            return amiss
        with self._silently():
            return judge(_in_range(found)) or amiss

    def fits(self, traces: Traces, batch: Arguments) -> bool:
        """Whether one device has room for the whole batch; if not, that is said."""
        if not (room := self.has_room(traces, batch)):
            self._say(TOO_LARGE)
        return room

    def has_room(self, traces: Traces, batch: Arguments) -> bool:
        """Whether one device, whose limit is known, can hold the whole batch."""
        device = traces.devices[:1]
        if not limited(device):
            return True
        whole, rows = traces.of_one_device(batch), batch.size(self._where) or 0
        (part,) = slices(with_zeros(batch), [rows])
        return not any(misfits(of_replicas(whole, traces.optimizer, part, device, "shared", 1)))

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
        if look.unequal or (look.untold and look.random):
            return False
        self._proved(look, "")
        return True

    def _proved(self, look: Look, without: str) -> None:
        """Nothing differs: say so, or that nothing could differ."""
        if look.untold is None:
            self._say(f"proved on the first batch{without}: {_largest(look.rows)}")
        else:
            self.told = False
            self.unproved(f"{look.untold}, as a whole and in slices, so nothing could differ")

    def proved_but_for_training(self, trained: Found, calm: Found) -> bool:
        """Whether what differs is there only in training: random numbers, or statistics that it keeps."""
        if calm.look.unequal or not (trained.look.random or trained.changes_states):
            return False
        if not trained.look.random and (_only_states(trained) or trained.look.summed_states):
            return False
        what = "random numbers" if trained.look.random else "statistics of the slices"
        self._proved(calm.look, f", without the {what} of training")
        return True

    def without_draws(self, trained: F) -> F | None:
        """What draws random numbers, with fixed ones; None if it draws none, or in loops too."""
        if not trained.look.random:
            return None
        for salt in range(SALTS):
            fixed = trained.with_fixed_draws(salt)
            if fixed.look.untold is None:
                break
        return None if fixed.look.random else fixed

    def _without_draws(self, trained: F, calm: F | None) -> F | None:
        """The same of what was computed without training, if that is there; where it is not equal yet."""
        computed = calm or trained
        return (self.without_draws(computed) if computed.look.unequal else None) or calm

    def unproved(self, why: str) -> None:
        """Nothing can be compared: said to all, for a mistake would go unseen."""
        if not self._aside:
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

        def judge(trained: InSlices) -> tuple[InSlices, InSlices | None] | None:
            if self.proved(trained.look):
                return None
            calm = self._without_draws(trained, _without_training(trained, trace))
            right = calm is not None and self.proved_but_for_training(trained, calm)
            return None if right else (trained, calm)

        with self.within_memory():
            found = self.in_training(engine.traces, batch, counts)
            with slice_failure.told(self._where, name, lambda: found.look, slice_failure.WHOLE):
                amiss = self.wrong(found, with_gaps(batch, counts), judge)
                if amiss is not None:
                    self.refuse(*self.told_wrong(found, amiss, judge), ("loss", name))

    def examine_step(self, found: StepInSlices, again: Callable[[], StepInSlices], name: str) -> None:
        """Prove what a step of a model's own does; raise, if it is not the same on several devices.

        `again` traces it once more, as it is by then.
        """

        def judge(trained: StepInSlices) -> tuple[StepInSlices, StepInSlices | None] | None:
            if self.proved(trained.look):
                return None
            norms, calm = norms_of_slices(trained.whole), None
            if norms:
                with frozen(norms):
                    calm = quiet(again().anew(trained.batch, trained.where))
            calm = self._without_draws(trained, calm)
            right = calm is not None and self.proved_but_for_training(trained, calm)
            return None if right else (trained, calm)

        with self.within_memory():
            found = quiet(found)
            amiss = self.wrong(found, with_gaps(found.batch, found.counts), judge)
            if amiss is not None:
                self.refuse(*self.told_wrong(found, amiss, judge), (self._step, name))

    def examine_forward(
        self, look: Look, by_rounding: Callable[[], bool], problem: Callable[[], Problem]
    ) -> None:
        """Prove what a model predicts; raise, if it is not the same on several devices.

        Args:
            look: at the first batch.
            by_rounding: whether all that differs is what a last digit decides, such as a class.
            problem: what differs, in words.
        """
        with self.within_memory():
            self._examine_forward(look, by_rounding, problem)

    def _examine_forward(
        self, look: Look, by_rounding: Callable[[], bool], problem: Callable[[], Problem]
    ) -> None:
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


def _in_range(comparison: F) -> F:
    """The same with a smaller loss, where halves cannot hold the gradients of this one."""
    if comparison.look.untold != NOT_FINITE:
        return comparison
    smaller = (comparison.scaled_by(scale) for scale in SMALLER)
    return next((other for other in smaller if other.look.untold is None), comparison)


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
    norms = norms_of_slices(trained.whole)
    if not norms:
        return None
    with frozen(norms):
        return quiet(InSlices.traced(trace, trained.counts, trained.batch, trained.device))


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
    seen = f"{worst.leaf} differs by {worst.difference:.2g} from one device on {comparison.where}, and "
    seen += f"{worst.tolerance:.1g} is rounding"
    if worst.leaf.startswith("prediction"):
        rule = f"lets examples influence each other, and a slice has only some of them: {seen}"
        fix = "Do in the dataset (data.map) what mixes examples, as some augmentation does, let layers take "
        fix += f"examples one by one, train on one device (devices=1), or {GO_ON}"
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
    elif source[0] == "add_loss":
        rule = f"is neither a mean nor a sum over the examples: {seen}"
        fix = "Let the model give what it is made of as an output, and add it in compute_loss, which has "
        fix += f"the outputs of the whole batch, or train on one device (devices=1); {GO_ON}"
    else:
        rule = f"is not the mean of the losses of slices: {seen}"
        fix = "Where examples are left out, return cn.Weighted(losses, weights) to cn.Trainer; where they "
        fix += f"influence each other, train on one device (devices=1); {GO_ON}"
    return Problem(*source, rule, fix)
