import numpy as np
import pytest
from outcomes import made_up

from colonnade.experiment.design import Trial
from colonnade.experiment.findings import Difference

ASKED = Trial("asynchronous", 6, "even")


def found():
    return made_up(
        lambda trial, rate: 0.96 if trial.mode == "synchronous" or rate == 0.5 else 0.2,
        best=lambda trial: 0.5 if trial.mode == "asynchronous" else 1.0,
    )


def test_one_rate_is_synchronous_trainings_and_the_other_its_own():
    findings = found()
    assert findings.common_rate == 1.0
    one, own = (findings.measured(ASKED, tuned=tuned) for tuned in (False, True))
    assert (one.rate, own.rate) == (1.0, 0.5)
    assert (one.test.mean(), own.test.mean()) == pytest.approx((0.2, 0.96))
    assert own.gap == pytest.approx([0.02] * 3)
    assert own.bytes_per_example == 400
    assert findings.against_synchronous(ASKED, tuned=False).mean == pytest.approx(-76)
    assert findings.against_synchronous(ASKED, tuned=True).mean == pytest.approx(0)
    np.testing.assert_allclose(findings.by_rate(ASKED).mean(axis=1), [0.2, 0.96, 0.2, 0.2])


def test_rates_are_chosen_by_validation_and_never_by_test():
    findings = made_up(lambda trial, rate: 0.99 if rate == 2.0 else 0.5, best=lambda trial: 0.25)
    assert findings.best_rate(ASKED) == 0.25
    assert findings.at_edge(ASKED)
    assert not found().at_edge(ASKED)


def test_steps_to_an_accuracy():
    findings = found()
    own = findings.measured(ASKED, tuned=True)
    assert findings.steps_to(own, 0.95) == [64, 48, 48]  # 0.94, 0.949 and 0.95 before the end
    assert findings.steps_to(own, 0.96) == [None, 64, 64]
    assert findings.steps_to(findings.measured(ASKED, tuned=False), 0.95) == [None] * 3


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([-5.0, -4.0, -6.0], "lower"),
        ([5.0, 4.0, 6.0], "higher"),
        ([0.3, 0.3, 0.3], "no different"),  # sure, and too little to count
        ([9.0, -1.0, 2.0], "no different"),  # much, and not sure
    ],
)
def test_a_difference_counts_if_it_is_sure_and_large(points, verdict):
    found = Difference.of(np.array(points) / 100, np.zeros(3))
    assert found.verdict == verdict
    assert found.low <= found.mean <= found.high
    assert found.mean == pytest.approx(np.mean(points))


# The 97.5% quantiles of Student's t: closed forms for 1, 2 and 4 degrees of freedom, and one from a table.
STUDENTS = {2: np.tan(0.475 * np.pi), 3: 0.95 * np.sqrt(2 / 0.0975), 12: 2.2009851601}
ALPHA = np.sqrt(0.0975)
STUDENTS[5] = 2 * np.sqrt(np.cos(np.arccos(ALPHA) / 3) / ALPHA - 1)


@pytest.mark.parametrize("seeds", STUDENTS)
def test_the_interval_is_students_for_any_number_of_seeds(seeds):
    points = np.arange(1.0, 1 + seeds)
    difference = Difference.of(points / 100, np.zeros(seeds))
    half = STUDENTS[seeds] * points.std(ddof=1) / np.sqrt(seeds)
    assert (difference.low, difference.high) == pytest.approx((points.mean() - half, points.mean() + half))
