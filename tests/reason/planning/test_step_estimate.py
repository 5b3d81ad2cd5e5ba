"""The closed form puts layouts into nearly the order that the simulation does."""

import numpy as np
import pytest
from workloads import cards, drawn

from colonnade.reason.planning.layouts import axes, dealt, variants
from colonnade.reason.planning.step_estimate import estimated
from colonnade.reason.simulator.runtime import ENGINE
from colonnade.reason.simulator.simulate import simulate


@pytest.mark.parametrize("seed", range(6))
def test_the_best_by_the_estimate_is_among_the_best_by_the_simulation(seed):
    work, box = drawn(seed), cards(8)
    plans = [p for a in axes(8, work) for p in variants(box, work, *a, {}) if p.recompute == "none"]
    plans = [complete for plan in plans if (complete := dealt(box, work, plan)) is not None]
    steps = np.array([simulate(box, work, plan, events=False).step for plan in plans])
    guessed = np.array([estimated(box, work, plan, ENGINE) for plan in plans])
    assert steps[np.argmin(guessed)] <= 1.25 * steps.min()
