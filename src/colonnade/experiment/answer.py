"""What the experiment says of synchronous and asynchronous training: three sentences from its figures.

An old article asks: if one step should move a weight by 1, and six cards each push their 1, it moves by
6. Is that over-correction, or noise that makes the model more robust?
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from colonnade.experiment.design import ASIDE, MODES, PACES, Trial
from colonnade.experiment.findings import Difference, Findings, Verdict

ASKED, IN_TURN = "asynchronous", "in turn"


@dataclass(frozen=True)
class Claim:
    """A sentence of the answer, and where else it holds and where not."""

    sentence: str
    short: str
    holds: list[str]
    fails: list[str]


def answer(findings: Findings) -> list[Claim]:
    """Three claims: with synchronous training's rate, with a rate of its own, and about noise."""
    return [_at_one_rate(findings), _tuned(findings), _noise(findings)]


def _at_one_rate(findings: Findings) -> Claim:
    trial, turn = _headline(findings, ASKED), _headline(findings, IN_TURN)
    difference = findings.against_synchronous(trial, tuned=False)
    in_turn = findings.against_synchronous(turn, tuned=False)
    own, other, one_by_one = (
        percent(findings.measured(each, tuned=False).test.mean())
        for each in (trial, findings.synchronous(trial.num_devices), turn)
    )
    opening = {
        "lower": "It is over-correction",
        "no different": "It is no over-correction that this experiment could see",
        "higher": "It is no over-correction but a gain",
    }[difference.verdict]
    if difference.verdict != "lower":
        cause = f"; the same pushes made in turn, so that each sees the one before, end at {one_by_one}"
    elif in_turn.mean > difference.mean / 2:
        cause = (
            f", while the same pushes made in turn, so that each sees the one before, end at {one_by_one}: "
            "it is the age of the gradients that does the harm, more than the number of pushes"
        )
    else:
        cause = (
            f", and the same pushes made in turn, so that each sees the one before, end at {one_by_one}: "
            "it is the number of pushes that does the harm, more than the age of the gradients"
        )
    sentence = (
        f"{opening}: at the rate that is best for synchronous training ({fraction(findings.common_rate)}), "
        f"{trial.num_devices} devices that each push their own step end at {own} on the test images instead "
        f"of {other} ({said(difference)}){cause}."
    )
    short = "At the rate that is best for synchronous training, asynchronous training is"
    claim = _claim(findings, sentence, short, lambda t: findings.against_synchronous(t, tuned=False))
    same_rates = findings.at_same_rates(trial)
    # With larger rates synchronous training fails as well, which says nothing.
    smaller = {rate: d for rate, d in same_rates.items() if rate < findings.common_rate}
    differ = {rate: d for rate, d in smaller.items() if d.verdict != difference.verdict}
    if not differ:
        return claim
    each = ", ".join(f"{fraction(rate)} ({d.mean:+.1f})" for rate, d in differ.items())
    case = f"{trial.mode}, {trial.num_devices} even devices, where both have a smaller rate: {each}"
    return replace(claim, fails=[*claim.fails, case])


def _tuned(findings: Findings) -> Claim:
    trial = _headline(findings, ASKED)
    difference = findings.against_synchronous(trial, tuned=True)
    before = findings.against_synchronous(trial, tuned=False)
    mine, other = (
        findings.measured(each, tuned=True) for each in (trial, findings.synchronous(trial.num_devices))
    )
    closing = {
        ("lower", "lower"): "a smaller loss stays" if difference.mean > before.mean else "the loss stays",
        ("lower", "no different"): "no loss that counts is left",
        ("lower", "higher"): "the loss turns into a gain",
    }.get((before.verdict, difference.verdict), f"its accuracy is {difference.verdict}")
    sentence = (
        f"With a rate of its own, {fraction(mine.rate)} instead of {fraction(other.rate)}, it ends at "
        f"{percent(mine.test.mean())} against {percent(other.test.mean())} ({said(difference)}): {closing}."
    )
    short = "With a rate of its own, asynchronous training is"
    return _claim(findings, sentence, short, lambda t: findings.against_synchronous(t, tuned=True))


def _noise(findings: Findings) -> Claim:
    trial, turn = _headline(findings, ASKED), _headline(findings, IN_TURN)
    difference = findings.against_synchronous(trial, tuned=True, noisy=True)
    in_turn = findings.against_synchronous(turn, tuned=True, noisy=True)
    mine, other = (
        findings.measured(each, tuned=True) for each in (trial, findings.synchronous(trial.num_devices))
    )
    closing = {
        "lower": "its noise is not welcome, it makes the model less robust",
        "no different": "its noise is neither welcome nor harmful, the model is not more robust and not less",
        "higher": "its noise is welcome, the model is more robust",
    }[difference.verdict]
    if difference.verdict == in_turn.verdict == "higher":
        closing += f", but so it is with the same pushes made in turn ({in_turn.mean:+.1f} points)"
    sentence = (
        f"On test images with noise added it is then right in {percent(mine.robust.mean())} against "
        f"{percent(other.robust.mean())} ({said(difference)}), with a gap of {100 * mine.gap.mean():.1f} "
        f"against {100 * other.gap.mean():.1f} points between training and test images: {closing}."
    )
    short = "With a rate of its own and on noisy images, asynchronous training is"
    return _claim(
        findings, sentence, short, lambda t: findings.against_synchronous(t, tuned=True, noisy=True)
    )


def others(findings: Findings) -> list[str]:
    """A sentence for each mode that the question does not ask about."""
    return [
        _other(findings, _headline(findings, mode))
        for mode in findings.design.modes
        if mode == "damped" or (not MODES[mode].raced and mode != "synchronous")
    ]


def _other(findings: Findings, trial: Trial) -> str:
    one, own = (findings.against_synchronous(trial, tuned=tuned) for tuned in (False, True))
    noisy = findings.against_synchronous(trial, tuned=True, noisy=True)
    mine, other = (
        findings.measured(each, tuned=True) for each in (trial, findings.synchronous(trial.num_devices))
    )
    share = mine.bytes_per_example / other.bytes_per_example
    return (
        f"{trial.mode}, on {trial.num_devices} devices, is {one.verdict} at that rate ({said(one)}), "
        f"{own.verdict} at its own, {fraction(mine.rate)} ({said(own)}), and {noisy.verdict} on noisy images "
        f"({said(noisy)}), with {percent(share)} of the bytes of synchronous training."
    )


def _headline(findings: Findings, mode: str) -> Trial:
    return Trial(mode, findings.headline, "even")


def _claim(findings: Findings, sentence: str, short: str, compare: Callable[[Trial], Difference]) -> Claim:
    verdict = compare(_headline(findings, ASKED)).verdict
    cases = {
        (mode, pace): {
            count: compare(Trial(mode, count, pace)) for count in findings.design.devices if count > 1
        }
        for mode in findings.design.modes
        if MODES[mode].raced and mode not in ASIDE
        for pace in PACES
    }
    holds, fails = (
        list(_listed(cases, lambda other, wanted=wanted: (other == verdict) == wanted))  # type: ignore[misc]
        for wanted in (True, False)
    )
    return Claim(sentence, f"{short} {verdict}", holds, fails)


def _listed(
    cases: dict[tuple[str, str], dict[int, Difference]], wanted: Callable[[Verdict], bool]
) -> Iterator[str]:
    """A line for each mode and pace that has such cases."""
    for (mode, pace), by_count in cases.items():
        which = {count: d for count, d in by_count.items() if wanted(d.verdict)}
        if which:
            each = ", ".join(f"{count} ({d.mean:+.1f})" for count, d in which.items())
            yield f"{mode}, {'even devices' if pace == 'even' else 'one device slow'}: {each}"


def fraction(rate: float) -> str:
    """A rate as people say it.

    >>> fraction(0.125), fraction(2.0)
    ('1/8', '2')
    """
    return f"{rate:g}" if rate >= 1 else f"1/{1 / rate:g}"


def percent(part: float) -> str:
    return f"{100 * part:.1f}%"


def said(difference: Difference) -> str:
    return f"{difference.mean:+.1f} points, 95% interval {difference.low:+.1f} to {difference.high:+.1f}"
