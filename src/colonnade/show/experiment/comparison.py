"""The experiment's table: a row for each trial, in words and figures."""

from dataclasses import dataclass

import numpy as np

from colonnade.experiment.answer import fraction, percent
from colonnade.experiment.design import Trial
from colonnade.experiment.findings import Difference, Findings, MeasuredTrial

REACHED = 0.95


@dataclass(frozen=True)
class TrialRow:
    """A trial as people read it; `one` is with one rate for all, `own` with a rate of its own."""

    mode: str
    devices: int
    pace: str
    rate: str
    test_one: str
    against_one: str
    test_own: str
    against_own: str
    noisy_own: str
    against_noisy: str
    gap_own: str
    spread_own: str
    updates_one: str
    updates_own: str
    bytes_per_example: str


def rows(findings: Findings, *, num_devices: int, pace: str) -> list[TrialRow]:
    """The modes on so many devices."""
    return [row(findings, Trial(mode, num_devices, pace)) for mode in findings.design.modes]


def row(findings: Findings, trial: Trial) -> TrialRow:
    one, own = (findings.measured(trial, tuned=tuned) for tuned in (False, True))
    reference = trial.mode == "synchronous"

    def against(difference: Difference) -> str:
        return "" if reference else interval(difference)

    return TrialRow(
        mode=trial.mode,
        devices=trial.num_devices,
        pace=trial.pace,
        rate=fraction(own.rate) + (" (edge)" if findings.at_edge(trial) else ""),
        test_one=percent(one.test.mean()),
        against_one=against(findings.against_synchronous(trial, tuned=False)),
        test_own=percent(own.test.mean()),
        against_own=against(findings.against_synchronous(trial, tuned=True)),
        noisy_own=percent(own.robust.mean()),
        against_noisy=against(findings.against_synchronous(trial, tuned=True, noisy=True)),
        gap_own=f"{100 * own.gap.mean():.1f}",
        spread_own=f"{100 * own.test.std(ddof=1):.2f}",
        updates_one=updates(findings, one),
        updates_own=updates(findings, own),
        bytes_per_example=f"{own.bytes_per_example:,.0f}",
    )


def updates(findings: Findings, measured: MeasuredTrial) -> str:
    """The median over the seeds of the updates to the accuracy that counts as learned."""
    steps = findings.steps_to(measured, REACHED)
    reached = [step for step in steps if step is not None]
    if not reached:
        return "never"
    median = f"{np.median(reached) * measured.updates_per_step:,.0f}"
    return median if len(reached) == len(steps) else f"{median} ({len(reached)} of {len(steps)} seeds)"


def interval(difference: Difference) -> str:
    return f"{difference.mean:+.1f} ({difference.low:+.1f} to {difference.high:+.1f})"
