import re

import pytest
import tensorflow as tf
from examined import DEVICES

from colonnade.run.move.reduce import reduce
from colonnade.run.selftest.verdict import SelfCheck, Verdict


def test_an_error_is_a_failure_and_says_where():
    def broken(devices):
        return reduce([[tf.ones(2)]], devices, ())

    result = SelfCheck("broken", "a", "b", broken).on(DEVICES)
    assert result.state == "failed"
    assert (result.found, bool(result.words)) == ("ValueError", True)
    assert any(re.fullmatch(r"run/move/reduce\.py:\d+ reduce", place) for place in result.figures["where"])


@pytest.mark.parametrize(("passed", "state"), [(True, "passed"), (False, "failed"), (None, "not applicable")])
def test_a_result_says_what_was_compared_and_what_came_of_it(passed, state):
    asked = []

    def run(devices):
        asked.append(devices)
        return Verdict(passed, "seen", {"figure": 1}, "of others")

    result = SelfCheck("name", "one with two", "none", run).on(DEVICES)
    assert asked == [DEVICES]
    assert (result.check, result.compares, result.tolerance) == ("name", "one with two", "none")
    assert (result.state, result.found, result.figures, result.words) == (
        state,
        "seen",
        {"figure": 1},
        "of others",
    )
