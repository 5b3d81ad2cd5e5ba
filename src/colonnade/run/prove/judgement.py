"""What is wrong with the loss of a model, and what differs for a good reason."""

from collections.abc import Callable

from colonnade.run.batch.split import Arguments
from colonnade.run.model.user_line import first_line
from colonnade.run.prove.proof import InSlices
from colonnade.run.prove.verdict import Prover, quiet
from colonnade.run.step.objective import Objective

# A batch, and what of it was compared in the end.
Wrong = tuple[InSlices, InSlices]


def judged(prover: Prover, trained: InSlices, calm: Callable[[Arguments], Objective]) -> Wrong | None:
    """What differs, if it is wrong; `calm` traces the loss without what happens only in training."""
    if prover.proved(trained.look):
        return None
    compared = _compared(prover, trained, calm)
    if compared is None or prover.proved_but_for_training(trained, compared):
        return None
    return trained, compared


def _compared(prover: Prover, trained: InSlices, trace: Callable[[Arguments], Objective]) -> InSlices | None:
    """The batch without what differs for a good reason; None where it is not had."""
    fixed = prover.without_draws(trained)
    if fixed is not None and (fixed.look.miscounted or not (fixed.look.unequal and fixed.changes_states)):
        return fixed
    try:
        how = trained.counts, trained.batch, trained.device, trained.more
        calm = quiet(InSlices.traced(trace, *how)).anew(trained.batch, trained.where)
        _ = calm.look.rows
    except Exception as error:  # whatever a model raises that is not made for it
        if not (trained.look.random or trained.changes_states):
            return trained
        said = f"cannot be computed with training=False: {type(error).__name__}: {first_line(error)}"
        prover.unproved(f"it draws random numbers or keeps statistics, and {said}")
        return None
    return calm
