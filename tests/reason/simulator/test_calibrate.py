import pytest
from workloads import cards, timed

from colonnade.describe.plan import Plan
from colonnade.describe.workload import Workload
from colonnade.errors import InvalidArgument
from colonnade.reason.simulator.calibrate import calibrated
from colonnade.reason.simulator.simulate import simulate


@pytest.mark.parametrize("seconds", [0.01, 1.0, 300.0])
def test_a_calibrated_step_takes_what_was_measured(seconds):
    work = Workload.convnet(parameters=25_000_000, flops=8e9, batch=64)
    for plan in (Plan(batch=64), Plan(batch=64, data=4)):
        paced = calibrated(cards(4), work, plan, seconds)
        assert simulate(cards(4), paced, plan).step == pytest.approx(seconds, rel=1e-6)


def test_what_no_device_can_share_is_not_stretched():
    paced = calibrated(cards(1), timed([1.0], overhead=0.5), Plan(batch=8), 3.5)
    assert paced.pace == pytest.approx(3.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_step_that_took_no_time_is_refused(seconds):
    with pytest.raises(InvalidArgument, match="seconds"):
        calibrated(cards(1), timed(), Plan(batch=8), seconds)


def test_a_step_below_its_fixed_costs_is_refused():
    with pytest.raises(InvalidArgument, match=r"seconds=0\.3.*0\.5 s"):
        calibrated(cards(1), timed([1.0], overhead=0.5), Plan(batch=8), 0.3)
