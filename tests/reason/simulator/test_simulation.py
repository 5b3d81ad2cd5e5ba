import pytest

from colonnade.describe.plan import Plan
from colonnade.describe.timeline import Timeline
from colonnade.reason.simulator.simulation import Simulation


def test_a_prediction_has_the_parts_of_the_step_and_the_efficiency():
    done = Simulation(0.5, Timeline(()), 0.3, 0.1, 0.05, 0.03, 0.02, 100, 50, 1000)
    told = done.prediction(Plan(batch=64, data=4), alone=1.5)
    assert told.examples_per_second == 128
    assert told.efficiency == 0.75
    parts = told.compute + told.waiting + told.reduction + told.update + told.overhead
    assert parts == pytest.approx(told.step)
    assert (told.moved, told.busiest, told.memory) == (100, 50, 1000)


def test_a_step_without_length_has_no_rate():
    nothing = Simulation(0.0, Timeline(()), 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0)
    assert nothing.prediction(Plan(batch=8), alone=0.0).examples_per_second == 0
